//! A guest's own files, copied while it runs, so that in the instant of freezing only what changed since is copied.
//!
//! ```text
//!   look ▷ copy, as the guest writes on ▷ ... the guest stands still ...
//!        ▷ look again ▷ copy what differs, remove what is gone
//! ```
//!
//! A change of anything about a file changes its ctime, which nobody can set; but for writing through a mapping that
//! has been written through before. So files that are mapped for writing are always copied again. What is hard to bring
//! up to date (links between files, many changes, other attributes of a directory) is not: then all is copied once
//! more.
//!
//! The guest renames and replaces what it likes meanwhile. So nothing is looked at or copied by a path that the guest
//! could turn into a way to elsewhere ([`pando_kernel::file::tree_copy`]), and what was copied under a name is taken
//! for what was seen there before only if it was the same object, unchanged.

use crate::freeze::files_recheck;
use crate::freeze::files_recheck::Prepared;
use pando_freeze::{Since, Touched};
use pando_kernel::file::directory_chain::Chain;
use pando_kernel::file::tree_copy::{Attributes, Copying, directory_below, names_in};
use pando_kernel::file::tree_removal::{remove_child, remove_tree};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// More changes than this are not brought up to date one by one.
const MOST_CHANGES: usize = 500;

/// What is known of a file: whatever is done to it changes some of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) length: u64,
    pub(crate) links: u64,
    pub(crate) changed: (i64, i64),
    pub(crate) written: (i64, i64),
}

pub(crate) type Tree = BTreeMap<PathBuf, Seen>;

/// A copy that was begun ahead.
pub(crate) struct Ahead {
    from: PathBuf,
    to: PathBuf,
    /// As it was before it was copied; nothing if the copy is of no use, or if it has more files than are worth being
    /// known.
    before: Option<Tree>,
    /// When that was, by the clock that files have their times from.
    since: Since,
    /// The same, to be looked at again quickly; nothing if that has to be done the long way.
    prepared: Option<Prepared>,
    /// Files that may change unseen.
    mapped: BTreeSet<PathBuf>,
}

impl Ahead {
    /// Copies while the guest runs. `mapped` tells which files are mapped for writing, as paths below the guest's root;
    /// `None` if nobody can. What goes wrong, as files come and go, is put right later. Blocking.
    pub(crate) fn begin(from: &Path, to: &Path, mapped: impl FnOnce() -> Option<Vec<String>>) -> Self {
        let since = Since::now();
        let opened = open(from).ok();
        let before = opened.as_ref().and_then(|from| look(from.as_fd()).ok());
        // A clock tick must lie between what was seen and what is done later, or a change might not show in the ctime.
        std::thread::sleep(TICK);
        // Asked now: who maps a file later changes its ctime by the first write.
        let mapped = mapped();
        let before = before.filter(|_| mapped.is_some());
        let begun = opened.zip(before).and_then(|(from, before)| {
            let before = copy_what_stays(from.as_fd(), to, before).ok()?;
            let prepared = Prepared::of(from.as_fd(), &before);
            Some((before, prepared))
        });
        let (before, prepared) = begun.unzip();
        let relative = |path: &String| PathBuf::from(path.trim_start_matches('/'));
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            before,
            since,
            prepared: prepared.flatten(),
            mapped: mapped.iter().flatten().map(relative).collect(),
        }
    }

    /// Brings the copy up to date, now that nothing changes any more. `touched` tells what has, where it can be had.
    /// Blocking. What was known of thousands of files stays: to forget it takes a millisecond, and somebody stands
    /// still.
    pub(crate) fn finish(&self, touched: Option<&Touched>) -> Result<(), CallError> {
        let what = || format!("copying {} to {}", self.from.display(), self.to.display());
        let from = open(&self.from).context(what)?;
        if self.before.is_none() {
            return self.begin_anew(from.as_fd()).context(what);
        }
        let touched = touched.map(|touched| (touched, self.since));
        let quickly = self.prepared.as_ref().and_then(|prepared| prepared.look(touched)).zip(self.before.as_ref());
        let (before, now) = match quickly {
            Some((differing, before)) => {
                let (before, now) = files_recheck::narrowed(before, &differing, &self.mapped);
                (Some(before), now)
            }
            None => (None, look(from.as_fd()).context(what)?),
        };
        let before = before.as_ref().or(self.before.as_ref());
        let fresh = before.and_then(|before| changes(before, &now, &self.mapped));
        if let Some(changes) = fresh
            && self.apply(from.as_fd(), &changes).is_ok()
        {
            return Ok(());
        }
        self.begin_anew(from.as_fd()).context(what)
    }

    fn begin_anew(&self, from: BorrowedFd<'_>) -> io::Result<()> {
        if self.to.exists() {
            remove_tree(&self.to)?;
        }
        copy(from, &self.to, SHARED_AT_REST, &mut |_, _| {})
    }

    fn apply(&self, from: BorrowedFd<'_>, changes: &Changes) -> io::Result<()> {
        let to = open(&self.to)?;
        for gone in changes.gone.iter().rev() {
            remove_if_there(to.as_fd(), gone)?;
        }
        let mut ignored = |_: &Path, _: &Statx| {};
        let mut copying = Copying::new(from, to.as_fd(), SHARED_AT_REST, &mut ignored);
        for path in &changes.anew {
            remove_if_there(to.as_fd(), path)?;
            let Some((parent, name)) = path.parent().zip(path.file_name()) else { continue };
            copying.names(parent, vec![name.to_owned()])?;
        }
        // Last, since what was done in them has changed their times.
        for directory in changes.directories.iter().rev() {
            dress(from, to.as_fd(), directory)?;
        }
        Ok(())
    }
}

/// Copies a tree in which others write meanwhile. Gives what was known of it before, less what was another, or not
/// there, when it was copied; that is not in the copy then, either.
fn copy_what_stays(from: BorrowedFd<'_>, to: &Path, mut before: Tree) -> io::Result<Tree> {
    let mut copied = Tree::new();
    let mut note = |path: &Path, about: &Statx| {
        if before.contains_key(path) {
            copied.insert(path.to_owned(), Seen::of(about));
        }
    };
    // Where it ends early, what there is of it is as good.
    let _ = copy(from, to, SHARED_WHILE_RUNNING, &mut note);
    let to = open(to)?;
    let made = look(to.as_fd())?;
    let mut left_out = Vec::new();
    before.retain(|path, seen| {
        let is_alike = copied.get(path) == Some(seen);
        // What is in a directory is judged by itself. Its own attributes are given once more.
        let is_known = seen.is_directory() && made.get(path).is_some_and(Seen::is_directory);
        if is_known && !is_alike {
            seen.changed = NEVER;
        }
        let stays = is_alike || is_known;
        if !stays {
            left_out.push(path.clone());
        }
        stays
    });
    // Whoever looks at directories that have changed would miss what is left out of one that has not.
    for path in left_out {
        if let Some(above) = path.parent().and_then(|above| before.get_mut(above)) {
            above.changed = NEVER;
        }
    }
    for path in made.keys().filter(|path| !before.contains_key(*path)) {
        remove_if_there(to.as_fd(), path)?;
    }
    Ok(before)
}

/// Copies a guest's own files as they lie, whiteouts and all.
fn copy(from: BorrowedFd<'_>, to: &Path, share_from: u64, copied: &mut dyn FnMut(&Path, &Statx)) -> io::Result<()> {
    std::fs::create_dir(to)?;
    Ok(Copying::new(from, open(to)?.as_fd(), share_from, copied).all()?)
}

/// Removes what a path below a directory leads to. What was gone already, or lies in what is gone, is no error.
fn remove_if_there(top: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let Some((parent, name)) = path.parent().zip(path.file_name()) else { return Ok(()) };
    let removed = match directory_below(top, parent) {
        Ok(parent) => remove_child(parent.as_fd(), name).map_err(io::Error::from),
        Err(errno) => Err(errno.into()),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?)
}

/// Of a file of so many bytes and more blocks are shared while somebody stands still, where the file system can: the
/// kernel first waits until what was written is on the disk.
const SHARED_AT_REST: u64 = 256 << 10;
const SHARED_WHILE_RUNNING: u64 = 0;

/// No file has changed then.
const NEVER: (i64, i64) = (i64::MIN, 0);

/// Longer than the kernel's clock for files stands still.
pub(crate) const TICK: std::time::Duration = std::time::Duration::from_millis(11);

/// What differs between two looks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    gone: Vec<PathBuf>,
    /// To be copied: files, and directories that were not there.
    anew: Vec<PathBuf>,
    /// Directories that are to get their attributes.
    directories: Vec<PathBuf>,
}

/// `None` where all had better be copied. The guest says how many files there are, how deep they lie and how many of
/// them have changed, and it is the daemon that compares: nothing is searched from end to end for each of them, and no
/// more is kept than would be brought up to date.
fn changes(before: &Tree, now: &Tree, mapped: &BTreeSet<PathBuf>) -> Option<Changes> {
    let gone = gone(before, now)?;
    let mut anew: Vec<&Path> = Vec::new();
    let mut directories: BTreeSet<&Path> = BTreeSet::new();
    let mut whole: Option<&PathBuf> = None;
    for (path, seen) in now {
        if whole.is_some_and(|whole| path.starts_with(whole)) {
            continue;
        }
        let known = before.get(path).filter(|_| gone.binary_search(&path.as_path()).is_err());
        if known == Some(seen) && !mapped.contains(path) {
            continue;
        }
        if !seen.is_directory() && seen.links > 1 {
            return None;
        }
        if known.is_some() && seen.is_directory() {
            note_with_those_above(path, now, &mut directories)?;
        } else {
            whole = seen.is_directory().then_some(path).or(whole);
            anew.push(path);
            // What is made in a directory changes its times; they are set right at the end.
            path.parent().map_or(Some(()), |above| note_with_those_above(above, now, &mut directories))?;
        }
        (gone.len() + anew.len() + directories.len() <= MOST_CHANGES).then_some(())?;
    }
    for above in gone.iter().filter_map(|gone| gone.parent()).filter(|above| now.contains_key(*above)) {
        directories.insert(above);
    }
    let few = gone.len() + anew.len() + directories.len() <= MOST_CHANGES;
    let owned = |paths: &[&Path]| paths.iter().map(|path| path.to_path_buf()).collect();
    few.then(|| Changes { gone: owned(&gone), anew: owned(&anew), directories: owned(&Vec::from_iter(directories)) })
}

/// What is not there any more, or is of another kind, in the order of the paths; `None` for too many.
fn gone<'a>(before: &'a Tree, now: &Tree) -> Option<Vec<&'a Path>> {
    let kind = |seen: &Seen| seen.mode & libc::S_IFMT;
    let is_gone = |path: &PathBuf, seen: &Seen| now.get(path).is_none_or(|now| kind(now) != kind(seen));
    let gone = before.iter().filter(|(path, seen)| is_gone(path, seen)).map(|(path, _)| path.as_path());
    let gone: Vec<_> = gone.take(MOST_CHANGES + 1).collect();
    (gone.len() <= MOST_CHANGES).then_some(gone)
}

/// Notes a directory and those above it. Above one that is noted, all are. `None` for too many, and where one of them
/// is not there.
fn note_with_those_above<'a>(path: &'a Path, now: &Tree, noted: &mut BTreeSet<&'a Path>) -> Option<()> {
    for directory in path.ancestors() {
        if !noted.insert(directory) {
            break;
        }
        (noted.len() <= MOST_CHANGES && now.get(directory)?.is_directory()).then_some(())?;
    }
    Some(())
}

/// Bytes of what is known of a tree: a guest makes as many files as its disk has room for, and it is the daemon that
/// knows them.
const MOST_KNOWN: usize = 128 << 20;

/// Everything below a directory, and itself as the empty path. What goes away meanwhile is not there. An error where
/// there is more than [`MOST_KNOWN`].
pub(crate) fn look(top: BorrowedFd<'_>) -> io::Result<Tree> {
    let first = directory_below(top, Path::new(""))?;
    let mut tree = Tree::from([(PathBuf::new(), Seen::at(&first, c"", AtFlags::EMPTY_PATH)?)]);
    let mut levels = vec![(PathBuf::new(), names_in(first.as_fd())?.into_iter())];
    let mut kept = 0;
    let mut chain = Chain::new(first);
    while let Some((directory, names)) = levels.last_mut() {
        let Some(name) = names.next() else {
            levels.pop();
            chain.leave()?;
            continue;
        };
        let path = directory.join(&name);
        kept += path.as_os_str().len() + size_of::<Seen>();
        if kept > MOST_KNOWN {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let seen = match Seen::named(chain.deepest(), &name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            seen => seen?,
        };
        if seen.is_directory() {
            let below = match directory_below(chain.deepest(), Path::new(&name)) {
                // It went, or is no directory any more.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                below => below?,
            };
            levels.push((path.clone(), names_in(below.as_fd())?.into_iter()));
            tree.insert(path, Seen::at(&below, c"", AtFlags::EMPTY_PATH)?);
            chain.enter(below)?;
        } else {
            tree.insert(path, seen);
        }
    }
    Ok(tree)
}

/// Gives a copied directory the attributes of the first; an error if those that are hard to copy differ.
fn dress(from: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (from, to) = (directory_below(from, path)?, directory_below(to, path)?);
    let attributes = Attributes::of(from.as_fd())?;
    if !attributes.has_the_same_extended(&Attributes::of(to.as_fd())?) {
        return Err(io::Error::other("its extended attributes differ"));
    }
    Ok(attributes.give_all_but_extended(to.as_fd())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// All of a tree that a copy must have.
    fn shown(top: &Path) -> Vec<String> {
        let tree = look(open(top).unwrap().as_fd()).unwrap();
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
    fn what_changed_while_it_was_copied_is_found_in_a_directory_that_has_not() {
        let (_directory, from, to) = scene();
        let opened = open(&from).unwrap();
        let mut before = look(opened.as_fd()).unwrap();
        // It was another one when it was seen.
        before.get_mut(Path::new("a/one")).unwrap().written = NEVER;
        let known = copy_what_stays(opened.as_fd(), &to, before).unwrap();
        assert!(!known.contains_key(Path::new("a/one")) && !to.join("a/one").exists());
        let prepared = Prepared::of(opened.as_fd(), &known);
        assert!(prepared.is_some());
        let (since, mapped) = (Since::now(), BTreeSet::new());
        let ahead = Ahead { from: from.clone(), to: to.clone(), before: Some(known), since, prepared, mapped };
        ahead.finish(None).unwrap();
        assert_eq!(shown(&to), shown(&from));
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

    fn seen(mode: u32, changed: i64) -> Seen {
        Seen { inode: 1, mode, owner: (0, 0), length: 0, links: 1, changed: (changed, 0), written: (0, 0) }
    }

    /// A chain of directories with files at its end.
    fn deep(depth: usize, files: usize, changed: i64) -> Tree {
        let mut directory = PathBuf::new();
        let mut tree = Tree::from([(directory.clone(), seen(libc::S_IFDIR, 0))]);
        for _ in 0..depth {
            directory.push("d");
            tree.insert(directory.clone(), seen(libc::S_IFDIR, 0));
        }
        tree.extend((0..files).map(|file| (directory.join(file.to_string()), seen(libc::S_IFREG, changed))));
        tree
    }

    #[test]
    fn directories_above_what_changed_are_noted_once_and_no_more_than_are_brought_up_to_date() {
        let changes = |depth, files| changes(&deep(depth, files, 0), &deep(depth, files, 1), &BTreeSet::new());
        let some = changes(400, 80).unwrap();
        assert_eq!((some.directories.len(), some.anew.len()), (401, 80));
        assert!(changes(1_400, 80).is_none() && changes(3, MOST_CHANGES).is_none());
        let now = deep(1_400, 80, 1);
        let (file, mut noted) = (now.keys().next_back().unwrap(), BTreeSet::new());
        assert!(note_with_those_above(file.parent().unwrap(), &now, &mut noted).is_none());
        assert_eq!(noted.len(), MOST_CHANGES + 1, "it goes on climbing");
    }

    /// To search what is gone for each file that stays would be a billion comparisons.
    #[test]
    fn what_is_gone_is_not_searched_for_each_file_that_stays() {
        let tree = |name: &str, count: usize| {
            let mut tree: Tree =
                (0..count).map(|file| (Path::new(name).join(file.to_string()), seen(libc::S_IFREG, 0))).collect();
            tree.extend(["", name].map(|directory| (PathBuf::from(directory), seen(libc::S_IFDIR, 0))));
            tree
        };
        let (renamed, again, stays) = (tree("a", 2_000), tree("c", 2_000), tree("b", 2_000));
        let with = |other: &Tree| stays.clone().into_iter().chain(other.clone()).collect::<Tree>();
        assert!(gone(&with(&renamed), &with(&again)).is_none(), "too many to be removed one by one");
        assert!(changes(&with(&renamed), &with(&again), &BTreeSet::new()).is_none());
        let few = changes(&with(&tree("a", 3)), &with(&tree("c", 3)), &BTreeSet::new()).unwrap();
        assert_eq!(few.gone, ["a", "a/0", "a/1", "a/2"].map(PathBuf::from));
        assert_eq!((few.anew, few.directories), (vec![PathBuf::from("c")], vec![PathBuf::new()]));
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

    /// A directory that is one, a link to elsewhere, and one again, as often as it can be, while it is copied.
    #[test]
    fn who_renames_meanwhile_leads_nobody_elsewhere() {
        for round in 0..20 {
            let (directory, from, to) = scene();
            let (outside, aside) = (directory.path().join("outside"), from.join("aside"));
            std::fs::create_dir(&outside).unwrap();
            std::fs::write(outside.join("two"), "the host's").unwrap();
            symlink(&outside, from.join("link")).unwrap();
            let over = AtomicBool::new(false);
            let ahead = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::fs::rename(from.join("a/b"), &aside).unwrap();
                        std::fs::rename(from.join("link"), from.join("a/b")).unwrap();
                        std::fs::rename(from.join("a/b"), from.join("link")).unwrap();
                        std::fs::rename(&aside, from.join("a/b")).unwrap();
                    }
                });
                let ahead = Ahead::begin(&from, &to, || Some(Vec::new()));
                over.store(true, Ordering::Relaxed);
                ahead
            });
            std::fs::write(from.join("a/b/two"), "changed").unwrap();
            ahead.finish(None).unwrap();
            assert_eq!(shown(&to), shown(&from), "round {round}");
            assert_eq!(std::fs::read_to_string(outside.join("two")).unwrap(), "the host's");
            assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing was made there");
        }
    }

    /// Files that were not there when the tree was looked at, and were gone again before the end.
    #[test]
    fn what_was_there_for_a_moment_alone_is_not_kept() {
        let (_directory, from, to) = scene();
        let before = look(open(&from).unwrap().as_fd()).unwrap();
        std::fs::create_dir(from.join("moment")).unwrap();
        std::fs::write(from.join("moment/file"), "x").unwrap();
        std::fs::write(from.join("a/moment"), "x").unwrap();
        std::fs::rename(from.join("a/b/c"), from.join("elsewhere")).unwrap();
        let known = copy_what_stays(open(&from).unwrap().as_fd(), &to, before).unwrap();
        assert!(!to.join("moment").exists() && !to.join("a/moment").exists() && !to.join("elsewhere").exists());
        assert!(!known.contains_key(Path::new("a/b/c/three")) && known.contains_key(Path::new("a/b/two")));
    }
}
