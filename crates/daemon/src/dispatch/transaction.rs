//! Transactions inside programs: the daemon keeps them, and commits them when the program asks for that.
//!
//! ```text
//!   BeginTransaction ─▶ a view that was made ahead ─▶ the program is in it
//!   CommitTransaction ─▶ validated, journal, applied ─▶ answered ─▶ the view is taken apart
//!   AbortTransaction, the connection's or the program's end ─▶ what runs in it is ended, nothing is left
//! ```

use crate::dispatch::{Client, Gone};
use crate::failure;
use crate::runtime::process_end;
use crate::state::daemon::Daemon;
use pando_api::{Fault, FaultKind, Reply, TransactionOutcome};
use pando_guest::settings::Settings;
use pando_kernel::process::{self, pidfd};
use pando_tx::{CommitError, CommitRequest, Conflict, EndError, HostGate, Hosted, HostedCommit, Leavings, Selection};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// How faults name what they are about.
const OBJECT: &str = "transaction";

/// A program on the other end of a connection, and its transaction.
#[derive(Debug)]
pub(super) struct Program {
    process: Rc<OwnedFd>,
    pid: i32,
    hosted: Option<Hosted>,
    /// How many transactions it has begun.
    begun: u32,
}

impl Program {
    /// The one that a pidfd leads to, if it sees the mounts that this daemon sees.
    fn of(descriptors: Vec<OwnedFd>) -> Result<Self, Fault> {
        let process = descriptors.into_iter().next();
        let process = process.ok_or_else(|| failure::bad(OBJECT, "the call has to bring a pidfd of the program"))?;
        let pid = pidfd::pid(&process).map_err(|error| {
            failure::bad(OBJECT, format!("the call's descriptor is no pidfd of a program: {error}"))
        })?;
        let mounts = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
        match (mounts(&pid.to_string()), mounts("self")) {
            (Ok(theirs), Ok(ours)) if theirs == ours => {}
            (Err(error), _) | (_, Err(error)) => {
                return Err(failure::io("looking at the mount namespace of the program", OBJECT, &error));
            }
            _ => {
                let message = "the program is in another mount namespace than Pando's daemon, whose files are not those that a transaction of the host is about; begin it outside, or start the daemon there";
                return Err(Fault::new(FaultKind::Unavailable, OBJECT, message));
            }
        }
        Ok(Self { process: Rc::new(process), pid, hosted: None, begun: 0 })
    }

    /// Waits for its end.
    pub(super) fn end(&self) -> impl Future<Output = ()> + use<> {
        let process = Rc::clone(&self.process);
        async move { process_end::wait_for(&process).await }
    }
}

impl Client {
    /// Begins a transaction, and gives its view to the program.
    pub(super) async fn begin_transaction(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), Gone> {
        match self.begun(descriptors).await {
            Ok(view) => self.reply(Reply::Done {}, false, vec![view]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    async fn begun(&mut self, descriptors: Vec<OwnedFd>) -> Result<OwnedFd, Fault> {
        let program = match &mut self.program {
            Some(program) => program,
            none => none.insert(Program::of(descriptors)?),
        };
        if program.hosted.is_some() {
            return Err(failure::bad(OBJECT, "there is a transaction on this connection already; end it first"));
        }
        let hosted =
            self.daemon.transaction_reserve.host().await.map_err(|why| {
                Fault::new(FaultKind::Unavailable, OBJECT, format!("a transaction cannot begin: {why}"))
            })?;
        let view = hosted.view().try_clone_to_owned();
        let view = view.map_err(|error| failure::io("giving the view of a transaction away", OBJECT, &error))?;
        program.begun += 1;
        program.hosted = Some(hosted);
        Ok(view)
    }

    /// Commits the transaction of the program.
    pub(super) async fn commit_transaction(&mut self, durable: bool) -> Result<(), Gone> {
        let Some((pid, number, hosted)) = self.take_hosted() else { return self.fault(&none()).await };
        let (daemon, settings) = (Rc::clone(&self.daemon), Settings::read(&self.daemon.places));
        let committed = tokio::task::spawn_blocking(move || commit(hosted, pid, number, durable, &settings)).await;
        let (outcome, leavings) = match committed {
            Ok((outcome, leavings)) => (outcome, Some(leavings)),
            Err(error) => (Err(failure::bad(OBJECT, format!("the commit failed inside Pando: {error}"))), None),
        };
        let answered = match outcome {
            Ok(outcome) => self.reply(Reply::Transaction { outcome }, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        };
        daemon.transaction_reserve.let_go(leavings);
        answered
    }

    /// Aborts the transaction of the program.
    pub(super) async fn abort_transaction(&mut self) -> Result<(), Gone> {
        let Some((.., hosted)) = self.take_hosted() else { return self.fault(&none()).await };
        let daemon = Rc::clone(&self.daemon);
        let ended = tokio::task::spawn_blocking(move || (hosted.end_processes(), hosted)).await;
        let answered = match &ended {
            Ok((Ok(_), _)) => self.reply(Reply::Done {}, false, vec![]).await,
            Ok((Err(error), _)) => self.fault(&failure::call("ending what runs in a transaction", OBJECT, error)).await,
            Err(error) => self.fault(&failure::bad(OBJECT, format!("the abort failed inside Pando: {error}"))).await,
        };
        daemon.transaction_reserve.let_go(ended);
        answered
    }

    fn take_hosted(&mut self) -> Option<(i32, u32, Hosted)> {
        let program = self.program.as_mut()?;
        Some((program.pid, program.begun, program.hosted.take()?))
    }
}

fn none() -> Fault {
    failure::bad(OBJECT, "there is no transaction on this connection; begin one first")
}

/// Aborts what a program has left that has ended, or has closed its connection.
pub(super) fn end_with(daemon: &Daemon, program: Option<Program>) {
    if let Some(hosted) = program.and_then(|program| program.hosted) {
        // What could not be ended keeps its files, which nobody else sees any more.
        daemon.transaction_reserve.let_go_after(hosted, |hosted| drop(hosted.end_processes()));
    }
}

fn commit(
    hosted: Hosted,
    pid: i32,
    number: u32,
    durable: bool,
    settings: &Settings,
) -> (Result<TransactionOutcome, Fault>, Option<Leavings>) {
    let line = process::read(pid, "cmdline").unwrap_or_default();
    let command = line.split_terminator('\0').map(str::to_owned).collect();
    let (contention, keep) = crate::settings::of_commit(settings, pid);
    let selection = Selection::default();
    let request = CommitRequest {
        selection: &selection,
        durable,
        contention: Some(contention),
        exclusive: None,
        with_daemons: false,
        keep,
        // A gate is closed by processes of its own, which this one, with its threads, cannot fork.
        gate: HostGate::NONE,
    };
    let HostedCommit { outcome, leavings } = hosted.commit(pid, command, number, &request);
    (told(outcome), Some(leavings))
}

fn told(outcome: Result<(pando_tx::Figures, pando_tx::Settled), EndError>) -> Result<TransactionOutcome, Fault> {
    match outcome {
        Ok((figures, settled)) => {
            for error in settled.failed {
                tracing::warn!(error, "behind a program's transaction, which is committed");
            }
            let paths = i64::try_from(figures.paths).unwrap_or(i64::MAX);
            Ok(TransactionOutcome { committed: true, paths, ..TransactionOutcome::default() })
        }
        Err(EndError::Commit(CommitError::Conflict(conflict))) => {
            let object = match &conflict {
                Conflict::At { path, .. } => Some(path.display().to_string()),
                _ => None,
            };
            let reason = Some(conflict.to_string());
            Ok(TransactionOutcome { object, reason, ..TransactionOutcome::default() })
        }
        Err(error @ EndError::Commit(CommitError::Unfinished(_))) => {
            let message = format!("{}; `pando tx recover` has to finish the commit", chain(&error));
            Err(Fault::new(FaultKind::Failed, OBJECT, message))
        }
        Err(error) => {
            let message = format!("not committed, and nothing was changed: {}", chain(&error));
            Err(Fault::new(FaultKind::Failed, OBJECT, message))
        }
    }
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}
