//! The end of a transaction.

use super::Transaction;
use crate::commit::{Basis, CommitError, Figures, PartChanges, commit, read};
use crate::contention::{self, Changed, Contention, Rival};
use crate::daemons::{Daemons, Settled, rewritten};
use crate::gate::{self, Exclusive};
use crate::home::{Home, wait_for_lock};
use crate::name::TxName;
use crate::outside::HeldSignals;
use crate::read_set::{ReadSetError, Watch};
use crate::record::Record;
use crate::scope::Scope;
use crate::trash;
use crate::validate::Conflict;
use pando_kernel::{CallError, Context};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, WaitOptions, kill_process, waitpid};
use std::path::Path;
use std::time::Duration;

/// How long the process that held a transaction may take to end once it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a transaction could not be ended as wished.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// There is none of that name.
    #[error("there is no transaction '{0}'")]
    Unknown(TxName),
    /// A commit has failed before.
    #[error("{0}, so that it can only be aborted")]
    Lost(String),
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
        read(&self.record.parts, self.record.begun, None)
    }

    /// Commits it: everything is in the live tree, or nothing. `watch` is what came with the end of its command. What that has left running goes on in the
    /// live tree.
    pub fn commit(
        self,
        watch: Option<&Watch>,
        durable: bool,
        contention: Contention,
    ) -> Result<(Figures, Settled), EndError> {
        let daemons = Daemons::stop(&self.scope)?;
        let mut one_at_a_time = self.home.lock()?;
        let validated = basis(&self.record, watch, false, durable).and_then(|basis| {
            let mut patient = true;
            loop {
                let changes = read(&self.record.parts, self.record.begun, Some(&basis))?;
                let (rivals, changed) = self.rivals(&changes);
                let me = &self.record;
                match contention::favoured(contention, &self.home, me, &changed, &rivals).filter(|_| patient) {
                    None => return Ok((changes, basis.names(), rivals, changed)),
                    Some(rival) => {
                        drop(one_at_a_time);
                        rival.wait_for_end();
                        patient = false;
                        one_at_a_time = self
                            .home
                            .lock()
                            .map_err(|error| CommitError::Prepare { what: error.what, source: error.source })?;
                    }
                }
            }
        });
        let home = self.home.clone();
        match validated {
            Ok((changes, names, rivals, changed)) => {
                let committed = self.apply(changes, names, durable, Some(&daemons))?;
                contention::doom(&home, &changed, &rivals);
                Ok(committed)
            }
            Err(error) => {
                self.scope.kill()?;
                self.throw_away()?;
                Err(error.into())
            }
        }
    }

    /// Others that live beside it, and the names that they may have come across.
    fn rivals(&self, changes: &[PartChanges]) -> (Vec<Rival>, Changed) {
        let rivals = contention::rivals(&self.home, &self.record);
        let changed = Changed::of(if rivals.is_empty() { &[] } else { changes });
        (rivals, changed)
    }

    /// What others changed so that it cannot be committed any more, as far as somebody has said so.
    pub fn doomed(&self) -> Option<String> {
        contention::doomed(&self.directory)
    }

    fn apply(
        self,
        changes: Vec<PartChanges>,
        names: Option<usize>,
        durable: bool,
        daemons: Option<&Daemons>,
    ) -> Result<(Figures, Settled), EndError> {
        let rewritten = daemons.map(|_| rewritten(&changes)).unwrap_or_default();
        let figures = Figures { read: names, ..Figures::of(&changes) };
        if !self.on_spare {
            // Before the disk is waited for, and not beside that: while a file system's journal is being written, to remove a directory there waits for the disk too.
            trash::remove_empty(&trash::untouched(&self.directory, &changes));
        }
        let committed = commit(&self.directory, changes, durable);
        match committed {
            Ok(()) => {}
            // What was committed must not be thrown away before it is in place.
            Err(error @ CommitError::Unfinished(_)) => return Err(error.into()),
            Err(error) => {
                self.scope.kill()?;
                self.throw_away()?;
                return Err(error.into());
            }
        }
        let settled =
            daemons.map(|daemons| daemons.settle(&self.scope, &self.home, self.record.realm.as_ref(), rewritten));
        let settled = settled.transpose()?;
        self.throw_away()?;
        Ok((figures, settled.unwrap_or_default()))
    }

    /// Aborts it: nothing of it is left but rubbish, which [`sweep`](crate::sweep) deletes. Its processes must have ended.
    pub fn abort(self) -> Result<(), CallError> {
        self.throw_away()
    }

    fn throw_away(&self) -> Result<(), CallError> {
        trash::throw_away(&self.home, &self.directory).context(|| format!("removing {}", self.directory.display()))?;
        self.scope.remove();
        Ok(())
    }
}

/// What others have changed so that a transaction which goes on cannot be committed any more. Where that cannot be told, nothing.
pub(super) fn conflict_now(record: &Record, watch: Option<&Watch>) -> Option<Conflict> {
    match basis(record, watch, false, false).and_then(|basis| read(&record.parts, record.begun, Some(&basis))) {
        Err(CommitError::Conflict(conflict)) => Some(conflict),
        _ => None,
    }
}

/// What a transaction is validated by. Where the kernel does not tell what it read, that is its changes alone; and where it has forgotten that of one which had
/// its realm to itself, nobody can have changed it.
fn basis(record: &Record, watch: Option<&Watch>, alone: bool, durable: bool) -> Result<Basis, CommitError> {
    let read = match watch.map(Watch::read_sets) {
        Some(Ok(sets)) => Some(sets),
        Some(Err(ReadSetError::Forgotten)) if !alone => {
            let what = "was forgotten by the kernel, for the lack of memory";
            return Err(CommitError::Conflict(Conflict { path: "what it read".to_owned(), what }));
        }
        Some(Err(ReadSetError::Forgotten | ReadSetError::Refused(_))) | None => None,
    };
    Ok(Basis { read, places: record.places.clone(), durable })
}

/// What a transaction has changed as far as can be seen while it goes on.
pub fn changes_now(record: &Record) -> Result<Vec<PartChanges>, CommitError> {
    read(&record.parts, record.begun, None)
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
    let read = read(&record.parts, record.begun, None);
    scope.freeze(false)?;
    Ok(read?)
}

/// Commits a transaction that another process holds. On a conflict it stays open, to be looked at and aborted.
/// Whoever has its realm to itself says so. With `contention`, others that run a command meet it as that has it; without, they find out by themselves. What it
/// has left running goes on in the live tree `with_daemons`, and is ended otherwise.
pub fn commit_open(
    home: &Home,
    name: &TxName,
    durable: bool,
    exclusive: Option<&Exclusive>,
    contention: Option<Contention>,
    with_daemons: bool,
) -> Result<(Figures, Settled), EndError> {
    home.prepare()?;
    let mut lock = exclusive.is_none().then(|| home.lock()).transpose()?;
    let record = Record::read(&home.of(name)).map_err(|_| EndError::Unknown(name.clone()))?;
    if let Some(what) = &record.lost {
        return Err(EndError::Lost(what.clone()));
    }
    let scope = Scope::at(&record.group);
    scope.freeze(true)?;
    let watch = watch_of_holder(home, &record).inspect_err(|_| drop(scope.freeze(false)))?;
    let validate = || -> Result<_, EndError> {
        let basis = basis(&record, watch.as_ref(), exclusive.is_some(), durable)?;
        let changes = read(&record.parts, record.begun, Some(&basis))?;
        let rivals = contention.map(|_| contention::rivals(home, &record)).unwrap_or_default();
        let changed = Changed::of(if rivals.is_empty() { &[] } else { &changes });
        Ok((changes, basis.names(), rivals, changed))
    };
    let mut closed = gate::of(record.realm.as_ref(), home).close()?;
    let mut validated = validate();
    // Whoever has the realm to itself waits for nobody: the others wait for it.
    if let (Ok((_, _, rivals, changed)), Some(contention), None) = (&validated, contention, exclusive)
        && let Some(rival) = contention::favoured(contention, home, &record, changed, rivals)
    {
        // It has to go on, and to commit, in order to end.
        drop((closed, lock));
        rival.wait_for_end();
        lock = Some(home.lock()?);
        closed = gate::of(record.realm.as_ref(), home).close()?;
        validated = validate();
    }
    // It goes with the view, before that is taken from its holder.
    drop(watch);
    match validated {
        Ok((changes, names, rivals, changed)) => {
            let daemons = with_daemons.then(|| Daemons::stop(&scope)).transpose()?;
            if daemons.is_none() {
                scope.kill()?;
            }
            let transaction = take_from_holder(home, record)?;
            let signals = HeldSignals::noted_in(&transaction.directory);
            let committed = transaction.apply(changes, names, durable, daemons.as_ref())?;
            contention::doom(home, &changed, &rivals);
            drop(closed);
            drop(lock);
            signals.send();
            Ok(committed)
        }
        Err(error) => {
            if let EndError::Commit(CommitError::Conflict(conflict)) = &error {
                // What the kernel told of it is read, and not told again.
                Record { lost: Some(conflict.to_string()), ..record.clone() }.write(&home.of(name))?;
            }
            scope.freeze(false)?;
            Err(error)
        }
    }
}

/// The name of a transaction's gate.
pub fn gate_of(home: &Home, record: &Record) -> &'static str {
    gate::of(record.realm.as_ref(), home).name()
}

/// What others changed so that an open transaction cannot be committed any more, as far as somebody has said so.
pub fn doomed_open(home: &Home, name: &TxName) -> Option<String> {
    contention::doomed(&home.of(name))
}

/// Ends every process of an open transaction but the one that holds it; how many there were.
pub fn end_processes_of_open(record: &Record) -> Result<usize, CallError> {
    let scope = Scope::at(&record.group);
    let left = scope.processes().len();
    scope.kill()?;
    Ok(left)
}

/// The watch over a transaction that another process holds.
fn watch_of_holder(home: &Home, record: &Record) -> Result<Option<Watch>, EndError> {
    let (Some(listener), Some(pid)) = (record.listener, Pid::from_raw(record.holder)) else { return Ok(None) };
    let take = || {
        let holder = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let listener = rustix::process::pidfd_getfd(&holder, listener, PidfdGetfdFlags::empty())?;
        Watch::of_another(
            home,
            listener,
            Path::new(&format!("/proc/{}/root", record.holder)),
            &record.parts,
            &home.of(&record.name),
        )
    };
    Ok(Some(take().context(|| format!("looking into the view that process {} holds", record.holder))?))
}

/// Aborts a transaction that another process holds; how many processes were left in it, which are ended.
pub fn abort_open(home: &Home, name: &TxName, exclusive: Option<&Exclusive>) -> Result<usize, EndError> {
    home.prepare()?;
    let _lock = exclusive.is_none().then(|| home.lock()).transpose()?;
    let record = Record::read(&home.of(name)).map_err(|_| EndError::Unknown(name.clone()))?;
    let left = end_processes_of_open(&record)?;
    take_from_holder(home, record)?.abort()?;
    Ok(left)
}

/// Ends the process that holds a transaction, and owns it from then on.
fn take_from_holder(home: &Home, record: Record) -> Result<Transaction, EndError> {
    let directory = home.of(&record.name);
    let scope = Scope::at(&record.group);
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
    Ok(Transaction {
        home: home.clone(),
        directory,
        record,
        scope,
        watch: None,
        made: None,
        on_spare: false,
        _lock: lock,
    })
}
