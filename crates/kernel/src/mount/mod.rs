//! Detached mounts (the mount API of Linux 5.2): trees that exist as descriptors, and that no process sees until they
//! are attached.
//!
//! Dropping one that was never attached unmounts it. Putting several over each other:
//! [`overlay`](crate::mount::overlay).

pub mod attach;
pub mod lock;
pub mod overlay;
pub mod stranger;
pub mod watch;

use crate::{CallError, Context, file::proc_file};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use rustix::mount::MountAttrFlags as Attributes;

/// A detached mount, which goes when it is dropped (mount_setattr(2), open_tree(2)).
#[derive(Debug)]
pub struct Tree(OwnedFd);

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Tree {
    /// The mount of a descriptor that fsmount(2) or open_tree(2) gave.
    fn from(mount: OwnedFd) -> Self {
        Self(mount)
    }
}

impl From<Tree> for OwnedFd {
    fn from(tree: Tree) -> Self {
        tree.0
    }
}

/// What mount_setattr(2) is to change of a mount.
struct Change<'a> {
    attributes: Attributes,
    cleared: Attributes,
    propagation: u64,
    namespace: Option<BorrowedFd<'a>>,
}

impl Default for Change<'_> {
    fn default() -> Self {
        Self { attributes: Attributes::empty(), cleared: Attributes::empty(), propagation: 0, namespace: None }
    }
}

impl Tree {
    /// A copy of the mount at `path`, from `path` downwards (open_tree(2) with OPEN_TREE_CLONE, since Linux 5.2); with
    /// `recursive` the mounts below too. It is private: on a host whose mounts are shared, as systemd makes them, what
    /// a guest mounts on it would appear on the host.
    ///
    /// # Errors
    ///
    /// ENOENT where nothing is at `path`; EPERM without CAP_SYS_ADMIN; EINVAL where the mount cannot be copied
    /// (MS_UNBINDABLE).
    pub fn clone_of(path: &Path, recursive: bool) -> Result<Self, CallError> {
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        if recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let take = || {
            let tree = Self(rustix::mount::open_tree(CWD, path, flags)?);
            tree.set(recursive, Change { propagation: libc::MS_PRIVATE, ..Change::default() })?;
            std::io::Result::Ok(tree)
        };
        take().context(|| format!("taking the files at {}", path.display()))
    }

    /// A copy of the mount at `path` like [`clone_of`](Self::clone_of), but not private: it is in the group of mounts
    /// that the mount at `path` is in, and hears and tells of what is mounted, until [`change`](Self::change) says
    /// otherwise.
    ///
    /// # Errors
    ///
    /// Those of [`clone_of`](Self::clone_of).
    pub fn clone_in_its_group(path: &Path, recursive: bool) -> Result<Self, CallError> {
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
        let taken = rustix::mount::open_tree(CWD, path, flags);
        taken.map(Self).context(|| format!("taking the files at {}", path.display()))
    }

    /// Sets attributes of the mount, takes others away, and sets its propagation (`MS_SHARED` and the like) if that is
    /// not 0; with `recursive` the same for those below.
    ///
    /// # Errors
    ///
    /// EPERM for an attribute that was locked by whoever handed the mount down.
    pub fn change(
        &self,
        recursive: bool,
        (set, clear): (Attributes, Attributes),
        propagation: u64,
    ) -> Result<(), CallError> {
        let change = Change { attributes: set, cleared: clear, propagation, namespace: None };
        self.set(recursive, change).context(|| format!("setting mount attributes {set:?} and taking {clear:?} away"))
    }

    /// A copy of the mount that a descriptor of this mount namespace stands for, a single file perhaps; otherwise like
    /// [`clone_of`](Self::clone_of).
    ///
    /// # Errors
    ///
    /// EINVAL where the descriptor is of another mount namespace.
    pub fn clone_at(place: impl AsFd) -> Result<Self, CallError> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let take = || {
            let tree = Self(rustix::mount::open_tree(place, "", flags)?);
            tree.set(false, Change { propagation: libc::MS_PRIVATE, ..Change::default() })?;
            std::io::Result::Ok(tree)
        };
        take().context(|| "taking a file".into())
    }

    /// A copy of what a descriptor stands for with the mounts below it, whatever is at its path by now; otherwise like
    /// [`clone_at`](Self::clone_at).
    ///
    /// # Errors
    ///
    /// EINVAL where the descriptor is of another mount namespace; EPERM without CAP_SYS_ADMIN.
    pub fn clone_below(place: impl AsFd) -> Result<Self, CallError> {
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        flags |= OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE;
        let take = || {
            let tree = Self(rustix::mount::open_tree(place, "", flags)?);
            tree.set(true, Change { propagation: libc::MS_PRIVATE, ..Change::default() })?;
            std::io::Result::Ok(tree)
        };
        take().context(|| "taking a tree of files".into())
    }

    /// Attaches the tree over the directory or file that a descriptor stands for.
    ///
    /// # Errors
    ///
    /// EINVAL where one is a directory and the other is not.
    pub fn attach_over(&self, place: impl AsFd) -> Result<(), CallError> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        rustix::mount::move_mount(&self.0, "", place, "", flags).context(|| "attaching a file".into())
    }

    /// Another mount of the same file system, which is then in memory once, whatever its owners are mapped to. Private,
    /// like [`clone_of`](Self::clone_of).
    ///
    /// # Errors
    ///
    /// EINVAL before Linux 6.15, where what is attached nowhere cannot be copied.
    pub fn duplicate(&self) -> Result<Self, CallError> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let take = || {
            let tree = Self(rustix::mount::open_tree(&self.0, "", flags)?);
            tree.set(false, Change { propagation: libc::MS_PRIVATE, ..Change::default() })?;
            std::io::Result::Ok(tree)
        };
        take().context(|| "taking another copy of a tree of files".into())
    }

    /// Shows the tree's files as owned through the map of a user namespace: what is owned by 0 on disk is owned by the
    /// namespace's root (mount_setattr(2) with MOUNT_ATTR_IDMAP, since Linux 5.12).
    ///
    /// # Errors
    ///
    /// EINVAL on file systems that cannot: overlay, NFS, and others before their time (tmpfs since 6.3, FUSE since
    /// 6.12).
    pub fn map_ids(&self, user_namespace: BorrowedFd<'_>) -> Result<(), CallError> {
        let attributes = MountAttrFlags::MOUNT_ATTR_IDMAP;
        self.set(false, Change { attributes, namespace: Some(user_namespace), ..Change::default() })
            .context(|| "mapping the owners of a tree of files".into())
    }

    /// Maps the ids of the mount and of those below it: of all, or of none where one of them cannot.
    ///
    /// # Errors
    ///
    /// EINVAL where a file system among them cannot, as for [`map_ids`](Self::map_ids).
    pub fn map_ids_of_all(&self, user_namespace: BorrowedFd<'_>) -> Result<(), CallError> {
        let attributes = MountAttrFlags::MOUNT_ATTR_IDMAP;
        self.set(true, Change { attributes, namespace: Some(user_namespace), ..Change::default() })
            .context(|| "mapping the owners of a tree of files and of what is mounted in it".into())
    }

    /// Sets attributes on the mount, and with `recursive` on those below.
    ///
    /// # Errors
    ///
    /// EINVAL for attributes that the kernel does not know; EPERM for those that are locked.
    pub fn set_attributes(&self, recursive: bool, attributes: Attributes) -> Result<(), CallError> {
        self.set(recursive, Change { attributes, ..Change::default() })
            .context(|| format!("setting mount attributes {attributes:?}"))
    }

    fn set(&self, recursive: bool, change: Change<'_>) -> std::io::Result<()> {
        let arguments = libc::mount_attr {
            attr_set: u64::from(change.attributes.bits()),
            attr_clr: u64::from(change.cleared.bits()),
            propagation: change.propagation,
            userns_fd: change.namespace.map_or(0, |fd| fd.as_raw_fd() as u64),
        };
        let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
        // SAFETY: the path is an empty C string; the kernel reads the arguments, whose size is passed along.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                self.0.as_raw_fd(),
                c"".as_ptr(),
                flags,
                &raw const arguments,
                size_of_val(&arguments),
            )
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// A new file system of a kind, with `key=value` options (fsopen(2), fsmount(2), since Linux 5.2).
    ///
    /// # Errors
    ///
    /// ENODEV where the kernel lacks that kind; EINVAL where it does not know an option; EPERM without the right to
    /// mount it.
    pub fn new(kind: &str, options: &[(&str, &str)], attributes: Attributes) -> Result<Self, CallError> {
        let make = || {
            let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
            for (key, value) in options {
                rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
            }
            rustix::mount::fsconfig_create(context.as_fd())?;
            rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        make().map(Self).context(|| format!("making a file system of kind {kind}"))
    }

    /// A place inside the tree, opened as a mere place (O_PATH). Nothing on the way may be a link.
    ///
    /// # Errors
    ///
    /// ENOENT where nothing is there; ELOOP where a link is on the way.
    pub fn place(&self, path: &str) -> Result<OwnedFd, CallError> {
        let resolve = rustix::fs::ResolveFlags::BENEATH | rustix::fs::ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(&self.0, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
            .context(|| format!("opening {path} in a tree of files"))
    }

    /// Makes a device node in the tree, of a kind that has numbers: a character or a block device.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_MKNOD, and on a file system that a user namespace owns; EEXIST where the name is taken.
    pub fn make_device(
        &self,
        name: &str,
        kind: rustix::fs::FileType,
        mode: u32,
        (major, minor): (u32, u32),
    ) -> Result<(), CallError> {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(&self.0, name, kind, Mode::from_raw_mode(mode), device)
            .context(|| format!("making device {name}"))
    }
}

/// A mount, as `/proc/PID/mountinfo` lists it (proc(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number (statx(2) gives it as `stx_mnt_id`), which no other mount of the machine has while it is there.
    pub id: u64,
    /// The number of the mount that it is on.
    pub parent: u64,
    /// Its file system's device, as `major:minor`.
    pub device: String,
    /// The directory or file that it is mounted on.
    pub at: PathBuf,
    /// What part of its file system.
    pub root: PathBuf,
    /// The type of its file system, as mount(8) names it.
    pub kind: String,
    /// What it was mounted from, as /proc/PID/mountinfo has it.
    pub source: String,
    /// Options of the mount, with commas between them.
    pub attributes: String,
    /// Options of the file system, with commas between them.
    pub options: String,
    /// The group of mounts that hear of what is mounted on it, if there is one.
    pub shared: Option<u64>,
    /// The group that it hears from.
    pub master: Option<u64>,
    /// Whether it cannot be mounted once more (`MS_UNBINDABLE`).
    pub unbindable: bool,
}

impl MountEntry {
    /// Whether nobody can write to it by this mount.
    pub fn is_read_only(&self) -> bool {
        self.attributes.split(',').next() == Some("ro")
    }
}

/// The mounts of this mount namespace, in the order of mounting.
///
/// # Errors
///
/// Those of reading /proc/self/mountinfo.
pub fn mounts() -> Result<Vec<MountEntry>, CallError> {
    read("/proc/self/mountinfo")
}

/// The mounts that a process sees, in the order of mounting: their places are relative to its root.
///
/// # Errors
///
/// ENOENT and ESRCH where the process has gone; EINVAL where it has ended and was not reaped.
pub fn mounts_of(pid: i32) -> Result<Vec<MountEntry>, CallError> {
    read(&format!("/proc/{pid}/mountinfo"))
}

fn read(path: &str) -> Result<Vec<MountEntry>, CallError> {
    let text = proc_file::read(path).context(|| format!("reading {path}"))?;
    Ok(entries(&text).collect())
}

/// Those of a text that was read from such a file. Paths are any bytes; what is no mount is passed over.
pub fn entries<T: AsRef<[u8]> + ?Sized>(text: &T) -> impl Iterator<Item = MountEntry> {
    text.as_ref().split(|byte| *byte == b'\n').filter_map(entry)
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|byte| *byte == b' ');
    let mut word = || words.next();
    let (id, parent) = (number(word()?)?, number(word()?)?);
    let (device, root, at, attributes) = (word()?, word()?, word()?, word()?);
    let (mut shared, mut master, mut unbindable) = (None, None, false);
    // Fields that are there or not, up to a dash.
    loop {
        match word()? {
            b"-" => break,
            field => {
                shared = shared.or_else(|| number(field.strip_prefix(b"shared:")?));
                master = master.or_else(|| number(field.strip_prefix(b"master:")?));
                unbindable |= field == b"unbindable";
            }
        }
    }
    let (kind, source, options) = (word()?, word()?, word()?);
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    Some(MountEntry {
        id,
        parent,
        device: text(device),
        at: unescape(at),
        root: unescape(root),
        kind: text(kind),
        source: text(source),
        attributes: text(attributes),
        options: text(options),
        shared,
        master,
        unbindable,
    })
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Blanks, tabs, newlines and backslashes stand as three octal digits.
pub(crate) fn unescape(mut rest: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\');
        let byte = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_is_taken_apart() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let entry = entry(line).unwrap();
        assert_eq!(entry.at, Path::new("/mnt 2"));
        assert_eq!((entry.kind.as_str(), entry.source.as_str()), ("ext3", "/dev/root"));
        assert_eq!((entry.attributes.as_str(), entry.options.as_str()), ("rw,noatime", "rw,errors=continue"));
        assert_eq!((entry.parent, entry.device.as_str(), entry.shared, entry.master), (35, "98:0", None, Some(1)));
    }

    #[test]
    fn a_cut_line_is_no_mount() {
        assert_eq!(entry(b"36 35 98:0 / /mnt rw - ext4"), None);
        assert_eq!(entry(b"36 35 98:0 / /mnt rw shared:3"), None);
        assert_eq!(entry(b""), None);
    }

    #[test]
    fn a_path_is_any_bytes() {
        let found: Vec<_> = entries(b"1 1 0:1 / /a rw - x y z\n\xff\n2 1 0:1 / /\xff\\134\\0 rw - x y z\n").collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].at.as_os_str().as_bytes(), b"/\xff\\\\0");
    }
}
