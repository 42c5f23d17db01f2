//! What of a guest's own files has changed since they were looked at: asked while the guest stands still, so by as few calls as there can be. Directories
//! stay open from one look to the next; one whose ctime has not changed has the same entries, and only their own ctimes are asked for.
//!
//! What is more than that (directories that came, went or were moved) is not found out here: then all is looked at anew.

use super::files_ahead::{Seen, Tree};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// More directories than this are not kept open.
const MOST_DIRECTORIES: usize = 512;

/// How many threads ask. More would wait for one another in the kernel.
const THREADS: usize = 2;

/// A directory as it was.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    open: OwnedFd,
    seen: Seen,
    /// Its entries: name, and how they were.
    entries: Vec<(CString, Seen)>,
}

/// Everything as it was, ready to be looked at again.
#[derive(Debug)]
pub(super) struct Prepared(Vec<Directory>);

/// What differs: how it is now, or nothing where it is gone.
pub(super) type Differing = BTreeMap<PathBuf, Option<Seen>>;

impl Prepared {
    /// Opens the directories of a tree that was looked at; `None` where they are too many, or have changed already.
    pub(super) fn of(top: &Path, tree: &Tree) -> Option<Self> {
        let mut places = BTreeMap::new();
        let mut directories = Vec::new();
        for (path, seen) in tree.iter().filter(|(_, seen)| seen.is_directory()) {
            if directories.len() == MOST_DIRECTORIES {
                return None;
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let open = rustix::fs::openat(CWD, top.join(path), flags, Mode::empty()).ok()?;
            places.insert(path.as_path(), directories.len());
            directories.push(Directory { path: path.clone(), open, seen: seen.clone(), entries: Vec::new() });
        }
        for (path, seen) in tree {
            let Some(name) = path.file_name() else { continue };
            let place = *places.get(path.parent()?)?;
            directories[place].entries.push((CString::new(name.as_bytes()).ok()?, seen.clone()));
        }
        Some(Self(directories))
    }

    /// Looks again. `None` where more has changed than can be told this way.
    pub(super) fn look(&self) -> Option<Differing> {
        let part = self.0.len().div_ceil(THREADS).max(1);
        let parts: Vec<Option<Differing>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self.0.chunks(part).map(|part| scope.spawn(move || look_at_all(part))).collect();
            threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
        });
        parts.into_iter().try_fold(Differing::new(), |mut all, part| {
            all.extend(part?);
            Some(all)
        })
    }
}

fn look_at_all(directories: &[Directory]) -> Option<Differing> {
    let mut differing = Differing::new();
    for directory in directories {
        let own = Seen::at(&directory.open, c"", AtFlags::EMPTY_PATH).ok()?;
        // Another one of that name.
        if own.inode != directory.seen.inode {
            return None;
        }
        let same_entries = own == directory.seen;
        for (name, seen) in &directory.entries {
            let now = match Seen::at(&directory.open, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(now) => Some(now),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => return None,
            };
            if now.as_ref() == Some(seen) {
                continue;
            }
            let moved = now.as_ref().is_none_or(|now| now.inode != seen.inode || !now.is_directory());
            if now.as_ref().is_some_and(Seen::is_directory) && !seen.is_directory() || seen.is_directory() && moved {
                return None;
            }
            // A directory that is the same one tells of itself below.
            if !seen.is_directory() {
                differing.insert(directory.path.join(OsStr::from_bytes(name.to_bytes())), now);
            }
        }
        if !same_entries {
            newcomers(directory, &mut differing)?;
            differing.insert(directory.path.clone(), Some(own));
        }
    }
    Some(differing)
}

/// Entries that were not there.
fn newcomers(directory: &Directory, differing: &mut Differing) -> Option<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(&directory.open, ".", flags, Mode::empty()).ok()?;
    for entry in rustix::fs::Dir::new(readable).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..")
            || directory.entries.iter().any(|(known, _)| known.as_c_str() == name)
        {
            continue;
        }
        let now = Seen::at(&directory.open, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if now.is_directory() {
            return None;
        }
        differing.insert(directory.path.join(OsStr::from_bytes(name.to_bytes())), Some(now));
    }
    Some(())
}

/// Of a tree what differs, some paths more, and the directories above: as they were, and as they are. To go through all of it would take longer than the
/// looking.
pub(super) fn narrowed(before: &Tree, differing: &Differing, more: &BTreeSet<PathBuf>) -> (Tree, Tree) {
    let ends = differing.keys().chain(more);
    let paths: BTreeSet<&Path> = ends.flat_map(|path| path.ancestors()).collect();
    let was = |path: &Path| before.get(path).cloned();
    let is = |path: &Path| differing.get(path).cloned().unwrap_or_else(|| was(path));
    let tree = |look: &dyn Fn(&Path) -> Option<Seen>| {
        paths.iter().filter_map(|path| Some((path.to_path_buf(), look(path)?))).collect()
    };
    (tree(&was), tree(&is))
}

impl Seen {
    fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    fn at(directory: impl AsFd, name: &std::ffi::CStr, flags: AtFlags) -> io::Result<Self> {
        let about = rustix::fs::statat(directory, name, flags)?;
        let mode = about.st_mode;
        let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
        Ok(Self {
            inode: about.st_ino,
            mode,
            owner: (about.st_uid, about.st_gid),
            length: if is_directory { 0 } else { about.st_size as u64 },
            links: if is_directory { 1 } else { about.st_nlink },
            changed: (about.st_ctime, about.st_ctime_nsec as i64),
            written: (about.st_mtime, about.st_mtime_nsec as i64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::files_ahead::look;
    use super::*;

    /// What changes a tree, and whether it is told of without a whole look.
    type Change = (fn(&Path), bool);

    #[test]
    fn it_sees_what_a_whole_look_sees_or_says_that_it_cannot() {
        let changes: [Change; 8] = [
            (|_| {}, true),
            (|top| std::fs::write(top.join("a/one"), "longer").unwrap(), true),
            (|top| std::fs::remove_file(top.join("a/b/two")).unwrap(), true),
            (|top| std::fs::write(top.join("a/b/new"), "x").unwrap(), true),
            (|top| std::fs::rename(top.join("a/one"), top.join("a/other")).unwrap(), true),
            (|top| std::fs::create_dir(top.join("a/dir")).unwrap(), false),
            (|top| std::fs::remove_dir_all(top.join("a/b")).unwrap(), false),
            (|top| std::fs::rename(top.join("a/b"), top.join("a/c")).unwrap(), false),
        ];
        for (number, (change, told)) in changes.into_iter().enumerate() {
            let scratch = tempfile::tempdir().unwrap();
            let top = scratch.path();
            std::fs::create_dir_all(top.join("a/b")).unwrap();
            std::fs::write(top.join("a/one"), "one").unwrap();
            std::fs::write(top.join("a/b/two"), "two").unwrap();
            let before = look(top).unwrap();
            let prepared = Prepared::of(top, &before).unwrap();
            std::thread::sleep(super::super::files_ahead::TICK);
            change(top);
            let differing = prepared.look();
            assert_eq!(differing.is_some(), told, "change {number}");
            let Some(differing) = differing else { continue };
            let after = look(top).unwrap();
            let whole: BTreeSet<_> = before.keys().chain(after.keys()).collect();
            let really = whole.into_iter().filter(|path| before.get(*path) != after.get(*path));
            let really: Differing = really.map(|path| (path.clone(), after.get(path).cloned())).collect();
            assert_eq!(differing, really, "change {number}");
            let (was, is) = narrowed(&before, &differing, &BTreeSet::new());
            assert!(was.iter().all(|(path, seen)| before.get(path) == Some(seen)));
            assert!(is.iter().all(|(path, seen)| after.get(path) == Some(seen)));
        }
    }
}
