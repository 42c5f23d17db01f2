//! Several trees laid over each other (Documentation/filesystems/overlayfs.rst).

use crate::mount::{Attributes, Tree};
use crate::release::release;
use crate::{CallError, Context};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MoveMountFlags, UnmountFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// An overlay to be made.
#[derive(Debug)]
pub struct Overlay<'a> {
    /// Shown as the mount's source in /proc/mounts.
    pub name: &'a str,
    /// The read-only trees, uppermost first.
    pub lowers: Vec<&'a Tree>,
    /// Trees below all others of which only the content of files is used, by what a lower tree says of them (since
    /// Linux 6.5): the objects of a store under the images that name them.
    pub data: Vec<&'a Tree>,
    /// Where changes go: a tree with the directories `upper` and, empty, `work`.
    pub files: &'a Tree,
    /// Further options, as fsconfig(2) takes them.
    pub options: &'a [(&'a str, &'a str)],
    /// Whether to forget about durability (`volatile`): for files that do not outlive a crash anyway.
    pub volatile: bool,
}

impl Overlay<'_> {
    /// Makes it. On kernels that take no descriptors for layers, by way of `beside`, a directory of the host: the trees
    /// are attached below it for a moment.
    ///
    /// # Errors
    ///
    /// EBUSY where another overlay uses the upper; EINVAL where the upper's file system cannot serve. What the kernel
    /// silently mounts read-only, because the upper cannot be written, is refused as EROFS.
    pub fn mount(&self, attributes: Attributes, beside: &Path) -> Result<Tree, CallError> {
        match self.by_descriptors(attributes) {
            Err(error) if refuses_descriptors(&error.source) => self.by_paths(attributes, beside),
            made => made,
        }
    }

    /// Makes it of descriptors alone (since Linux 6.13).
    ///
    /// # Errors
    ///
    /// EINVAL before Linux 6.13.
    pub fn by_descriptors(&self, attributes: Attributes) -> Result<Tree, CallError> {
        let (upper, work) = (self.files.place("upper")?, self.files.place("work")?);
        let name_layers = |context: BorrowedFd<'_>| -> rustix::io::Result<()> {
            for lower in &self.lowers {
                rustix::mount::fsconfig_set_fd(context, "lowerdir+", lower.as_fd())?;
            }
            for data in &self.data {
                rustix::mount::fsconfig_set_fd(context, "datadir+", data.as_fd())?;
            }
            rustix::mount::fsconfig_set_fd(context, "upperdir", upper.as_fd())?;
            rustix::mount::fsconfig_set_fd(context, "workdir", work.as_fd())
        };
        self.make(attributes, &name_layers)
    }

    /// Makes it of paths, as every kernel with overlays can: each tree is attached below `beside`, and let go once the
    /// overlay holds it.
    ///
    /// # Errors
    ///
    /// Those of mounting an overlay, and of making directories below `beside`.
    pub fn by_paths(&self, attributes: Attributes, beside: &Path) -> Result<Tree, CallError> {
        let stage =
            Stage::new(beside).context(|| format!("staging the layers of {} below {}", self.name, beside.display()))?;
        let attach =
            |tree: &Tree, name: &str| stage.attach(tree, name).context(|| format!("staging a layer of {}", self.name));
        let mut layers = Vec::new();
        for (number, lower) in self.lowers.iter().enumerate() {
            layers.push(attach(lower, &number.to_string())?);
        }
        let mut lowers = layers.join(":");
        for (number, data) in self.data.iter().enumerate() {
            lowers += &format!("::{}", attach(data, &format!("data{number}"))?);
        }
        let files = attach(self.files, "files")?;
        let name_layers = |context: BorrowedFd<'_>| -> rustix::io::Result<()> {
            rustix::mount::fsconfig_set_string(context, "lowerdir", lowers.as_str())?;
            rustix::mount::fsconfig_set_string(context, "upperdir", format!("{files}/upper"))?;
            rustix::mount::fsconfig_set_string(context, "workdir", format!("{files}/work"))
        };
        self.make(attributes, &name_layers)
    }

    fn make(
        &self,
        attributes: Attributes,
        name_layers: &dyn Fn(BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> Result<Tree, CallError> {
        let make = || -> rustix::io::Result<OwnedFd> {
            let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
            let context = context.as_fd();
            rustix::mount::fsconfig_set_string(context, "source", self.name)?;
            name_layers(context)?;
            for (key, value) in self.options {
                rustix::mount::fsconfig_set_string(context, *key, *value)?;
            }
            if self.volatile {
                rustix::mount::fsconfig_set_flag(context, "volatile")?;
            }
            rustix::mount::fsconfig_create(context)?;
            let tree = rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
            let writable = !rustix::fs::fstatvfs(&tree)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
            if writable { Ok(tree) } else { Err(Errno::ROFS) }
        };
        make().map(Tree::from).context(|| format!("laying the files of {} over each other", self.name))
    }
}

/// Whether the kernel takes descriptors for layers (since Linux 6.13). Where it does not, they are attached somewhere
/// to be named.
pub fn takes_descriptors() -> bool {
    release() >= (6, 13)
}

/// Whether the kernel takes no descriptors for layers: EBADF before Linux 6.13, where an option with a descriptor is
/// looked up as a path, EINVAL where the option does not exist, EOPNOTSUPP where overlays still take their options as
/// one text (before Linux 6.5).
pub(crate) fn refuses_descriptors(error: &io::Error) -> bool {
    // Since then the same errors are about the layers themselves, and to attach those somewhere would show them to
    // everybody for nothing.
    !takes_descriptors() && matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL | libc::EOPNOTSUPP))
}

/// A directory for mount points, which goes with everything that is attached below it.
pub(crate) struct Stage {
    path: PathBuf,
    /// A way to the directory that is short, whatever the path: the kernel takes 255 bytes for an option.
    directory: OwnedFd,
    attached: std::cell::RefCell<Vec<String>>,
}

impl Stage {
    pub(crate) fn new(beside: &Path) -> io::Result<Self> {
        let path = beside.join(".stage");
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let directory = std::fs::File::open(&path)?.into();
        Ok(Self { path, directory, attached: std::cell::RefCell::default() })
    }

    /// Attaches a tree; where it is, as a short path.
    pub(crate) fn attach(&self, tree: &Tree, name: &str) -> io::Result<String> {
        match rustix::fs::mkdirat(&self.directory, name, rustix::fs::Mode::RWXU) {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(errno) => return Err(errno.into()),
        }
        let place = format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd());
        rustix::mount::move_mount(tree, "", CWD, place.as_str(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        self.attached.borrow_mut().push(place.clone());
        Ok(place)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for place in self.attached.borrow().iter() {
            // What cannot be let go stays a mount of this process's namespace, and is seen there.
            let _ = rustix::mount::unmount(place.as_str(), UnmountFlags::DETACH);
            let _ = std::fs::remove_dir(place);
        }
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs root; without it there is nothing to see.
    #[test]
    fn by_paths_is_as_good_and_leaves_nothing() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: mounting needs root");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        for name in ["lower", "upper", "work"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        std::fs::write(root.path().join("lower/file"), "below").unwrap();
        let (lower, files) =
            (Tree::clone_of(&root.path().join("lower"), false).unwrap(), Tree::clone_of(root.path(), false).unwrap());
        let overlay = Overlay {
            name: "test",
            lowers: vec![&lower],
            data: Vec::new(),
            files: &files,
            options: &[],
            volatile: false,
        };
        let tree = overlay.by_paths(Attributes::MOUNT_ATTR_NODEV, root.path()).unwrap();
        let shown = PathBuf::from(format!("/proc/self/fd/{}", tree.as_fd().as_raw_fd()));
        assert_eq!(std::fs::read_to_string(shown.join("file")).unwrap(), "below");
        std::fs::write(shown.join("new"), "above").unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join("upper/new")).unwrap(), "above");
        assert!(!root.path().join(".stage").exists());
        let mounted = crate::mount::mounts().unwrap();
        assert!(!mounted.iter().any(|mount| mount.at.starts_with(root.path())));
    }
}
