//! The part of a transaction that one mount of the live system holds: its overlay's directories, inside the same file
//! system, so that what is new can be moved into place by a rename.

use crate::state::mount_path::{self, Crossing};
use crate::state::private_place::{self, HIDDEN};
use crate::state::target::Target;
use crate::tree::attributes::{Attributes, Moment, Which};
use crate::tree::confined::{CallPath, Tree};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What becomes an entry of the log, in a transaction's directory.
pub(crate) const ENTRY: &str = "entry";

/// The overlay of one mount: where its directories are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayPart {
    /// The root of the live tree: a mount point.
    pub live: PathBuf,
    /// The directory that everything of the part lies in.
    pub base: PathBuf,
    /// The target whose it is, if it is no part of this machine's own files.
    #[serde(rename = "realm")]
    pub target: Option<Target>,
    /// The mounts that are crossed from that target's root directory to the part; none for the root directory itself.
    #[serde(default, rename = "way")]
    pub mount_path: Vec<Crossing>,
    /// Where its changes are kept [in memory](crate::transaction::in_memory), if they are.
    #[serde(default)]
    pub memory: Option<PathBuf>,
}

impl OverlayPart {
    /// One of this machine's own.
    pub(crate) fn new(live: PathBuf, base: PathBuf) -> Self {
        Self { live, base, target: None, mount_path: Vec::new(), memory: None }
    }

    /// Whether it is another's part, wherever each says that its changes are.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.base == other.base
    }

    /// The same once nothing is in memory any more: whatever a path to that leads to then, it is not this part's.
    pub(crate) fn on_disk(&self) -> Self {
        Self { memory: None, ..self.clone() }
    }

    /// The directory that the overlay's directories are in.
    pub(crate) fn files(&self) -> &Path {
        self.memory.as_deref().unwrap_or(&self.base)
    }

    /// Opens the root of the live tree. In a target it is the one that the view was made of, or none.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Some(target) = &self.target else { return Ok(rustix::fs::open(&self.live, flags, Mode::empty())?) };
        let root = rustix::fs::open(target.root()?, flags, Mode::empty())?;
        // Its path was by a pid: if the process still lives it was the process's.
        target.root()?;
        mount_path::follow(root, &self.mount_path)
    }

    /// The live tree, to be read and changed by paths below its root. In a target, whose root is an overlay, the
    /// numbers of inodes do not last.
    pub(crate) fn live_tree(&self) -> io::Result<Tree> {
        Ok(Tree::opened(self.open()?, &self.live, self.target.is_some()))
    }

    /// Whether the file system that it lay on is not the target's any more: it was in memory, and the target has
    /// unmounted it, or ended and begun anew.
    pub(crate) fn is_gone(&self) -> bool {
        !self.mount_path.is_empty() && self.open().is_err_and(|error| mount_path::is_gone(&error))
    }

    /// Whether a mount of this machine's own is not where it was: others have unmounted it, or mounted something over
    /// it. Its directory, which no other file system has, lies on it.
    pub(crate) fn is_unmounted(&self) -> bool {
        self.target.is_none() && !self.base.exists()
    }

    /// The overlay's upper directory, which has all that was changed.
    pub fn upper(&self) -> PathBuf {
        self.files().join("upper")
    }

    /// The overlay's work directory, which it needs for itself.
    pub fn work(&self) -> PathBuf {
        self.files().join("work")
    }

    /// Where the overlay keeps hard-linked files.
    pub fn index(&self) -> PathBuf {
        self.work().join("index")
    }

    /// Where a commit puts things aside. In a target that is elsewhere.
    pub fn stage(&self) -> PathBuf {
        self.base.join("stage")
    }

    /// Where a commit puts what is removed.
    pub fn trash(&self) -> PathBuf {
        self.base.join("trash")
    }

    /// Where a commit keeps what it takes away, until the transaction's directory goes: beside that, since it outlives
    /// the rest of the part.
    pub(crate) fn kept(&self) -> PathBuf {
        match self.kept_beside() {
            Some(kept) => kept,
            None => self.kept_in(&self.base.parent().unwrap_or(&self.base).join(ENTRY)),
        }
    }

    /// The same once the commit is in the log, as the entry in this directory.
    pub(crate) fn kept_in(&self, entry: &Path) -> PathBuf {
        let name = self.base.file_name().unwrap_or_default();
        self.kept_beside().unwrap_or_else(|| entry.join(name))
    }

    /// Where it is kept at the root of the mount, if the part lies there.
    pub(crate) fn kept_beside(&self) -> Option<PathBuf> {
        let hidden = self.base.parent().filter(|hidden| hidden.file_name().is_some_and(|name| name == HIDDEN))?;
        let mut name = OsString::from("kept-");
        name.push(self.base.file_name()?);
        Some(hidden.join(name))
    }

    /// What keeps room free for the commit.
    pub fn room(&self) -> PathBuf {
        self.base.join("room")
    }

    /// The same where the directories lie in `to` that lay in `from` before; nothing else changes.
    pub(crate) fn moved(&mut self, from: &Path, to: &Path) {
        if let Ok(below) = self.base.strip_prefix(from) {
            self.base = to.join(below);
        }
    }

    /// Makes the directories for an overlay over the live tree, whose root the upper directory looks like.
    pub(crate) fn make(&self) -> io::Result<Made> {
        use std::os::unix::fs::DirBuilderExt;
        // Below a directory that is closed to others, so that a path leads nowhere else.
        private_place::make(&self.base)?;
        let private = |path: &Path| std::fs::DirBuilder::new().mode(0o700).create(path);
        if let Some(memory) = &self.memory {
            private(memory)?;
        }
        private(&self.upper())?;
        private(&self.work())?;
        let base = Moment::changed(&rustix::fs::stat(&self.base)?);
        Ok(Made { live: self.look_like_live()?, base })
    }

    /// Gives the upper directory all that the live tree's root has but its names, the time too: any other would be a
    /// change to the root, and every commit would touch, and sync, every file system. Others may change the live root
    /// meanwhile, so that all of it is kept as well: whose a change is can be told by that alone.
    pub(crate) fn look_like_live(&self) -> io::Result<LiveRoot> {
        let live = self.open()?;
        let changed = Moment::changed(&rustix::fs::fstat(&live)?);
        let live = Attributes::of(&CallPath::of(live)?)?;
        let upper = rustix::fs::open(self.upper(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        live.give(&CallPath::of(upper)?, Which::All, || ())?;
        std::fs::write(self.marker(), postcard::to_stdvec(&live).map_err(io::Error::other)?)?;
        Ok(LiveRoot { changed, digest: live.digest()? })
    }

    /// When anything of the live tree's root last changed, where that can be told.
    pub(crate) fn root_changed(&self) -> Option<Moment> {
        rustix::fs::stat(self.live.join(".")).ok().map(|root| Moment::changed(&root))
    }

    /// Removes the directories where they are, if there is nothing in them but what [`make`](Self::make), the overlay
    /// and a commit have put there; whether that was so. It takes a few calls, where deleting what may be anything has
    /// to look into every directory.
    pub(crate) fn remove_empty(&self) -> bool {
        // The first that is full ends it: what is in the upper directory may be much.
        if std::fs::remove_dir(self.upper()).is_err() {
            return false;
        }
        let volatile = self.work().join("work/incompat/volatile");
        for file in [volatile.join("dirty"), self.marker(), self.room()] {
            let _ = std::fs::remove_file(file);
        }
        let incompatible = self.work().join("work/incompat");
        for directory in
            [volatile, incompatible, self.work().join("work"), self.index(), self.work(), self.stage(), self.trash()]
        {
            let _ = std::fs::remove_dir(directory);
        }
        std::fs::remove_dir(&self.base).is_ok()
    }

    /// Whether nothing has come to the overlay's directories: then nothing was changed, but perhaps its root's own
    /// attributes.
    pub(crate) fn is_untouched(&self) -> bool {
        let is_empty = |path: &Path| std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        is_empty(&self.upper()) && is_empty(&self.index())
    }

    /// Where it is kept what the root was like at the beginning.
    fn marker(&self) -> PathBuf {
        self.base.join("root")
    }

    /// What the root was like when the transaction began, where that is known.
    pub(crate) fn root_before(&self) -> Option<Attributes> {
        postcard::from_bytes(&std::fs::read(self.marker()).ok()?).ok()
    }
}

/// What is known of one that was just made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// What the live tree's root was like.
    pub(crate) live: LiveRoot,
    /// When the directory that it lies in did, on the same file system.
    pub(crate) base: Moment,
}

/// What the root of a live tree was like when its part was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveRoot {
    /// When anything of it had last changed.
    pub(crate) changed: Moment,
    /// The [digest](Attributes::digest) of its attributes.
    pub(crate) digest: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvTimeoutError;

    #[test]
    fn it_is_made_while_others_remove_what_it_lies_in() {
        let mount = tempfile::tempdir().unwrap();
        let hidden = mount.path().join(crate::state::private_place::HIDDEN);
        let (over, until) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let until = until;
                // Now and then, as by transactions that end: whoever did nothing else could win every time.
                while until.recv_timeout(std::time::Duration::from_micros(20)) == Err(RecvTimeoutError::Timeout) {
                    let _ = std::fs::remove_dir(&hidden);
                }
            });
            for number in 0..1000 {
                let base = hidden.join(number.to_string());
                let part = OverlayPart::new(mount.path().to_owned(), base.clone());
                part.make().unwrap();
                pando_kernel::file::tree_removal::remove_tree(&base).unwrap();
            }
            drop(over);
        });
    }
}
