//! Named fifos of the live tree that somebody outside has open. Through an overlay each is another one, which nobody is at the other end of: who opens it means those outside.
//!
//! Neither seccomp nor a permission event of fanotify can hold up that call without holding up all that open anything. So the fifo of the view is held open at
//! both ends, which lets everybody come in without waiting, and the kernel tells who did. What is written into it reaches nobody.

use super::bystanders::place;
use pando_kernel::fanotify::Openings;
use pando_kernel::file_handle::FileHandle;
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// `OVERLAYFS_SUPER_MAGIC`
const OVERLAY: i64 = 0x794c_7630;

/// Those of a view.
#[derive(Debug)]
pub(super) struct Fifos {
    openings: Openings,
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    object: FileHandle,
    /// Whether it is the one outside, which is bound in.
    is_outside: bool,
    /// Its ends, where it is not.
    held: Option<OwnedFd>,
}

/// One was opened.
#[derive(Debug)]
pub(super) struct Opened {
    /// By this process.
    pub(super) pid: i32,
    pub(super) path: PathBuf,
    /// Whether it is the one outside.
    pub(super) is_outside: bool,
}

impl AsFd for Fifos {
    /// Readable when one was opened.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.openings.as_fd()
    }
}

impl Fifos {
    /// Watches those at these paths in a view, by a path that leads into it.
    pub(super) fn watch(view: &Path, paths: &BTreeSet<PathBuf>) -> io::Result<Self> {
        let root = File::open(view)?;
        let openings = Openings::new()?;
        let watch = |path: &PathBuf| {
            let fifo = place(&root, path.strip_prefix("/").unwrap_or(path)).ok()?;
            if FileType::from_raw_mode(fstat(&fifo).ok()?.st_mode) != FileType::Fifo {
                return None;
            }
            let is_outside = fstatfs(&fifo).ok()?.f_type != OVERLAY;
            // Before it is watched: this process is none of the transaction's.
            let held = if is_outside { None } else { Some(hold(&fifo, OFlags::RDWR).ok()?) };
            openings.watch(&fifo).ok()?;
            let (object, _) = FileHandle::identifier(&fifo, "").ok()?;
            Some(Watched { path: path.clone(), object, is_outside, held })
        };
        let watched = paths.iter().filter_map(watch).collect();
        Ok(Self { openings, watched })
    }

    /// Those that were opened since. They are held as readers only from then on: who reads learns that nobody writes, and who is to write does not wait.
    pub(super) fn opened(&mut self) -> io::Result<Vec<Opened>> {
        let mut all = Vec::new();
        for opening in self.openings.read()?.into_iter().filter(|one| one.pid != std::process::id().cast_signed()) {
            if let Some(watched) = self.watched.iter_mut().find(|one| one.object == opening.object) {
                watched.held = watched.held.take().and_then(|held| hold(&held, OFlags::RDONLY).ok());
                all.push(Opened { pid: opening.pid, path: watched.path.clone(), is_outside: watched.is_outside });
            }
        }
        Ok(all)
    }
}

fn hold(fifo: &OwnedFd, ends: OFlags) -> io::Result<OwnedFd> {
    let flags = ends | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/self/fd/{}", fifo.as_raw_fd()), flags, Mode::empty())?)
}
