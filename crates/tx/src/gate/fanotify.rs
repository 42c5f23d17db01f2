//! Permission events (fanotify(7)): whoever opens, reads, lists or executes what a commit changes waits until all of it
//! is in place.
//!
//! Each object is marked by itself. Nobody else on the machine notices anything, and what is new is marked before
//! anybody can come across it. Only a commit of very many objects marks whole file systems.

use super::answering::Answering;
use super::extent::Extent;
use super::waiting::Waits;
use crate::state::overlay_part::OverlayPart;
use crate::tree::confined::{Tree, is_missing, leads_elsewhere};
use crate::tree::identity::is_gone;
use crate::tree::path::TreePath;
use pando_kernel::file::access_gate::AccessGate;
use pando_kernel::process::deferred_close::DeferredClose;
use rustix::fs::FileType;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// So many objects of a part are marked by themselves.
const MOST: usize = 10_000;

/// Objects whose accesses are asked for, and who answers. Dropped, it is open.
#[derive(Debug)]
pub(super) struct Watching {
    // In this order: the thread ends first, and the last to close the group is not this process.
    answering: Answering,
    gate: Arc<AccessGate>,
    _deferred: DeferredClose,
}

impl Watching {
    /// Begins to be asked for what stands in the live tree, and lets everybody through.
    ///
    /// That is asked for early, since a directory that was opened before is listed without a question.
    pub(super) fn begin(extents: &[(&OverlayPart, Extent)], longest: Duration) -> io::Result<Self> {
        let gate = Arc::new(AccessGate::new()?);
        let _deferred = DeferredClose::of(&*gate)?;
        let watching = Self { answering: Answering::begin(Arc::clone(&gate), longest)?, gate, _deferred };
        extents.iter().try_for_each(|(part, extent)| watching.mark(part, |marks| marks.standing(extent)))?;
        Ok(watching)
    }

    /// Has all others wait, at what stands in the live tree and at what comes.
    pub(super) fn close(&mut self, extents: &[(&OverlayPart, Extent)]) -> io::Result<()> {
        extents.iter().try_for_each(|(part, extent)| self.mark(part, |marks| marks.coming(part, extent)))?;
        self.answering.hold();
        Ok(())
    }

    /// What looks who has waited for long. There is one.
    pub(super) fn look(&mut self) -> Option<impl FnMut() -> Vec<Waits> + Send + use<>> {
        self.answering.look()
    }

    /// Lets everybody go: whether it had let them go before.
    pub(super) fn open(&mut self) -> bool {
        self.answering.end()
    }

    /// Whether it let everybody go unasked.
    pub(super) fn has_lapsed(&self) -> bool {
        self.answering.has_lapsed()
    }

    fn mark(&self, part: &OverlayPart, what: impl FnOnce(&mut Marks<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut marks = Marks { gate: &self.gate, live: part.live_tree()?, left: MOST };
        what(&mut marks)
    }
}

/// What is being marked on one part.
struct Marks<'a> {
    gate: &'a AccessGate,
    live: Tree,
    /// How many objects more.
    left: usize,
}

impl Marks<'_> {
    fn standing(&mut self, extent: &Extent) -> io::Result<()> {
        if extent.root {
            self.hold(self.live.root().try_clone_to_owned(), false)?;
        }
        for identity in &extent.objects {
            self.hold(identity.open(&self.live), false)?;
        }
        for directory in &extent.directories {
            self.hold(self.live.object(directory), false)?;
        }
        let live = Tree::opened(self.live.root().try_clone_to_owned()?, self.live.path(), false);
        extent.trees.iter().try_for_each(|tree| self.hold_tree(&live, tree))
    }

    fn coming(&mut self, part: &OverlayPart, extent: &Extent) -> io::Result<()> {
        if !extent.new.is_empty() {
            let upper = Tree::open(&part.upper())?;
            for at in &extent.new {
                self.hold(upper.object(at), false)?;
                self.hold_tree(&upper, at)?;
            }
        }
        if !extent.made.is_empty() {
            let stage = Tree::open(&part.stage())?;
            for slot in &extent.made {
                self.hold(stage.object(&TreePath::ROOT.join(slot.to_string().as_ref())), true)?;
            }
        }
        Ok(())
    }

    /// Marks every directory of a tree, for itself and for what lies in it. What is no directory is no tree.
    fn hold_tree(&mut self, tree: &Tree, at: &TreePath) -> io::Result<()> {
        let mut next = vec![at.clone()];
        while let Some(at) = next.pop() {
            let directory = match tree.subtree(&at) {
                Err(error) if was_taken_away(&error) => continue,
                directory => directory?,
            };
            self.hold(directory.root().try_clone_to_owned(), true)?;
            if self.left == 0 {
                return Ok(());
            }
            for entry in rustix::fs::Dir::read_from(directory.root())? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                let may_be_one = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
                if may_be_one && name != b"." && name != b".." {
                    next.push(at.join(std::os::unix::ffi::OsStrExt::from_bytes(name)));
                }
            }
        }
        Ok(())
    }

    /// Marks an object, if it is there still: the last look before the commit point decides what its absence means.
    fn hold(&mut self, object: io::Result<OwnedFd>, children: bool) -> io::Result<()> {
        let object = match object {
            Err(error) if was_taken_away(&error) => return Ok(()),
            object => object?,
        };
        match self.left {
            0 => return Ok(()),
            1 => self.gate.hold_file_system(self.live.root())?,
            _ => self.gate.hold(object.as_fd(), children)?,
        }
        self.left -= 1;
        Ok(())
    }
}

fn was_taken_away(error: &io::Error) -> bool {
    is_missing(error) || is_gone(error) || leads_elsewhere(error)
}
