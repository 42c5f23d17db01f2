//! From a plan to a process: a shim is begun, and sent batch after batch of the plan with the descriptors that it
//! wants.

use crate::agent::Agent;
use crate::copy_up;
use crate::first_process::Surroundings;
use crate::joined_namespaces::{self, Held};
use crate::plan::mount_options::Change;
use crate::plan::{Batch, IdMap, Owners, Plan, Want, Word};
use anyhow::{Context, Result, anyhow, bail};
use pando_guest::shim::PROGRAM;
use pando_kernel::mount::{Attributes, Tree};
use pando_kernel::{memory, process::pidfd, socket::packet};
use pando_shim::{DIRECT, IN_FILE, IN_MESSAGE, MAX_MESSAGE, MAX_REST, Report, Step};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use serde_json::Value;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a plan's wants are made of.
#[derive(Debug, Default)]
pub(crate) struct Supplies {
    /// The root's directory.
    pub(crate) root: PathBuf,
    /// The socket that a terminal's master goes to.
    pub(crate) console: Option<OwnedFd>,
    /// The socket at which the process waits to be started.
    pub(crate) listener: Option<OwnedFd>,
    /// The container's state.
    pub(crate) state: Option<Value>,
    /// The files by which a process walks into the container's groups.
    pub(crate) groups: Vec<PathBuf>,
    /// The namespaces of others that the container joins.
    pub(crate) joined: Held,
    /// What the container's first process is in, for a further one.
    pub(crate) surroundings: Option<Surroundings>,
    /// User namespaces whose maps mounts have, each made once.
    pub(crate) id_maps: Vec<(IdMap, OwnedFd)>,
}

/// What is done when a process says a word.
pub(crate) trait Helper {
    /// Maps the ids of a process's new user namespace.
    fn map_ids(&mut self, pid: i32) -> Result<()>;
    /// Sets the clocks of a process's children.
    fn set_clocks(&mut self, pid: i32) -> Result<()>;
    /// The process that becomes the program exists. What the state says from here on.
    fn born(&mut self, pid: i32) -> Result<Value>;
}

/// A process that was launched, and takes steps no more until it is started.
#[derive(Debug)]
pub(crate) struct Launched {
    /// Its pid.
    pub(crate) pid: i32,
    /// A pidfd of it.
    pub(crate) process: OwnedFd,
    /// Where it reports.
    report: OwnedFd,
    /// What the steps do, in words.
    plan: Plan,
}

/// A process on its way. Should this go before it has got there, so does the process.
struct Underway {
    first: Child,
    process: OwnedFd,
    pid: i32,
    arrived: bool,
}

impl Drop for Underway {
    fn drop(&mut self) {
        const KILL: i32 = 9;
        if !self.arrived {
            let _ = pidfd::send_signal(&self.process, KILL);
            let _ = self.first.kill();
            reap(self.pid);
        }
        // Where another goes on, this one has ended.
        if !self.arrived || self.pid != self.first.id().cast_signed() {
            let _ = self.first.wait();
        }
    }
}

/// Waits for a child's end, if it is one.
pub(crate) fn reap(pid: i32) -> Option<rustix::process::WaitStatus> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    let flags = rustix::process::WaitOptions::empty();
    loop {
        match rustix::process::waitpid(Some(pid), flags) {
            Err(rustix::io::Errno::INTR) => {}
            waited => return waited.ok()?.map(|(_, status)| status),
        }
    }
}

/// Takes a process through all of a plan.
pub(crate) fn launch(plan: Plan, mut supplies: Supplies, helper: &mut dyn Helper) -> Result<Launched> {
    let (ours, theirs) = packet::pair().context("making a socket pair")?;
    let first = begin(theirs)?;
    let pid = first.id().cast_signed();
    let mut way = Underway { process: pidfd::open(pid).context("watching the process")?, first, pid, arrived: false };
    packet::send(&ours, &[DIRECT], &[]).context("speaking to the process")?;
    for batch in &plan.batches {
        send(&ours, batch, &mut supplies).map_err(|error| told(&ours, &plan, error))?;
        let Some(expected) = batch.ends_with else { continue };
        let born = hear(&ours, &plan, expected)?;
        match expected {
            Word::MapIds => helper.map_ids(way.pid)?,
            Word::SetClocks => helper.set_clocks(way.pid)?,
            Word::Born => {
                let process = born.context("a process came without its pidfd")?;
                way.pid = pidfd::pid(&process).context("reading a process's pid")?;
                way.process = process;
                supplies.state = Some(helper.born(way.pid)?);
            }
            Word::Ready | Word::Filtered => {}
        }
    }
    way.arrived = true;
    let process = way.process.try_clone().context("copying a descriptor")?;
    Ok(Launched { pid: way.pid, process, report: ours, plan })
}

/// Begins a shim, out of sealed memory.
fn begin(socket: OwnedFd) -> Result<Child> {
    let program =
        memory::file::sealed("pando-shim", PROGRAM, true).context("putting the shim's program into memory")?;
    Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .arg0("pando-shim")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting the shim")
}

/// Sends steps and what they want.
pub(crate) fn send(socket: &OwnedFd, batch: &Batch, supplies: &mut Supplies) -> Result<()> {
    let opened = batch.wants.iter().map(|want| supplies.open(want)).collect::<Result<Vec<_>>>()?;
    let mut fds: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    let message = [&[IN_MESSAGE], batch.steps.as_slice()].concat();
    let sent = if message.len() <= MAX_REST {
        packet::send(socket, &message, &fds)
    } else {
        let steps = memory::file::sealed("pando-plan", &batch.steps, false).context("putting a plan into memory")?;
        fds.push(steps.as_fd());
        packet::send(socket, &[IN_FILE], &fds)
    };
    sent.context("sending a plan to the process")
}

/// Why a plan could not be sent: a process that has ended may have said so before.
fn told(socket: &OwnedFd, plan: &Plan, error: anyhow::Error) -> anyhow::Error {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            hear(socket, plan, Word::Ready).err().unwrap_or(error)
        }
        _ => error,
    }
}

/// Receives a message. That the process has ended with messages unread is said first, and what it has said before
/// comes after.
fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let received = match packet::receive(socket, bytes) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => packet::receive(socket, bytes),
        received => received,
    };
    received.context("listening to the process")
}

/// Waits for a word, and the descriptor that may come with it.
fn hear(socket: &OwnedFd, plan: &Plan, expected: Word) -> Result<Option<OwnedFd>> {
    let mut bytes = [0; MAX_MESSAGE];
    let (length, fds) = receive(socket, &mut bytes)?;
    match &bytes[..length] {
        [] => bail!("the process ended on its way, before it said why"),
        [word] if *word == expected as u8 => Ok(fds.into_iter().next()),
        [word] => bail!("the process said {word} where {expected:?} was expected"),
        report => Err(failure(report, plan)),
    }
}

/// The words for a step that failed.
fn failure(report: &[u8], plan: &Plan) -> anyhow::Error {
    match postcard::from_bytes::<Report>(report) {
        Ok(report) => failed_at(report, plan),
        Err(error) => anyhow!("reading a report: {error}"),
    }
}

fn failed_at(report: Report, plan: &Plan) -> anyhow::Error {
    anyhow!("{}", words(plan.label(report.step), report.errno))
}

/// Waits until a process has become its program, or says why not. Where its system calls wait for answers, the agent
/// gets the descriptor at which they arrive.
pub(crate) fn await_program(
    socket: &OwnedFd,
    (pid, process): (i32, &OwnedFd),
    agent: Option<&Agent>,
) -> Result<Option<Report>> {
    const FILTERED: u8 = Word::Filtered as u8;
    let mut bytes = [0; MAX_MESSAGE];
    loop {
        let (length, _) = receive(socket, &mut bytes)?;
        match (&bytes[..length], agent) {
            ([], _) => return Ok(None),
            // No report of a step has that length and begins so.
            ([FILTERED, number @ ..], Some(agent)) if number.len() == 4 => {
                let number = i32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
                agent.take(pid, process, number)?;
                packet::send(socket, &[FILTERED], &[]).context("speaking to the process")?;
            }
            (report, _) => return postcard::from_bytes(report).map(Some).context("reading a report"),
        }
    }
}

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const ENOTDIR: i32 = 20;
const ELOOP: i32 = 40;
const ETIMEDOUT: i32 = 110;
const ECANCELED: i32 = 125;

/// As engines look for them: by what runc says of a program that is not there, or may not be executed.
pub(crate) fn words(label: &str, errno: i32) -> String {
    let program = label.strip_prefix("exec: ").or_else(|| label.strip_prefix("exec "));
    let reason = match (program, errno) {
        (Some(name), ENOENT) if name.starts_with('"') && !name.contains('/') => {
            "executable file not found in $PATH".to_owned()
        }
        (Some(_), ENOENT | ENOTDIR) => "no such file or directory".to_owned(),
        (Some(_), EACCES) => "permission denied".to_owned(),
        (None, ELOOP | ENOTDIR) if label.starts_with("mounting") => {
            format!("it must be mounted on ordinary directory ({})", std::io::Error::from_raw_os_error(errno))
        }
        (None, ECANCELED) if label.contains("hook") => "it failed".to_owned(),
        (None, ETIMEDOUT) if label.contains("hook") => "it took longer than its timeout".to_owned(),
        _ => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    format!("{label}: {reason}")
}

impl Launched {
    /// Waits until the process has become its program.
    pub(crate) fn wait_for_program(&self, agent: Option<&Agent>) -> Result<()> {
        match await_program(&self.report, (self.pid, &self.process), agent) {
            Ok(None) => Ok(()),
            Ok(Some(report)) => {
                reap(self.pid);
                Err(failed_at(report, &self.plan))
            }
            Err(error) => {
                self.kill();
                Err(error)
            }
        }
    }

    /// Ends the process.
    pub(crate) fn kill(&self) {
        const KILL: i32 = 9;
        let _ = pidfd::send_signal(&self.process, KILL);
        reap(self.pid);
    }
}

impl Supplies {
    fn open(&mut self, want: &Want) -> Result<OwnedFd> {
        let copy = |fd: Option<&OwnedFd>| {
            fd.with_context(|| format!("{want:?} was not supplied"))?.try_clone().context("copying a descriptor")
        };
        match want {
            Want::GroupFile(path) => {
                let file = File::options().write(true).open(path);
                file.map(OwnedFd::from).with_context(|| format!("error adding pid to {}", path.display()))
            }
            Want::HeldNamespace { kind } => copy(self.held(*kind)),
            Want::HeldRoot => copy(self.surroundings.as_ref().map(|held| &held.root)),
            Want::Tree { path, recursive, change, owners } => {
                let tree = tree(path, *recursive, *change)?;
                if let Some(owners) = owners {
                    self.map_owners(&tree, owners)?;
                }
                Ok(tree.into())
            }
            Want::Device { path, block, device } => node(path, *block, *device),
            Want::Filled { path, options, attributes } => self.filled(path, options, *attributes),
            Want::Stdio(number) => {
                let fd = match number {
                    0 => std::io::stdin().as_fd().try_clone_to_owned(),
                    1 => std::io::stdout().as_fd().try_clone_to_owned(),
                    _ => std::io::stderr().as_fd().try_clone_to_owned(),
                };
                fd.with_context(|| format!("copying descriptor {number}"))
            }
            Want::Inherited(number) => pando_kernel::process::inheritance::copy_of(*number)
                .with_context(|| format!("copying descriptor {number}")),
            Want::Console => copy(self.console.as_ref()),
            Want::Listener => copy(self.listener.as_ref()),
            Want::State => {
                let text = self.state.clone().unwrap_or_default().to_string();
                let file =
                    memory::file::sealed("state", text.as_bytes(), false).context("putting the state into memory")?;
                // Opened anew: what is written to the file has moved its position.
                let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
                again.map(OwnedFd::from).context("opening the state")
            }
        }
    }

    /// The namespace of a kind that is joined.
    fn held(&self, kind: u32) -> Option<&OwnedFd> {
        let mut held = self.surroundings.iter().flat_map(|held| &held.namespaces).chain(&self.joined);
        held.find(|(held, _)| *held == kind).map(|(_, namespace)| namespace)
    }

    /// Shows a mount's files by a map of ids.
    fn map_owners(&mut self, tree: &Tree, owners: &Owners) -> Result<()> {
        if !self.id_maps.iter().any(|(known, _)| *known == owners.ids) {
            let namespace = match &owners.ids {
                IdMap::Joined => self.held(USER).context("no user namespace was joined")?.try_clone()?,
                IdMap::Lines { uids, gids } => mapped_namespace(uids, gids)?,
            };
            self.id_maps.push((owners.ids.clone(), namespace));
        }
        let found = self.id_maps.iter().find(|(known, _)| *known == owners.ids);
        let (_, namespace) = found.context("a map of ids was not kept")?;
        let map = if owners.below { Tree::map_ids_of_all } else { Tree::map_ids };
        Ok(map(tree, namespace.as_fd())?)
    }

    /// A new tmpfs with what lies at a path of the root, if that is a directory.
    fn filled(&self, path: &str, options: &[(String, String)], attributes: u32) -> Result<OwnedFd> {
        let pairs: Vec<_> = options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let attributes = Attributes::from_bits_retain(attributes);
        let writable = attributes - Attributes::MOUNT_ATTR_RDONLY;
        let tree = Tree::new("tmpfs", &pairs, writable)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &self.root, flags, Mode::empty()).context("opening the root")?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let relative = path.trim_start_matches('/');
        match rustix::fs::openat2(&root, relative, flags, Mode::empty(), resolve) {
            Ok(from) => {
                let onto = rustix::fs::openat(tree.as_fd(), c".", flags, Mode::empty()).context("opening a tmpfs")?;
                let mode = rustix::fs::fstat(&from).context("looking at a directory")?.st_mode;
                if !options.iter().any(|(key, _)| key == "mode") {
                    rustix::fs::fchmod(&onto, Mode::from_raw_mode(mode & 0o7777)).context("setting a mode")?;
                }
                copy_up::within(&self.groups, from, onto).with_context(|| format!("copying {path} up"))?;
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(errno) => return Err(errno).with_context(|| format!("opening {path} of the root")),
        }
        tree.set_attributes(false, attributes)?;
        Ok(tree.into())
    }
}

/// A device node of the host's, and nothing else that has that path: the container could read and write it.
fn node(path: &Path, block: bool, (major, minor): (u32, u32)) -> Result<OwnedFd> {
    let tree = Tree::clone_of(path, false)?;
    let found = rustix::fs::fstat(tree.as_fd()).with_context(|| format!("looking at {}", path.display()))?;
    let kind = if block { FileType::BlockDevice } else { FileType::CharacterDevice };
    if FileType::from_raw_mode(found.st_mode) != kind || found.st_rdev != rustix::fs::makedev(major, minor) {
        let letter = if block { 'b' } else { 'c' };
        bail!(
            "{} of the host is not the device {letter} {major}:{minor}, and in a user namespace the host's node is shown; \
             give the device its path on the host",
            path.display()
        );
    }
    Ok(tree.into())
}

/// `CLONE_NEWUSER`
const USER: u32 = 0x1000_0000;

/// A user namespace with these maps, which no process is in any more when this returns.
fn mapped_namespace(uids: &str, gids: &str) -> Result<OwnedFd> {
    let mut plan = Plan::new();
    plan.step("making a user namespace for a map of ids", Step::Unshare { namespaces: USER });
    plan.ask("asking for ids", Word::MapIds);
    let (ours, theirs) = packet::pair().context("making a socket pair")?;
    let first = begin(theirs)?;
    let pid = first.id().cast_signed();
    let process = pidfd::open(pid).context("watching a process")?;
    let _way = Underway { process, first, pid, arrived: false };
    packet::send(&ours, &[DIRECT], &[]).context("speaking to the process")?;
    send(&ours, &plan.batches[0], &mut Supplies::default())?;
    hear(&ours, &plan, Word::MapIds)?;
    for (file, map) in [("uid_map", uids), ("gid_map", gids)] {
        let path = format!("/proc/{pid}/{file}");
        std::fs::write(&path, map).with_context(|| format!("mapping ids of a mount in {path}"))?;
    }
    Ok(joined_namespaces::open_one(&PathBuf::from(format!("/proc/{pid}/ns/user")), USER)?.into())
}

/// A detached copy of a mount, changed.
fn tree(path: &Path, recursive: bool, change: Change) -> Result<Tree> {
    let tree = if change.propagation == 0 {
        Tree::clone_of(path, recursive)?
    } else {
        Tree::clone_in_its_group(path, recursive)?
    };
    let own = (Attributes::from_bits_retain(change.set), Attributes::from_bits_retain(change.clear));
    let below = (Attributes::from_bits_retain(change.set_below), Attributes::from_bits_retain(change.clear_below));
    if change.set_below | change.clear_below != 0 {
        tree.change(true, below, 0)?;
    }
    if change.set | change.clear != 0 {
        tree.change(false, own, 0)?;
    }
    if change.propagation != 0 {
        let none = (Attributes::empty(), Attributes::empty());
        tree.change(change.propagation_below, none, u64::from(change.propagation))?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_told_as_engines_expect() {
        assert_eq!(words("exec: \"x\"", ENOENT), "exec: \"x\": executable file not found in $PATH");
        assert_eq!(words("exec: \"/x\"", ENOENT), "exec: \"/x\": no such file or directory");
        assert_eq!(words("exec: \"x\"", EACCES), "exec: \"x\": permission denied");
        assert_eq!(words("exec x", ENOENT), "exec x: no such file or directory");
        assert!(words("mounting /x", ENOENT).starts_with("mounting /x: No such file"));
    }
}
