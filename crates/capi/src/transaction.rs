//! The life of a transaction: begun, ended or aborted by the thread that began it.

use crate::calls::Quiet;
use crate::children::Children;
use crate::connection::{CallFailure, Connection, Done};
use crate::descriptors::{AtEnd, Descriptors};
use crate::failure::Failure;
use crate::flags::Flags;
use crate::mappings;
use crate::process_state::{Identity, ProcessState};
use crate::view::Outside;
use pando_api::{Method, TransactionOutcome};
use serde::Deserialize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// How often a transaction is begun again at most.
const MOST_TRIES: u32 = 100;

/// How long it rests before that, for each try before, and at most.
const REST: Duration = Duration::from_micros(500);
const LONGEST_REST: Duration = Duration::from_millis(20);

/// How a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything is done.
    Committed,
    /// Others were in its way, and nothing is done.
    Conflict,
    /// The same, and it is to be [begun](begin) again, as was asked for.
    Again,
}

/// Whether there is a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// There is none.
    None,
    /// This thread is in one that it has begun.
    Active,
    /// Another thread of this program has begun one.
    OfAnotherThread,
    /// This process is a part of one that another process has begun.
    Part,
}

/// What the process keeps from one transaction to the next.
#[derive(Debug)]
struct Program {
    process: u32,
    connection: Option<Connection>,
    /// The mount namespace that the connection was introduced from.
    namespace: u64,
    open: Option<Transaction>,
    /// How often the present one was begun.
    tries: u32,
    /// Why the last call has failed, or the last transaction was not committed.
    reason: Option<Failure>,
}

#[derive(Debug)]
struct Transaction {
    thread: u32,
    flags: Flags,
    outside: Outside,
    descriptors: Descriptors,
    state: ProcessState,
    children: Children,
}

static PROGRAM: Mutex<Program> =
    Mutex::new(Program { process: 0, connection: None, namespace: 0, open: None, tries: 0, reason: None });

#[derive(Deserialize)]
struct Committed {
    outcome: TransactionOutcome,
}

fn program() -> Result<MutexGuard<'static, Program>, Failure> {
    match PROGRAM.try_lock() {
        Ok(program) => Ok(program),
        Err(TryLockError::Poisoned(program)) => Ok(program.into_inner()),
        // A child that was forked meanwhile would wait for ever.
        Err(TryLockError::WouldBlock) => Err(Failure::about(
            "thread",
            "another thread of this program is beginning or ending a transaction right now",
        )),
    }
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Begins a transaction; how often the same was tried before.
///
/// # Errors
///
/// A sentence that says what is missing, or in the way. Nothing has begun then.
pub fn begin(flags: Flags) -> Result<u32, Failure> {
    let _quiet = Quiet::begin();
    let mut program = program()?;
    let begun = program.begin(flags);
    program.noting(begun)
}

/// Ends the transaction of this thread: it is committed, or nothing of it is done.
///
/// # Errors
///
/// Where there is none, or something that was started inside still runs: then it goes on. Where the commit has failed
/// for another reason than a conflict it is gone, and nothing is done, unless the sentence says otherwise.
pub fn end() -> Result<Ended, Failure> {
    let _quiet = Quiet::begin();
    let mut program = program()?;
    let ended = program.end();
    program.noting(ended)
}

/// Aborts the transaction of this thread: nothing of it is done, and open files are where they were. Whether it is to
/// be begun again: where it was asked for that, unless `no_restart` says that it is not.
///
/// # Errors
///
/// Where there is none, or something cannot be restored.
pub fn abort(no_restart: bool) -> Result<bool, Failure> {
    let _quiet = Quiet::begin();
    let mut program = program()?;
    let aborted = program.abort(no_restart);
    program.noting(aborted)
}

/// Whether there is a transaction.
pub fn status() -> Status {
    let Ok(program) = program() else { return Status::OfAnotherThread };
    match &program.open {
        None => Status::None,
        Some(_) if program.process != std::process::id() => Status::Part,
        Some(open) if open.thread != this_thread() => Status::OfAnotherThread,
        Some(_) => Status::Active,
    }
}

/// Why the last call has failed, or the last transaction was not committed.
pub fn reason() -> Option<Failure> {
    program().ok()?.reason.clone()
}

/// Keeps why a call has failed that did not come to a transaction.
pub(crate) fn note(failure: Failure) -> Failure {
    if let Ok(mut program) = program() {
        program.reason = Some(failure.clone());
    }
    failure
}

impl Program {
    /// Keeps why something has failed.
    fn noting<T>(&mut self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &outcome {
            self.reason = Some(failure.clone());
        }
        outcome
    }

    fn begin(&mut self, flags: Flags) -> Result<u32, Failure> {
        self.can_begin(flags)?;
        self.reason = None;
        let children = Children::begin();
        let outside = Outside::here()?;
        let state = ProcessState::now();
        if !flags.has(Flags::WARN) {
            mappings::lead_nowhere()?;
        }
        let view = self.ask_for_view(&outside)?;
        match enter(&outside, &view, flags) {
            Ok(descriptors) => {
                drop(view);
                let thread = this_thread();
                self.open = Some(Transaction { thread, flags, outside, descriptors, state, children });
                self.tries += 1;
                Ok(self.tries - 1)
            }
            Err(failure) => {
                drop(view);
                // It is gone either way.
                let _ = self.call_abort();
                Err(failure)
            }
        }
    }

    fn can_begin(&mut self, flags: Flags) -> Result<(), Failure> {
        let me = std::process::id();
        if self.open.is_some() {
            let reason = if self.process == me {
                "this program is in a transaction already: transactions do not nest; end it first"
            } else {
                "this process was forked inside a transaction, and is a part of that: what it does is committed or aborted with it"
            };
            return Err(Failure::about("transaction", reason));
        }
        if flags.has(Flags::MEMORY) {
            let reason =
                "PANDO_TX_MEMORY is not supported yet: restore the program's variables yourself, or leave the flag out";
            return Err(Failure::about("PANDO_TX_MEMORY", reason));
        }
        if self.process != me {
            // The connection of whoever forked this process.
            *self = Self { process: me, connection: None, namespace: 0, open: None, tries: 0, reason: None };
        }
        let threads = std::fs::metadata("/proc/self/task").map_or(1, |found| found.nlink().saturating_sub(2));
        if threads > 1 && !flags.has(Flags::THREAD) {
            let reason = format!(
                "the program has {threads} threads, which share their open files: begin before they start, or pass PANDO_TX_THREAD and open in the transaction what belongs to it"
            );
            return Err(Failure::about("threads", reason));
        }
        Ok(())
    }

    /// Asks the daemon for a view. One that has gone may have a follower by now.
    fn ask_for_view(&mut self, outside: &Outside) -> Result<OwnedFd, Failure> {
        let namespace = outside.namespace()?;
        if self.namespace != namespace || self.connection.as_ref().is_some_and(Connection::is_broken) {
            self.connection = None;
        }
        self.namespace = namespace;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open()?),
        };
        let view = connection.begin();
        if view.is_err() {
            self.connection = None;
        }
        view
    }

    /// The transaction that this thread may end.
    fn opened(&self) -> Result<&Transaction, Failure> {
        let none = || Failure::about("transaction", "there is no transaction to end: none was begun, or it has ended");
        let open = self.open.as_ref().ok_or_else(none)?;
        if self.process != std::process::id() {
            let reason = "this process was forked inside the transaction: only the program that began it can end it";
            return Err(Failure::about("transaction", reason));
        }
        if open.thread != this_thread() {
            let reason = format!("the transaction belongs to thread {}, which began it", open.thread);
            return Err(Failure::about("thread", reason));
        }
        Ok(open)
    }

    fn end(&mut self) -> Result<Ended, Failure> {
        let open = self.opened()?;
        open.children.have_ended()?;
        let (left, at_end, moved) = leave(open)?;
        let Some(Transaction { flags, outside, descriptors, state, .. }) = self.open.take() else {
            return Err(Failure::about("transaction", "there is no transaction to end"));
        };
        match self.call_commit(flags.has(Flags::DURABLE)) {
            Ok(TransactionOutcome { committed: true, .. }) => {
                self.tries = 0;
                descriptors_of(flags, descriptors, Some(at_end))?;
                moved.map_or(Ok(()), |path| outside.go_to(&path))?;
                left.give_up_again()?;
                Ok(Ended::Committed)
            }
            Ok(TransactionOutcome { object, reason, .. }) => {
                let reason = reason.unwrap_or_else(|| "others were in its way".to_owned());
                self.reason = Some(Failure::about(object.unwrap_or_default(), reason));
                descriptors_of(flags, descriptors, None)?;
                state.restore()?;
                Ok(self.again(flags))
            }
            Err(failure) => {
                self.tries = 0;
                descriptors_of(flags, descriptors, None)?;
                state.restore()?;
                Err(failure)
            }
        }
    }

    fn abort(&mut self, no_restart: bool) -> Result<bool, Failure> {
        leave(self.opened()?)?;
        let Some(Transaction { flags, descriptors, state, .. }) = self.open.take() else { return Ok(false) };
        let aborted = self.call_abort();
        descriptors_of(flags, descriptors, None)?;
        state.restore()?;
        aborted?;
        if no_restart {
            self.tries = 0;
            return Ok(false);
        }
        Ok(self.again(flags) == Ended::Again)
    }

    /// Whether a transaction that was not committed is to be begun again.
    fn again(&mut self, flags: Flags) -> Ended {
        if flags.has(Flags::RETRY) && self.tries < MOST_TRIES {
            std::thread::sleep((REST * self.tries.saturating_sub(1)).min(LONGEST_REST));
            return Ended::Again;
        }
        self.tries = 0;
        Ended::Conflict
    }

    fn call_commit(&mut self, durable: bool) -> Result<TransactionOutcome, Failure> {
        let method = Method::CommitTransaction { durable };
        let connection = self.connection.as_mut().ok_or_else(|| Failure::about("daemon", "the connection is gone"))?;
        match connection.call::<Committed>(&method, None) {
            Ok((Committed { outcome }, _)) => Ok(outcome),
            Err(CallFailure::Refused(failure)) => Err(failure),
            Err(CallFailure::Lost(Failure { object, reason })) => {
                self.connection = None;
                let reason = format!(
                    "{reason} in the midst of the commit: all of it is done or nothing; `pando tx recover` sees to that, and what the files hold then tells which"
                );
                Err(Failure::about(object, reason))
            }
        }
    }

    /// What could not be asked for is done all the same when the connection is closed.
    fn call_abort(&mut self) -> Result<(), Failure> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        match connection.call::<Done>(&Method::AbortTransaction {}, None) {
            Ok(_) => Ok(()),
            Err(CallFailure::Refused(failure)) => Err(failure),
            Err(CallFailure::Lost(_)) => {
                self.connection = None;
                Ok(())
            }
        }
    }
}

/// Enters a view, with all that is open. Where that cannot be, everything is as it was.
fn enter(outside: &Outside, view: &OwnedFd, flags: Flags) -> Result<Descriptors, Failure> {
    let (alone, pass_over) = (flags.has(Flags::THREAD), flags.has(Flags::WARN));
    if alone {
        // Descriptors are those of all threads.
        outside.enter(view, true)?;
        return Ok(Descriptors::default());
    }
    let looked = Descriptors::look(outside.numbers().collect(), view.as_raw_fd())?;
    if !pass_over {
        looked.can_be_led()?;
    }
    outside.enter(view, false)?;
    looked.lead(pass_over).map_err(|failed| {
        let (failure, descriptors) = *failed;
        let back = outside.come_back().and_then(|()| descriptors.abort());
        back.err().unwrap_or(failure)
    })
}

/// Leaves the view as who the program was when it entered: who it became inside, what is open, and where it went.
fn leave(open: &Transaction) -> Result<(Identity, AtEnd, Option<PathBuf>), Failure> {
    let at_end = open.descriptors.at_end()?;
    let moved = open.outside.moved_to();
    let inside = Identity::now();
    open.state.identity.restore()?;
    if let Err(failure) = open.outside.come_back() {
        inside.give_up_again()?;
        return Err(failure);
    }
    Ok((inside, at_end, moved))
}

/// Has descriptors lead outside: as the work inside has left them, or as they were before.
fn descriptors_of(flags: Flags, descriptors: Descriptors, at_end: Option<AtEnd>) -> Result<(), Failure> {
    match at_end {
        // In a program with threads nobody knows whose a new one is.
        _ if flags.has(Flags::THREAD) => Ok(()),
        Some(at_end) => descriptors.commit(at_end),
        None => descriptors.abort(),
    }
}
