//! A layer as a tree of hard links, for hosts that cannot mount images.
//!
//! What an image keeps apart, an inode has in one: content with mode, owner, time and extended attributes. So an object
//! is linked as it is where it carries what the file is to carry, and otherwise has a twin among `inodes/`, named by
//! everything that it carries. Two files of one tree are never links to one inode unless they are one file: a guest
//! would see them change together. They link to the first, second, … twin of a name, and so does the next tree: each is
//! shared between trees all the same.

use crate::staging::{Staging, new_file};
use crate::{LayerId, Store, StoreError, attributes, content, deep_stack, image, publish};
use composefs::fsverity::{FsVerityHashValue, FsVerityHasher, Sha256HashValue, compute_verity};
use composefs::generic_tree::{Inode, LeafContent, LeafId, Stat};
use composefs::tree::{Directory, FileSystem, RegularFile};
use pando_kernel::{CallError, Context};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A tree of hard links that is being made.
struct Farm<'a> {
    store: &'a Store,
    tree: &'a FileSystem<Sha256HashValue>,
    /// How many names each file has.
    links: Vec<u32>,
    /// Where new twins wait for the barrier.
    fresh: PathBuf,
    /// One name of each file that has one by now, as an open place.
    made: HashMap<LeafId, OwnedFd>,
    /// What this tree links to already.
    linked: HashSet<PathBuf>,
}

impl Store {
    /// The tree of hard links of a layer; it is made where it does not exist.
    pub fn farm(&self, layer: &LayerId) -> Result<PathBuf, StoreError> {
        let path = self.farms().join(layer.to_string());
        if path.exists() {
            return Ok(path);
        }
        let _lease = self.lease()?;
        deep_stack::run(|| {
            let tree = image::read(self, layer)?;
            let staging = Staging::new(self)?;
            let (fresh, root) = (staging.beside("inodes")?, staging.beside("tree")?);
            let opened = open_directory(&root)?;
            let mut farm = Farm {
                store: self,
                tree: &tree,
                links: tree.nlinks(),
                fresh: fresh.clone(),
                made: HashMap::new(),
                linked: HashSet::new(),
            };
            farm.directory(opened.as_fd(), &tree.root)?;
            settle(self, &fresh, &root, &path)
        })?;
        Ok(path)
    }
}

/// A staged farm begins to exist, after all that it consists of is on the disk.
fn settle(store: &Store, fresh: &Path, root: &Path, path: &Path) -> Result<(), StoreError> {
    let directory = File::open(root).context(|| format!("opening {}", root.display()))?;
    rustix::fs::syncfs(&directory).context(|| "bringing a farm to the disk".into())?;
    for entry in std::fs::read_dir(fresh).context(|| format!("reading {}", fresh.display()))? {
        let entry = entry.context(|| format!("reading {}", fresh.display()))?;
        let to = store.inodes().join(entry.file_name());
        // Another farm may have made the same twin meanwhile; then this one's goes on without a name of its own.
        match std::fs::hard_link(entry.path(), &to) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(error).context(|| format!("making {}", to.display()))?;
            }
            _ => {}
        }
    }
    publish::sync_directory(&store.inodes())?;
    match std::fs::rename(root, path) {
        Err(error) if error.kind() != std::io::ErrorKind::DirectoryNotEmpty => {
            Err(error).context(|| format!("making {}", path.display()))?;
        }
        _ => {}
    }
    Ok(publish::sync_directory(&store.farms())?)
}

impl Farm<'_> {
    fn directory(&mut self, at: BorrowedFd<'_>, directory: &Directory<Sha256HashValue>) -> Result<(), CallError> {
        for (name, inode) in directory.entries() {
            match inode {
                Inode::Directory(below) => {
                    rustix::fs::mkdirat(at, name, Mode::RWXU).context(|| making(name))?;
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let opened = rustix::fs::openat(at, name, flags, Mode::empty()).context(|| making(name))?;
                    self.directory(opened.as_fd(), below)?;
                }
                Inode::Leaf(id, _) => self.leaf(at, name, *id)?,
            }
        }
        // Last: every name in it changed its time.
        attributes::apply(&directory.stat, at, FileType::Directory).context(|| "dressing a directory of a farm".into())
    }

    fn leaf(&mut self, at: BorrowedFd<'_>, name: &OsStr, id: LeafId) -> Result<(), CallError> {
        if let Some(first) = self.made.get(&id) {
            return link(first.as_fd(), at, name).context(|| making(name));
        }
        let leaf = self.tree.leaf(id);
        let node = |kind, device| rustix::fs::mknodat(at, name, kind, Mode::RUSR, device);
        let kind = match &leaf.content {
            LeafContent::Regular(file) => {
                self.regular(at, name, file, &leaf.stat)?;
                None
            }
            LeafContent::Symlink(target) => Some((FileType::Symlink, rustix::fs::symlinkat(&**target, at, name))),
            LeafContent::Fifo => Some((FileType::Fifo, node(FileType::Fifo, 0))),
            LeafContent::Socket => Some((FileType::Socket, node(FileType::Socket, 0))),
            LeafContent::CharacterDevice(number) => {
                Some((FileType::CharacterDevice, node(FileType::CharacterDevice, *number)))
            }
            LeafContent::BlockDevice(number) => Some((FileType::BlockDevice, node(FileType::BlockDevice, *number))),
        };
        let open = || rustix::fs::openat(at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let dressed = || -> rustix::io::Result<OwnedFd> {
            let Some((kind, made)) = kind else { return open() };
            made?;
            let opened = open()?;
            attributes::apply(&leaf.stat, opened.as_fd(), kind)?;
            Ok(opened)
        };
        let opened = dressed().context(|| making(name))?;
        if self.links[id.0] > 1 {
            self.made.insert(id, opened);
        }
        Ok(())
    }

    /// Links a regular file to an inode that carries all that it is to carry.
    fn regular(
        &mut self,
        at: BorrowedFd<'_>,
        name: &OsStr,
        file: &RegularFile<Sha256HashValue>,
        stat: &Stat,
    ) -> Result<(), CallError> {
        let digest = match file {
            RegularFile::External(digest, _) | RegularFile::ExternalNoVerity(digest, _) => digest.clone(),
            RegularFile::Inline(bytes) => compute_verity(bytes),
            RegularFile::Sparse(_) => Sha256HashValue::EMPTY,
        };
        let object = self.store.object(&digest);
        if !matches!(file, RegularFile::Inline(_)) && carries(&object, stat) && self.try_link(&object, at, name)? {
            return Ok(());
        }
        let twin = twin_name(&digest, stat);
        let mut number = 0_u32;
        loop {
            let named = format!("{twin}.{number}");
            let (settled, fresh) = (self.store.inodes().join(&named), self.fresh.join(&named));
            if self.linked.contains(&settled) || self.linked.contains(&fresh) {
                number += 1;
                continue;
            }
            let exists = settled.exists();
            if !exists && !fresh.exists() {
                make_twin(&fresh, file, &object, stat)?;
            }
            // An inode that has all the links that it can have: the next twin then.
            if self.try_link(if exists { &settled } else { &fresh }, at, name)? {
                return Ok(());
            }
            number += 1;
        }
    }

    /// Links to an inode unless this tree does so already, or it can have no more links.
    fn try_link(&mut self, to: &Path, at: BorrowedFd<'_>, name: &OsStr) -> Result<bool, CallError> {
        if self.linked.contains(to) {
            return Ok(false);
        }
        match rustix::fs::linkat(CWD, to, at, name, AtFlags::empty()) {
            Ok(()) => {
                self.linked.insert(to.to_owned());
                Ok(true)
            }
            Err(Errno::MLINK) => Ok(false),
            Err(error) => Err(error).context(|| making(name)),
        }
    }
}

/// A new inode that carries everything.
fn make_twin(path: &Path, file: &RegularFile<Sha256HashValue>, object: &Path, stat: &Stat) -> Result<(), CallError> {
    let make = || -> std::io::Result<()> {
        let mut to = new_file(path)?;
        match file {
            RegularFile::Inline(bytes) => to.write_all(bytes)?,
            RegularFile::Sparse(size) => to.set_len(*size)?,
            _ => content::copy(&File::open(object)?, &to)?,
        }
        Ok(attributes::apply(stat, to.as_fd(), FileType::RegularFile)?)
    };
    make().context(|| format!("making {}", path.display()))
}

/// Whether an object carries what a file is to carry.
fn carries(object: &Path, wanted: &Stat) -> bool {
    let read = || -> rustix::io::Result<Stat> {
        let file = rustix::fs::open(object, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        attributes::read(file.as_fd(), &rustix::fs::fstat(&file)?)
    };
    read().is_ok_and(|has| everything(&has) == everything(wanted))
}

/// All that an inode carries beside its content, in one line of bytes: no two different ones have the same.
fn everything(stat: &Stat) -> Vec<u8> {
    let mut line = format!(
        "{:o} {} {} {} {} {}\n",
        stat.st_mode,
        stat.st_uid,
        stat.st_gid,
        stat.st_mtim_sec,
        stat.st_mtim_nsec,
        stat.xattrs.len()
    )
    .into_bytes();
    for (name, value) in &stat.xattrs {
        line.extend(format!("{} {} ", name.len(), value.len()).bytes());
        line.extend(name.as_bytes());
        line.extend(&**value);
    }
    line
}

fn twin_name(digest: &Sha256HashValue, stat: &Stat) -> String {
    let mut named = digest.to_hex().into_bytes();
    named.extend(everything(stat));
    FsVerityHasher::<Sha256HashValue>::hash(&named).to_hex()
}

fn link(file: BorrowedFd<'_>, at: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    // By way of /proc: the direct way needs CAP_DAC_READ_SEARCH.
    let from = attributes::by_descriptor(file);
    rustix::fs::linkat(CWD, from.as_str(), at, name, AtFlags::SYMLINK_FOLLOW)
}

fn making(name: &OsStr) -> String {
    format!("making {} in a farm", name.display())
}

fn open_directory(path: &Path) -> Result<OwnedFd, CallError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).context(|| format!("opening {}", path.display()))
}
