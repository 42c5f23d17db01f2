//! What is learned of attempts that were lost, and what the next one does otherwise.

use super::attempt::Attempt;
use crate::change::split_attribution::FileBaseline;
use crate::state::overlay_part::OverlayPart;
use crate::transaction::Transaction;
use crate::tree::attributes::Moment;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What was learned of earlier attempts.
#[derive(Debug, Default)]
pub struct Lesson {
    /// Whether what is written is to be on the disk at once, so that memory is left for what is read.
    synchronous_writes: bool,
    /// Whether changes are kept on the disk, since they have outgrown the memory, or memory was short.
    on_disk: bool,
    /// What others have changed too.
    changed: BTreeSet<PathBuf>,
    /// Directories in which others change names.
    directories: BTreeSet<PathBuf>,
    /// Where the last attempt had its changes.
    parts: Vec<OverlayPart>,
    /// When the first attempt began.
    first_begun: Option<Moment>,
}

/// What the next attempt does otherwise that people should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// Each write goes to the disk at once.
    WritesSynchronously,
    /// Its changes are not kept in memory.
    OnDisk,
}

impl Lesson {
    /// Takes an attempt in: whether another one may go better, and what that does otherwise.
    pub(crate) fn learn(&mut self, attempt: &Attempt) -> Option<Option<Otherwise>> {
        match attempt {
            Attempt::Lost(reason) if reason.is_lack_of_memory() => {
                (self.on_disk, self.synchronous_writes) = (true, true);
                Some(Some(Otherwise::WritesSynchronously))
            }
            Attempt::Lost(reason) | Attempt::Misled(.., reason) => {
                self.changed.extend(reason.changed_object().map(Path::to_owned));
                self.directories.extend(reason.directory_of_names().map(Path::to_owned));
                Some(None)
            }
            Attempt::Outgrown => {
                self.on_disk = true;
                Some(Some(Otherwise::OnDisk))
            }
            Attempt::NotBegun => Some(None),
            Attempt::Committed(..) | Attempt::Aborted(..) => None,
        }
    }

    /// Whether changes may be kept in memory.
    pub fn allows_memory(&self) -> bool {
        !self.on_disk
    }

    /// When the first attempt began, if there was one.
    pub fn first_begun(&self) -> Option<Moment> {
        self.first_begun
    }

    /// What files that others change are like now: before the next transaction begins, and sees any of them.
    pub fn baselines(&self) -> Vec<FileBaseline> {
        self.changed.iter().filter_map(|path| FileBaseline::of(path, &self.parts)).collect()
    }

    /// Has a transaction that has just begun, and whose command has not, do what was learned. `baselines` are
    /// [those](Self::baselines) from before it began.
    pub fn apply(&mut self, transaction: &mut Transaction, baselines: Vec<FileBaseline>) {
        if self.synchronous_writes {
            transaction.write_synchronously();
        }
        transaction.tell_apart(baselines);
        // As they are once it has begun, and before it sees any of them.
        transaction.know_names(&self.directories);
        self.began(transaction.record().begun);
        self.parts.clone_from(&transaction.record().parts);
    }

    /// What others are known to change: objects, and directories in which they change names.
    pub fn contended(&self) -> impl Iterator<Item = &Path> {
        self.changed.iter().chain(&self.directories).map(PathBuf::as_path)
    }

    /// Takes in when an attempt began.
    pub fn began(&mut self, begun: Moment) {
        self.first_begun.get_or_insert(begun);
    }
}
