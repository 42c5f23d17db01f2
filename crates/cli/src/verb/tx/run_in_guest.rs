//! `pando tx run --guest`: one command in a guest, one transaction.
//!
//! The command is a process of the guest's like any other, started by the daemon, but for its mounts and its control
//! group. A holder keeps the view, and ends the command if this program is killed.

use super::guest;
use super::holder::{Holder, Purpose, Shifted};
use super::keep::Keep;
use super::named_paths::Named;
use super::outcome::{announce, behind, came_of};
use super::recover::sweep_soon;
use super::run::Run;
use super::supervised::{Heard, Manner, Supervised};
use crate::session::{TerminalOptions, attach_instead};
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;
use pando_tx::{
    Attempt, CommitRequest, Contention, Exclusive, HostGate, KeepRequest, Lesson, Looks, Passed, ReplayedInput, Retry,
    RetryPolicy, Runner, Selection, StateDirectory, Target, Tried, TxName, run_with_retries,
};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What lasts from one attempt to the next.
struct InGuest<'a> {
    run: &'a Run,
    root: &'a StateRoot,
    home: &'a StateDirectory,
    guest: &'a str,
    target: &'a Target,
    input: ReplayedInput,
    contention: Contention,
    keep: Option<KeepRequest>,
    /// Where what it reads is not validated.
    ignored: Vec<PathBuf>,
}

impl Runner for InGuest<'_> {
    type Error = anyhow::Error;

    fn attempt(&mut self, number: u32, lesson: &mut Lesson, exclusive: bool) -> anyhow::Result<Tried> {
        let alone = exclusive.then(|| Exclusive::over(self.home, self.target)).transpose();
        let alone = alone.context("cannot have the guest's other processes wait")?;
        self.run.attempt_in_guest(self, number, lesson, alone.as_ref())
    }

    fn announce(&mut self, retry: &Retry<'_>) {
        announce(retry, self.run.retry, "with the guest's other processes frozen");
    }

    fn rest(&mut self, pause: Duration) -> anyhow::Result<Option<i32>> {
        std::thread::sleep(pause);
        Ok(None)
    }
}

impl Run {
    pub(super) fn run_in_guest(&self, root: &StateRoot, guest: &str) -> anyhow::Result<u8> {
        let home = &guest::home(root, Some(guest))?.patient_for(self.timeout);
        let target = &guest::target(root, guest)?;
        pando_tx::recover(home).context("cannot look after earlier transactions")?;
        let begun = Instant::now();
        // Even without a retry it may be run again, with the guest to itself.
        let input = ReplayedInput::of_this_process(false).context("cannot pass the input on")?;
        let (contention, keep) = super::settings::of_run(root)?;
        let ignored = Named::in_guest(target)?.with_links(&self.ignore)?;
        let mut runner = InGuest { run: self, root, home, guest, target, input, contention, keep, ignored };
        let policy = RetryPolicy { retries: self.retry, exclusive_last: true };
        let concluded = run_with_retries(&mut runner, policy)?;
        Ok(self.conclude(&concluded, begun.elapsed()))
    }

    fn attempt_in_guest(
        &self,
        runner: &mut InGuest<'_>,
        number: u32,
        lesson: &mut Lesson,
        alone: Option<&Exclusive>,
    ) -> anyhow::Result<Tried> {
        let name = self.name.clone().unwrap_or_else(|| TxName::fresh(number));
        let (first_begun, ignored) = (lesson.first_begun(), runner.ignored.clone());
        let purpose = Purpose { command: self.shown(), first_begun, ignored };
        let holder = match Holder::start(runner.root, &name, Some((runner.guest, runner.target)), Some(&purpose)) {
            Err(error) if error.is::<Shifted>() => {
                pando_tx::abort_open(runner.home, &name, alone)?;
                return Ok(Tried::without_command(Attempt::NotBegun));
            }
            started => started?,
        };
        let attempt = self.run_held(runner, lesson, &name, &holder, alone);
        if attempt.is_err() {
            // The command may not have been found, or the daemon have gone: nothing of it stays.
            let _ = pando_tx::abort_open(runner.home, &name, alone);
        }
        drop(holder);
        sweep_soon(runner.home, None, None);
        attempt
    }

    /// The command as it is shown to people: no more of it than can be passed on in an argument.
    fn shown(&self) -> Vec<String> {
        const WORDS: usize = 50;
        const CHARACTERS: usize = 200;
        let shown = |word: &OsString| word.to_string_lossy().chars().take(CHARACTERS).collect();
        self.command.iter().take(WORDS).map(shown).collect()
    }

    fn run_held(
        &self,
        runner: &mut InGuest<'_>,
        lesson: &mut Lesson,
        name: &TxName,
        holder: &Holder,
        alone: Option<&Exclusive>,
    ) -> anyhow::Result<Tried> {
        let InGuest { root, home, guest, .. } = *runner;
        let record = home.records()?.into_iter().find(|record| record.name == *name);
        let record = record.with_context(|| format!("transaction '{name}' has gone"))?;
        lesson.began(record.begun);
        let (held, mut stdio) = self.hold_output()?;
        let (input, feeding) = runner.input.again().context("cannot pass the input on")?;
        stdio[0] = input;
        let (network, when) = (self.network(), self.when_unsupported());
        let manner = Manner { network, when, note_signals: false, looks: alone.is_none() };
        let (supervised, socket) = Supervised::begin(home, &record, manner)?;
        let process = guest::process(name, record.holder(), network, &self.command);
        let (limit, until) = Limit::new(self.timeout, record.clone())?;
        let exec = |process| Method::Exec { name: guest.to_owned(), process };
        let code = attach_instead(
            root,
            TerminalOptions::without_keys(),
            &stdio,
            (Some(&socket), until.as_ref()),
            process,
            exec,
        );
        drop((feeding, stdio, socket));
        let too_long = limit.stop();
        let Heard { passed, stopped } = supervised.end()?;
        let doomed = pando_tx::doomed_open(home, name).filter(|_| alone.is_none());
        let has_succeeded = matches!(code, Ok(0)) && !too_long && stopped.is_none() && doomed.is_none();
        let goes_on = has_succeeded && !self.no_daemons && !self.dry_run;
        let ended = if goes_on { 0 } else { pando_tx::end_processes_of_open(&record)? };
        // Nobody may have been there yet who could be ended.
        let code = if too_long { crate::complaint::OWN_FAILURE } else { code? };
        let mut attempt = match (code, doomed) {
            _ if let Some(stopped) = &stopped => stopped.into(),
            (_, Some(what)) => Attempt::Lost(what),
            _ if too_long => Attempt::Aborted(code, "it took too long".to_owned()),
            (0, None) if self.dry_run => {
                super::diff::show(&pando_tx::review_of_open(home, name)?, false)?;
                Attempt::Aborted(0, "a dry run".to_owned())
            }
            (0, None) => self.commit_in_guest(runner, name, alone)?,
            (code, None) => {
                let words = format!("exit code {code}");
                let looked = || Looks::default().look_at_open(home, &record, &passed.places);
                let loss = if alone.is_none() && self.retry > 0 { looked() } else { None };
                match loss.filter(|reason| !reason.is_lack_of_memory()) {
                    Some(reason) => Attempt::Misled(code, words, reason),
                    None => Attempt::Aborted(code, words),
                }
            }
        };
        if !matches!(attempt, Attempt::Committed(..)) {
            pando_tx::abort_open(home, name, alone)?;
        }
        behind(&mut attempt, |_| held.map_or(Ok(()), |held| held.release().context("cannot pass the held output on")));
        let Passed { held: signals, reached, listener, .. } = passed;
        if matches!(attempt, Attempt::Committed(..)) {
            signals.send();
        }
        behind(&mut attempt, |settled| Keep::start_for(settled, listener));
        Ok(Tried { attempt, ended, read_only: holder.read_only().to_vec(), reached })
    }

    fn commit_in_guest(
        &self,
        runner: &InGuest<'_>,
        name: &TxName,
        alone: Option<&Exclusive>,
    ) -> anyhow::Result<Attempt> {
        let request = CommitRequest {
            selection: &Selection::default(),
            durable: !self.no_durable,
            contention: Some(runner.contention),
            exclusive: alone,
            with_daemons: !self.no_daemons,
            keep: runner.keep,
            gate: HostGate::NONE,
        };
        came_of(pando_tx::commit_open(runner.home, name, &request))
    }
}

/// Ends a transaction's processes when their time is over.
struct Limit {
    over: Arc<AtomicBool>,
    cancel: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Limit {
    /// Beside it a descriptor whose other end is closed a moment behind that: whoever waits for the command has heard
    /// of its end by then, if there was one.
    fn new(limit: Option<Duration>, record: pando_tx::Record) -> anyhow::Result<(Self, Option<OwnedFd>)> {
        const GRACE: Duration = Duration::from_secs(1);
        let over = Arc::new(AtomicBool::new(false));
        let Some(limit) = limit else { return Ok((Self { over, cancel: None, thread: None }, None)) };
        let (until, held) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
        let (cancel, cancelled) = channel::<()>();
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            if cancelled.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                told.store(true, Ordering::SeqCst);
                // Who waits for the command sees its end, and ends what is left.
                let _ = pando_tx::end_processes_of_open(&record);
                let _ = cancelled.recv_timeout(GRACE);
            }
            drop(held);
        });
        Ok((Self { over, cancel: Some(cancel), thread: Some(thread) }, Some(until)))
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
