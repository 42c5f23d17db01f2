//! `pando tx run --guest`: one command in a guest, one transaction.
//!
//! The command is a process of the guest's like any other, started by the daemon, but for its mounts and its control group. A holder keeps the view, and
//! ends the command if this program is killed.

use super::guest;
use super::holder::Holder;
use super::recover::sweep_soon;
use super::report::{PassedOutside, Report};
use super::run::{Attempt, Run};
use crate::session::{TerminalOptions, attach};
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;
use pando_tx::{CommitError, EndError, Exclusive, Home, Realm, Settled, TxName};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What lasts from one attempt to the next.
struct Trial<'a> {
    root: &'a StateRoot,
    home: &'a Home,
    guest: &'a str,
    realm: &'a Realm,
}

/// How one attempt went.
struct Tried {
    attempt: Attempt,
    /// Processes that were left in it.
    ended: usize,
    read_only: Vec<String>,
}

impl Run {
    pub(super) fn run_in_guest(&self, root: &StateRoot, guest: &str) -> anyhow::Result<u8> {
        let (home, realm) = (&guest::home(root, Some(guest))?, &guest::realm(root, guest)?);
        pando_tx::recover(home).context("cannot look after earlier transactions")?;
        let (trial, begun) = (Trial { root, home, guest, realm }, Instant::now());
        let mut retries = 0;
        loop {
            // A run that has lost all its retries has the guest to itself: it ends.
            let alone = (retries > self.retry).then(|| Exclusive::over(home, realm)).transpose();
            let alone = alone.context("cannot have the guest's other processes wait")?;
            let tried = self.attempt_in_guest(&trial, retries, alone.as_ref())?;
            if let Attempt::Lost(what) = &tried.attempt
                && alone.is_none()
            {
                retries += 1;
                let how = if retries > self.retry {
                    "with the guest's other processes frozen".to_owned()
                } else {
                    format!("{retries} of {}", self.retry)
                };
                eprintln!("pando: {what}; running it again ({how})");
                continue;
            }
            return Ok(self.conclude_in_guest(&tried, begun.elapsed(), retries, alone.is_some()));
        }
    }

    fn conclude_in_guest(&self, tried: &Tried, time: Duration, retries: u32, alone: bool) -> u8 {
        let (outcome, code) = tried.attempt.outcome();
        if !self.quiet || matches!(tried.attempt, Attempt::Lost(_)) {
            let gate = if alone { "freeze for the whole run" } else { "freeze" };
            let read_only = &tried.read_only[..];
            let passed = PassedOutside::nothing();
            let ended = tried.ended;
            let report = Report { outcome, time, retries, gate, ended, read_only, passed };
            eprintln!("pando: {report}");
        }
        code
    }

    fn attempt_in_guest(&self, trial: &Trial<'_>, number: u32, alone: Option<&Exclusive>) -> anyhow::Result<Tried> {
        let name = self.name.clone().unwrap_or_else(|| TxName::fresh(number));
        let holder = Holder::start(trial.root, &name, Some((trial.guest, trial.realm)), true)?;
        let attempt = self.run_held(trial, &name, &holder, alone);
        if attempt.is_err() {
            // The command may not have been found, or the daemon have gone: nothing of it stays.
            let _ = pando_tx::abort_open(trial.home, &name, alone);
        }
        drop(holder);
        sweep_soon(trial.root, trial.home, &[], None);
        attempt
    }

    fn run_held(
        &self,
        trial: &Trial<'_>,
        name: &TxName,
        holder: &Holder,
        alone: Option<&Exclusive>,
    ) -> anyhow::Result<Tried> {
        let Trial { root, home, guest, .. } = *trial;
        let record = home.records()?.into_iter().find(|record| record.name == *name);
        let record = record.with_context(|| format!("transaction '{name}' has gone"))?;
        let process = guest::process(name, holder.pid(), &self.command);
        let limit = Limit::new(self.timeout, record.clone());
        let exec = |process| Method::Exec { name: guest.to_owned(), process };
        let code = attach(root, TerminalOptions::without_keys(), process, exec);
        let too_long = limit.stop();
        let ended = pando_tx::end_processes_of_open(&record)?;
        let code = code?;
        let attempt = match code {
            _ if too_long => Attempt::Aborted(crate::complaint::OWN_FAILURE, "it took too long".to_owned()),
            0 if self.dry_run => {
                super::diff::show(&pando_tx::changes_of_open(home, name)?, false)?;
                Attempt::Aborted(0, "a dry run".to_owned())
            }
            0 => self.commit_in_guest(home, name, alone)?,
            code => Attempt::Aborted(code, format!("exit code {code}")),
        };
        if !matches!(attempt, Attempt::Committed(..)) {
            pando_tx::abort_open(home, name, alone)?;
        }
        Ok(Tried { attempt, ended, read_only: holder.read_only().to_vec() })
    }

    fn commit_in_guest(&self, home: &Home, name: &TxName, alone: Option<&Exclusive>) -> anyhow::Result<Attempt> {
        match pando_tx::commit_open(home, name, !self.no_durable, alone) {
            Ok(figures) => Ok(Attempt::Committed(figures, Settled::default())),
            Err(EndError::Commit(CommitError::Conflict(conflict))) => Ok(Attempt::Lost(conflict.to_string())),
            Err(error @ EndError::Commit(CommitError::Unfinished(_))) => {
                Err(anyhow::Error::new(error).context("`pando tx recover` has to finish the commit"))
            }
            Err(error) => Err(anyhow::Error::new(error).context("not committed, and nothing was changed")),
        }
    }
}

/// Ends a transaction's processes when their time is over.
struct Limit {
    over: Arc<AtomicBool>,
    cancel: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Limit {
    fn new(limit: Option<Duration>, record: pando_tx::Record) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let Some(limit) = limit else { return Self { over, cancel: None, thread: None } };
        let (cancel, cancelled) = channel::<()>();
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            if cancelled.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                told.store(true, Ordering::SeqCst);
                // Who waits for the command sees its end, and ends what is left.
                let _ = pando_tx::end_processes_of_open(&record);
            }
        });
        Self { over, cancel: Some(cancel), thread: Some(thread) }
    }

    /// Ends the waiting; whether it was over before the command had ended.
    fn stop(mut self) -> bool {
        drop(self.cancel.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.over.load(Ordering::SeqCst)
    }
}
