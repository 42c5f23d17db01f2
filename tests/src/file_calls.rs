//! Random calls of all kinds that files have, each with its answer: the same seed has to be answered the same in a
//! transaction as without one, and to leave the same tree.
//!
//! `pando-tests --file-calls make SEED COUNT DIRECTORY KINDS` makes them and prints each with its answer; `… state
//! DIRECTORY` prints what the tree is.

use crate::dice::Dice;
use crate::disorder::access_list;
use crate::tree_state;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The word that asks this program for calls instead of tests.
pub(crate) const WORD: &str = "--file-calls";

/// Names in a directory, so that they meet.
const NAMES: u64 = 24;

/// Above so many objects nothing more is made.
const MOST: usize = 160;

/// What times are set to lies before this; whatever is later says when something was done.
const SET_BEFORE: i64 = 1_100_000_000;

/// Kinds of calls.
const KINDS: u64 = 47;

/// Which calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// All.
    All,
    /// But those that a file system in memory has not (fallocate's lesser modes), and those that a guest may not do
    /// (devices).
    Everywhere,
}

pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["make", seed, count, directory, kinds] => {
            let number = |text: &str| text.parse::<u64>().map_err(io::Error::other);
            let kinds = if kinds == "all" { Kinds::All } else { Kinds::Everywhere };
            make(Path::new(directory), number(seed)?, number(count)?, kinds);
        }
        ["state", directory] => state(Path::new(directory)).iter().for_each(|line| println!("{line}")),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(())
}

/// Makes the calls below a directory, and prints what is answered.
fn make(root: &Path, seed: u64, count: u64, kinds: Kinds) {
    rustix::process::umask(Mode::empty());
    let mut dice = Dice::new(seed);
    let mut text = String::new();
    for number in 0..count {
        let tree = Tree::of(root);
        let mut calls = Calls { root, tree, dice: &mut dice, kinds, said: String::new() };
        let answer = match calls.call() {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.raw_os_error().map_or_else(|| error.kind().to_string(), |errno| errno.to_string()),
        };
        let said = calls.said;
        // A directory that is not empty is in the way: xfs says so in other words than most.
        let is_in_the_way = said.starts_with("rename ") && said.ends_with(" 0") && answer == "17";
        let answer = if is_in_the_way { "39".to_owned() } else { answer };
        text.push_str(&format!("{number} {said} {answer}\n"));
    }
    // It may be longer than a pipe holds, and whoever reads it waits for the end.
    let _ = io::stdout().write_all(text.as_bytes());
}

/// What a tree is, as lines: all that can be seen and lasts, but for times that say when something was done.
pub(crate) fn state(root: &Path) -> Vec<String> {
    let tree = Tree::of(root);
    let mut paths: Vec<PathBuf> = [root.to_owned()].into_iter().chain(tree.all()).collect();
    paths.sort();
    let about = |path: &PathBuf| {
        let stat = rustix::fs::lstat(path).expect("what is there can be looked at");
        let set = stat.st_mtime < SET_BEFORE;
        let time = if set { format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec) } else { "done".to_owned() };
        let below = path.strip_prefix(root).expect("it is below").display().to_string();
        let data =
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile { data(path) } else { String::new() };
        format!("links /{below} {} {time} {data}", stat.st_nlink)
    };
    // Before anybody reads the files: xfs shows what is set aside as data once it has been read into memory.
    let about: Vec<String> = paths.iter().map(about).collect();
    // The lines' own times are in the place of a field each.
    let without_time = |line: String| {
        let mut words: Vec<_> = line.splitn(6, ' ').map(str::to_owned).collect();
        if let Some(time) = words.get_mut(4) {
            *time = "-".to_owned();
        }
        words.join(" ")
    };
    tree_state::lines(root).into_iter().map(without_time).chain(about).collect()
}

/// Which blocks of 64 KiB of a file have data, with a `z` those of zeros alone: less than that file systems keep as
/// they like. In the first block, where calls write and set aside, nothing but zeros may be data, a hole, or set aside.
fn data(path: &Path) -> String {
    const BLOCK: u64 = 64 << 10;
    let Ok(file) = File::open(path) else { return "closed".to_owned() };
    let size = file.metadata().expect("an open file can be looked at").len();
    // What an earlier look has read counts for as little.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    let mut blocks = BTreeSet::new();
    let mut at = BLOCK;
    while at < size {
        let Ok(from) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) else { break };
        let to = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(from)).unwrap_or(size);
        blocks.extend(from / BLOCK..to.div_ceil(BLOCK));
        at = to;
    }
    let mut content = vec![0; BLOCK as usize];
    let mut shown = |block: u64| {
        let end = size.min((block + 1) * BLOCK);
        let content = &mut content[..(end - block * BLOCK) as usize];
        file.read_exact_at(content, block * BLOCK).expect("what is there can be read");
        if content.iter().all(|byte| *byte == 0) { format!("{block}{ZEROS}") } else { block.to_string() }
    };
    let shown: Vec<String> = blocks.into_iter().map(&mut shown).collect();
    shown.join(",")
}

/// What marks a block of zeros.
const ZEROS: char = 'z';

/// Whether a line of a state is the line that it has to be. Zeros that were written over a hole may be a hole still:
/// what is committed in place leaves holes as they were.
pub(crate) fn is_as(mine: &str, expected: &str) -> bool {
    if mine == expected {
        return true;
    }
    let (Some((head, mine)), Some((other, expected))) = (mine.rsplit_once(' '), expected.rsplit_once(' ')) else {
        return false;
    };
    let parts = |text: &str| -> (BTreeSet<String>, BTreeSet<String>) {
        text.split(',').map(str::to_owned).partition(|block| block.ends_with(ZEROS))
    };
    let ((zeros, data), (allowed, needed)) = (parts(mine), parts(expected));
    // A file of holes alone has an empty list.
    let without_empty = |blocks: BTreeSet<String>| blocks.into_iter().filter(|block| !block.is_empty());
    head == other
        && head.starts_with("links ")
        && without_empty(data).eq(without_empty(needed))
        && zeros.is_subset(&allowed)
}

/// What is there, sorted.
#[derive(Default)]
struct Tree {
    directories: Vec<PathBuf>,
    regular: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Tree {
    fn of(root: &Path) -> Self {
        let mut tree = Self::default();
        tree.collect(root);
        tree
    }

    fn collect(&mut self, directory: &Path) {
        let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut names: Vec<_> = names.collect();
        names.sort();
        for path in names {
            let Ok(metadata) = path.symlink_metadata() else { continue };
            if metadata.is_dir() {
                self.directories.push(path.clone());
                self.collect(&path);
            } else if metadata.is_file() {
                self.regular.push(path);
            } else {
                self.others.push(path);
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = PathBuf> {
        self.directories.iter().chain(&self.regular).chain(&self.others).cloned()
    }

    fn len(&self) -> usize {
        self.directories.len() + self.regular.len() + self.others.len()
    }
}

/// Changes nothing: an overlay cannot set an access list on an object of an image before that is copied up.
fn copy_up(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, path.metadata()?.permissions())
}

struct Calls<'a> {
    root: &'a Path,
    tree: Tree,
    dice: &'a mut Dice,
    kinds: Kinds,
    said: String,
}

impl Calls<'_> {
    fn say(&mut self, what: &str, paths: &[&Path]) {
        let below = |path: &&Path| path.strip_prefix(self.root).unwrap_or(path).display().to_string();
        self.said = [what.to_owned()].into_iter().chain(paths.iter().map(below)).collect::<Vec<_>>().join(" ");
    }

    fn pick(&mut self, among: impl Fn(&Tree) -> Vec<PathBuf>) -> io::Result<PathBuf> {
        let among = among(&self.tree);
        self.dice.pick(&among).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn file(&mut self) -> io::Result<PathBuf> {
        self.pick(|tree| tree.regular.clone())
    }

    fn directory(&mut self) -> io::Result<PathBuf> {
        self.pick(|tree| tree.directories.clone())
    }

    fn no_directory(&mut self) -> io::Result<PathBuf> {
        self.pick(|tree| tree.regular.iter().chain(&tree.others).cloned().collect())
    }

    fn any(&mut self) -> io::Result<PathBuf> {
        self.pick(|tree| tree.all().collect())
    }

    /// A name that may be new, in any directory.
    fn name(&mut self) -> PathBuf {
        let around = self.dice.throw(self.tree.directories.len() as u64 + 1) as usize;
        let around = self.tree.directories.get(around).cloned().unwrap_or_else(|| self.root.to_owned());
        around.join(format!("n{}", self.dice.throw(NAMES)))
    }

    /// The same, unless there is enough.
    fn new_name(&mut self) -> io::Result<PathBuf> {
        if self.tree.len() > MOST { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(self.name()) }
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let (length, byte) = (self.dice.throw(most), self.dice.throw(256) as u8);
        (0..length).map(|at| byte.wrapping_add((at / 7) as u8)).collect()
    }

    fn call(&mut self) -> io::Result<()> {
        match self.dice.throw(KINDS) {
            kind @ 0..=12 => self.contents(kind),
            kind @ 13..=29 => self.names(kind),
            46 => self.by_another_name(),
            kind => self.attributes(kind),
        }
    }

    fn contents(&mut self, kind: u64) -> io::Result<()> {
        if kind <= 2 {
            let (path, bytes) = (self.new_name()?, self.bytes(9000));
            self.say("create", &[&path]);
            // Whoever opens a pipe waits for another.
            if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
                return Err(Errno::EXIST.into());
            }
            return fs::write(path, bytes);
        }
        if kind == 3 {
            return self.sparse();
        }
        if kind == 4 {
            return self.without_name();
        }
        if kind == 5 {
            let (from, to) = (self.file()?, self.file()?);
            self.say("copy", &[&from, &to]);
            // copy_file_range(2) where it can, as cp(1) does.
            let (mut from, mut to) = (File::open(&from)?, File::options().write(true).open(&to)?);
            return io::copy(&mut from, &mut to).map(drop);
        }
        let (path, bytes, at) = (self.file()?, self.bytes(6000), self.dice.throw(20_000));
        self.say(["write", "append", "cut", "resize", "again", "allocate", "both"][kind as usize - 6], &[&path]);
        match kind {
            6 => File::options().write(true).open(path)?.write_all_at(&bytes, at),
            7 => File::options().append(true).open(path)?.write_all(&bytes),
            8 => fs::write(path, &bytes[..bytes.len() / 2]),
            9 => File::options().write(true).open(path)?.set_len(at),
            10 => {
                // What is there already.
                let content = fs::read(&path)?;
                File::options().write(true).open(path)?.write_all_at(&content, 0)
            }
            11 => self.allocate(&path),
            _ => {
                // Two descriptors, one of which was there before the other wrote.
                let (one, other) = (File::open(&path)?, File::options().write(true).open(&path)?);
                other.write_all_at(&bytes, at)?;
                let mut read = vec![0; 100];
                let read_bytes = one.read_at(&mut read, at)?;
                self.said.push_str(&format!(" {read_bytes} {}", read.iter().map(|byte| u64::from(*byte)).sum::<u64>()));
                Ok(())
            }
        }
    }

    /// The name that a file is changed by is gone afterwards, and the others were not touched: only an overlay's index
    /// knows.
    fn by_another_name(&mut self) -> io::Result<()> {
        let has_others = |path: &&PathBuf| path.metadata().is_ok_and(|found| found.nlink() > 1);
        let several = |tree: &Tree| tree.regular.iter().filter(has_others).cloned().collect();
        let (bytes, Ok(path)) = (self.bytes(300), self.pick(several)) else {
            let (path, name) = (self.file()?, self.name());
            self.say("another", &[&path, &name]);
            return fs::hard_link(path, name);
        };
        self.say("alias", &[&path]);
        File::options().append(true).open(&path)?.write_all(&bytes)?;
        fs::remove_file(path)
    }

    fn sparse(&mut self) -> io::Result<()> {
        let path = self.new_name()?;
        let (at, size) = (self.dice.throw(10) * 65_536, self.dice.throw(20) * 65_536);
        self.say("sparse", &[&path]);
        let file = File::create_new(path)?;
        file.write_all_at(b"data", at)?;
        file.set_len(size)
    }

    /// O_TMPFILE, and a name for it later.
    fn without_name(&mut self) -> io::Result<()> {
        let (path, bytes) = (self.new_name()?, self.bytes(5000));
        self.say("nameless", &[&path]);
        let around = path.parent().unwrap_or(self.root);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(around, flags, Mode::from_raw_mode(0o640))?);
        file.write_all_at(&bytes, 0)?;
        let by_number = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(rustix::fs::linkat(CWD, by_number, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn allocate(&mut self, path: &Path) -> io::Result<()> {
        let modes = [
            FallocateFlags::empty(),
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::COLLAPSE_RANGE,
            FallocateFlags::INSERT_RANGE,
        ];
        let modes = if self.kinds == Kinds::All { &modes[..] } else { &modes[..2] };
        let mode = *self.dice.pick(modes).expect("there are some");
        let (at, length) = (self.dice.throw(4) * 4096, (1 + self.dice.throw(3)) * 4096);
        self.said.push_str(&format!(" {} {at} {length}", mode.bits()));
        Ok(rustix::fs::fallocate(File::options().write(true).open(path)?, mode, at, length)?)
    }

    fn names(&mut self, kind: u64) -> io::Result<()> {
        match kind {
            13..=14 => {
                let path = self.new_name()?;
                self.say("mkdir", &[&path]);
                fs::create_dir(path)
            }
            15 => {
                let path = self.directory()?;
                self.say("rmdir", &[&path]);
                fs::remove_dir(path)
            }
            16..=17 => {
                let path = self.no_directory()?;
                self.say("unlink", &[&path]);
                fs::remove_file(path)
            }
            18 => {
                let path = self.new_name()?;
                self.say("symlink", &[&path]);
                let target = "t".repeat(1 + self.dice.throw(300) as usize);
                std::os::unix::fs::symlink(target, path)
            }
            19 => {
                let path = self.new_name()?;
                let kinds = [FileType::Socket, FileType::Fifo, FileType::CharacterDevice, FileType::BlockDevice];
                // Nobody makes a device in a guest, and one of several names there is in a layer cannot be removed.
                let kinds = if self.kinds == Kinds::All { &kinds[..] } else { &kinds[..2] };
                let kind = *self.dice.pick(kinds).expect("there are some");
                self.say("mknod", &[&path]);
                Ok(rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), rustix::fs::makedev(1, 3))?)
            }
            20..=22 => {
                let (from, to) = (self.no_directory()?, self.new_name()?);
                self.say("link", &[&from, &to]);
                fs::hard_link(from, to)
            }
            23 => {
                let path = self.directory()?;
                self.say("remove", &[&path]);
                Ok(pando_kernel::file::tree_removal::remove_tree(&path)?)
            }
            _ => self.rename(kind),
        }
    }

    fn rename(&mut self, kind: u64) -> io::Result<()> {
        let from = if kind < 27 { self.no_directory()? } else { self.directory()? };
        let to = match self.dice.throw(3) {
            0 if kind < 27 => self.no_directory()?,
            0 => self.directory()?,
            _ => self.name(),
        };
        let flags = [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
        let flags = flags[self.dice.throw(4) as usize];
        self.say("rename", &[&from, &to]);
        self.said.push_str(&format!(" {}", flags.bits()));
        Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
    }

    fn attributes(&mut self, kind: u64) -> io::Result<()> {
        if (36..=40).contains(&kind) {
            return self.extended(kind);
        }
        let path = if kind >= 41 { self.directory()? } else { self.any()? };
        match kind {
            30..=31 => {
                self.say("chown", &[&path]);
                let (uid, gid) = (Uid::from_raw(self.dice.throw(5) as u32), Gid::from_raw(self.dice.throw(5) as u32));
                Ok(rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
            }
            32..=33 | 41..=42 => {
                self.say("chmod", &[&path]);
                let mode = Mode::from_raw_mode(self.dice.throw(0o10_000) as u32);
                if path.is_symlink() {
                    return Err(Errno::LOOP.into());
                }
                Ok(rustix::fs::chmod(path, mode)?)
            }
            34..=35 | 43..=44 => {
                self.say("utimes", &[&path]);
                let at = 1_000_000_000 + self.dice.throw(1_000_000) as i64;
                let then = Timespec { tv_sec: at, tv_nsec: self.dice.throw(1000) as i64 * 1000 };
                let times = Timestamps { last_access: then, last_modification: then };
                Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
            }
            _ => {
                self.say("default", &[&path]);
                copy_up(&path)?;
                let list = access_list(self.dice.throw(9) as u32, [7, 5, 5, 5, 0]);
                Ok(rustix::fs::lsetxattr(path, "system.posix_acl_default", &list, XattrFlags::empty())?)
            }
        }
    }

    /// Small ones, one that is nearly as large as ext4 takes, and access lists.
    fn extended(&mut self, kind: u64) -> io::Result<()> {
        let path = if kind == 36 { self.any()? } else { self.file()? };
        let (name, length) = match kind {
            36 => ("trusted.any".to_owned(), self.dice.throw(40)),
            37..=38 => (format!("user.k{}", self.dice.throw(3)), self.dice.throw(80)),
            39 => ("user.large".to_owned(), 400 + self.dice.throw(2000)),
            _ => ("system.posix_acl_access".to_owned(), 0),
        };
        self.say("xattr", &[&path]);
        self.said.push_str(&format!(" {name} {length}"));
        if self.dice.throw(4) == 0 {
            // To remove an access list that is not there is an error to an overlay alone.
            if kind == 40 && rustix::fs::lgetxattr(&path, &*name, &mut [0; 256]).is_err() {
                return Ok(());
            }
            return Ok(rustix::fs::lremovexattr(path, name)?);
        }
        if kind == 40 {
            copy_up(&path)?;
        }
        let value = match kind {
            40 => access_list(self.dice.throw(9) as u32, [6, 4, 4, 4, 0]),
            _ => vec![b'a' + (length % 26) as u8; length as usize],
        };
        Ok(rustix::fs::lsetxattr(path, name, &value, XattrFlags::empty())?)
    }
}
