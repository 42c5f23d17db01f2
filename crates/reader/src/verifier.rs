//! The process that becomes `ssh-keygen`, to look at a signature that another has made.
//!
//! It is started as a reader is, with all that it needs in one sealed memory file, and gives up what it can before it
//! executes that program: it has a user id of its own, no capabilities and no way to any, may read programs and
//! settings of the system and write nothing, and makes no sockets and no processes. `ssh-keygen` refuses to work for a
//! user that has no name, so it is root in a user namespace in which there is nobody else.

use crate::child::{GOT_THROUGH, NOT_CONFINED, UNASKED};
use crate::confinement::{During, NotConfined, READER, lower};
use crate::signature::NAMESPACE;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use pando_kernel::memory;
use pando_kernel::mistake::planted;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::Resource;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio, exit};

/// What it is called: its first argument.
pub(crate) const NAME: &str = "pando-verifier";

/// What it ends with if there is no `ssh-keygen`.
pub(crate) const NO_PROGRAM: i32 = 127;

/// Where that is looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What a program needs to begin, and this one to know times and names.
const READABLE: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/nix/store", "/gnu/store", "/proc/filesystems"];

const MEMORY: u64 = 1 << 30;
const SECONDS: u64 = 10;

/// What is asked of a signature.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    /// What was signed.
    pub(crate) statement: Vec<u8>,
    /// As ssh-keygen writes it.
    pub(crate) signature: Vec<u8>,
    pub(crate) what: What,
}

/// Whether it is a signature at all; who may have made it; whether one of the signers has.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum What {
    Valid,
    Principals { signers: Vec<u8> },
    Of { signers: Vec<u8>, identity: String, revoked: Option<Vec<u8>> },
}

/// Does what this process was started for.
pub(crate) fn run() -> ! {
    let mut bytes = Vec::new();
    let read = io::stdin().read_to_end(&mut bytes).is_ok();
    let Some(question) = postcard::from_bytes::<Question>(&bytes).ok().filter(|_| read) else { exit(UNASKED) };
    match prepared(&question) {
        Ok(mut command) => {
            let error = command.exec();
            eprintln!("{error}");
            exit(if error.kind() == io::ErrorKind::NotFound { NO_PROGRAM } else { NOT_CONFINED })
        }
        Err(error) => {
            eprintln!("{error}");
            exit(NOT_CONFINED)
        }
    }
}

/// What is to be executed. The powers of this process are given up then.
fn prepared(question: &Question) -> Result<Command, NotConfined> {
    pando_kernel::process::inheritance::close_from(3).during("closing descriptors")?;
    let mut command = Command::new("ssh-keygen");
    command.env_clear().env("PATH", PATH).current_dir("/").stdin(Stdio::from(file(&question.statement)?));
    let signature = named(&question.signature)?;
    match &question.what {
        What::Valid => {
            command.args(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", &signature]);
        }
        What::Principals { signers } => {
            command.args(["-Y", "find-principals", "-s", &signature, "-f", &named(signers)?]);
        }
        What::Of { signers, identity, revoked } => {
            command.args(["-Y", "verify", "-n", NAMESPACE, "-s", &signature, "-f", &named(signers)?, "-I", identity]);
            if let Some(revoked) = revoked {
                command.args(["-r", &named(revoked)?]);
            }
        }
    }
    let bare = DEEDS.iter().any(|(name, _)| planted(&format!("verifier.bare.{name}")));
    if !bare {
        enter()?;
    }
    misbehave();
    Ok(command)
}

type Deed = (&'static str, fn() -> bool);

/// What one that was taken over would do.
const DEEDS: [Deed; 4] = [
    ("read", || File::open("/etc/shadow").is_ok()),
    ("write", || File::options().append(true).open("/etc/passwd").is_ok()),
    ("connect", || std::os::unix::net::UnixDatagram::unbound().is_ok()),
    ("fork", || Command::new("/bin/true").status().is_ok()),
];

/// Does it, where a test plants that. What gets through is told by how this process ends.
fn misbehave() {
    for (name, deed) in DEEDS {
        if (planted(&format!("verifier.{name}")) || planted(&format!("verifier.bare.{name}"))) && deed() {
            exit(GOT_THROUGH);
        }
    }
}

/// At its beginning.
fn file(content: &[u8]) -> Result<OwnedFd, NotConfined> {
    let made = memory::file::sealed("pando-verifier", content, false).and_then(|file| {
        let mut file = File::from(file);
        file.rewind()?;
        Ok(file.into())
    });
    made.during("putting a file into memory")
}

/// A file with some content, by a name that the program has for it. It lives as long as this process.
fn named(content: &[u8]) -> Result<String, NotConfined> {
    let file = file(content)?;
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).during("keeping a file")?;
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::mem::forget(file);
    Ok(name)
}

fn enter() -> Result<(), NotConfined> {
    be_alone()?;
    rustix::thread::set_no_new_privs(true).during("giving up new privileges")?;
    reach_few_files()?;
    bound()?;
    for set in [caps::CapSet::Bounding, caps::CapSet::Ambient, caps::CapSet::Inheritable] {
        caps::clear(None, set).map_err(other).during("giving up capabilities")?;
    }
    for set in [caps::CapSet::Effective, caps::CapSet::Permitted] {
        caps::clear(None, set).map_err(other).during("giving up capabilities")?;
        if !caps::read(None, set).map_err(other).during("reading capabilities")?.is_empty() {
            return Err(NotConfined::Still("capabilities"));
        }
    }
    let kill = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(kill)).during("ending with who started it")?;
    seccompiler::apply_filter(&filter()?)?;
    Ok(())
}

fn other(error: caps::errors::CapsError) -> io::Error {
    io::Error::other(error.to_string())
}

/// Becomes nobody, who is root where there is nobody else.
fn be_alone() -> Result<(), NotConfined> {
    let (user, group) = (rustix::fs::Uid::from_raw(READER), rustix::fs::Gid::from_raw(READER));
    rustix::thread::set_thread_groups(&[]).during("leaving groups")?;
    // Hosts that let nobody without privileges make user namespaces look at capabilities.
    rustix::thread::set_keep_capabilities(true).during("keeping capabilities")?;
    rustix::thread::set_thread_res_gid(group, group, group).during("changing the group")?;
    rustix::thread::set_thread_res_uid(user, user, user).during("changing the user")?;
    caps::raise(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN)
        .map_err(other)
        .during("keeping a capability")?;
    // Its own files in /proc are its own then.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).during("showing itself")?;
    pando_kernel::namespace::user::unshare().during("making a user namespace")?;
    for (name, line) in
        [("setgroups", "deny".into()), ("uid_map", format!("0 {READER} 1")), ("gid_map", format!("0 {READER} 1"))]
    {
        std::fs::write(format!("/proc/self/{name}"), line).during("mapping ids")?;
    }
    // What was mapped is what holds.
    let map = std::fs::read_to_string("/proc/self/uid_map").during("reading ids")?;
    let ids: Vec<&str> = map.split_whitespace().collect();
    if ids == ["0", &READER.to_string(), "1"] { Ok(()) } else { Err(NotConfined::Still("another user's id")) }
}

fn reach_few_files() -> Result<(), NotConfined> {
    let all = ABI::V6;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(all))?
        .handle_access(AccessNet::from_all(all))?
        .scope(Scope::from_all(all))?
        .create()?
        .add_rules(landlock::path_beneath_rules(READABLE, AccessFs::from_read(all)))?
        .add_rules(landlock::path_beneath_rules(["/dev/null"], AccessFs::ReadFile | AccessFs::WriteFile))?
        .restrict_self()?;
    Ok(())
}

fn bound() -> Result<(), NotConfined> {
    lower(&[
        (Resource::As, MEMORY),
        (Resource::Cpu, SECONDS),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::Nproc, 0),
        (Resource::Nofile, 32),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
    ])
}

/// What a program needs to begin differs between C libraries: so what it must not do is named, and not what it may.
fn filter() -> Result<BpfProgram, NotConfined> {
    let denied = [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_kill,
        libc::SYS_io_uring_setup,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_fsopen,
        libc::SYS_open_tree,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        libc::SYS_shmget,
        libc::SYS_semget,
        libc::SYS_msgget,
        libc::SYS_mq_open,
        libc::SYS_memfd_create,
    ];
    let mut rules: std::collections::BTreeMap<i64, Vec<_>> =
        denied.into_iter().map(|call| (call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend([(libc::SYS_fork, Vec::new()), (libc::SYS_vfork, Vec::new())]);
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refusal, machine)?.try_into()?)
}

/// A question, as the file that such a process begins with.
pub(crate) fn asked(question: &Question) -> io::Result<File> {
    let bytes = postcard::to_stdvec(question).map_err(io::Error::other)?;
    let mut file = File::from(memory::file::sealed("pando-question", &bytes, false)?);
    file.rewind()?;
    Ok(file)
}
