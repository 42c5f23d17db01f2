//! Silent logs, of whose next write the kernel tells.

use crate::runtime::readable::readable;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tokio::io::unix::AsyncFd;

/// Logs that nobody has written to since they were added.
#[derive(Debug)]
pub(super) struct Watched {
    inotify: Option<AsyncFd<OwnedFd>>,
    silent: HashMap<i32, PathBuf>,
}

impl Watched {
    pub(super) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify: Some(readable(inotify)?), silent: HashMap::new() })
    }

    /// One that takes no log.
    pub(super) fn nothing() -> Self {
        Self { inotify: None, silent: HashMap::new() }
    }

    /// Adds a log, if it is still as it was when it counted as silent: asked again once the kernel would tell. Whether
    /// it was added.
    pub(super) fn add(&mut self, log: &Path, still_silent: impl FnOnce() -> bool) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        // One event is enough, and the descriptor is gone with it.
        let told_of = WatchFlags::MODIFY | WatchFlags::ONESHOT;
        let Ok(watch) = inotify::add_watch(inotify.get_ref(), log, told_of) else { return false };
        if still_silent() {
            self.silent.insert(watch, log.to_owned());
            return true;
        }
        // Gone already if the kernel has told.
        let _ = inotify::remove_watch(inotify.get_ref(), watch);
        false
    }

    /// Waits until a silent log is written to.
    pub(super) async fn stir(&self) {
        match &self.inotify {
            Some(inotify) => {
                // What is there now is read before anybody waits again, and what comes later makes it readable anew.
                if let Ok(mut ready) = inotify.readable().await {
                    ready.clear_ready();
                }
            }
            None => std::future::pending().await,
        }
    }

    /// The logs that were written to since the last time.
    pub(super) fn written(&mut self) -> Vec<PathBuf> {
        let mut written = Vec::new();
        let Some(inotify) = &self.inotify else { return written };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(inotify.get_ref(), &mut buffer);
        // Ends with EAGAIN.
        while let Ok(event) = events.next() {
            // Each watch ends with its event, or with its file, and the kernel says so.
            written.extend(self.silent.remove(&event.wd()));
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn the_first_write_to_a_silent_log_is_told_of_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = std::fs::File::create(&path).unwrap();
        let mut watched = Watched::new().unwrap();
        assert!(watched.add(&path, || true));
        assert!(watched.written().is_empty());
        log.write_all(b"one\n").unwrap();
        log.write_all(b"two\n").unwrap();
        watched.stir().await;
        assert_eq!(watched.written(), std::slice::from_ref(&path));
        log.write_all(b"three\n").unwrap();
        assert!(watched.written().is_empty());
    }

    #[tokio::test]
    async fn one_that_was_written_to_meanwhile_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = std::fs::File::create(&path).unwrap();
        let mut watched = Watched::new().unwrap();
        assert!(!watched.add(&path, || log.write_all(b"just now\n").is_err()));
        assert!(watched.written().is_empty());
        assert!(!watched.add(&directory.path().join("none"), || true));
        assert!(!Watched::nothing().add(&path, || true));
    }
}
