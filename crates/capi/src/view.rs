//! Where this process is: its mount namespace, its root and its working directory.

use crate::calls;
use crate::failure::Failure;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// A place outside of a view, to come back to.
#[derive(Debug)]
pub(crate) struct Outside {
    mounts: OwnedFd,
    root: Option<(PathBuf, OwnedFd)>,
    directory: OwnedFd,
    path: PathBuf,
}

impl Outside {
    /// Where this thread is now.
    pub(crate) fn here() -> Result<Self, Failure> {
        let open = |path: &str, flags: OFlags| {
            let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
            let opened =
                opened.map(|one| rustix::io::fcntl_dupfd_cloexec(&one, crate::descriptors::OWN).unwrap_or(one));
            opened.map_err(|errno| Failure::of_call(path, "opening it", errno))
        };
        let root = rustix::fs::readlink("/proc/thread-self/root", Vec::new());
        let root = root.map_err(|errno| Failure::of_call("/proc/thread-self/root", "reading it", errno))?;
        let root = PathBuf::from(root.to_string_lossy().into_owned());
        let root = if root == Path::new("/") { None } else { Some((root, open("/", OFlags::PATH)?)) };
        let path = std::env::current_dir();
        let path = path.map_err(|error| Failure::of_call("the working directory", "finding it", error))?;
        Ok(Self {
            mounts: open("/proc/thread-self/ns/mnt", OFlags::RDONLY)?,
            root,
            directory: open(".", OFlags::PATH)?,
            path,
        })
    }

    /// The numbers of its descriptors.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = RawFd> {
        let root = self.root.as_ref().map(|(_, root)| root.as_raw_fd());
        [self.mounts.as_raw_fd(), self.directory.as_raw_fd()].into_iter().chain(root)
    }

    /// What tells its mount namespace from all others.
    pub(crate) fn namespace(&self) -> Result<u64, Failure> {
        let found = rustix::fs::fstat(&self.mounts);
        found
            .map(|found| found.st_ino)
            .map_err(|errno| Failure::of_call("/proc/thread-self/ns/mnt", "looking at it", errno))
    }

    /// Enters a view. The thread is at the same paths there as it was outside.
    pub(crate) fn enter(&self, view: &OwnedFd, alone: bool) -> Result<(), Failure> {
        if alone {
            calls::unshare(UnshareFlags::FS)
                .map_err(|errno| Failure::of_call("thread", "taking a root of its own", errno))?;
        }
        let name = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(view.as_fd(), name)
            .map_err(|errno| Failure::of_call("view", "entering the view of a transaction", errno))?;
        let at = self.root.as_ref().map_or(Ok(()), |(path, _)| {
            rustix::process::chroot(path)
                .map_err(|errno| Failure::of_call(path.to_string_lossy(), "changing the root to it", errno))
        });
        let at = at.and_then(|()| at_path(&self.path));
        if at.is_err() {
            // Nothing has been done in the view.
            self.come_back()?;
        }
        at
    }

    /// Where the thread is in the view, if that is somewhere else than where it was outside.
    pub(crate) fn moved_to(&self) -> Option<PathBuf> {
        std::env::current_dir().ok().filter(|now| *now != self.path)
    }

    /// Has the thread be at a path that it has gone to, and that is outside of the view by now.
    pub(crate) fn go_to(&self, path: &Path) -> Result<(), Failure> {
        at_path(path)
    }

    /// Leaves the view, for where the thread was before.
    pub(crate) fn come_back(&self) -> Result<(), Failure> {
        move_into_link_name_space(self.mounts.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(
            |errno| match errno {
                rustix::io::Errno::INVAL => Failure::about(
                    "threads",
                    "a thread that was started inside the transaction still runs; join it first",
                ),
                errno => Failure::of_call("view", "leaving the view of a transaction", errno),
            },
        )?;
        if let Some((path, root)) = &self.root {
            rustix::process::fchdir(root)
                .and_then(|()| rustix::process::chroot("."))
                .map_err(|errno| Failure::of_call(path.to_string_lossy(), "changing the root back", errno))?;
        }
        rustix::process::fchdir(&self.directory)
            .map_err(|errno| Failure::of_call(self.path.to_string_lossy(), "going back to it", errno))
    }
}

fn at_path(path: &Path) -> Result<(), Failure> {
    rustix::process::chdir(path).map_err(|errno| Failure::of_call(path.to_string_lossy(), "going to it", errno))
}
