//! The end of a transaction.

use super::Transaction;
use crate::commit::{CommitError, Figures, PartChanges, commit, read};
use crate::home::{Home, wait_for_lock};
use crate::name::TxName;
use crate::record::Record;
use crate::scope::Scope;
use crate::trash;
use pando_kernel::{CallError, Context};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::time::Duration;

/// How long the process that held a transaction may take to end once it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a transaction could not be ended as wished.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// There is none of that name.
    #[error("there is no transaction '{0}'")]
    Unknown(TxName),
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
        let left = self.scope.processes().len();
        self.scope.kill()?;
        // Orphans of the command came to this process, which became their reaper.
        while let Ok(Some(_)) = waitpid(None::<Pid>, WaitOptions::NOHANG) {}
        Ok(left)
    }

    /// What it has changed. Nobody may be changing more.
    pub fn changes(&self) -> Result<Vec<PartChanges>, CommitError> {
        read(&self.record.parts, None)
    }

    /// Commits it: everything is in the live tree, or nothing. Its processes must have ended.
    pub fn commit(self, durable: bool) -> Result<Figures, EndError> {
        let _one_at_a_time = self.home.lock()?;
        self.commit_locked(durable)
    }

    fn commit_locked(self, durable: bool) -> Result<Figures, EndError> {
        let changes = match read(&self.record.parts, Some(self.record.begun)) {
            Ok(changes) => changes,
            Err(error) => {
                self.throw_away()?;
                return Err(error.into());
            }
        };
        let figures = Figures::of(&changes);
        match commit(&self.directory, changes, durable) {
            Ok(()) => {}
            // What was committed must not be thrown away before it is in place.
            Err(error @ CommitError::Unfinished(_)) => return Err(error.into()),
            Err(error) => {
                self.throw_away()?;
                return Err(error.into());
            }
        }
        self.throw_away()?;
        Ok(figures)
    }

    /// Aborts it: nothing of it is left but rubbish, which [`sweep`](crate::sweep) deletes. Its processes must have ended.
    pub fn abort(self) -> Result<(), CallError> {
        self.throw_away()
    }

    fn throw_away(&self) -> Result<(), CallError> {
        trash::throw_away(&self.home, &self.directory, &self.record.parts)
            .context(|| format!("removing {}", self.directory.display()))?;
        self.scope.remove();
        Ok(())
    }

    /// The live mounts that it has parts on beside the one that its home lies on.
    pub fn other_mounts(&self) -> Vec<std::path::PathBuf> {
        let elsewhere = self.record.parts.iter().filter(|part| !part.base.starts_with(&self.directory));
        elsewhere.map(|part| part.live.clone()).collect()
    }
}

/// What a transaction has changed as far as can be seen while it goes on.
pub fn changes_now(record: &Record) -> Result<Vec<PartChanges>, CommitError> {
    read(&record.parts, None)
}

/// How many processes are in a transaction.
pub fn processes(record: &Record) -> usize {
    Scope::at(&record.group).processes().len()
}

/// What an open transaction has changed so far; its processes stand still meanwhile.
pub fn changes_of_open(home: &Home, name: &TxName) -> Result<Vec<PartChanges>, EndError> {
    let record = Record::read(&home.of(name)).map_err(|_| EndError::Unknown(name.clone()))?;
    let scope = Scope::at(&record.group);
    scope.freeze(true)?;
    let read = read(&record.parts, None);
    scope.freeze(false)?;
    Ok(read?)
}

/// Commits a transaction that another process holds. On a conflict it stays open.
pub fn commit_open(home: &Home, name: &TxName, durable: bool) -> Result<Figures, EndError> {
    home.prepare()?;
    let lock = home.lock()?;
    let record = Record::read(&home.of(name)).map_err(|_| EndError::Unknown(name.clone()))?;
    let scope = Scope::at(&record.group);
    scope.freeze(true)?;
    if let Err(error) = read(&record.parts, Some(record.begun)) {
        scope.freeze(false)?;
        return Err(error.into());
    }
    let taken = take_over(home, record)?;
    let figures = taken.commit_locked(durable);
    drop(lock);
    figures
}

/// Aborts a transaction that another process holds.
pub fn abort_open(home: &Home, name: &TxName) -> Result<(), EndError> {
    home.prepare()?;
    let _lock = home.lock()?;
    let record = Record::read(&home.of(name)).map_err(|_| EndError::Unknown(name.clone()))?;
    take_over(home, record)?.abort()?;
    Ok(())
}

/// Ends the processes of a transaction and the one that holds it, and owns it from then on.
fn take_over(home: &Home, record: Record) -> Result<Transaction, EndError> {
    let directory = home.of(&record.name);
    let scope = Scope::at(&record.group);
    scope.kill()?;
    let path = Record::lock(&directory);
    let what = || format!("locking {}", directory.display());
    let free = wait_for_lock(&path, Some(Duration::ZERO)).context(what)?;
    let lock = match free {
        Some(lock) => lock,
        None => {
            // As long as the lock is held its holder lives, and the pid is its own.
            if let Some(pid) = Pid::from_raw(record.holder) {
                let _ = kill_process(pid, Signal::KILL);
            }
            let waited = wait_for_lock(&path, Some(PATIENCE)).context(what)?;
            waited.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::TimedOut)).context(what)?
        }
    };
    Ok(Transaction { home: home.clone(), directory, record, scope, _lock: lock })
}
