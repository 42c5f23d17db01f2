//! Named fifos of the live tree that somebody outside has open. Through an overlay each is another one, which nobody is
//! at the other end of: who opens it means those outside.
//!
//! Neither seccomp nor a permission event of fanotify can hold up that call without holding up all that open anything.
//! So the fifo of the view is held open at both ends, which lets everybody come in without waiting, and the kernel
//! tells who did. What is written into it reaches nobody.
//!
//! To look through all that everybody has open takes longer than a short command, so that a thread does it. A program
//! in the kernel tells in a moment who has a fifo open at all: only those are looked at, and where it is nobody, as
//! mostly, there is no thread.

use super::bystanders::{open_fifos, place};
use super::surroundings::Surroundings;
use pando_kernel::file::fanotify::Openings;
use pando_kernel::file::handle::FileHandle;
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Who may have one open.
#[derive(Debug)]
pub(crate) enum Holders {
    /// It is not known.
    Anybody,
    /// These processes, by their pids here.
    These(BTreeSet<i32>),
}

/// Those of a view.
#[derive(Debug)]
pub(super) struct Fifos {
    openings: Arc<Openings>,
    watched: Arc<Mutex<Vec<Watched>>>,
    /// The search, until somebody else has it to answer.
    search: Option<Search>,
    /// Where the search hears of the view.
    view: Option<Sender<PathBuf>>,
    /// Those that were found outside, once that is known.
    told: Receiver<BTreeSet<PathBuf>>,
    found: BTreeSet<PathBuf>,
}

/// The search for those that somebody outside has open. It begins once it is [answered](Self::answer) whose they may
/// be; where nobody does, everybody is looked at.
#[derive(Debug)]
pub(crate) struct Search(Option<Unanswered>);

#[derive(Debug)]
struct Unanswered {
    outside: Surroundings,
    openings: Arc<Openings>,
    watched: Arc<Mutex<Vec<Watched>>>,
    view: Receiver<PathBuf>,
    tell: Sender<BTreeSet<PathBuf>>,
}

impl Search {
    /// They may be these processes'.
    pub(crate) fn answer(mut self, holders: Holders) {
        if let Some(unanswered) = self.0.take() {
            unanswered.go_on(holders);
        }
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        if let Some(unanswered) = self.0.take() {
            unanswered.go_on(Holders::Anybody);
        }
    }
}

impl Unanswered {
    fn go_on(self, holders: Holders) {
        if matches!(&holders, Holders::These(pids) if pids.is_empty()) {
            return;
        }
        let look = move || {
            let found = open_fifos(&self.outside, &holders);
            if !found.is_empty()
                && let Ok(view) = self.view.recv()
            {
                // A view that has gone has nobody in it who could open anything.
                let _ = watch(&view, &found, &self.openings, &self.watched);
            }
            // Nobody asks any more where the command has ended.
            let _ = self.tell.send(found);
        };
        // Without the thread they are others inside.
        let _ = std::thread::Builder::new().name("pando-fifos".into()).spawn(look);
    }
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
    /// To be looked for outside.
    pub(super) fn new(outside: Surroundings) -> io::Result<Self> {
        let openings = Arc::new(Openings::new()?);
        let watched: Arc<Mutex<Vec<Watched>>> = Arc::default();
        let (view, heard) = channel::<PathBuf>();
        let (tell, told) = channel();
        let (to, into) = (Arc::clone(&openings), Arc::clone(&watched));
        let search = Search(Some(Unanswered { outside, openings: to, watched: into, view: heard, tell }));
        let (search, view) = (Some(search), Some(view));
        Ok(Self { openings, watched, search, view, told, found: BTreeSet::new() })
    }

    /// The search for them, which is somebody else's from now on.
    pub(super) fn search(&mut self) -> Option<Search> {
        self.search.take()
    }

    /// Watches them in a view, by a path that leads into it, as soon as they are found.
    pub(super) fn watch_in(&mut self, view: PathBuf) {
        if let Some(hears) = self.view.take() {
            // It is gone where there are none.
            let _ = hears.send(view);
        }
    }

    /// Waits until they have been found; which.
    pub(super) fn found(&mut self) -> &BTreeSet<PathBuf> {
        drop((self.view.take(), self.search.take()));
        // Once it was told there is nobody who could tell it again.
        if let Ok(found) = self.told.recv() {
            self.found = found;
        }
        &self.found
    }

    /// Those that were opened since. They are held as readers only from then on: who reads learns that nobody writes,
    /// and who is to write does not wait.
    pub(super) fn opened(&mut self) -> io::Result<Vec<Opened>> {
        let mut all = Vec::new();
        for opening in self.openings.read()?.into_iter().filter(|one| one.pid != std::process::id().cast_signed()) {
            let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(watched) = watched.iter_mut().find(|one| one.object == opening.object) {
                watched.held = watched.held.take().and_then(|held| hold(&held, OFlags::RDONLY).ok());
                all.push(Opened { pid: opening.pid, path: watched.path.clone(), is_outside: watched.is_outside });
            }
        }
        Ok(all)
    }
}

/// Watches those at these paths in a view. Who waits in one already comes in now, and is told of.
fn watch(view: &Path, paths: &BTreeSet<PathBuf>, openings: &Openings, watched: &Mutex<Vec<Watched>>) -> io::Result<()> {
    // As a mere place: whatever is opened otherwise in the view counts as read by the transaction, and its root would
    // as listed.
    let root = rustix::fs::open(view, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for path in paths {
        let Ok(fifo) = place(&root, path.strip_prefix("/").unwrap_or(path)) else { continue };
        // Nobody looks for what an event is about before all is known of it.
        let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
        if FileType::from_raw_mode(fstat(&fifo)?.st_mode) != FileType::Fifo || openings.watch(&fifo).is_err() {
            continue;
        }
        let is_outside = fstatfs(&fifo)?.f_type != libc::OVERLAYFS_SUPER_MAGIC;
        let (object, _) = FileHandle::identifier(&fifo, "")?;
        let held = if is_outside { None } else { hold(&fifo, OFlags::RDWR).ok() };
        watched.push(Watched { path: path.clone(), object, is_outside, held });
    }
    Ok(())
}

fn hold(fifo: &OwnedFd, ends: OFlags) -> io::Result<OwnedFd> {
    let flags = ends | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/self/fd/{}", fifo.as_raw_fd()), flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::file::fanotify::Listener;

    /// Needs root; without it there is nothing to see.
    #[test]
    fn to_watch_one_is_not_to_list_the_view() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: to hear of what is opened needs root");
            return;
        }
        let view = tempfile::tempdir().unwrap();
        let at = view.path().canonicalize().unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at.join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let listener = Listener::new().unwrap();
        listener.listen_to_file_system(std::fs::File::open(&at).unwrap()).unwrap();
        // Others may be at work on the same file system.
        let is_listed = || {
            let opened = listener.read().unwrap().into_iter().filter(|event| event.directory);
            let path = |object: OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())).unwrap();
            opened.into_iter().map(|event| path(event.object)).any(|path| path == at)
        };
        drop(std::fs::read_dir(&at).unwrap());
        assert!(is_listed());
        let (openings, watched) = (Openings::new().unwrap(), Mutex::default());
        watch(&at, &BTreeSet::from([PathBuf::from("/fifo")]), &openings, &watched).unwrap();
        assert_eq!(watched.lock().unwrap().len(), 1);
        assert!(!is_listed());
    }
}
