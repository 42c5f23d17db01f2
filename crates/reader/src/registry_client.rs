//! The process that becomes `skopeo`, to speak with a registry.
//!
//! A registry is foreign, and so is all that it sends. What speaks with it is therefore started as a reader is: it has
//! a user id of its own, no capabilities and no way to any. It may read programs and settings of the system, and write
//! to one directory, which it sees as `/tmp`; its files have a bound. It makes no servers.
//!
//! Unlike a reader it needs the network, threads, and whatever a Go program needs: so what it must not do is named, and
//! not what it may. It is to be started as the first process of a pid namespace, so that all that it starts ends with
//! it. Whatever it leaves in its directory is as foreign as the registry.

use crate::child::{GOT_THROUGH, NOT_CONFINED, UNASKED};
use crate::confinement::{During, NotConfined, READER, lower};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};
use pando_kernel::mistake::planted;
use pando_kernel::mount::{Attributes, Tree};
use rustix::fs::{Mode, OFlags};
use rustix::process::Resource;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio, exit};

/// What it is called: its first argument.
pub(crate) const NAME: &str = "pando-registry-client";

/// Whose id it has: nobody's, as a reader's is, and another one.
pub const USER: u32 = READER - 1;

/// What it ends with if there is no `skopeo`.
pub const NO_PROGRAM: i32 = 127;

/// What it ends with if it could not give up its powers.
pub const POWERFUL: i32 = NOT_CONFINED;

/// The path at which it sees its directory.
pub const DIRECTORY: &str = "/tmp";

/// Where `skopeo` is looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What it needs to begin, to know names, and to believe certificates.
const READABLE: [&str; 15] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/nix/store",
    "/gnu/store",
    "/proc/filesystems",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/sys/kernel/mm/transparent_hugepage",
    "/var/lib/containers/sigstore",
];

/// Memory that it writes to, of its own. What it copies it does not keep.
const MEMORY: u64 = 2 << 30;
const PROCESSES: u64 = 1024;
const DESCRIPTORS: u64 = 1024;

/// What a client is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The arguments that `skopeo` gets.
    pub arguments: Vec<String>,
    /// How large a file may become, in bytes.
    pub largest_file: u64,
    /// The file in its directory that its standard output goes to; without one it goes where that of the command goes.
    pub output: Option<String>,
}

/// The command that does it in a directory, which belongs to [`USER`] and lies where nobody but root can put another
/// one in its place. Of the environment it gets what says how the network is reached.
pub fn command(order: &Order, directory: &Path) -> io::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).arg(serde_json::to_string(order)?).env_clear().envs(proxies()).current_dir(directory);
    if let Some(planted) = pando_kernel::mistake::plant() {
        command.env(pando_kernel::mistake::PLANT, planted);
    }
    Ok(command)
}

/// How the network is reached from here.
fn proxies() -> impl Iterator<Item = (OsString, OsString)> {
    const NAMES: [&str; 8] = [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    NAMES.into_iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
}

/// Does what this process was started for.
pub(crate) fn run(order: Option<OsString>) -> ! {
    let order = order.and_then(|word| serde_json::from_str::<Order>(word.to_str()?).ok());
    let Some(order) = order else { exit(UNASKED) };
    match prepared(&order) {
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
fn prepared(order: &Order) -> Result<Command, NotConfined> {
    pando_kernel::process::inheritance::close_from(3).during("closing descriptors")?;
    show_directory()?;
    let bare = DEEDS.iter().any(|(name, _)| planted(&format!("registry.bare.{name}")));
    if !bare {
        enter(order)?;
    }
    misbehave();
    let mut command = Command::new("skopeo");
    command.args(&order.arguments).env("PATH", PATH).env("HOME", DIRECTORY).env("TMPDIR", DIRECTORY);
    if let Some(name) = &order.output {
        let file = File::options().write(true).create_new(true).open(name);
        command.stdout(Stdio::from(file.during("making the file for the output")?));
    }
    Ok(command)
}

/// Shows the working directory at [`DIRECTORY`], to this process alone: the way to it is root's.
fn show_directory() -> Result<(), NotConfined> {
    pando_kernel::namespace::mount::unshare().during("making a mount namespace")?;
    let plain = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NODEV | Attributes::MOUNT_ATTR_NOEXEC;
    let shown = Tree::clone_of(Path::new("."), false).and_then(|tree| {
        tree.set_attributes(false, plain)?;
        Ok(tree)
    });
    let shown = shown.map_err(io::Error::other).during("taking the directory")?;
    let place = rustix::fs::open(DIRECTORY, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    shown.attach_over(place.during("opening /tmp")?).map_err(io::Error::other).during("showing the directory")?;
    std::env::set_current_dir(DIRECTORY).during("entering the directory")
}

type Deed = (&'static str, fn() -> bool);

/// What one that was taken over would do.
const DEEDS: [Deed; 4] = [
    ("read", || File::open("/etc/shadow").is_ok()),
    ("write", || File::create("/var/tmp/pando-registry-client").is_ok()),
    ("serve", || std::net::TcpListener::bind("127.0.0.1:0").is_ok()),
    ("mount", || pando_kernel::namespace::mount::unshare().is_ok()),
];

/// Does it, where a test plants that. What gets through is told by how this process ends.
fn misbehave() {
    for (name, deed) in DEEDS {
        if (planted(&format!("registry.{name}")) || planted(&format!("registry.bare.{name}"))) && deed() {
            let _ = std::fs::remove_file("/var/tmp/pando-registry-client");
            exit(GOT_THROUGH);
        }
    }
}

fn enter(order: &Order) -> Result<(), NotConfined> {
    rustix::thread::set_no_new_privs(true).during("giving up new privileges")?;
    reach_few_files()?;
    bound(order)?;
    be_nobody()?;
    let kill = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(kill)).during("ending with who started it")?;
    seccompiler::apply_filter(&filter()?)?;
    Ok(())
}

fn be_nobody() -> Result<(), NotConfined> {
    let caps = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    let (user, group) = (rustix::fs::Uid::from_raw(USER), rustix::fs::Gid::from_raw(USER));
    caps::clear(None, caps::CapSet::Bounding).map_err(caps).during("bounding capabilities")?;
    rustix::thread::set_thread_groups(&[]).during("leaving groups")?;
    rustix::thread::set_thread_res_gid(group, group, group).during("changing the group")?;
    rustix::thread::set_thread_res_uid(user, user, user).during("changing the user")?;
    for set in [caps::CapSet::Ambient, caps::CapSet::Inheritable, caps::CapSet::Effective, caps::CapSet::Permitted] {
        caps::clear(None, set).map_err(caps).during("giving up capabilities")?;
        if !caps::read(None, set).map_err(caps).during("reading capabilities")?.is_empty() {
            return Err(NotConfined::Still("capabilities"));
        }
    }
    let still = rustix::process::getuid() != user || rustix::process::getegid() != group;
    if still { Err(NotConfined::Still("another user's id")) } else { Ok(()) }
}

fn reach_few_files() -> Result<(), NotConfined> {
    let all = ABI::V6;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(all))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(all))?
        .create()?
        .add_rules(landlock::path_beneath_rules(READABLE, AccessFs::from_read(all)))?
        .add_rules(landlock::path_beneath_rules(["/dev/null"], AccessFs::ReadFile | AccessFs::WriteFile))?
        .add_rules(landlock::path_beneath_rules(["/dev/urandom"], AccessFs::ReadFile))?
        .add_rules(landlock::path_beneath_rules([DIRECTORY], AccessFs::from_all(all)))?
        .restrict_self()?;
    Ok(())
}

fn bound(order: &Order) -> Result<(), NotConfined> {
    lower(&[
        (Resource::Data, MEMORY),
        (Resource::Fsize, order.largest_file),
        (Resource::Core, 0),
        (Resource::Nproc, PROCESSES),
        (Resource::Nofile, DESCRIPTORS),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
    ])
}

fn filter() -> Result<BpfProgram, NotConfined> {
    let denied = [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_io_uring_setup,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_fsopen,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        libc::SYS_shmget,
        libc::SYS_semget,
        libc::SYS_msgget,
        libc::SYS_mq_open,
    ];
    let mut rules: BTreeMap<i64, Vec<_>> = denied.into_iter().map(|call| (call, Vec::new())).collect();
    // It ends with who started it, whatever it has become.
    let death_signal = u64::try_from(libc::PR_SET_PDEATHSIG).unwrap_or_default();
    let first = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, death_signal)?;
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![first])?]);
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refusal, machine)?.try_into()?)
}
