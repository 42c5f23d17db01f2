//! How a tree differs from the one that it was made from, as a layer of an image says it: by what is new or other, and
//! by the names that are gone.
//!
//! Both trees are at rest, and what is in them is others': directories are entered by descriptor and through no link,
//! and nothing but regular files is opened. Of hard links all names count as changed where one does, or where other
//! names are the same file than before: a layer that replaced one name alone would part them.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, readlinkat, statat};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a name begins with by which a layer says that another one is gone.
pub(crate) const WHITEOUT: &str = ".wh.";

/// How often whoever wants to know is asked whether he still does.
const BEAT: Duration = Duration::from_millis(200);

/// What no layer of the store keeps, and what is for the host alone.
const NOT_KEPT: [&[u8]; 3] = [b"security.selinux", b"security.ima", b"security.evm"];

/// The kernel's bound of a list of attributes, and of the value of one.
const LARGEST_ATTRIBUTES: usize = 64 << 10;

/// How a tree differs. Paths count from its root, which is the empty one.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// What is new or other, each after the directories that it lies in.
    pub(crate) changed: BTreeSet<PathBuf>,
    /// What is gone; of what was in a directory that is gone nothing is said.
    pub(crate) gone: BTreeSet<PathBuf>,
    /// How long the files are that changed.
    pub(crate) bytes: u64,
}

impl Difference {
    /// How `tree` differs from `base`, or from nothing. Blocking.
    ///
    /// # Errors
    ///
    /// A name that no layer can have, or that nobody wants to know any more.
    pub(crate) fn between(
        tree: BorrowedFd<'_>,
        base: Option<BorrowedFd<'_>>,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<Self> {
        let mut walk = Walk::begin((tree, base), wanted);
        while let Some((path, was_there)) = walk.waiting.pop() {
            walk.directory(&path, was_there)?;
        }
        Ok(walk.difference())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.gone.is_empty()
    }
}

/// Which file a name is.
type Identity = (u64, u64);

/// Asks now and then whether somebody still waits.
struct Asker<'a> {
    wanted: &'a dyn Fn() -> bool,
    asked: Cell<Instant>,
}

impl<'a> Asker<'a> {
    fn new(wanted: &'a dyn Fn() -> bool) -> Self {
        Self { wanted, asked: Cell::new(Instant::now()) }
    }

    fn ask(&self) -> io::Result<()> {
        if self.asked.get().elapsed() < BEAT {
            return Ok(());
        }
        self.asked.set(Instant::now());
        if (self.wanted)() { Ok(()) } else { Err(io::Error::other("whoever wanted it has gone")) }
    }
}

struct Walk<'a> {
    tree: BorrowedFd<'a>,
    base: Option<BorrowedFd<'a>>,
    asker: Asker<'a>,
    /// Directories that are to be looked through, and whether the base has them.
    waiting: Vec<(PathBuf, bool)>,
    /// What changed, with its length.
    changed: BTreeMap<PathBuf, (Identity, u64)>,
    gone: BTreeSet<PathBuf>,
    /// The names of files that may have several, now and before.
    links: BTreeMap<Identity, Vec<(PathBuf, u64)>>,
    links_before: BTreeMap<Identity, BTreeSet<PathBuf>>,
}

impl<'a> Walk<'a> {
    fn begin((tree, base): (BorrowedFd<'a>, Option<BorrowedFd<'a>>), wanted: &'a dyn Fn() -> bool) -> Self {
        Self {
            tree,
            base,
            asker: Asker::new(wanted),
            waiting: vec![(PathBuf::new(), true)],
            changed: BTreeMap::new(),
            gone: BTreeSet::new(),
            links: BTreeMap::new(),
            links_before: BTreeMap::new(),
        }
    }

    fn directory(&mut self, path: &Path, was_there: bool) -> io::Result<()> {
        let now = Directory::open(self.tree, path)?;
        let before = self.base.filter(|_| was_there).map(|base| Directory::open(base, path)).transpose()?;
        if let Some(before) = &before {
            let is_gone = |name: &&OsString| !now.entries.contains_key(*name);
            self.gone.extend(before.entries.keys().filter(is_gone).map(|name| path.join(name)));
            for (name, stat) in before.entries.iter().filter(|(_, stat)| may_have_names(stat)) {
                self.links_before.entry((stat.st_dev, stat.st_ino)).or_default().insert(path.join(name));
            }
        }
        for (name, stat) in &now.entries {
            self.asker.ask()?;
            let at = path.join(name);
            if name.as_bytes().starts_with(WHITEOUT.as_bytes()) {
                return Err(io::Error::other(format!(
                    "'{}' has a name by which layers say that another file is gone; rename or remove it",
                    at.display()
                )));
            }
            let old = before.as_ref().and_then(|before| Some((before, before.entries.get(name)?)));
            let is_same = match old {
                Some((before, was)) => same((&now, stat), (before, was), name, &self.asker)?,
                None => false,
            };
            let identity = (stat.st_dev, stat.st_ino);
            let length = if kind(stat) == FileType::RegularFile { length(stat) } else { 0 };
            if may_have_names(stat) {
                self.links.entry(identity).or_default().push((at.clone(), length));
            }
            if kind(stat) == FileType::Directory {
                let was = old.is_some_and(|(_, was)| kind(was) == FileType::Directory);
                self.waiting.push((at.clone(), was));
            }
            if !is_same {
                self.changed.insert(at, (identity, length));
            }
        }
        Ok(())
    }

    /// What came of it.
    fn difference(mut self) -> Difference {
        let mut before: BTreeMap<&PathBuf, &BTreeSet<PathBuf>> = BTreeMap::new();
        for names in self.links_before.values() {
            before.extend(names.iter().map(|name| (name, names)));
        }
        let alone = |path: &PathBuf| BTreeSet::from([path.clone()]);
        let mut now: BTreeSet<&PathBuf> = BTreeSet::new();
        for (identity, names) in &self.links {
            let paths: BTreeSet<PathBuf> = names.iter().map(|(path, _)| path.clone()).collect();
            let was = |path: &PathBuf| before.get(path).map_or_else(|| alone(path), |names| (*names).clone());
            if paths.iter().any(|path| self.changed.contains_key(path) || was(path) != paths) {
                let all = names.iter().map(|(path, length)| (path.clone(), (*identity, *length)));
                self.changed.extend(all);
            }
            now.extend(names.iter().map(|(path, _)| path));
        }
        // A file that had several names and has one now is not among those that may have several.
        let parted: Vec<PathBuf> = before
            .iter()
            .filter(|(path, names)| names.len() > 1 && !now.contains(**path) && !self.gone.contains(**path))
            .map(|(path, _)| (*path).clone())
            .collect();
        let seen: BTreeMap<Identity, u64> = self.changed.values().copied().collect();
        let bytes = seen.values().fold(0_u64, |sum, length| sum.saturating_add(*length));
        let mut changed: BTreeSet<PathBuf> = self.changed.into_keys().chain(parted).collect();
        // What is unpacked into a directory changes its times: so it is said what they are.
        let above = |path: &PathBuf| path.ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>();
        let parents: Vec<PathBuf> = changed.iter().chain(&self.gone).flat_map(above).collect();
        changed.extend(parents);
        Difference { changed, gone: self.gone, bytes }
    }
}

/// A directory of a tree, and what is in it: sockets are not, since no archive has them.
struct Directory {
    opened: OwnedFd,
    entries: BTreeMap<OsString, Stat>,
}

impl Directory {
    fn open(root: BorrowedFd<'_>, path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let at = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let told = |error: rustix::io::Errno| io::Error::other(format!("cannot open '{}': {error}", at.display()));
        let opened = openat2(root, at, flags, Mode::empty(), within).map_err(told)?;
        let mut entries = BTreeMap::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let stat = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if kind(&stat) != FileType::Socket {
                entries.insert(name.to_owned(), stat);
            }
        }
        Ok(Self { opened, entries })
    }

    fn file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.opened, name, flags, Mode::empty())?))
    }

    /// The extended attributes of something in it, by name.
    fn attributes(&self, name: &OsStr) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        // There is no call that takes a directory and a name; the last part of the path is not followed.
        let path = Path::new(&format!("/proc/self/fd/{}", self.opened.as_raw_fd())).join(name);
        let list = whole(|buffer| rustix::fs::llistxattr(&path, buffer))?;
        let kept = |name: &&[u8]| !name.is_empty() && !NOT_KEPT.contains(name);
        let value = |name: &[u8]| -> io::Result<(Vec<u8>, Vec<u8>)> {
            let value = whole(|buffer| rustix::fs::lgetxattr(&path, OsStr::from_bytes(name), buffer))?;
            Ok((name.to_vec(), value))
        };
        list.split(|byte| *byte == 0).filter(kept).map(value).collect()
    }
}

/// What a call says that is asked with a buffer that is large enough. A file system without attributes says nothing.
fn whole(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(rustix::io::Errno::RANGE) if buffer.len() < LARGEST_ATTRIBUTES => buffer.resize(LARGEST_ATTRIBUTES, 0),
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn may_have_names(stat: &Stat) -> bool {
    kind(stat) != FileType::Directory && stat.st_nlink != 1
}

/// Whether two things of the same name are the same to whoever looks at them.
fn same(
    (new, stat): (&Directory, &Stat),
    (old, was): (&Directory, &Stat),
    name: &OsStr,
    asker: &Asker<'_>,
) -> io::Result<bool> {
    let traits = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, stat.st_mtime_nsec);
    if traits(stat) != traits(was) || new.attributes(name)? != old.attributes(name)? {
        return Ok(false);
    }
    match kind(stat) {
        FileType::RegularFile if stat.st_size != was.st_size => Ok(false),
        FileType::RegularFile => same_content(new.file(name)?, old.file(name)?, asker),
        FileType::Symlink => {
            Ok(readlinkat(&new.opened, name, Vec::new())? == readlinkat(&old.opened, name, Vec::new())?)
        }
        FileType::CharacterDevice | FileType::BlockDevice => Ok(stat.st_rdev == was.st_rdev),
        _ => Ok(true),
    }
}

fn same_content(mut new: File, mut old: File, asker: &Asker<'_>) -> io::Result<bool> {
    let mut buffers = [vec![0; 256 << 10], vec![0; 256 << 10]];
    let [first, second] = &mut buffers;
    loop {
        asker.ask()?;
        let count = new.read(first)?;
        if count == 0 {
            return Ok(old.read(second)? == 0);
        }
        match old.read_exact(&mut second[..count]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if first[..count] != second[..count] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    fn difference(tree: &Path, base: Option<&Path>) -> Difference {
        let opened = |path: &Path| File::open(path).unwrap();
        let (tree, base) = (opened(tree), base.map(opened));
        Difference::between(tree.as_fd(), base.as_ref().map(AsFd::as_fd), &|| true).unwrap()
    }

    fn paths(of: &BTreeSet<PathBuf>) -> Vec<&str> {
        of.iter().map(|path| path.to_str().unwrap()).collect()
    }

    /// Two trees that are alike, and what they lie in.
    fn two() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let (old, new) = (place.path().join("old"), place.path().join("new"));
        fs::create_dir_all(old.join("d/e")).unwrap();
        fs::write(old.join("d/a"), "alpha").unwrap();
        fs::write(old.join("d/e/b"), "beta").unwrap();
        fs::hard_link(old.join("d/a"), old.join("d/e/link")).unwrap();
        symlink("a", old.join("d/s")).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").args([&old, &new]).status().unwrap();
        assert!(copied.success());
        (place, old, new)
    }

    #[test]
    fn trees_that_are_alike_do_not_differ() {
        let (_place, old, new) = two();
        assert!(difference(&new, Some(&old)).is_empty());
        let whole = difference(&new, None);
        assert_eq!(paths(&whole.changed), ["", "d", "d/a", "d/e", "d/e/b", "d/e/link", "d/s"]);
        assert_eq!((whole.bytes, whole.gone.len()), (9, 0), "what has two names counts once");
    }

    #[test]
    fn content_that_is_other_behind_the_same_times_is_found() {
        let (_place, old, new) = two();
        let time = fs::metadata(new.join("d/e/b")).unwrap().modified().unwrap();
        fs::write(new.join("d/e/b"), "BETA").unwrap();
        File::options().write(true).open(new.join("d/e/b")).unwrap().set_modified(time).unwrap();
        assert_eq!(paths(&difference(&new, Some(&old)).changed), ["", "d", "d/e", "d/e/b"]);
    }

    #[test]
    fn all_names_of_a_file_go_together() {
        let (_place, old, new) = two();
        fs::write(new.join("d/a"), "alphabet").unwrap();
        let found = difference(&new, Some(&old));
        assert_eq!(paths(&found.changed), ["", "d", "d/a", "d/e", "d/e/link"]);
        // Two files where there was one.
        let (_place, old, new) = two();
        let time = fs::metadata(new.join("d/a")).unwrap().modified().unwrap();
        let directory = fs::metadata(new.join("d/e")).unwrap().modified().unwrap();
        fs::remove_file(new.join("d/e/link")).unwrap();
        fs::write(new.join("d/e/link"), "alpha").unwrap();
        File::options().write(true).open(new.join("d/e/link")).unwrap().set_modified(time).unwrap();
        File::open(new.join("d/e")).unwrap().set_modified(directory).unwrap();
        assert_eq!(paths(&difference(&new, Some(&old)).changed), ["", "d", "d/a", "d/e", "d/e/link"]);
    }

    #[test]
    fn what_is_gone_is_named_once() {
        let (_place, old, new) = two();
        pando_kernel::file::tree_removal::remove_tree(&new.join("d/e")).unwrap();
        let found = difference(&new, Some(&old));
        assert_eq!(paths(&found.gone), ["d/e"]);
        fs::write(new.join(".wh.x"), "").unwrap();
        let tree = File::open(&new).unwrap();
        let error = Difference::between(tree.as_fd(), None, &|| true).unwrap_err().to_string();
        assert!(error.contains(".wh.x") && error.contains("rename"), "{error}");
    }
}
