//! Random changes to a tree: every kind of operation that a file system has. `pando-tests --disorder SEED COUNT
//! DIRECTORY` makes them and prints what the tree is then; it is what runs inside the transactions of the crash tests.
//! `--protective-disorder` protects and unprotects objects as well (chattr +i, +a).

use crate::dice::Dice;
use crate::tree_state;
use pando_kernel::file::tree_removal::remove_tree;
use rustix::fs::{CWD, FileType, Gid, IFlags, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The word that asks this program for disorder instead of tests.
pub(crate) const WORD: &str = "--disorder";

/// The same with protection among the changes.
pub(crate) const PROTECTIVE: &str = "--protective-disorder";

/// Kinds of changes, and how many of them are left where nothing is to be protected.
const KINDS: u64 = 40;
const UNPROTECTIVE: u64 = 36;

/// `SEED COUNT DIRECTORY`: makes the changes and prints the tree's lines.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    obey_with(words, UNPROTECTIVE)
}

/// The same with protection among them.
pub(crate) fn obey_protectively(words: &[String]) -> io::Result<()> {
    obey_with(words, KINDS)
}

fn obey_with(words: &[String], kinds: u64) -> io::Result<()> {
    let [seed, count, directory] = words else { return Err(io::ErrorKind::InvalidInput.into()) };
    let number = |text: &String| text.parse::<u64>().map_err(io::Error::other);
    make_of(kinds, Path::new(directory), &mut Dice::new(number(seed)?), number(count)?);
    tree_state::lines(Path::new(directory)).iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Makes `count` random changes below `root`. One that is not possible is left out.
pub(crate) fn make(root: &Path, dice: &mut Dice, count: u64) {
    make_of(UNPROTECTIVE, root, dice, count);
}

/// The same with protection among them.
pub(crate) fn make_protectively(root: &Path, dice: &mut Dice, count: u64) {
    make_of(KINDS, root, dice, count);
}

/// `u::…,u:USER:…,g::…,m::…,o::…`, with these rights, as the kernel keeps it (linux/posix_acl_xattr.h).
pub(crate) fn access_list(user: u32, rights: [u16; 5]) -> Vec<u8> {
    const TAGS: [u16; 5] = [1, 2, 4, 16, 32];
    const NAMED: u16 = 2;
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, rights) in TAGS.into_iter().zip(rights) {
        value.extend(tag.to_le_bytes());
        value.extend(rights.to_le_bytes());
        value.extend((if tag == NAMED { user } else { u32::MAX }).to_le_bytes());
    }
    value
}

/// A tree that goes with this, protected or not, however a test ends: protected files would be in the way of whoever
/// cleans up.
pub(crate) struct Cleared(pub(crate) PathBuf);

impl Drop for Cleared {
    fn drop(&mut self) {
        clear(&self.0);
    }
}

/// Removes a tree, protected or not.
pub(crate) fn clear(root: &Path) {
    let tree = Tree::look(root);
    for path in tree.directories.iter().chain(&tree.regular) {
        let _ = set_flags(path, IFlags::empty());
    }
    let _ = remove_tree(root);
}

/// Has what this process makes get the mode that is asked for. All its threads share what takes bits away (umask(2)):
/// that comes back with the last of those who want it so.
struct AllModes;

/// How many there are, and what was there before the first.
static WITHOUT_UMASK: Mutex<(usize, Mode)> = Mutex::new((0, Mode::empty()));

impl AllModes {
    fn begin() -> Self {
        let mut shared = WITHOUT_UMASK.lock().expect("nobody panics with it");
        if shared.0 == 0 {
            shared.1 = rustix::process::umask(Mode::empty());
        }
        shared.0 += 1;
        Self
    }
}

impl Drop for AllModes {
    fn drop(&mut self) {
        let mut shared = WITHOUT_UMASK.lock().expect("nobody panics with it");
        shared.0 -= 1;
        if shared.0 == 0 {
            rustix::process::umask(shared.1);
        }
    }
}

fn make_of(kinds: u64, root: &Path, dice: &mut Dice, count: u64) {
    let _all_modes = AllModes::begin();
    for _ in 0..count {
        let tree = Tree::look(root);
        // What cannot be done here, such as moving a directory into itself, is not done.
        let _ = tree.change(dice, kinds);
    }
}

struct Tree<'a> {
    root: &'a Path,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    regular: Vec<PathBuf>,
}

impl<'a> Tree<'a> {
    fn look(root: &'a Path) -> Self {
        let mut tree = Self { root, directories: Vec::new(), files: Vec::new(), regular: Vec::new() };
        tree.collect(root);
        tree
    }

    fn collect(&mut self, directory: &Path) {
        let mut names: Vec<_> =
            fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        names.sort();
        for path in names {
            let Ok(metadata) = path.symlink_metadata() else { continue };
            if metadata.is_dir() {
                self.directories.push(path.clone());
                self.collect(&path);
                continue;
            }
            if metadata.is_file() {
                self.regular.push(path.clone());
            }
            self.files.push(path);
        }
    }

    /// A name that may be new, in any directory.
    fn name(&self, dice: &mut Dice) -> PathBuf {
        let around = dice.throw(self.directories.len() as u64 + 1) as usize;
        let around = self.directories.get(around).map_or(self.root, PathBuf::as_path);
        around.join(format!("n{}", dice.throw(40)))
    }

    fn some(&self, dice: &mut Dice, among: &'a [PathBuf]) -> io::Result<&'a Path> {
        dice.pick(among).map(PathBuf::as_path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change(&'a self, dice: &mut Dice, kinds: u64) -> io::Result<()> {
        match dice.throw(kinds) {
            0..=2 => self.create(dice),
            3..=4 => self.write(dice),
            5 => self.resize(dice),
            6..=8 => fs::create_dir(self.name(dice)),
            9 => fs::remove_dir(self.some(dice, &self.directories)?),
            10..=11 => fs::remove_file(self.some(dice, &self.files)?),
            12..=14 => self.rename_file(dice),
            15..=18 => self.rename_directory(dice),
            19..=21 => fs::hard_link(self.some(dice, &self.files)?, self.name(dice)),
            22 => std::os::unix::fs::symlink(format!("x{}", dice.throw(99)), self.name(dice)),
            23..=24 => self.change_mode(dice),
            25..=26 => self.change_owner(dice),
            27..=28 => self.change_xattr(dice),
            29 => self.make_sparse(dice),
            30 => self.make_node(dice),
            31 => self.change_time(dice),
            32 => Ok(remove_tree(self.some(dice, &self.directories)?)?),
            33 => self.replace_directory(dice),
            34 => self.swap(dice),
            35 => self.change_access_list(dice),
            _ => self.change_protection(dice),
        }
    }

    fn create(&self, dice: &mut Dice) -> io::Result<()> {
        let path = self.name(dice);
        if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(());
        }
        let size = if dice.throw(5) == 0 { 0 } else { dice.throw(5000) };
        let bytes: Vec<u8> = (0..size).map(|_| dice.throw(256) as u8).collect();
        fs::write(path, bytes)
    }

    fn write(&'a self, dice: &mut Dice) -> io::Result<()> {
        let file = File::options().write(true).open(self.some(dice, &self.regular)?)?;
        let bytes = vec![dice.throw(256) as u8; 1 + dice.throw(3000) as usize];
        file.write_all_at(&bytes, dice.throw(3000))
    }

    fn resize(&'a self, dice: &mut Dice) -> io::Result<()> {
        File::options().write(true).open(self.some(dice, &self.regular)?)?.set_len(dice.throw(6000))
    }

    fn rename_file(&'a self, dice: &mut Dice) -> io::Result<()> {
        let from = self.some(dice, &self.files)?;
        let to = if dice.throw(5) < 2 { self.some(dice, &self.files)?.to_owned() } else { self.name(dice) };
        fs::rename(from, to)
    }

    fn rename_directory(&'a self, dice: &mut Dice) -> io::Result<()> {
        let from = self.some(dice, &self.directories)?;
        let to = if dice.throw(10) < 3 { self.some(dice, &self.directories)?.to_owned() } else { self.name(dice) };
        fs::rename(from, to)
    }

    fn change_mode(&'a self, dice: &mut Dice) -> io::Result<()> {
        if dice.throw(2) == 0 {
            let modes = [0o700, 0o755, 0o1777, 0o2755];
            let mode = modes[dice.throw(4) as usize];
            return fs::set_permissions(self.some(dice, &self.directories)?, PermissionsExt::from_mode(mode));
        }
        let mode = dice.throw(0o1000) as u32;
        fs::set_permissions(self.some(dice, &self.regular)?, PermissionsExt::from_mode(mode))
    }

    fn change_owner(&'a self, dice: &mut Dice) -> io::Result<()> {
        let among = if dice.throw(3) == 0 { &self.directories } else { &self.files };
        let (uid, gid) = (Uid::from_raw(dice.throw(5) as u32), Gid::from_raw(dice.throw(5) as u32));
        let path = self.some(dice, among)?;
        Ok(rustix::fs::chownat(CWD, path, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn change_xattr(&'a self, dice: &mut Dice) -> io::Result<()> {
        let among = if dice.throw(3) == 0 { &self.directories } else { &self.regular };
        let path = self.some(dice, among)?;
        let name = format!("user.k{}", dice.throw(3));
        if dice.throw(4) == 0 {
            return Ok(rustix::fs::lremovexattr(path, name)?);
        }
        let value = format!("v{}", dice.throw(99));
        Ok(rustix::fs::lsetxattr(path, name, value.as_bytes(), XattrFlags::empty())?)
    }

    fn make_sparse(&self, dice: &mut Dice) -> io::Result<()> {
        let path = self.name(dice);
        if path.symlink_metadata().is_ok() {
            return Ok(());
        }
        let file = File::create(path)?;
        file.write_all_at(b"end", 200_000 + dice.throw(5000))?;
        file.set_len(400_000)
    }

    fn make_node(&self, dice: &mut Dice) -> io::Result<()> {
        let (kind, device) = match dice.throw(4) {
            0 => (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
            1 => (FileType::BlockDevice, rustix::fs::makedev(7, 99)),
            2 => (FileType::Socket, 0),
            _ => (FileType::Fifo, 0),
        };
        Ok(rustix::fs::mknodat(CWD, self.name(dice), kind, Mode::from_raw_mode(0o640), device)?)
    }

    fn change_time(&'a self, dice: &mut Dice) -> io::Result<()> {
        let among = if dice.throw(3) == 0 { &self.directories } else { &self.files };
        let moment =
            Timespec { tv_sec: 1_000_000_000 + dice.throw(1_000_000) as i64, tv_nsec: dice.throw(1_000_000) as i64 };
        let times = Timestamps { last_access: moment, last_modification: moment };
        let path = self.some(dice, among)?;
        Ok(rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn replace_directory(&'a self, dice: &mut Dice) -> io::Result<()> {
        let directory = self.some(dice, &self.directories)?;
        remove_tree(directory)?;
        fs::create_dir(directory)?;
        fs::write(directory.join("q"), "q")
    }

    fn swap(&'a self, dice: &mut Dice) -> io::Result<()> {
        let among = if dice.throw(2) == 0 { &self.directories } else { &self.files };
        let (one, other) = (self.some(dice, among)?, self.some(dice, among)?);
        if one.starts_with(other) || other.starts_with(one) {
            return Ok(());
        }
        let aside = self.root.join("swapped");
        fs::rename(one, &aside)?;
        fs::rename(other, one)?;
        fs::rename(&aside, other)
    }

    fn change_protection(&'a self, dice: &mut Dice) -> io::Result<()> {
        let among = if dice.throw(3) == 0 { &self.directories } else { &self.regular };
        let path = self.some(dice, among)?;
        let flags = [IFlags::empty(), IFlags::empty(), IFlags::IMMUTABLE, IFlags::APPEND];
        set_flags(path, flags[dice.throw(4) as usize])
    }

    /// `u::rw-,u:N:r--,g::r--,m::r--,o::---`
    fn change_access_list(&'a self, dice: &mut Dice) -> io::Result<()> {
        let path = self.some(dice, &self.regular)?;
        // An overlay cannot set one on a file of an image before the file is copied up.
        fs::set_permissions(path, path.metadata()?.permissions())?;
        let value = access_list(dice.throw(9) as u32, [6, 4, 4, 4, 0]);
        Ok(rustix::fs::lsetxattr(path, "system.posix_acl_access", &value, XattrFlags::empty())?)
    }
}

/// Protects an object so, and not otherwise.
fn set_flags(path: &Path, flags: IFlags) -> io::Result<()> {
    // What it is copied to may not know the flags that it has where it is: those are asked for once it is copied. One
    // that is protected is not, and need not be.
    let _ = fs::set_permissions(path, path.metadata()?.permissions());
    let object = File::open(path)?;
    let now = rustix::fs::ioctl_getflags(&object)?;
    Ok(rustix::fs::ioctl_setflags(&object, (now - (IFlags::IMMUTABLE | IFlags::APPEND)) | flags)?)
}
