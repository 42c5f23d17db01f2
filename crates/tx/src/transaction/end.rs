//! The end of a transaction.

use super::Transaction;
use crate::change::Change;
use crate::change::change_set::{Basis, Figures, PartChanges, read};
use crate::change::review::PartReview;
use crate::change::selection::Selection;
use crate::change::split_attribution::Disputed;
use crate::change::twice_changed::twice_changed;
use crate::journal::commit::commit;
use crate::journal::commit_error::CommitError;
use crate::journal::file::JournalFile;
use crate::journal::prepare::Prepared;
use crate::journal::recover::finish_published;
use crate::state::commit_mark::Underway;
use crate::state::directory::{Home, wait_for_lock};
use crate::state::name::TxName;
use crate::state::overlay_part::Part;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::state::trash;
use crate::supervise::HeldSignals;
use crate::transaction::daemons::{Daemons, Lost, Settled, rewritten};
use crate::transaction::gate::{self, Closed, Exclusive};
use crate::transaction::in_memory;
use crate::transaction::synchronous_writes;
use crate::validate::abort_reason::AbortReason;
use crate::validate::conflict::Conflict;
use crate::validate::contention::{self, Changed, Contention, Rival};
use crate::validate::read_set::{ReadSetError, Watch};
use pando_kernel::lock::FileLock;
use pando_kernel::{CallError, Context};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, WaitOptions, kill_process, waitpid};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the process that held a transaction may take to end once it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a transaction could not be ended as wished.
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
        let left = self.scope.processes().len();
        self.scope.kill()?;
        // Orphans of the command came to this process, which became their reaper.
        while let Ok(Some(_)) = waitpid(None::<Pid>, WaitOptions::NOHANG) {}
        Ok(left)
    }

    /// What a commit of it would do. Nobody may be changing more.
    pub fn review(&self) -> Result<Vec<PartReview>, CommitError> {
        review_of(&read(&self.record.parts, self.record.begun, None)?)
    }

    /// Commits it: everything is in the live tree, or nothing. `watch` is what came with the end of its command. What that has left running goes on in the
    /// live tree.
    pub fn commit(
        mut self,
        watch: Option<&Watch>,
        durable: bool,
        contention: Contention,
    ) -> Result<(Figures, Settled), EndError> {
        let daemons = Daemons::stop(&self.scope)?;
        let carried = self.carry();
        let mut one_at_a_time = Some(self.home.lock()?);
        let carried = carried.and_then(|()| finish_published(&self.home));
        let prepared = carried.and_then(|()| self.prepare(watch, durable, contention, &mut one_at_a_time));
        let home = self.home.clone();
        match prepared {
            Ok((ready, rivals, changed)) => {
                let committed = self.apply(ready, Some(&daemons))?;
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

    /// Carries what is in memory to where a commit finds it, before anybody has to wait for that.
    fn carry(&mut self) -> Result<(), CommitError> {
        let is_kept = |part: &&mut Part| part.memory.is_some();
        self.record.parts.iter_mut().filter(is_kept).try_for_each(in_memory::carry)
    }

    /// Validates it, with rivals that are favoured before it, and prepares its commit. The lock is that of its home, given back while a rival has its turn.
    fn prepare(
        &self,
        watch: Option<&Watch>,
        durable: bool,
        contention: Contention,
        lock: &mut Option<FileLock>,
    ) -> Result<(Ready, Vec<Rival>, Changed), CommitError> {
        let me = &self.record;
        let mut patient = true;
        loop {
            let basis = basis(me, watch, false, durable, &Selection::default())?;
            let changes = read(&me.parts, me.begun, Some(&basis))?;
            let (rivals, changed) = self.rivals(&changes);
            let favoured = contention::favoured(contention, &self.home, me, &changed, &rivals).filter(|_| patient);
            let Some(rival) = favoured else {
                if !self.on_spare {
                    // Before the disk is waited for, and not beside that: while a file system's journal is being written, to remove a directory there waits for the
                    // disk too.
                    trash::remove_empty(&trash::untouched(&self.directory, &changes));
                }
                return Ok((ready(&self.directory, me, changes, &basis, watch)?, rivals, changed));
            };
            *lock = None;
            rival.wait_for_end();
            patient = false;
            let locked = self.home.lock();
            *lock = Some(locked.map_err(|error| CommitError::Prepare { what: error.what, source: error.source })?);
        }
    }

    /// Others that live beside it, and the names that they may have come across.
    fn rivals(&self, changes: &[PartChanges]) -> (Vec<Rival>, Changed) {
        let rivals = contention::rivals(&self.home, &self.record);
        let changed = Changed::of(if rivals.is_empty() { &[] } else { changes });
        (rivals, changed)
    }

    /// What others have changed so that it could not be committed now. Nobody may be changing more of it.
    pub fn loss(&self, watch: Option<&Watch>) -> Option<AbortReason> {
        loss_now(&self.record, watch)
    }

    /// What others changed so that it cannot be committed any more, as far as somebody has said so.
    pub fn doomed(&self) -> Option<AbortReason> {
        contention::doomed(&self.directory)
    }

    fn apply(self, ready: Ready, daemons: Option<&Daemons>) -> Result<(Figures, Settled), EndError> {
        let Ready { prepared, figures, rewritten } = ready;
        match commit(&prepared) {
            Ok(()) => {}
            // What was committed must not be thrown away before it is in place.
            Err(error @ CommitError::Unfinished(_)) => return Err(error.into()),
            Err(error) => {
                self.scope.kill()?;
                self.throw_away()?;
                return Err(error.into());
            }
        }
        let lost = Lost { copied: self.record.realm.is_some() || self.memory.is_some(), rewritten };
        let settled = daemons.map(|daemons| daemons.settle(&self.scope, &self.home, self.record.realm.as_ref(), lost));
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

/// A commit that lacks nothing but its commit point.
struct Ready {
    prepared: Prepared,
    figures: Figures,
    /// Files that the commit writes to in place.
    rewritten: BTreeSet<PathBuf>,
}

/// Prepares a commit. On the host others go on meanwhile, and what they do in that time is a conflict like what they did before.
fn ready(
    directory: &Path,
    record: &Record,
    mut changes: Vec<PartChanges>,
    basis: &Basis,
    watch: Option<&Watch>,
) -> Result<Ready, CommitError> {
    changes.iter_mut().filter(|part| !part.steps.is_empty()).try_for_each(PartChanges::replace_executed)?;
    let changed = || changes.iter().filter(|part| !part.steps.is_empty());
    changed().try_for_each(PartChanges::is_in_reach)?;
    by_one_way(&changes)?;
    if record.written_through {
        changed().try_for_each(|part| synchronous_writes::end(&part.part, part.root()))?;
    }
    let (figures, rewritten) = (Figures { read: basis.names(), ..Figures::of(&changes) }, rewritten(&changes));
    let prepared = Prepared::new(directory, changes, basis.durable)?;
    prepared.leaves_what_is_in_use()?;
    if record.realm.is_none() {
        let now = || watch.and_then(|watch| watch.read_sets(record.begun).ok());
        prepared.look_again(record.begun, || basis.again(now()))?;
        // Behind the last look: before that it may have been set back as well.
        if !record.has_sound_times() {
            return Err(CommitError::Conflict(Conflict::ClockSetBack));
        }
    }
    Ok(Ready { prepared, figures, rewritten })
}

/// Fails where one thing was changed by way of two mounts.
fn by_one_way(changes: &[PartChanges]) -> Result<(), CommitError> {
    let failed = |source| CommitError::Prepare { what: "looking at what was changed".to_owned(), source };
    let Some([one, other]) = twice_changed(changes).map_err(failed)? else { return Ok(()) };
    let words = format!("{} is the same, and both were changed; change it by way of one mount", one.display());
    Err(CommitError::Prepare { what: format!("changing {}", other.display()), source: io::Error::other(words) })
}

/// Why a transaction which goes on cannot be committed any more. Where that cannot be told, nothing.
pub(super) fn loss_now(record: &Record, watch: Option<&Watch>) -> Option<AbortReason> {
    let basis = basis(record, watch, false, false, &Selection::default());
    match basis.and_then(|basis| read(&record.parts, record.begun, Some(&basis))) {
        Err(CommitError::Conflict(conflict)) => Some(conflict.into()),
        _ => None,
    }
}

/// What a transaction is validated by. Where the kernel does not tell what it read, that is its changes alone; and where it has forgotten that of one which had
/// its realm to itself, nobody can have changed it; nor need it tell by times who changed what.
fn basis(
    record: &Record,
    watch: Option<&Watch>,
    alone: bool,
    durable: bool,
    selection: &Selection,
) -> Result<Basis, CommitError> {
    let sound_times = record.has_sound_times();
    if !sound_times && !alone {
        return Err(CommitError::Conflict(Conflict::ClockSetBack));
    }
    let selection = selection.clone().ignoring(&record.ignored);
    let read = match watch.map(|watch| watch.read_sets(record.begun)) {
        Some(Ok(sets)) => Some(selection.reduce(sets)),
        Some(Err(ReadSetError::Forgotten)) if !alone => {
            return Err(CommitError::Conflict(Conflict::Forgotten));
        }
        Some(Err(ReadSetError::Forgotten | ReadSetError::Refused(_))) | None => None,
    };
    let opened = |one: &Disputed| watch.is_none_or(|watch| watch.have_opened(&one.path));
    let disputed = record.disputed.iter().map(|one| (one.clone(), opened(one))).collect();
    let (places, known_names) = (record.places.clone(), record.known_names.clone());
    let roots = record.parts.iter().map(|part| part.base.clone()).zip(record.roots.iter().copied()).collect();
    Ok(Basis { read, places, durable, sound_times, disputed, known_names, selection, roots })
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
pub fn review_of_open(home: &Home, name: &TxName) -> Result<Vec<PartReview>, EndError> {
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

/// Commits what is selected of a transaction that another process holds. Where that fails it stays open, to be looked at, committed in another way, or aborted.
/// Whoever has its realm to itself says so. With `contention`, others that run a command meet it as that has it; without, they find out by themselves. What it
/// has left running goes on in the live tree `with_daemons`, and is ended otherwise.
pub fn commit_open(
    home: &Home,
    name: &TxName,
    selection: &Selection,
    durable: bool,
    exclusive: Option<&Exclusive>,
    contention: Option<Contention>,
    with_daemons: bool,
) -> Result<(Figures, Settled), EndError> {
    home.prepare()?;
    let mut lock = exclusive.is_none().then(|| home.lock()).transpose()?;
    let directory = home.of(name);
    let record = Record::read(&directory).map_err(|_| EndError::Unknown(name.clone()))?;
    if record.realm.is_none() {
        finish_published(home)?;
    }
    let marked = Underway::begin(&directory).context(|| format!("marking {}", directory.display()))?;
    let underway = marked.ok_or(EndError::Interrupted)?;
    let scope = Scope::at(&record.group);
    match prepare_open(home, &record, selection, durable, exclusive, contention, &mut lock) {
        Ok((ready, rivals, changed, closed)) => {
            let daemons = with_daemons.then(|| Daemons::stop(&scope)).transpose()?;
            if daemons.is_none() {
                scope.kill()?;
            }
            let transaction = take_from_holder(home, record)?;
            let signals = HeldSignals::noted_in(&transaction.directory);
            let committed = transaction.apply(ready, daemons.as_ref())?;
            contention::doom(home, &changed, &rivals);
            drop(closed);
            drop(lock);
            signals.send();
            Ok(committed)
        }
        Err(error) => {
            // On a full disk there is room again for what is written next.
            Prepared::discard(&directory, &record.parts);
            let noted = Record { lost: Some(error.to_string()), ..record }.write(&directory);
            // Where that cannot be noted, the mark says as much.
            let _ = noted.map(|()| underway.take_away());
            scope.freeze(false)?;
            Err(error)
        }
    }
}

/// Stops the processes of a transaction that another process holds, and prepares its commit with the gate closed.
fn prepare_open(
    home: &Home,
    record: &Record,
    selection: &Selection,
    durable: bool,
    exclusive: Option<&Exclusive>,
    contention: Option<Contention>,
    lock: &mut Option<FileLock>,
) -> Result<(Ready, Vec<Rival>, Changed, Closed), EndError> {
    Scope::at(&record.group).freeze(true)?;
    let watch = watch_of_holder(home, record)?;
    let validate = || -> Result<_, EndError> {
        let basis = basis(record, watch.as_ref(), exclusive.is_some(), durable, selection)?;
        let changes = read(&record.parts, record.begun, Some(&basis))?;
        if let Some(path) = selection.included.iter().find(|path| !is_changed(path, &changes)) {
            return Err(CommitError::Unchanged(path.display().to_string()).into());
        }
        let rivals = contention.map(|_| contention::rivals(home, record)).unwrap_or_default();
        let changed = Changed::of(if rivals.is_empty() { &[] } else { &changes });
        Ok((changes, basis, rivals, changed))
    };
    let gate = gate::of(record.realm.as_ref(), home);
    let mut closed = gate.close()?;
    let mut validated = validate()?;
    // Whoever has the realm to itself waits for nobody: the others wait for it.
    let (_, _, rivals, changed) = &validated;
    if let (Some(contention), None) = (contention, exclusive)
        && let Some(rival) = contention::favoured(contention, home, record, changed, rivals)
    {
        // It has to go on, and to commit, in order to end.
        drop(closed);
        *lock = None;
        rival.wait_for_end();
        *lock = Some(home.lock()?);
        closed = gate.close()?;
        validated = validate()?;
    }
    let (changes, basis, rivals, changed) = validated;
    Ok((ready(&home.of(&record.name), record, changes, &basis, watch.as_ref())?, rivals, changed, closed))
}

/// Whether anything is changed at a path or below it.
fn is_changed(path: &Path, changes: &[PartChanges]) -> bool {
    let at = |part: &PartChanges, change: &Change| part.part.live.join(change.path.as_path());
    changes.iter().any(|part| part.changes.iter().any(|change| at(part, change).starts_with(path)))
}

/// The name of a transaction's gate.
pub fn gate_of(home: &Home, record: &Record) -> &'static str {
    gate::of(record.realm.as_ref(), home).name()
}

/// What others changed so that an open transaction cannot be committed any more, as far as somebody has said so.
pub fn doomed_open(home: &Home, name: &TxName) -> Option<AbortReason> {
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
pub(super) fn watch_of_holder(home: &Home, record: &Record) -> Result<Option<Watch>, EndError> {
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
    if JournalFile::of(&home.of(name)).is_published() {
        return Err(EndError::Committed(name.clone()));
    }
    let left = end_processes_of_open(&record)?;
    take_from_holder(home, record)?.abort()?;
    Ok(left)
}

/// Ends the process that holds a transaction and has its lock, which it gives away so.
pub(crate) fn end_holder(directory: &Path, holder: i32) -> io::Result<FileLock> {
    // As long as the lock is held its holder lives, and the pid is its own.
    if let Some(pid) = Pid::from_raw(holder) {
        let _ = kill_process(pid, Signal::KILL);
    }
    wait_for_lock(&Record::lock(directory), Some(PATIENCE))?.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Ends the process that holds a transaction, and owns it from then on.
fn take_from_holder(home: &Home, record: Record) -> Result<Transaction, EndError> {
    let directory = home.of(&record.name);
    let scope = Scope::at(&record.group);
    let path = Record::lock(&directory);
    let what = || format!("locking {}", directory.display());
    let lock = match wait_for_lock(&path, Some(Duration::ZERO)).context(what)? {
        Some(lock) => lock,
        None => end_holder(&directory, record.holder).context(what)?,
    };
    Ok(Transaction::of(home, directory, record, scope, lock))
}
