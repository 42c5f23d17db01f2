//! What of a guest's own files has changed since they were looked at: asked while the guest stands still, so by as few
//! calls as there can be. Directories stay open from one look to the next; one whose ctime has not changed has the same
//! entries. Which of these may have changed the kernel's cache of names tells at once ([`Touched`]), and only they are
//! asked for their own ctimes; all are where it has forgotten some, or nothing of ours can be told of it.
//!
//! What is more than that (directories that came, went or were moved) is not found out here: then all is looked at
//! anew.

use crate::freeze::files_ahead::{Seen, Tree};
use pando_freeze::{Entries, Since, Touched};
use pando_kernel::file::tree_copy::directory_below;
use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// More directories than this are not kept open.
const MOST_DIRECTORIES: usize = 512;

/// How many threads ask, where there is much to ask for. More would wait for one another in the kernel.
const THREADS: usize = 2;

/// Fewer entries than this are asked for sooner than a thread is made.
const FEW: usize = 500;

/// A directory as it was.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    open: OwnedFd,
    seen: Seen,
    /// Its entries: name, and how they were.
    entries: Vec<Entry>,
}

type Entry = (CString, Seen);

/// A directory that is looked at again, and those of its entries that may have changed if it has not.
#[derive(Debug)]
struct Suspicion<'a> {
    directory: &'a Directory,
    entries: Vec<&'a Entry>,
}

/// Everything as it was, ready to be looked at again.
#[derive(Debug)]
pub(crate) struct Prepared(Vec<Directory>);

/// What differs: how it is now, or nothing where it is gone.
pub(crate) type Differing = BTreeMap<PathBuf, Option<Seen>>;

impl Prepared {
    /// Opens the directories of a tree that was looked at; `None` where they are too many, or have changed already.
    pub(crate) fn of(top: BorrowedFd<'_>, tree: &Tree) -> Option<Self> {
        let mut places = BTreeMap::new();
        let mut directories = Vec::new();
        for (path, seen) in tree.iter().filter(|(_, seen)| seen.is_directory()) {
            if directories.len() == MOST_DIRECTORIES {
                return None;
            }
            let open = directory_below(top, path).ok()?;
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

    /// Looks again. `None` where more has changed than can be told this way. `touched` is what tells of entries, and
    /// when they were seen.
    pub(crate) fn look(&self, touched: Option<(&Touched, Since)>) -> Option<Differing> {
        let open: Vec<_> = self.0.iter().map(|directory| directory.open.as_fd()).collect();
        let told = touched.and_then(|(program, since)| program.among(&open, since).ok()).unwrap_or_default();
        let suspicions: Vec<_> = self.0.iter().map(|one| one.suspect(told.get(&one.open.as_raw_fd()))).collect();
        let entries: usize = suspicions.iter().map(|one| one.entries.len()).sum();
        if entries < FEW {
            return look_at_all(&suspicions);
        }
        let part = suspicions.len().div_ceil(THREADS).max(1);
        let parts: Vec<Option<Differing>> = std::thread::scope(|scope| {
            let threads: Vec<_> = suspicions.chunks(part).map(|part| scope.spawn(move || look_at_all(part))).collect();
            threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
        });
        parts.into_iter().try_fold(Differing::new(), |mut all, part| {
            all.extend(part?);
            Some(all)
        })
    }
}

impl Directory {
    /// Which entries may have changed, by what was told of them.
    fn suspect(&self, told: Option<&Entries>) -> Suspicion<'_> {
        let touched = |told: &Entries| {
            let was_touched = |seen: &Seen| told.touched.binary_search(&seen.inode).is_ok();
            let some: Vec<_> = self.entries.iter().filter(|(_, seen)| was_touched(seen)).collect();
            let is_all = told.untouched + told.touched.len() == self.entries.len() && some.len() == told.touched.len();
            is_all.then_some(some)
        };
        let entries = told.and_then(touched).unwrap_or_else(|| self.entries.iter().collect());
        Suspicion { directory: self, entries }
    }
}

fn look_at_all(suspicions: &[Suspicion<'_>]) -> Option<Differing> {
    let mut differing = Differing::new();
    for Suspicion { directory, entries } in suspicions {
        let own = Seen::at(&directory.open, c"", AtFlags::EMPTY_PATH).ok()?;
        // Another one of that name.
        if own.inode != directory.seen.inode {
            return None;
        }
        if own == directory.seen {
            look_at(directory, entries.iter().copied(), &mut differing)?;
        } else {
            look_at(directory, &directory.entries, &mut differing)?;
            newcomers(directory, &mut differing)?;
            differing.insert(directory.path.clone(), Some(own));
        }
    }
    Some(differing)
}

/// Looks at entries that were there. `None` where more than their own attributes and content have changed.
fn look_at<'a>(
    directory: &Directory,
    entries: impl IntoIterator<Item = &'a Entry>,
    differing: &mut Differing,
) -> Option<()> {
    for (name, seen) in entries {
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
    Some(())
}

/// Entries that were not there.
fn newcomers(directory: &Directory, differing: &mut Differing) -> Option<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let known: HashSet<&CStr> = directory.entries.iter().map(|(name, _)| name.as_c_str()).collect();
    let readable = rustix::fs::openat(&directory.open, ".", flags, Mode::empty()).ok()?;
    for entry in rustix::fs::Dir::new(readable).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || known.contains(name) {
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

/// Of a tree what differs, some paths more, and the directories above: as they were, and as they are. To go through all
/// of it would take longer than the looking.
pub(crate) fn narrowed(before: &Tree, differing: &Differing, more: &BTreeSet<PathBuf>) -> (Tree, Tree) {
    let ends = differing.keys().chain(more.iter().filter(|path| before.contains_key(*path)));
    let mut paths: BTreeSet<&Path> = BTreeSet::new();
    for path in ends {
        // Above one that is there already, all are.
        let _ = path.ancestors().find(|above| !paths.insert(above));
    }
    let was = |path: &Path| before.get(path).cloned();
    let is = |path: &Path| differing.get(path).cloned().unwrap_or_else(|| was(path));
    let tree = |look: &dyn Fn(&Path) -> Option<Seen>| {
        paths.iter().filter_map(|path| Some((path.to_path_buf(), look(path)?))).collect()
    };
    (tree(&was), tree(&is))
}

impl Seen {
    pub(crate) fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// What has a name in a directory; a link itself.
    pub(crate) fn named(directory: impl AsFd, name: &OsStr) -> io::Result<Self> {
        Self::at(directory, &CString::new(name.as_bytes())?, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The attributes of a file, from what the kernel told.
    pub(crate) fn of(about: &Statx) -> Self {
        let mode = u32::from(about.stx_mode);
        let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
        Self {
            inode: about.stx_ino,
            mode,
            owner: (about.stx_uid, about.stx_gid),
            length: if is_directory { 0 } else { about.stx_size },
            links: if is_directory { 1 } else { about.stx_nlink.into() },
            changed: (about.stx_ctime.tv_sec, about.stx_ctime.tv_nsec.into()),
            written: (about.stx_mtime.tv_sec, about.stx_mtime.tv_nsec.into()),
        }
    }

    pub(crate) fn at(directory: impl AsFd, name: &CStr, flags: AtFlags) -> io::Result<Self> {
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

    fn open(top: &Path) -> OwnedFd {
        rustix::fs::open(top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    /// What changes a tree, and whether it is told of without a whole look.
    type Change = (fn(&Path), bool);

    #[test]
    fn it_sees_what_a_whole_look_sees_or_says_that_it_cannot() {
        let changes: [Change; 9] = [
            (|top| std::fs::write(top.join("a/b/67"), "other").unwrap(), true),
            (|_| {}, true),
            (|top| std::fs::write(top.join("a/one"), "longer").unwrap(), true),
            (|top| std::fs::remove_file(top.join("a/b/two")).unwrap(), true),
            (|top| std::fs::write(top.join("a/b/new"), "x").unwrap(), true),
            (|top| std::fs::rename(top.join("a/one"), top.join("a/other")).unwrap(), true),
            (|top| std::fs::create_dir(top.join("a/dir")).unwrap(), false),
            (|top| pando_kernel::file::tree_removal::remove_tree(&top.join("a/b")).unwrap(), false),
            (|top| std::fs::rename(top.join("a/b"), top.join("a/c")).unwrap(), false),
        ];
        let mut asked_for_all = false;
        // Where it cannot be loaded, all is asked for each time.
        let touched = Touched::load().ok().filter(|_| pando_kernel::process::counts_as_the_kernel());
        for (number, (change, told)) in changes.into_iter().enumerate().flat_map(|one| [one; 2]) {
            asked_for_all = !asked_for_all;
            let scratch = tempfile::tempdir().unwrap();
            let top = scratch.path();
            std::fs::create_dir_all(top.join("a/b")).unwrap();
            std::fs::write(top.join("a/one"), "one").unwrap();
            std::fs::write(top.join("a/b/two"), "two").unwrap();
            (0..100).for_each(|number| std::fs::write(top.join(format!("a/b/{number}")), "same").unwrap());
            std::thread::sleep(3 * super::super::files_ahead::TICK);
            let since = Since::now();
            let before = look(open(top).as_fd()).unwrap();
            let prepared = Prepared::of(open(top).as_fd(), &before).unwrap();
            std::thread::sleep(super::super::files_ahead::TICK);
            change(top);
            let differing = prepared.look(touched.as_ref().filter(|_| !asked_for_all).map(|touched| (touched, since)));
            assert_eq!(differing.is_some(), told, "change {number}");
            let Some(differing) = differing else { continue };
            let after = look(open(top).as_fd()).unwrap();
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
