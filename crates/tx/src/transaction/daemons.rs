//! What a command leaves running: processes that go on when their transaction has committed.
//!
//! ```text
//!   left in the scope ─▶ frozen ─▶ commit ─▶ a clone of the live tree becomes the root of their mount namespace
//!                                        │                                  └─▶ out of the scope, and on
//!                                        └─▶ what cannot be moved is ended, and named
//! ```
//!
//! To pivot the root moves every process of the namespace that has the old one as its root and its working directory.
//! What is open stays open: a new file is in the live tree by now, the same inode. What a daemon holds of the view in
//! any other way would be lost without a sign, so that such a one is ended. In a target the live tree is that of its
//! first process; a new file there is a copy, so that one that is open to be written to is lost as well. So are those
//! of a transaction whose changes were kept in memory.

use crate::state::directory::StateDirectory;
use crate::state::mount_space::MountSpace;
use crate::state::scope::{Scope, own_group};
use crate::state::target::Target;
use crate::validate::change_set::PartChanges;
use crate::view::enter_root;
use nix::sched::{CloneFlags, setns, unshare};
use pando_kernel::mount::Tree;
use pando_kernel::process::{self, pidfd};
use pando_kernel::{CallError, Context, file::proc_file, namespace};
use rustix::fs::{Mode, OFlags, fstat, fstatfs};
use rustix::mount::{MountPropagationFlags, MoveMountFlags, UnmountFlags};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `__SO_ACCEPTCON`: somebody listens.
const LISTENING: u64 = 0x1_0000;

/// What became of what was left behind a commit: the processes that the command left running, and the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The processes that go on in the live tree, as people are told of them.
    pub moved: Vec<String>,
    /// Those that were ended, and why.
    pub ended: Vec<String>,
    /// What could not be done any more behind the commit, and why, such as to add it to the log.
    pub failed: Vec<String>,
}

/// Processes that stand still, to be moved.
#[derive(Debug, Default)]
pub(crate) struct Daemons {
    left: Vec<Left>,
}

/// One of them. Its user can end it while it stands still, and have its pid a moment later.
#[derive(Debug)]
struct Left {
    pid: i32,
    process: OwnedFd,
}

impl Left {
    /// Whether the pid was its own until now, and with that all that was found by it.
    fn is_there(&self) -> bool {
        !pidfd::has_ended(&self.process)
    }

    /// The mount namespace that it is in; nothing if it has ended.
    fn namespace(&self) -> Option<MountSpace> {
        MountSpace::of(&format!("/proc/{}/ns/mnt", self.pid)).ok().filter(|_| self.is_there())
    }
}

/// Files of the view that are other files than the live tree's.
pub(crate) struct Lost {
    /// Whether all that are new are: the commit has copied them.
    pub(crate) copied: bool,
    /// Those that the commit writes to in place.
    pub(crate) rewritten: BTreeSet<PathBuf>,
}

/// What a process must not hold.
struct Obstacles {
    lost: Lost,
    /// Sockets that are listened on, by their inodes.
    sockets: HashMap<u64, String>,
}

impl Daemons {
    /// Stops what is left in a scope.
    pub(crate) fn stop(scope: &Scope) -> Result<Self, CallError> {
        if scope.processes().is_empty() {
            return Ok(Self::default());
        }
        scope.freeze(true)?;
        let opened = |pid| Some(Left { pid, process: pidfd::open(pid).ok()? });
        let mut left: Vec<Left> = scope.processes().into_iter().filter_map(opened).collect();
        // What was opened is what stands still there, unless that had just ended.
        let inside = scope.processes();
        left.retain(|one| inside.contains(&one.pid));
        Ok(Self { left })
    }

    /// Moves them to the live tree, which has by now what they were started in, and ends those that cannot be. The
    /// scope is empty afterwards.
    pub(crate) fn settle(
        &self,
        scope: &Scope,
        home: &StateDirectory,
        target: Option<&Target>,
        lost: Lost,
    ) -> Result<Settled, CallError> {
        let mut settled = Settled::default();
        if self.left.is_empty() {
            scope.kill()?;
            return Ok(settled);
        }
        let obstacles = Obstacles { lost, sockets: listening(target) };
        let mut go_on: Vec<&Left> = Vec::new();
        for (namespace, those) in self.by_namespace(&obstacles, &mut settled) {
            let why = match is_of_users(&namespace, target) {
                true => {
                    Some("its mounts are those of a user namespace of its own, in which none of them are locked".into())
                }
                false => on_live_tree(namespace, home, target).err().map(|error| error.to_string()),
            };
            match why {
                None => go_on.extend(those),
                Some(why) => settled.ended.extend(those.iter().map(|one| format!("{} ({why})", named(one.pid)))),
            }
        }
        if !go_on.is_empty() {
            let group = target.map_or_else(own_group, group_of_target)?;
            for one in &go_on {
                scope.let_go(one.pid, &one.process, &group);
            }
        }
        let inside = scope.processes();
        for one in go_on.into_iter().filter(|one| one.is_there()) {
            match inside.contains(&one.pid) {
                true => {
                    let why = "the control group of the others does not take it";
                    settled.ended.push(format!("{} ({why})", named(one.pid)))
                }
                false => settled.moved.push(named(one.pid)),
            }
        }
        scope.kill()?;
        Ok(settled)
    }

    /// Those that nothing keeps from going on. Those of one namespace move together.
    fn by_namespace(&self, obstacles: &Obstacles, settled: &mut Settled) -> Vec<(MountSpace, Vec<&Left>)> {
        let mut found: Vec<(MountSpace, Vec<&Left>)> = Vec::new();
        for one in &self.left {
            let (namespace, obstacle, name) = (one.namespace(), obstacles.of(one.pid), named(one.pid));
            // What was found by the pid of one that has ended may be another's.
            let Some(namespace) = namespace.filter(|_| one.is_there()) else { continue };
            match (obstacle, found.iter_mut().find(|(known, _)| known.has(one.pid))) {
                (Some(why), _) => settled.ended.push(format!("{name} ({why})")),
                (None, Some((_, those))) => those.push(one),
                (None, None) => found.push((namespace, vec![one])),
            }
        }
        found
    }
}

/// Files of the live tree that a commit writes to.
pub(crate) fn rewritten(changes: &[PartChanges]) -> BTreeSet<PathBuf> {
    let of_part = |part: &PartChanges| {
        let content = part.changes.iter().filter(|one| one.content && one.sign == crate::change::Sign::Changed);
        content.map(|one| part.part.live.join(one.path.as_path())).collect::<Vec<_>>()
    };
    changes.iter().flat_map(of_part).collect()
}

fn named(pid: i32) -> String {
    // Anything may be in a name.
    let name = process::read(pid, "comm").unwrap_or_default();
    format!("{}, pid {pid}", name.trim_end().escape_debug())
}

impl Obstacles {
    /// Why a process cannot be moved.
    fn of(&self, pid: i32) -> Option<String> {
        let identity = |name: &str| {
            let found = std::fs::metadata(format!("/proc/{pid}/{name}/.")).ok()?;
            Some((found.dev(), found.ino()))
        };
        let root = std::fs::read_link(format!("/proc/{pid}/root")).ok()?;
        if root != Path::new("/") {
            return Some(format!("its root is {}", root.display()));
        }
        if identity("root") != identity("cwd") {
            let at = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            return Some(format!("its working directory is {}", at.display()));
        }
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        descriptors.into_iter().find_map(|entry| self.held(pid, entry.file_name())).or_else(|| self.mapped(pid))
    }

    /// A file that a process writes to through its memory, whether it has it open or not.
    fn mapped(&self, pid: i32) -> Option<String> {
        let Lost { copied, rewritten } = &self.lost;
        // All of it: large programs have more than fits any bound that suits other files.
        let maps = proc_file::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let path = maps.split(|byte| *byte == b'\n').filter_map(written_through).find(|path| {
            let is_other = || *copied && is_overlays(Path::new(&format!("/proc/{pid}/root{}", path.display())));
            rewritten.contains(*path) || is_other()
        })?;
        Some(format!("what it writes to {}, which is mapped, would be lost", path.display()))
    }

    fn held(&self, pid: i32, descriptor: OsString) -> Option<String> {
        let number = descriptor.into_string().ok()?;
        let target = std::fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        let text = target.to_string_lossy();
        if let Some(inode) = text.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
            let path = self.sockets.get(&inode.parse().ok()?)?;
            return Some(format!("nobody outside could reach its socket {path}"));
        }
        let Lost { copied, rewritten } = &self.lost;
        let is_other = || rewritten.contains(&target) || *copied && is_of_view(pid, &number);
        let is_held = is_other() && is_writable(pid, &number);
        is_held.then(|| format!("what it writes to {text} would be lost"))
    }
}

/// The file of a line of `/proc/PID/maps`, if it can be written to through that: address, rights, offset, device,
/// inode, path.
fn written_through(line: &[u8]) -> Option<&Path> {
    let rights = line.split(|byte| *byte == b' ').nth(1)?;
    let is_written = rights.get(1) == Some(&b'w') && rights.get(3) == Some(&b's');
    let path = line.iter().position(|byte| *byte == b'/').filter(|_| is_written)?;
    Some(Path::new(OsStr::from_bytes(&line[path..])))
}

/// Whether a descriptor is of a file in the view's overlay.
fn is_of_view(pid: i32, descriptor: &str) -> bool {
    is_overlays(Path::new(&format!("/proc/{pid}/fd/{descriptor}")))
}

fn is_overlays(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    file.is_ok_and(|file| fstatfs(&file).is_ok_and(|found| found.f_type == libc::OVERLAYFS_SUPER_MAGIC))
}

fn is_writable(pid: i32, descriptor: &str) -> bool {
    let flags = process::read(pid, &format!("fdinfo/{descriptor}")).unwrap_or_default();
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
    // Octal; the last two bits are the way in which it was opened.
    flags
        .and_then(|flags| i32::from_str_radix(flags, 8).ok())
        .is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Sockets with a path that somebody listens on, by their inodes.
fn listening(target: Option<&Target>) -> HashMap<u64, String> {
    let process = target.and_then(Target::first_process).map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let text = proc_file::text(format!("/proc/{process}/net/unix")).unwrap_or_default();
    let socket = |line: &str| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split_ascii_whitespace().skip(3);
        let flags = u64::from_str_radix(fields.next()?, 16).ok()?;
        let inode = fields.nth(2)?.parse().ok()?;
        let path = fields.next().filter(|path| !path.starts_with('@'))?;
        (flags & LISTENING != 0).then(|| (inode, path.to_owned()))
    };
    text.lines().skip(1).filter_map(socket).collect()
}

/// Where a process is put to be in the control group that the first process of a target is in: an init that manages
/// groups leaves the top one empty, and the kernel takes no process there.
fn group_of_target(target: &Target) -> Result<PathBuf, CallError> {
    let first = target.process().context(|| "looking for the target's control group".into())?;
    let text = process::read(first, "cgroup").unwrap_or_default();
    let inner = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    // The last two names tell the group from every other; what stands before them depends on where the hierarchy is
    // mounted.
    let tail: PathBuf = target.others.components().rev().take(2).collect::<Vec<_>>().into_iter().rev().collect();
    let rest = inner.split_once(&format!("/{}", tail.display())).map(|(_, rest)| Path::new(rest));
    let rest = rest.and_then(|rest| rest.strip_prefix("/").ok()).unwrap_or(Path::new(""));
    let is_below = rest.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    Ok(target.others.join(if is_below { rest } else { Path::new("") }).join("cgroup.procs"))
}

/// Whether a mount namespace was made by a user with fewer rights than those who mount things in the live tree: what
/// root attaches there the kernel does not lock, so that the user could make it writable and see what mounts hide.
/// Where that cannot be told it is.
fn is_of_users(namespace: &MountSpace, target: Option<&Target>) -> bool {
    let live = || match target {
        Some(target) => target.opened(|pid| MountSpace::of(&format!("/proc/{pid}/ns/mnt"))),
        None => MountSpace::of("/proc/thread-self/ns/mnt"),
    };
    let owner = |space: &MountSpace| namespace::owner(space).and_then(|owner| Ok(fstat(owner)?.st_ino));
    let same = live().and_then(|live| Ok(owner(&live)? == owner(namespace)?));
    !same.unwrap_or(false)
}

/// Makes the live tree the root of a mount namespace, whose processes must stand still.
fn on_live_tree(theirs: MountSpace, home: &StateDirectory, target: Option<&Target>) -> Result<(), CallError> {
    let mounts = |target: &Target| target.opened(|pid| MountSpace::of(&format!("/proc/{pid}/ns/mnt")));
    let live = target.map(mounts).transpose().context(|| "looking for the live tree".into())?;
    // On the host it is hidden in every view by a mount of its own, so that it is a directory there; in a target no
    // path but this one is anybody's but the target's.
    let place = if target.is_some() { PathBuf::from("/") } else { home.directory().to_owned() };
    let moved = std::thread::Builder::new().name("pando-daemons".into()).spawn(move || {
        unshare(CloneFlags::CLONE_FS).context(|| "taking a thread's own root".into())?;
        if theirs.is_own() {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied))
                .context(|| "its mounts are the machine's".into());
        }
        if let Some(live) = live {
            setns(live, CloneFlags::CLONE_NEWNS).context(|| "joining the mounts of the live tree".into())?;
        }
        let live = Tree::clone_of(Path::new("/"), true)?;
        setns(theirs, CloneFlags::CLONE_NEWNS).context(|| "joining the mount namespace of what is left".into())?;
        rustix::mount::move_mount(&live, "", rustix::fs::CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .context(|| format!("attaching the live tree at {}", place.display()))?;
        let entered = pivot_to(&live);
        if entered.is_err() {
            // What is to be ended leads nowhere until it is.
            let detach = || rustix::mount::unmount(".", UnmountFlags::DETACH);
            let _ = rustix::process::fchdir(&live).and_then(|()| detach());
        }
        entered
    });
    let moved = moved.context(|| "starting a thread".into())?;
    moved.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")).context(|| "moving daemons".into()))
}

/// Makes a tree that is attached in this thread's mount namespace the root of that.
fn pivot_to(live: &Tree) -> Result<(), CallError> {
    // What is mounted outside later shows there too, as in any service's namespace; a root that is shared cannot be
    // pivoted to.
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::process::fchdir(live).context(|| "entering the live tree".into())?;
    rustix::mount::mount_change(".", downstream).context(|| "parting the mounts".into())?;
    enter_root(live).context(|| "entering the live tree".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn what_is_written_to_through_memory_is_found() {
        let path = |line: &str| written_through(line.as_bytes()).map(|path| path.display().to_string());
        let odd = written_through(b"7f0-7f1 rw-s 00000000 08:01 12      /\xff").map(|path| path.as_os_str().as_bytes());
        assert_eq!(odd, Some(&b"/\xff"[..]));
        assert_eq!(path("7f0-7f1 rw-s 00000000 08:01 12      /var/lib/a b"), Some("/var/lib/a b".to_owned()));
        for line in [
            "7f0-7f1 r--s 00000000 08:01 12 /x",
            "7f0-7f1 rw-p 00000000 08:01 12 /x",
            "7f0-7f1 rw-s 00000000 00:00 0",
            "",
        ] {
            assert_eq!(path(line), None, "{line}");
        }
    }

    #[test]
    fn this_process_cannot_be_moved_and_why_is_said() {
        let me = std::process::id().cast_signed();
        let lost = |rewritten| Lost { copied: false, rewritten };
        let obstacles = Obstacles { lost: lost(BTreeSet::new()), sockets: listening(None) };
        let why = obstacles.of(me).unwrap();
        assert!(why.starts_with("its working directory is "), "{why}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let file = File::create(&path).unwrap();
        let obstacles = Obstacles { lost: lost(BTreeSet::from([path.clone()])), sockets: HashMap::new() };
        let held =
            |fd: &File| obstacles.held(me, OsString::from_vec(std::os::fd::AsRawFd::as_raw_fd(fd).to_string().into()));
        assert!(held(&file).is_some_and(|why| why.contains("would be lost")));
        assert_eq!(held(&File::open(&path).unwrap()), None);
    }
}
