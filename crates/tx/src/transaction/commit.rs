//! A commit, from a transaction whose processes stand still to the live tree: one way for one that this process owns
//! and for one that another holds.
//!
//! ```text
//!   processes stop ─▶ lock ─▶ gate closed ─▶ validate ─▶ no rival is favoured ─▶ prepare ─▶ revalidate
//!                      ▲                        └─▶ one is: lock and gate given back, its turn ─┐  │
//!                      └────────────────────────────────────────────────────────────────────────┘  ▼
//!        rivals doomed ◀─ survivors settled ◀─ apply ◀─────────────────────────────── the commit point
//! ```
//!
//! That is the gate of a target. The host's is closed right before it revalidates, and open once all is applied.

use super::Transaction;
use super::end::{EndError, gather_of_open};
use super::holder::{take_from_holder, watch_of_holder};
use crate::change::Change;
use crate::change::kept::About;
use crate::change::selection::Selection;
use crate::change::split_attribution::FileBaseline;
use crate::gate::{Closed, Exclusive, Gate, HostGate};
use crate::journal::commit::commit;
use crate::journal::commit_error::CommitError;
use crate::journal::prepare::Prepared;
use crate::log;
use crate::state::commit_mark::CommitMark;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::state::trash;
use crate::supervise::HeldSignals;
use crate::transaction::daemons::{Daemons, Lost, Settled, rewritten};
use crate::transaction::in_memory;
use crate::transaction::recover::{finish_published, is_apart_from_unfinished};
use crate::transaction::synchronous_writes;
use crate::tree::attributes::Moment;
use crate::validate::abort_reason::AbortReason;
use crate::validate::change_set::{Basis, Figures, PartChanges, read};
use crate::validate::conflict::Conflict;
use crate::validate::contention::{self, Changed, Contention, Rival};
use crate::validate::read_set::{ReadSetError, Watch};
use crate::validate::twice_changed::twice_changed;
use pando_kernel::Context;
use pando_kernel::file::lock::FileLock;
use pando_kernel::process::user_rights::UserIds;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So many names a user's commit validates: all others wait for it meanwhile.
const MOST_NAMES: usize = 2_000_000;

/// What a commit is asked for, and how it meets others.
#[derive(Clone, Copy, Debug)]
pub struct CommitRequest<'a> {
    /// What of its reads is validated and of its changes committed.
    pub selection: &'a Selection,
    /// Whether the commit survives a loss of power.
    pub durable: bool,
    /// Who is favoured where other transactions that run a command have read or changed the same. Without, these find
    /// out by themselves.
    pub contention: Option<Contention>,
    /// The target of the transaction, where nothing else runs there for the whole of it.
    pub exclusive: Option<&'a Exclusive>,
    /// Whether processes that its command has left running go on in the live tree. Otherwise they end.
    pub with_daemons: bool,
    /// What is kept of it so that it can be undone, if anything is.
    pub keep: Option<KeepRequest>,
    /// What keeps others out meanwhile, where it is one of the host's.
    pub gate: HostGate,
}

/// How much is kept of commits, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepRequest {
    /// How many bytes of the disk all of it may take.
    pub bytes: u64,
    /// How old it may be.
    pub age: Duration,
    /// The user who commits it.
    pub uid: u32,
    /// The commit that this one undoes.
    pub undoes: Option<u64>,
}

impl KeepRequest {
    fn about(&self, record: &Record) -> About {
        let (name, command) = (record.name.clone(), record.command.clone());
        About { name, command, when: Moment::now(), uid: self.uid, undoes: self.undoes }
    }
}

impl Transaction {
    /// Commits it: everything is in the live tree when this returns, or nothing is. `watch` is what came with the end
    /// of its command.
    ///
    /// # Errors
    ///
    /// With [`CommitError::Unfinished`] it is committed, and [`recover`](crate::recover()) has to put the rest in
    /// place. With any other error nothing was done, and the transaction is gone, with all its processes.
    pub fn commit(
        mut self,
        watch: Option<&Watch>,
        request: &CommitRequest<'_>,
    ) -> Result<(Figures, Settled), EndError> {
        self.gather()?;
        let daemons = Daemons::stop(&self.scope)?;
        let carried = self.carry();
        let lock = self.home.lock()?;
        let carried = carried.and_then(|()| finish_published(&self.home).map_err(CommitError::of_another));
        let carried = carried.map_err(EndError::from);
        self.commit_under(lock, &daemons, carried, watch, request)
    }

    /// The same for whoever has the lock of the state directory, and has stopped its processes. It is thrown away where
    /// it cannot be `ready` for that.
    pub(super) fn commit_under(
        self,
        lock: FileLock,
        daemons: &Daemons,
        ready: Result<(), EndError>,
        watch: Option<&Watch>,
        request: &CommitRequest<'_>,
    ) -> Result<(Figures, Settled), EndError> {
        let mut lock = Some(lock);
        let pipeline = Pipeline {
            home: &self.home,
            record: &self.record,
            watch,
            request,
            clears: !self.is_prewarmed(),
            user: self.user.as_ref(),
        };
        match ready.and_then(|()| pipeline.prepare(&mut lock)) {
            Ok(ready) => self.publish(ready, Some(daemons)),
            Err(error) => {
                self.scope.kill()?;
                self.throw_away()?;
                Err(error)
            }
        }
    }

    /// Carries what is in memory to where a commit finds it, before anybody has to wait for that.
    fn carry(&mut self) -> Result<(), CommitError> {
        let is_kept = |part: &&mut OverlayPart| part.memory.is_some();
        self.record.parts.iter_mut().filter(is_kept).try_for_each(in_memory::carry)
    }

    /// What others have changed so that it could not be committed now. Nobody may be changing more of it.
    pub fn abort_reason(&self, watch: Option<&Watch>) -> Option<AbortReason> {
        abort_reason_now(&self.record, watch)
    }

    /// Passes the commit point, and puts everything in place. The gate stays closed meanwhile; then it opens, and
    /// rivals whom the commit has doomed are stopped.
    fn publish(self, ready: Ready, daemons: Option<&Daemons>) -> Result<(Figures, Settled), EndError> {
        let Ready { prepared, mut figures, rewritten, rivals, changed, mut closed, keep, _open } = ready;
        let home = self.home.clone();
        match commit(&prepared, || closed.open_host()) {
            Ok(()) => {}
            // What was committed must not be thrown away before it is in place.
            Err(error @ CommitError::Unfinished(_)) => return Err(error.into()),
            Err(error) => {
                self.scope.kill()?;
                self.throw_away()?;
                return Err(error.into());
            }
        }
        let lost = Lost { copied: self.record.target.is_some() || self.memory.is_some(), rewritten };
        let settled = daemons.map(|daemons| daemons.settle(&self.scope, &home, self.record.target.as_ref(), lost));
        let mut settled = settled.transpose().map(Option::unwrap_or_default).unwrap_or_else(|error| {
            // They stand still.
            let _ = self.scope.kill_unseen();
            Settled { failed: vec![error.to_string()], ..Settled::default() }
        });
        figures.gate = closed.used();
        figures.logged = self.clear_up(keep, &mut settled.failed);
        drop(self);
        contention::doom(&home, &changed, &rivals);
        drop(closed);
        Ok((figures, settled))
    }

    /// Adds it to the log, and removes the rest of it; its number there. It is committed: what fails is told beside
    /// that.
    fn clear_up(&self, keep: Option<KeepRequest>, failed: &mut Vec<String>) -> Option<u64> {
        let logged = log::add(&self.home, &self.directory);
        let logged = logged.map_err(|error| failed.push(format!("adding it to the log: {error}"))).ok().flatten();
        let pruned = keep.map_or(Ok(()), |keep| log::prune(&self.home, keep.bytes, keep.age));
        let left = [pruned, self.throw_away()].into_iter().filter_map(Result::err);
        failed.extend(left.map(|error| error.to_string()));
        logged
    }
}

/// Commits a transaction that another process holds, or what is selected of it.
///
/// # Errors
///
/// With [`CommitError::Unfinished`] it is committed, and [`recover`](crate::recover()) has to put the rest in place.
/// With any other error nothing was done, and it stays open: it can be looked at, committed in another way, or aborted.
pub fn commit_open(
    home: &StateDirectory,
    name: &TxName,
    request: &CommitRequest<'_>,
) -> Result<(Figures, Settled), EndError> {
    home.prepare()?;
    let mut lock = request.exclusive.is_none().then(|| home.lock()).transpose()?;
    let directory = home.of(name);
    let record = Record::read(&directory).map_err(|_| EndError::Unknown(name.clone()))?;
    if record.target.is_none() {
        finish_published(home).map_err(CommitError::of_another)?;
    }
    let marked = CommitMark::begin(&directory).context(|| format!("marking {}", directory.display()))?;
    let mark = marked.ok_or(EndError::Interrupted)?;
    let scope = Scope::at(&record.group);
    match prepare_open(home, &record, request, &mut lock) {
        Ok(ready) => {
            let daemons = request.with_daemons.then(|| Daemons::stop(&scope)).transpose()?;
            if daemons.is_none() {
                scope.kill()?;
            }
            let transaction = take_from_holder(home, record)?;
            let signals = HeldSignals::noted_in(&transaction.directory);
            let committed = transaction.publish(ready, daemons.as_ref())?;
            drop(lock);
            signals.send();
            Ok(committed)
        }
        Err(error) => {
            // On a full disk there is room again for what is written next.
            Prepared::discard(&directory, &record.parts);
            let noted = Record { lost: Some(error.to_string()), ..record }.write(&directory);
            // Where that cannot be noted, the mark says as much.
            let _ = noted.map(|()| mark.take_away());
            scope.freeze(false)?;
            Err(error)
        }
    }
}

/// Stops the processes of a transaction that another process holds, and prepares its commit.
fn prepare_open(
    home: &StateDirectory,
    record: &Record,
    request: &CommitRequest<'_>,
    lock: &mut Option<FileLock>,
) -> Result<Ready, EndError> {
    let scope = Scope::at(&record.group);
    gather_of_open(record, &scope)?;
    scope.freeze(true)?;
    let watch = watch_of_holder(home, record)?;
    Pipeline { home, record, watch: watch.as_ref(), request, clears: false, user: None }.prepare(lock)
}

/// A commit that lacks nothing but its commit point.
struct Ready {
    prepared: Prepared,
    figures: Figures,
    /// Files that the commit writes to in place.
    rewritten: BTreeSet<PathBuf>,
    /// Others that live beside it, and the names that they may have come across.
    rivals: Vec<Rival>,
    changed: Changed,
    /// The gate, which opens once everything is in place.
    closed: Closed,
    /// What is kept of it.
    keep: Option<KeepRequest>,
    /// What it writes to, open for that.
    _open: Vec<OwnedFd>,
}

/// What was found to be in no conflict.
struct Validated {
    changes: Vec<PartChanges>,
    basis: Basis,
    rivals: Vec<Rival>,
    changed: Changed,
}

/// What leads from a transaction whose processes stand still to a commit that lacks nothing but its commit point.
struct Pipeline<'a> {
    home: &'a StateDirectory,
    record: &'a Record,
    /// What tells of its reads, where the kernel does.
    watch: Option<&'a Watch>,
    request: &'a CommitRequest<'a>,
    /// Whether the directories of parts that nothing was changed on are removed ahead.
    clears: bool,
    /// The user whose it is, where that is not root.
    user: Option<&'a UserIds>,
}

impl Pipeline<'_> {
    /// Validates the change set with the gate closed, after rivals that are favoured, and prepares its commit. `lock`
    /// is that of the state directory, given back while a rival has its turn.
    fn prepare(&self, lock: &mut Option<FileLock>) -> Result<Ready, EndError> {
        let gate = Gate::of(self.record.target.as_ref(), self.home, self.request.gate);
        // Whoever has the target to itself waits for nobody: the others wait for it. Nor is anybody waited for twice.
        let mut patient = self.request.exclusive.is_none();
        loop {
            let closed = gate.close()?;
            let validated = self.validate()?;
            let favoured = self.request.contention.filter(|_| patient).and_then(|contention| {
                let Validated { changed, rivals, .. } = &validated;
                contention::favoured(contention, self.home, self.record, changed, rivals)
            });
            let Some(rival) = favoured else {
                return Ok(self.ready(validated, &gate, closed)?);
            };
            // It has to go on, and to commit, in order to end.
            drop(closed);
            *lock = None;
            rival.wait_for_end();
            patient = false;
            *lock = Some(self.home.lock()?);
        }
    }

    /// Reads the change set, and fails where it is in conflict with what others did.
    fn validate(&self) -> Result<Validated, CommitError> {
        let Self {
            home, record, watch, request: CommitRequest { selection, durable, contention, exclusive, .. }, ..
        } = self;
        let basis = basis(record, *watch, exclusive.is_some(), *durable, selection)?;
        if self.user.is_some() && basis.names().is_some_and(|names| names > MOST_NAMES) {
            let source = io::Error::other("others would have to wait for too long: do less at once");
            let what = format!("validating more than {MOST_NAMES} names that a user's transaction has looked up");
            return Err(CommitError::Prepare { what, source });
        }
        let changes = read(&record.parts, record.begun, Some(&basis))?;
        if let Some(path) = selection.included.iter().find(|path| !is_changed(path, &changes)) {
            return Err(CommitError::Unchanged(path.display().to_string()));
        }
        let rivals = contention.map(|_| contention::rivals(home, record)).unwrap_or_default();
        let changed = Changed::of(if rivals.is_empty() { &[] } else { &changes });
        Ok(Validated { changes, basis, rivals, changed })
    }

    /// Prepares the commit of what was validated. On the host others go on meanwhile, and what they do in that time is
    /// a conflict like what they did before.
    fn ready(&self, validated: Validated, gate: &Gate<'_>, closed: Closed) -> Result<Ready, CommitError> {
        let Self { home, record, watch, .. } = self;
        let Validated { mut changes, basis, rivals, changed } = validated;
        let directory = home.of(&record.name);
        if self.clears {
            // Before the disk is waited for, and not beside that: while a file system's journal is being written, to
            // remove a directory there waits for the disk too.
            trash::remove_empty(&trash::untouched(&directory, &changes));
        }
        let touched = |part: &&PartChanges| !part.steps.is_empty();
        // Nobody executes, or takes a lease on, what a user's commit is about to write to.
        let mut open = self.user.is_some().then(Vec::new);
        changes
            .iter_mut()
            .filter(|part| !part.steps.is_empty())
            .try_for_each(|part| part.replace_executed(open.as_mut()))?;
        changes.iter().filter(touched).try_for_each(PartChanges::is_in_reach)?;
        by_one_way(&changes)?;
        if record.synchronous_writes {
            let end = |part: &PartChanges| synchronous_writes::end(&part.part, part.root());
            changes.iter().filter(touched).try_for_each(end)?;
        }
        let (mut figures, rewritten) = (Figures { read: basis.names(), ..Figures::of(&changes) }, rewritten(&changes));
        let steps = changes.iter().filter(touched).map(|one| (&one.part, &one.steps));
        let mut closed = gate.stand_ajar(closed, &directory, steps)?;
        let mut prepared = {
            let keep = self.request.keep.map(|keep| (keep.about(record), keep.bytes));
            Prepared::new(&directory, changes, basis.durable, keep, self.user)?
        };
        figures.too_large_to_keep = prepared.too_large;
        if record.target.is_none() {
            is_apart_from_unfinished(home, &record.name, &prepared.journal)?;
        }
        prepared.leaves_what_is_in_use()?;
        closed.close(prepared.journal.parts.iter().map(|(part, steps)| (part, steps)))?;
        if record.target.is_none() {
            let now = || watch.and_then(|watch| watch.read_sets(record.begun).ok());
            prepared.revalidate(record.begun, || basis.again(now()))?;
            // After the last look: before that it may have been set back as well.
            if !record.has_sound_times() {
                return Err(CommitError::Conflict(Conflict::ClockSetBack));
            }
        }
        if let Some(user) = self.user {
            prepared.is_allowed_still(user)?;
        }
        closed.must_be_closed()?;
        let keep = self.request.keep;
        Ok(Ready { prepared, figures, rewritten, rivals, changed, closed, keep, _open: open.unwrap_or_default() })
    }
}

/// Whether a transaction that has changed nothing in its upper directories has changed nothing at all, and is in no
/// conflict: then there is nothing to commit. How many names it read,
/// where that is known.
pub(super) fn validate_unchanged(
    home: &StateDirectory,
    record: &Record,
    watch: &Watch,
    request: &CommitRequest<'_>,
) -> Result<Option<Option<usize>>, EndError> {
    let pipeline = Pipeline { home, record, watch: Some(watch), request, clears: false, user: None };
    let Validated { changes, basis, .. } = pipeline.validate()?;
    Ok(changes.iter().all(|part| part.steps.is_empty()).then(|| basis.names()))
}

/// Fails where one thing was changed by way of two mounts.
fn by_one_way(changes: &[PartChanges]) -> Result<(), CommitError> {
    let failed = |source| CommitError::Prepare { what: "looking at what was changed".to_owned(), source };
    let Some([one, other]) = twice_changed(changes).map_err(failed)? else { return Ok(()) };
    let words = format!("{} is the same, and both were changed; change it by way of one mount", one.display());
    Err(CommitError::Prepare { what: format!("changing {}", other.display()), source: io::Error::other(words) })
}

/// Why a transaction which goes on cannot be committed any more. Where that cannot be told, nothing.
pub(super) fn abort_reason_now(record: &Record, watch: Option<&Watch>) -> Option<AbortReason> {
    let basis = basis(record, watch, false, false, &Selection::default());
    match basis.and_then(|basis| read(&record.parts, record.begun, Some(&basis))) {
        Err(CommitError::Conflict(conflict)) => Some(conflict.into()),
        _ => None,
    }
}

/// What a transaction is validated by. Where the kernel does not tell what it read, that is its changes alone; and
/// where it has forgotten that of one which had its target to itself, nobody can have changed it; nor need it tell by
/// times who changed what.
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
        Some(Err(ReadSetError::Untold(why))) if !alone => return Err(CommitError::Conflict(Conflict::Untold(why))),
        Some(Err(ReadSetError::Forgotten | ReadSetError::Untold(_) | ReadSetError::Refused(_))) | None => None,
    };
    let opened = |one: &FileBaseline| watch.is_none_or(|watch| watch.have_opened(&one.path));
    let baselines = record.baselines.iter().map(|one| (one.clone(), opened(one))).collect();
    let (places, known_names) = (record.places.clone(), record.known_names.clone());
    let roots = record.parts.iter().map(|part| part.base.clone()).zip(record.roots.iter().copied()).collect();
    Ok(Basis { read, places, durable, sound_times, baselines, known_names, selection, roots })
}

/// Whether anything is changed at a path or below it.
fn is_changed(path: &Path, changes: &[PartChanges]) -> bool {
    let at = |part: &PartChanges, change: &Change| part.part.live.join(change.path.as_path());
    changes.iter().any(|part| part.changes.iter().any(|change| at(part, change).starts_with(path)))
}
