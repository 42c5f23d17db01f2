//! The end of a transaction.

use super::Transaction;
use super::holder::take_from_holder;
use crate::change::review::PartReview;
use crate::gate::Exclusive;
use crate::journal::commit_error::CommitError;
use crate::journal::file::JournalFile;
use crate::state::directory::StateDirectory;
use crate::state::mount_space::MountSpace;
use crate::state::name::TxName;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::state::trash;
use crate::validate::abort_reason::AbortReason;
use crate::validate::change_set::{PartChanges, read};
use crate::validate::contention;
use pando_kernel::{CallError, Context};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Why a transaction could not be ended as requested.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// There is none of that name.
    #[error("there is no transaction '{0}'")]
    Unknown(TxName),
    /// It is committed, and only has to be finished.
    #[error("'{0}' is committed, and cannot be aborted any more: `pando tx recover` finishes it")]
    Committed(TxName),
    /// Whoever committed it was killed at that: what it has read is not known any more.
    #[error("a commit of it was interrupted, so that it can only be aborted")]
    Interrupted,
    /// It was not, or not wholly, committed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The kernel refused something.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Transaction {
    /// Ends every process that is left in it; how many there were.
    pub fn end_processes(&self) -> Result<usize, CallError> {
        self.gather()?;
        let left = self.scope.processes().len();
        self.scope.kill()?;
        // Orphans of the command came to this process, which became their reaper.
        while let Ok(Some(_)) = waitpid(None::<Pid>, WaitOptions::NOHANG) {}
        Ok(left)
    }

    /// Takes processes back into its group that have left that.
    pub(super) fn gather(&self) -> Result<(), CallError> {
        self.filtered.as_ref().map_or(Ok(()), |filtered| filtered.gather(&self.scope))
    }

    /// What a commit of it would do. Nobody may be changing more.
    pub fn review(&self) -> Result<Vec<PartReview>, CommitError> {
        review_of(&read(&self.record.parts, self.record.begun, None)?)
    }

    /// What others changed so that it cannot be committed any more, as far as somebody has said so.
    pub fn doomed(&self) -> Option<AbortReason> {
        contention::doomed(&self.directory)
    }

    /// Aborts it: nothing of it is left but rubbish, which [`sweep`](crate::sweep) deletes. Its processes must have
    /// ended.
    pub fn abort(self) -> Result<(), CallError> {
        self.throw_away()
    }

    pub(super) fn throw_away(&self) -> Result<(), CallError> {
        trash::throw_away(&self.home, &self.directory).context(|| format!("removing {}", self.directory.display()))?;
        self.scope.remove();
        Ok(())
    }
}

/// What a transaction has changed as far as can be seen while it goes on.
pub fn changes_now(record: &Record) -> Result<Vec<PartChanges>, CommitError> {
    read(&record.parts, record.begun, None)
}

/// How many processes are in a transaction.
pub fn processes(record: &Record) -> usize {
    Scope::at(&record.group).processes().len()
}

/// What a commit of an open transaction would do now; its processes stand still meanwhile.
pub fn review_of_open(home: &StateDirectory, name: &TxName) -> Result<Vec<PartReview>, EndError> {
    let record = Record::read(&home.of(name)).map_err(|_| EndError::Unknown(name.clone()))?;
    let scope = Scope::at(&record.group);
    scope.freeze(true)?;
    let review = read(&record.parts, record.begun, None).and_then(|parts| review_of(&parts));
    scope.freeze(false)?;
    Ok(review?)
}

fn review_of(parts: &[PartChanges]) -> Result<Vec<PartReview>, CommitError> {
    parts.iter().map(PartChanges::review).collect()
}

/// What others changed so that an open transaction cannot be committed any more, as far as somebody has said so.
pub fn doomed_open(home: &StateDirectory, name: &TxName) -> Option<AbortReason> {
    contention::doomed(&home.of(name))
}

/// Ends every process of an open transaction but the one that holds it; how many there were.
pub fn end_processes_of_open(record: &Record) -> Result<usize, CallError> {
    let scope = Scope::at(&record.group);
    gather_of_open(record, &scope)?;
    let left = scope.processes().len();
    scope.kill()?;
    Ok(left)
}

/// Takes processes of an open transaction back into its group that have left that.
pub(super) fn gather_of_open(record: &Record, scope: &Scope) -> Result<(), CallError> {
    // Without its holder there is no telling which view was its own; whoever has the pid by now is none of it.
    if let Ok(view) = record.holder().opened(|pid| MountSpace::of(&format!("/proc/{pid}/ns/mnt"))) {
        scope.gather(&view, Some(record.holder))?;
    }
    Ok(())
}

/// Aborts a transaction that another process holds; how many processes were left in it, which are ended.
pub fn abort_open(home: &StateDirectory, name: &TxName, exclusive: Option<&Exclusive>) -> Result<usize, EndError> {
    home.prepare()?;
    let _lock = exclusive.is_none().then(|| home.lock()).transpose()?;
    let record = Record::read(&home.of(name)).map_err(|_| EndError::Unknown(name.clone()))?;
    if JournalFile::of(&home.of(name)).is_published() {
        return Err(EndError::Committed(name.clone()));
    }
    let left = end_processes_of_open(&record)?;
    take_from_holder(home, record)?.abort()?;
    Ok(left)
}
