//! A guest's own files, copied while it runs, so that in the instant of freezing only what changed since is copied.
//!
//! ```text
//!   look ▷ copy, as the guest writes on ▷ ... the guest stands still ... ▷ look again ▷ copy what differs, remove what is gone
//! ```
//!
//! A change of anything about a file changes its ctime, which nobody can set; but for writing through a mapping that has been written through before. So
//! files that are mapped for writing are always copied again. What is hard to bring up to date (links between files, many changes, other
//! attributes of a directory) is not: then all is copied once more.

use super::files_recheck::{self, Prepared};
use super::plain_copy;
use pando_freeze::{Since, Touched};
use pando_kernel::tree_removal::remove_tree;
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// More changes than this are not brought up to date one by one.
const MOST_CHANGES: usize = 500;

/// What is known of a file: whatever is done to it changes some of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) inode: u64,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) length: u64,
    pub(super) links: u64,
    pub(super) changed: (i64, i64),
    pub(super) written: (i64, i64),
}

pub(super) type Tree = BTreeMap<PathBuf, Seen>;

/// A copy that was begun ahead.
pub(super) struct Ahead {
    from: PathBuf,
    to: PathBuf,
    /// As it was before it was copied; nothing if the copy is of no use.
    before: Option<Tree>,
    /// When that was, by the clock that files have their times from.
    since: Since,
    /// The same, to be looked at again quickly; nothing if that has to be done the long way.
    prepared: Option<Prepared>,
    /// Files that may change unseen.
    mapped: BTreeSet<PathBuf>,
}

impl Ahead {
    /// Copies while the guest runs. `mapped` tells which files are mapped for writing, as paths below the guest's root; `None` if nobody can. What goes
    /// wrong, as files come and go, is put right later. Blocking.
    pub(super) fn begin(from: &Path, to: &Path, mapped: impl FnOnce() -> Option<Vec<String>>) -> Self {
        let since = Since::now();
        let before = look(from).ok();
        // A clock tick must lie between what was seen and what is done later, or a change might not show in the ctime.
        std::thread::sleep(TICK);
        // Asked now: who maps a file later changes its ctime by the first write.
        let mapped = mapped();
        let before = before.filter(|_| mapped.is_some());
        if before.is_some() {
            let _ = copy(from, to);
        }
        let prepared = before.as_ref().and_then(|before| Prepared::of(from, before));
        let relative = |path: &String| PathBuf::from(path.trim_start_matches('/'));
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            before: before.filter(|_| to.is_dir()),
            since,
            prepared,
            mapped: mapped.iter().flatten().map(relative).collect(),
        }
    }

    /// Brings the copy up to date, now that nothing changes any more. `touched` tells what has, where it can be had. Blocking. What was known of thousands of
    /// files stays: to forget it takes a millisecond, and somebody stands still.
    pub(super) fn finish(&self, touched: Option<&Touched>) -> Result<(), CallError> {
        let what = || format!("copying {} to {}", self.from.display(), self.to.display());
        let touched = touched.map(|touched| (touched, self.since));
        let quickly = self.prepared.as_ref().and_then(|prepared| prepared.look(touched)).zip(self.before.as_ref());
        let (before, now) = match quickly {
            Some((differing, before)) => {
                let (before, now) = files_recheck::narrowed(before, &differing, &self.mapped);
                (Some(before), now)
            }
            None => (None, look(&self.from).context(what)?),
        };
        let before = before.as_ref().or(self.before.as_ref());
        let fresh = before.and_then(|before| changes(before, &now, &self.mapped));
        if let Some(changes) = fresh
            && self.apply(&changes, &now).is_ok()
        {
            return Ok(());
        }
        if self.to.exists() {
            remove_tree(&self.to).context(what)?;
        }
        copy(&self.from, &self.to)
    }

    fn apply(&self, changes: &Changes, now: &Tree) -> std::io::Result<()> {
        for gone in changes.gone.iter().rev() {
            let path = self.to.join(gone);
            match path.symlink_metadata() {
                // What was already gone when it was to be copied.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(_) => remove_tree(&path)?,
            }
        }
        let anew = changes.anew.iter().filter_map(|path| Some((Path::new(path), now.get(Path::new(path))?)));
        let few: Vec<_> = anew.collect();
        if few.len() == changes.anew.len() && plain_copy::suits(&self.from, few.iter().copied()) {
            for (path, seen) in few {
                plain_copy::copy(&self.from.join(path), &self.to.join(path), seen)?;
            }
        } else {
            let ended = Command::new("cp")
                .args(["-a", "--reflink=auto", "--remove-destination", "--parents", "--target-directory"])
                .arg(&self.to)
                .arg("--")
                .args(&changes.anew)
                .current_dir(&self.from)
                .output()?;
            if !ended.status.success() {
                return Err(std::io::Error::other("cp failed"));
            }
        }
        // Last, since what was done in them has changed their times.
        for directory in changes.directories.iter().rev() {
            let Some(seen) = now.get(directory) else { continue };
            dress(&self.from.join(directory), &self.to.join(directory), seen)?;
        }
        Ok(())
    }
}

/// Longer than the kernel's clock for files stands still.
pub(super) const TICK: std::time::Duration = std::time::Duration::from_millis(11);

/// What differs between two looks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    gone: Vec<PathBuf>,
    /// To be copied: files, and directories that were not there.
    anew: Vec<OsString>,
    /// Directories that are to get their attributes.
    directories: Vec<PathBuf>,
}

/// `None` where all had better be copied.
fn changes(before: &Tree, now: &Tree, mapped: &BTreeSet<PathBuf>) -> Option<Changes> {
    let is_directory = |seen: &Seen| seen.mode & libc::S_IFMT == libc::S_IFDIR;
    let mut changes = Changes::default();
    for (path, seen) in before {
        let same_kind = now.get(path).is_some_and(|now| now.mode & libc::S_IFMT == seen.mode & libc::S_IFMT);
        if !same_kind {
            changes.gone.push(path.clone());
        }
    }
    let mut whole: Option<&PathBuf> = None;
    for (path, seen) in now {
        if whole.is_some_and(|whole| path.starts_with(whole)) {
            continue;
        }
        let known = before.get(path).filter(|_| !changes.gone.contains(path));
        if known == Some(seen) && !mapped.contains(path) {
            continue;
        }
        if !is_directory(seen) && seen.links > 1 {
            return None;
        }
        match known {
            Some(_) if is_directory(seen) => {}
            None if is_directory(seen) => {
                whole = Some(path);
                changes.anew.push(path.clone().into());
            }
            _ => changes.anew.push(path.clone().into()),
        }
        // With --parents, cp sets times and rights of the directories above, too; they are set right at the end.
        let above = path.ancestors().filter(|above| now.get(*above).is_some_and(is_directory) && *above != path);
        changes.directories.extend(above.map(Path::to_owned));
        if known.is_some() && is_directory(seen) {
            changes.directories.push(path.clone());
        }
    }
    for gone in &changes.gone {
        changes.directories.extend(gone.parent().filter(|above| now.contains_key(*above)).map(Path::to_owned));
    }
    changes.directories.sort();
    changes.directories.dedup();
    let few = changes.gone.len() + changes.anew.len() + changes.directories.len() <= MOST_CHANGES;
    few.then_some(changes)
}

/// Everything below a directory, and itself as the empty path.
pub(super) fn look(top: &Path) -> std::io::Result<Tree> {
    let mut tree = Tree::new();
    let mut next = vec![PathBuf::new()];
    while let Some(path) = next.pop() {
        let about = match top.join(&path).symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !path.as_os_str().is_empty() => continue,
            found => found?,
        };
        if about.is_dir() {
            match std::fs::read_dir(top.join(&path)) {
                Ok(entries) => next.extend(entries.flatten().map(|entry| path.join(entry.file_name()))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
        let seen = Seen {
            inode: about.ino(),
            mode: about.mode(),
            owner: (about.uid(), about.gid()),
            length: if about.is_dir() { 0 } else { about.size() },
            links: if about.is_dir() { 1 } else { about.nlink() },
            changed: (about.ctime(), about.ctime_nsec()),
            written: (about.mtime(), about.mtime_nsec()),
        };
        tree.insert(path, seen);
    }
    Ok(tree)
}

/// Gives a copied directory the attributes of the first; an error if those that are hard to copy differ.
fn dress(from: &Path, to: &Path, seen: &Seen) -> std::io::Result<()> {
    if extended(from)? != extended(to)? {
        return Err(std::io::Error::other("its extended attributes differ"));
    }
    let (user, group) = seen.owner;
    rustix::fs::chownat(CWD, to, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chmodat(CWD, to, Mode::from_raw_mode(seen.mode & 0o7777), AtFlags::empty())?;
    let about = from.symlink_metadata()?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(about.atime(), about.atime_nsec()),
        last_modification: time(seen.written.0, seen.written.1),
    };
    Ok(rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Extended attributes, by name.
pub(super) fn extended(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    const LONGEST: usize = 64 << 10;
    let mut names = vec![0; LONGEST];
    let length = rustix::fs::llistxattr(path, &mut names[..])?;
    let mut all = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; LONGEST];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(length);
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}

/// Copies a guest's own files as they lie, whiteouts and all, sharing their blocks where the file system can.
fn copy(from: &Path, to: &Path) -> Result<(), CallError> {
    let what = || format!("copying {} to {}", from.display(), to.display());
    let ended = Command::new("cp").args(["-a", "--reflink=auto", "--"]).args([from, to]).output().context(what)?;
    if ended.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&ended.stderr).trim().to_owned())).context(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// All of a tree that a copy must have.
    fn shown(top: &Path) -> Vec<String> {
        let tree = look(top).unwrap();
        let line = |(path, seen): (&PathBuf, &Seen)| {
            let at = top.join(path);
            let content = if at.is_symlink() {
                std::fs::read_link(&at).unwrap().into_os_string().into_encoded_bytes()
            } else if at.is_file() {
                std::fs::read(&at).unwrap()
            } else {
                Vec::new()
            };
            let content = String::from_utf8_lossy(&content).into_owned();
            format!("{} {:o} {:?} {:?} {content}", path.display(), seen.mode, seen.owner, seen.written)
        };
        tree.iter().map(line).collect()
    }

    fn scene() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        std::fs::create_dir_all(from.join("a/b/c")).unwrap();
        std::fs::write(from.join("a/one"), "one").unwrap();
        std::fs::write(from.join("a/b/two"), "two").unwrap();
        std::fs::write(from.join("a/b/c/three"), "three").unwrap();
        std::os::unix::fs::symlink("one", from.join("a/link")).unwrap();
        (directory, from, to)
    }

    #[test]
    fn what_changed_after_the_copy_is_brought_up_to_date() {
        let changes: [fn(&Path); 8] = [
            |_| {},
            |from| std::fs::write(from.join("a/one"), "other").unwrap(),
            |from| std::fs::remove_file(from.join("a/b/two")).unwrap(),
            |from| remove_tree(&from.join("a/b")).unwrap(),
            |from| {
                std::fs::create_dir_all(from.join("new/below")).unwrap();
                std::fs::write(from.join("new/below/file"), "x").unwrap();
            },
            |from| std::fs::set_permissions(from.join("a/b"), PermissionsExt::from_mode(0o700)).unwrap(),
            |from| {
                std::fs::remove_file(from.join("a/link")).unwrap();
                std::fs::create_dir(from.join("a/link")).unwrap();
                std::fs::write(from.join("a/link/in"), "x").unwrap();
            },
            |from| {
                std::fs::hard_link(from.join("a/one"), from.join("a/again")).unwrap();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (_directory, from, to) = scene();
            let ahead = Ahead::begin(&from, &to, || Some(Vec::new()));
            change(&from);
            ahead.finish(None).unwrap();
            assert_eq!(shown(&to), shown(&from), "change {number}");
        }
    }

    #[test]
    fn nothing_is_copied_twice_where_little_changed() {
        let (_directory, from, to) = scene();
        let ahead = Ahead::begin(&from, &to, || Some(vec!["/a/b/two".into()]));
        let before = to.join("a/b/c/three").metadata().unwrap().ino();
        std::fs::write(from.join("a/one"), "other").unwrap();
        // As if it had been written to through a mapping.
        std::fs::write(to.join("a/b/two"), "stale").unwrap();
        ahead.finish(None).unwrap();
        assert_eq!(shown(&to), shown(&from));
        assert_eq!(to.join("a/b/c/three").metadata().unwrap().ino(), before);
    }
}
