//! Whether any of a few files was opened in a view. To be told of each that is opened would make opening half as dear
//! again.

use pando_kernel::file::fanotify::Openings;
use pando_kernel::file::handle::FileHandle;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Listens for that.
#[derive(Debug)]
pub(super) struct Openers {
    openings: Openings,
    files: Vec<Watched>,
    /// The kernel tells once.
    heard: RefCell<HashSet<PathBuf>>,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    handle: FileHandle,
    /// It was looked up before any canary, so that the kernel could forget unnoticed that the transaction has done so
    /// as well.
    _name: OwnedFd,
}

impl Openers {
    /// Of the files at these paths, as the calling thread has them. What cannot be listened to is taken for opened.
    pub(super) fn of(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<Self> {
        let mut openers = Self { openings: Openings::new()?, files: Vec::new(), heard: RefCell::default() };
        for path in paths {
            match openers.listen(&path) {
                Ok(watched) => openers.files.push(watched),
                Err(_) => drop(openers.heard.get_mut().insert(path)),
            }
        }
        Ok(openers)
    }

    fn listen(&self, path: &Path) -> io::Result<Watched> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        let (handle, _) = FileHandle::identifier(&place, "")?;
        self.openings.watch(&place)?;
        Ok(Watched { path: path.to_owned(), handle, _name: place })
    }

    /// Whether one of them was opened, or that cannot be told.
    pub(super) fn have_opened(&self, path: &Path) -> bool {
        let mut heard = self.heard.borrow_mut();
        loop {
            let openings = match self.openings.read() {
                Ok(openings) if openings.is_empty() => break,
                Ok(openings) => openings,
                Err(_) => return true,
            };
            let is_opened = |handle: &FileHandle| openings.iter().any(|one| one.object == *handle);
            let opened = self.files.iter().filter(|one| is_opened(&one.handle));
            heard.extend(opened.map(|one| one.path.clone()));
        }
        heard.contains(path) || !self.files.iter().any(|one| one.path == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_is_told_of_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["a", "b"] {
            std::fs::write(at(name), name).unwrap();
        }
        let Ok(openers) = Openers::of([at("a"), at("b"), at("missing")]) else {
            eprintln!("skipped: it needs root");
            return;
        };
        let all = || ["a", "b", "missing", "unknown"].map(|name| openers.have_opened(&at(name)));
        assert_eq!(all(), [false, false, true, true]);
        std::fs::metadata(at("b")).unwrap();
        assert_eq!(all(), [false, false, true, true], "a look at it is no opening");
        std::fs::read(at("b")).unwrap();
        assert_eq!(all(), [false, true, true, true]);
        assert_eq!(all(), [false, true, true, true]);
    }
}
