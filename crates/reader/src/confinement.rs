//! Giving up everything that reading does not need. What holds afterwards is read back.

use crate::job::Job;
use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use pando_kernel::mistake::planted;
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::io;

/// Whose id a reader has: nobody's. Container managers, systemd and account tools give none so high, and no other part
/// of Pando has this one.
pub(crate) const READER: u32 = u32::MAX - 0x1_0001;

/// Memory of all kinds. Half of it is what unpacking xz may take; the rest is for headers, and for what is mapped of
/// the program.
const MEMORY: u64 = 1 << 30;

/// Seconds of processor time: a day of unpacking would be one archive of terabytes.
const SECONDS: u64 = 4 * 3600;

/// Why a reader has powers still.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotConfined {
    #[error("{0}: {1}")]
    Call(&'static str, io::Error),
    #[error("the file rules: {0}")]
    Files(#[from] landlock::RulesetError),
    #[error("the filter of system calls: {0}")]
    Filter(#[from] seccompiler::Error),
    #[error("the filter of system calls: {0}")]
    Rules(#[from] seccompiler::BackendError),
    #[error("it still has {0}")]
    Still(&'static str),
}

pub(crate) trait During<T> {
    fn during(self, what: &'static str) -> Result<T, NotConfined>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: &'static str) -> Result<T, NotConfined> {
        self.map_err(|error| NotConfined::Call(what, error.into()))
    }
}

/// Gives up what can be given up, in an order in which each step is still allowed.
pub(crate) fn enter(job: &Job) -> Result<(), NotConfined> {
    pando_kernel::process::inheritance::close_from(3).during("closing descriptors")?;
    rustix::thread::set_no_new_privs(true).during("giving up new privileges")?;
    reach_no_file()?;
    bound(job)?;
    be_nobody()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).during("hiding")?;
    // Changing the user has cleared it, if anything had set it.
    let kill = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(kill)).during("ending with who started it")?;
    read_back()?;
    seccompiler::apply_filter(&filter()?)?;
    Ok(())
}

/// A Landlock domain that grants nothing, as far as this kernel knows of it.
fn reach_no_file() -> Result<(), NotConfined> {
    let all = ABI::V6;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(all))?
        .handle_access(AccessNet::from_all(all))?
        .scope(Scope::from_all(all))?
        .create()?
        .restrict_self()?;
    Ok(())
}

/// What a record may take: its bytes, what they say, and the same put anew.
const COPIES: u64 = 4;

fn memory(job: &Job) -> u64 {
    match job {
        Job::Record { length, .. } => MEMORY.saturating_add(length.saturating_mul(COPIES)),
        _ => MEMORY,
    }
}

fn bound(job: &Job) -> Result<(), NotConfined> {
    let seconds = if planted("reader.time") || planted("record.time") { 2 } else { SECONDS };
    let bounds = [
        (Resource::As, memory(job), "bounding memory"),
        (Resource::Cpu, seconds, "bounding time"),
        (Resource::Fsize, 0, "bounding files"),
        (Resource::Core, 0, "bounding core files"),
        (Resource::Nproc, 0, "bounding processes"),
        (Resource::Nofile, 3, "bounding descriptors"),
        (Resource::Memlock, 0, "bounding locked memory"),
        (Resource::Msgqueue, 0, "bounding queues"),
    ];
    for (resource, most, what) in bounds {
        // Nobody may raise a bound that was lower already.
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |before| before.min(most));
        // The signal that names the bound of time comes at the lower one.
        let current = if resource == Resource::Cpu { most.saturating_sub(1).max(1) } else { most };
        setrlimit(resource, Rlimit { current: Some(current), maximum: Some(most) }).during(what)?;
    }
    Ok(())
}

/// Bounds a program of others' that this process becomes. Nobody may raise a bound that was lower already.
pub(crate) fn lower(bounds: &[(Resource, u64)]) -> Result<(), NotConfined> {
    for &(resource, most) in bounds {
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |before| before.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).during("setting a bound")?;
    }
    Ok(())
}

fn be_nobody() -> Result<(), NotConfined> {
    let caps = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    if rustix::process::geteuid().is_root() {
        caps::clear(None, caps::CapSet::Bounding).map_err(caps).during("bounding capabilities")?;
        let (user, group) = (rustix::fs::Uid::from_raw(READER), rustix::fs::Gid::from_raw(READER));
        rustix::thread::set_thread_groups(&[]).during("leaving groups")?;
        rustix::thread::set_thread_res_gid(group, group, group).during("changing the group")?;
        rustix::thread::set_thread_res_uid(user, user, user).during("changing the user")?;
    }
    for set in [caps::CapSet::Ambient, caps::CapSet::Inheritable, caps::CapSet::Effective, caps::CapSet::Permitted] {
        caps::clear(None, set).map_err(caps).during("giving up capabilities")?;
    }
    Ok(())
}

fn read_back() -> Result<(), NotConfined> {
    for set in [caps::CapSet::Ambient, caps::CapSet::Inheritable, caps::CapSet::Effective, caps::CapSet::Permitted] {
        let left = caps::read(None, set).map_err(|error| io::Error::other(error.to_string()));
        if !left.during("reading capabilities")?.is_empty() {
            return Err(NotConfined::Still("capabilities"));
        }
    }
    let users = [rustix::process::getuid(), rustix::process::geteuid()];
    let groups = [rustix::process::getgid(), rustix::process::getegid()];
    if users.iter().any(|user| user.is_root()) || groups.iter().any(|group| group.is_root()) {
        return Err(NotConfined::Still("root's user or group"));
    }
    if !rustix::process::getgroups().during("reading groups")?.is_empty() && users[0].as_raw() == READER {
        return Err(NotConfined::Still("groups"));
    }
    if !rustix::thread::no_new_privs().during("reading privileges")? {
        return Err(NotConfined::Still("a way to new privileges"));
    }
    Ok(())
}

/// What reading needs: the descriptors that it has, memory that is no code, its own end. Any other call ends it.
fn filter() -> Result<BpfProgram, NotConfined> {
    let allowed = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_ppoll,
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_restart_syscall,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = allowed.into_iter().map(|call| (call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, Vec::new());
    let only = |argument, length, operator, value| -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
        Ok(vec![SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])?])
    };
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, only(2, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(executable), 0)?);
    }
    // How a program ends itself that has no memory left.
    let me = u64::from(rustix::process::getpid().as_raw_pid().unsigned_abs());
    rules.insert(libc::SYS_tgkill, only(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, me)?);
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, machine)?.try_into()?)
}
