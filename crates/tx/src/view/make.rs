//! Making a view, and entering one.

use super::plan::{Fixture, How, Use, ViewPlan, is_unfit};
use super::sockets;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::trash;
use crate::tree::confined::{is_missing, leads_elsewhere};
use crate::validate::read_set::Watch;
use nix::sched::{CloneFlags, setns, unshare};
use pando_kernel::file::handle::FileHandle;
use pando_kernel::mount::overlay::Overlay;
use pando_kernel::mount::{Attributes, MountEntry, Tree, mounts};
use pando_kernel::process::identity::ProcessId;
use pando_kernel::{CallError, Context};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxAttributes, StatxFlags,
    openat2,
};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, UnmountFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How the overlays are mounted: directories may be renamed, a change of mode copies no content, hard links stay
/// together, and nothing is synced, since the commit does that and an abort needs none. Numbers of inodes are the lower
/// file systems'.
const OPTIONS: [(&str, &str); 4] = [("redirect_dir", "on"), ("metacopy", "on"), ("index", "on"), ("xino", "off")];

/// The same where what is new is on another file system: the numbers tell which, so that all are of one device, as
/// programs expect that do not leave a file system.
const OPTIONS_IN_MEMORY: [(&str, &str); 4] =
    [("redirect_dir", "on"), ("metacopy", "on"), ("index", "on"), ("xino", "on")];

/// What the mounts of a view are called that stand for no device: whoever runs in one knows it by that.
const NAME: &str = "pando-tx";

/// What an overlay takes of a file system by being there, amply: bytes, and inodes where they are counted.
const ROOM: u64 = 128 << 10;
const INODES: u64 = 32;

/// How what is only looked for is opened.
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A view that this thread is in.
#[derive(Debug)]
pub struct View {
    /// The root directory of the view.
    pub root: OwnedFd,
    /// What its overlays were made of. To let go of a mount that was never attached takes the kernel a while (a grace
    /// period of RCU), which the command need not wait for. Where there is a watch that has it, so that nobody else
    /// waits either.
    pub(super) _made_of: Vec<Tree>,
}

impl ViewPlan {
    /// Plans the view of a transaction over the mounts that are there now.
    pub fn of_now(home: &StateDirectory, name: &TxName) -> Result<Self, CallError> {
        let reachable = mounts()?.into_iter().filter(is_reachable);
        let mounts: Vec<_> = reachable
            .map(|mount| {
                // What is shown as it is need not be looked at: a machine has dozens of those. What is another
                // program's or another machine's must not be: that may never answer.
                let is_known = Self::is_bound(&mount, Use::Overlay) || is_unfit(&mount.kind);
                let usable = if is_known { Use::Other } else { usable(&mount.at) };
                (mount, usable)
            })
            .collect();
        Ok(Self { sockets: sockets::listening(), ..Self::new(home, name, &trash::unique(), &mounts) })
    }
}

/// Whether a mount is what its path leads to, not hidden by another (STATX_MNT_ID, since Linux 5.8).
fn is_reachable(mount: &MountEntry) -> bool {
    // Nobody is asked for attributes that are not wanted: the server of a file system may never answer.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(CWD, &mount.at, flags, StatxFlags::MNT_ID).is_ok_and(|found| found.stx_mnt_id == mount.id)
}

/// Whether an overlay over a mount would know which files its files were copied from, and have room. Beside the root a
/// full disk is no reason to run nothing.
fn usable(at: &Path) -> Use {
    let known = File::open(at).is_ok_and(|directory| {
        directory.metadata().is_ok_and(|metadata| metadata.is_dir()) && FileHandle::of(&directory).is_ok()
    });
    if known && (at == Path::new("/") || has_room(at)) { Use::Overlay } else { Use::Other }
}

fn has_room(at: &Path) -> bool {
    let has_plenty = rustix::fs::statvfs(at).is_ok_and(|found| {
        // Zero in all is said by who does not count.
        (found.f_blocks == 0 || found.f_bavail * found.f_frsize >= ROOM)
            && (found.f_files == 0 || found.f_favail >= INODES)
    });
    has_plenty || takes_more(at)
}

/// What is full for others may have room for root, and what says to be nearly full keep all of it for itself: it is
/// tried, by a file without a name.
fn takes_more(at: &Path) -> bool {
    let file = rustix::fs::open(at, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let taken = file.and_then(|file| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, ROOM));
    !matches!(taken, Err(Errno::NOSPC | Errno::DQUOT))
}

impl View {
    /// Makes the view and takes this thread, alone, into it. Its mounts go with the last process in it. `watch` is to
    /// know what is read there.
    ///
    /// # Errors
    ///
    /// Where "/" cannot have an overlay: for the lack of CAP_SYS_ADMIN, or because its file system cannot.
    pub(crate) fn enter(plan: &ViewPlan, directory: &Path, mut watch: Option<&mut Watch>) -> Result<Self, CallError> {
        // Objects of System V that it makes are its own, and gone with it.
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC).context(|| "making namespaces".into())?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).context(|| "making the mounts private".into())?;
        let (root, rest) = plan
            .fixtures
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)
            .map_err(io::Error::from)
            .context(|| "planning a view without a root".into())?;
        let How::Overlay(part) = &root.how else {
            return Err(io::Error::from(io::ErrorKind::Unsupported))
                .context(|| "laying an overlay over /, whose file system has no file handles".into());
        };
        let mut made_of = Vec::new();
        let lower = Tree::clone_of(&part.live, false)?;
        let tree =
            overlay((part, root.device.as_deref()), lower, plan, directory, (watch.as_deref_mut(), &mut made_of))?;
        // Any directory will do to hang it up before it becomes the root.
        attach(&tree, CWD, &part.base)?;
        for fixture in rest {
            set_up(fixture, plan, &tree, directory, (watch.as_deref_mut(), &mut made_of))?;
        }
        for socket in &plan.sockets {
            // One that has gone since, or lies where the view shows something else, is left out.
            let _ = bind_socket(&tree, socket);
        }
        keep_control_groups(&tree, plan)?;
        if plan.for_user {
            tree.set_attributes(true, Attributes::MOUNT_ATTR_NOSUID)?;
        }
        enter_root(&tree).context(|| "entering the view".into())?;
        if let Some(watch) = watch {
            watch.keep_mounts(std::mem::take(&mut made_of));
        }
        Ok(Self { root: tree.into(), _made_of: made_of })
    }
}

/// A view of what is live on a part, with files of its own.
pub(super) fn over<'a>(part: &OverlayPart, device: Option<&'a str>, lower: &'a Tree, files: &'a Tree) -> Overlay<'a> {
    let options = if part.memory.is_some() { &OPTIONS_IN_MEMORY } else { &OPTIONS };
    Overlay { name: device.unwrap_or(NAME), lowers: vec![lower], data: Vec::new(), files, options, volatile: true }
}

/// Kinds of file systems that an upper directory can lie on for sure.
const FIT: [i64; 5] =
    [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC, libc::TMPFS_MAGIC, libc::F2FS_SUPER_MAGIC];

/// Whether an overlay can have the files of a part, which were made: where that is not known it is tried.
pub(super) fn is_fit(part: &OverlayPart) -> bool {
    let try_it = || -> Result<Tree, CallError> {
        let lower = Tree::clone_of(&part.live, false)?;
        let files = Tree::clone_of(part.files(), false)?;
        // One that forgets about durability would leave a mark, that no other is to have the same files.
        Overlay { volatile: false, ..over(part, None, &lower, &files) }.mount(Attributes::empty(), &part.base)
    };
    let is_known = |path: &Path| rustix::fs::statfs(path).is_ok_and(|found| FIT.contains(&found.f_type));
    // A target's lie with this machine's own.
    part.target.is_some() || is_known(part.files()) || try_it().is_ok()
}

fn overlay(
    (part, device): (&OverlayPart, Option<&str>),
    lower: Tree,
    plan: &ViewPlan,
    beside: &Path,
    (watch, made_of): (Option<&mut Watch>, &mut Vec<Tree>),
) -> Result<Tree, CallError> {
    let files = Tree::clone_of(part.files(), false)?;
    let attributes = if plan.for_user { users_attributes(&lower)? } else { Attributes::empty() };
    let tree = over(part, device, &lower, &files).mount(attributes, beside)?;
    made_of.extend([lower, files]);
    if let Some(watch) = watch {
        watch.add(part, &tree).context(|| format!("watching the view of {}", part.live.display()))?;
    }
    Ok(tree)
}

/// What may not be done in a user's view: what may not on the mount that it is of, and neither programs with others'
/// rights nor devices.
fn users_attributes(lower: &Tree) -> Result<Attributes, CallError> {
    let flags = rustix::fs::fstatvfs(lower).context(|| "looking at a mount".into())?.f_flag;
    let always = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NODEV;
    Ok(if flags.contains(StatVfsMountFlags::NOEXEC) { always | Attributes::MOUNT_ATTR_NOEXEC } else { always })
}

/// Shows a mount, unless others have taken it away since it was seen, and its place with it. Who can rename a directory
/// on the way can put a link, or something else, in its place.
fn set_up(
    fixture: &Fixture,
    plan: &ViewPlan,
    root: &Tree,
    directory: &Path,
    made: (Option<&mut Watch>, &mut Vec<Tree>),
) -> Result<(), CallError> {
    let is_elsewhere = |error: &io::Error| is_missing(error) || leads_elsewhere(error);
    match show(fixture, plan, root, directory, made) {
        Err(error) if is_elsewhere(&error.source) && !directory.starts_with(&fixture.at) && is_gone(fixture) => Ok(()),
        shown => shown,
    }
}

/// Whether nothing is there any more that is to be shown, or to be hidden.
fn is_gone(fixture: &Fixture) -> bool {
    let is_there = match fixture.how {
        How::Hidden => openat2(CWD, &fixture.at, PLACE, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_ok(),
        _ => mounted(&fixture.at).is_ok(),
    };
    !is_there
}

fn show(
    fixture: &Fixture,
    plan: &ViewPlan,
    root: &Tree,
    directory: &Path,
    made: (Option<&mut Watch>, &mut Vec<Tree>),
) -> Result<(), CallError> {
    let at = &fixture.at;
    let source = || mounted(at).context(|| format!("taking the files at {}", at.display()));
    let tree = match &fixture.how {
        How::Overlay(part) => {
            let lower = Tree::clone_at(source()?)?;
            overlay((part, fixture.device.as_deref()), lower, plan, directory, made)?
        }
        How::Bound => Tree::clone_below(source()?)?,
        How::ReadOnly => {
            let tree = Tree::clone_at(source()?)?;
            tree.set_attributes(false, Attributes::MOUNT_ATTR_RDONLY)?;
            tree
        }
        How::Hidden => {
            let options = [("source", NAME), ("size", "4k"), ("mode", "0500")];
            Tree::new("tmpfs", &options, Attributes::MOUNT_ATTR_RDONLY)?
        }
    };
    // On the way to the transactions' own directory links are root's.
    let links = if directory.starts_with(at) { ResolveFlags::empty() } else { ResolveFlags::NO_SYMLINKS };
    let below = at.strip_prefix("/").unwrap_or(at);
    let place = openat2(root, below, PLACE, Mode::empty(), ResolveFlags::IN_ROOT | links)
        .context(|| format!("looking for {} in the view", at.display()))?;
    tree.attach_over(place).map_err(|error| CallError { what: format!("showing {}", at.display()), ..error })
}

/// A mount that was planned with, by no link: it is the root of one still, where the kernel says so (Linux 5.8).
fn mounted(at: &Path) -> io::Result<OwnedFd> {
    let found = openat2(CWD, at, PLACE, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    // No server of a file system is asked.
    let told = rustix::fs::statx(&found, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    let is_root = told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    if told.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) && !is_root {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(found)
}

pub(super) fn attach(tree: &Tree, at: impl AsFd, path: &Path) -> Result<(), CallError> {
    rustix::mount::move_mount(tree, "", at, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .context(|| format!("attaching a part of the view at {}", path.display()))
}

/// Makes the trees of control groups read-only, with everything below. It is the mounts that came along with the tree
/// around them: one on top would only have to be taken away again, in a namespace of the command's own.
pub(super) fn keep_control_groups(root: &Tree, plan: &ViewPlan) -> Result<(), CallError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    for tree in &plan.control_groups {
        match openat2(root, tree.strip_prefix("/").unwrap_or(tree), flags, Mode::empty(), within) {
            Ok(place) => Tree::from(place).set_attributes(true, Attributes::MOUNT_ATTR_RDONLY)?,
            // It was taken away since it was seen.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).context(|| format!("looking for control groups at {}", tree.display())),
        }
    }
    Ok(())
}

/// Shows a server's socket, at its place in the view. No link was on the way to it when that was planned. One that is
/// by now would lead root to the socket of another, in a directory that is closed perhaps, and that to where whoever
/// has made the link reaches it.
///
/// There may be hundreds: mount(2) is one call where a detached mount takes four, each dearer. Whoever put a link in
/// the place of his socket meanwhile leads nobody to another file, which would be written to at once.
///
/// The mount is read-only: mode, owner and times would be changed in the live tree. connect(2) does not ask for more.
fn bind_socket(root: &Tree, path: &Path) -> io::Result<()> {
    let socket = socket_at(path)?;
    let below = path.strip_prefix("/").unwrap_or(path);
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let place = openat2(root, below, PLACE, Mode::empty(), within)?;
    let by_number = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::mount::mount_bind(by_number(&socket), by_number(&place))?;
    let bound = openat2(root, below, PLACE, Mode::empty(), within)?;
    Tree::from(bound).set_attributes(false, Attributes::MOUNT_ATTR_RDONLY).map_err(|error| error.source)
}

fn socket_at(path: &Path) -> io::Result<OwnedFd> {
    let found = openat2(CWD, path, PLACE, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let is_socket = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Socket;
    if is_socket { Ok(found) } else { Err(io::ErrorKind::NotFound.into()) }
}

pub(crate) fn enter_root(tree: &Tree) -> io::Result<()> {
    let back = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    rustix::process::fchdir(tree)?;
    rustix::process::pivot_root(".", ".")?;
    // Both roots stand at the same place now, the old one above.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    // A directory that the view does not have is none to be in.
    let _ = rustix::process::chdir(&back);
    Ok(())
}

/// The namespaces that make a view: its mounts, and its own objects of System V.
#[derive(Debug)]
pub(crate) struct ViewNamespaces {
    pub(crate) ipc: OwnedFd,
    pub(crate) mounts: OwnedFd,
}

impl ViewNamespaces {
    /// Those of a thread, by its directory in /proc.
    pub(crate) fn of(process: &Path) -> Result<Self, CallError> {
        let open = |name: &str| {
            let path = process.join("ns").join(name);
            File::open(&path).map(OwnedFd::from).context(|| format!("opening {}", path.display()))
        };
        Ok(Self { ipc: open("ipc")?, mounts: open("mnt")? })
    }

    /// Takes this thread, alone, into the view.
    pub(crate) fn join(&self) -> Result<(), CallError> {
        let back = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        unshare(CloneFlags::CLONE_FS).context(|| "taking a thread's own root".into())?;
        setns(&self.ipc, CloneFlags::CLONE_NEWIPC).context(|| "joining the ipc namespace of a view".into())?;
        setns(&self.mounts, CloneFlags::CLONE_NEWNS).context(|| "joining the mount namespace of a view".into())?;
        let _ = rustix::process::chdir(&back);
        Ok(())
    }
}

/// Takes this thread, alone, into the view that a process is in.
pub(crate) fn join(holder: ProcessId) -> Result<(), CallError> {
    let looking = || format!("looking into the view that process {} holds", holder.pid);
    let namespaces = holder.opened(|pid| Ok(ViewNamespaces::of(Path::new(&format!("/proc/{pid}")))));
    namespaces.context(looking)??.join()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_an_earlier_transaction_left_on_a_mount_is_not_where_a_later_one_of_its_name_has_anything() {
        let home = StateDirectory::new(Path::new("/nowhere"));
        let places = || -> BTreeSet<_> {
            let plan = ViewPlan::of_now(&home, &"t".parse().unwrap()).unwrap();
            plan.parts().filter(|part| !part.base.starts_with(home.directory())).map(|part| part.base.clone()).collect()
        };
        let (earlier, later) = (places(), places());
        assert!(earlier.is_disjoint(&later), "{earlier:?} {later:?}");
    }

    #[test]
    fn no_link_leads_to_a_socket_or_a_mount() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        std::fs::create_dir(place.join("real")).unwrap();
        std::os::unix::fs::symlink("real", place.join("link")).unwrap();
        std::os::unix::fs::symlink("/", place.join("root")).unwrap();
        std::os::unix::fs::symlink("/proc", place.join("proc")).unwrap();
        let _server = std::os::unix::net::UnixListener::bind(place.join("real/socket")).unwrap();
        assert!(socket_at(&place.join("real/socket")).is_ok());
        assert!(socket_at(&place.join("link/socket")).is_err());
        assert!(socket_at(&place.join("real")).is_err());
        assert!(mounted(Path::new("/proc")).is_ok());
        for name in ["root/proc", "proc", "real"] {
            assert!(mounted(&place.join(name)).is_err(), "{name}");
        }
    }
}
