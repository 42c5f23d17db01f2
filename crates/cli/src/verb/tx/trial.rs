//! What lasts from one attempt to run a command in a transaction to the next, and what the next one does otherwise.

use super::attempt::{Attempt, OUTGROWN};
use super::prewarmed::{self, Clearer};
use super::replayed_input::ReplayedInput;
use super::wait::Waiting;
use crate::state_root::StateRoot;
use pando_tx::{
    AbortReason, BeginError, Contention, FileBaseline, Memory, Moment, OverlayPart, StateDirectory, Transaction,
    TxName, ViewPlan,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A transaction that has begun, the view that it is to have, and who clears away after it, if that is a daemon.
pub(super) type Begun = (Transaction, ViewPlan, Option<Clearer>);

/// What lasts from its beginning to its end.
pub(super) struct Trial<'a> {
    pub(super) root: &'a StateRoot,
    pub(super) home: &'a StateDirectory,
    pub(super) waiting: Waiting,
    pub(super) input: ReplayedInput,
    pub(super) contention: Contention,
    /// How much memory there is for what is changed, if it is kept there.
    pub(super) memory: Option<u64>,
    /// Where what it reads is not validated.
    pub(super) ignored: Vec<PathBuf>,
    pub(super) lesson: Lesson,
}

/// What was learned of earlier attempts.
#[derive(Default)]
pub(super) struct Lesson {
    /// Whether what is written is to be on the disk at once, so that memory is left for what is read.
    synchronous_writes: bool,
    /// What others have changed too.
    baselines: BTreeSet<PathBuf>,
    /// Directories in which others change names.
    directories: BTreeSet<PathBuf>,
    /// Where the last of them had its changes.
    parts: Vec<OverlayPart>,
    /// When the first began.
    begun: Option<Moment>,
}

impl Trial<'_> {
    /// Why the command is to be run again after an attempt, if it is, and how.
    pub(super) fn learn(&mut self, attempt: &Attempt) -> Option<(String, &'static str)> {
        match attempt {
            Attempt::Lost(reason) if reason.is_lack_of_memory() => {
                (self.memory, self.lesson.synchronous_writes) = (None, true);
                Some((reason.to_string(), ", each write to the disk at once"))
            }
            Attempt::Lost(reason) | Attempt::Misled(.., reason) => {
                self.lesson.baselines.extend(reason.changed_object().map(Path::to_owned));
                self.lesson.directories.extend(reason.directory_of_names().map(Path::to_owned));
                Some((reason.to_string(), ""))
            }
            Attempt::Outgrown => {
                self.memory = None;
                Some((OUTGROWN.to_owned(), " on the disk"))
            }
            Attempt::NotBegun => Some((AbortReason::MountsChanged.to_string(), "")),
            Attempt::Committed(..) | Attempt::Aborted(..) => None,
        }
    }

    /// Begins a transaction: in memory, on what a daemon has made ahead, or as it is done without either.
    pub(super) fn begin(&mut self, name: &TxName, shown: &[String]) -> Result<Begun, BeginError> {
        // As they are before it sees any of them.
        let Lesson { baselines, parts, .. } = &self.lesson;
        let baselines = baselines.iter().filter_map(|path| FileBaseline::of(path, parts)).collect();
        let (mut transaction, plan, clearer) = self.begin_somewhere(name, shown)?;
        transaction.ignore(&self.ignored)?;
        if self.lesson.synchronous_writes {
            transaction.write_synchronously();
        }
        transaction.tell_apart(baselines);
        // As they are once it has begun, and before it sees any of them.
        transaction.know_names(&self.lesson.directories);
        self.lesson.begun.get_or_insert(transaction.record().begun);
        self.lesson.parts.clone_from(&transaction.record().parts);
        Ok((transaction, plan, clearer))
    }

    fn begin_somewhere(&self, name: &TxName, shown: &[String]) -> Result<Begun, BeginError> {
        let (home, begun) = (self.home, self.lesson.begun);
        if let Some(memory) = self.memory.map(|most| Memory::new(most, home)).transpose()? {
            let (transaction, plan) = Transaction::begin_in_memory(home, name, shown, begun, memory)?;
            return Ok((transaction, plan, None));
        }
        if let Some((transaction, plan, clearer)) = prewarmed::begin(self.root, home, name, shown, begun)? {
            return Ok((transaction, plan, Some(clearer)));
        }
        let (transaction, plan) = Transaction::begin(home, name, shown, begun)?;
        Ok((transaction, plan, None))
    }
}
