//! `pando tx run`: one command, one transaction.

use super::diff;
use super::host::OnHost;
use super::keep::Keep;
use super::memory_size;
use super::named_paths::Named;
use super::outcome::outcome;
use super::prewarmed::Clearer;
use super::recover::sweep_soon;
use super::report::{PassedOutside, Report};
use super::wait::{Left, Waited, Waiting};
use crate::complaint::Usage;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{
    Attempt, CommitError, CommitRequest, Concluded, EndError, Ended, HeldOutput, HeldSignals, Lesson, Network, Passed,
    ReplayedInput, Rest, RetryPolicy, Selection, StateDirectory, Transaction, Tried, TxName, Watch, WhenUnsupported,
    run_with_retries,
};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a shell says of a program that is not there, and of one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// How often a command runs again at most, if nothing is said.
const RETRIES: u32 = 3;

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// In this guest, which must be running
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// The transaction's name [default: one that is free]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<TxName>,
    /// How often to run the command again when others changed what it changed
    #[arg(long, value_name = "N", default_value_t = RETRIES)]
    pub(super) retry: u32,
    /// Do not validate what it reads at PATH and below, such as a file that others always write to; may be given
    /// several times
    #[arg(long, value_name = "PATH")]
    pub(super) ignore: Vec<PathBuf>,
    /// Abort when it takes longer, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) timeout: Option<Duration>,
    /// Refuse to run where others could see a commit half done
    #[arg(long)]
    strict: bool,
    /// Show what the command would change, and abort
    #[arg(long)]
    pub(super) dry_run: bool,
    /// When the command's output is passed on
    #[arg(long, value_name = "WHEN", default_value = "live")]
    pub(super) output: Output,
    /// What to do when the command does what cannot be undone
    #[arg(long, value_name = "HOW", default_value = "abort")]
    unsupported: HowUnsupported,
    /// Keep what it changes in memory until the commit, up to SIZE [default: a quarter of what is free]; what outgrows
    /// that is run again on the disk
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, value_parser = memory_size::read, conflicts_with = "guest")]
    in_memory: Option<Option<u64>>,
    /// What becomes of network connections
    #[arg(long, value_name = "HOW", default_value = "pass")]
    net: HowNetwork,
    /// Do not wait for the disk: a loss of power may undo the commit, or leave it half done
    #[arg(long)]
    pub(super) no_durable: bool,
    /// What the command leaves running ends with the transaction
    #[arg(long)]
    pub(super) no_daemons: bool,
    /// Do not say how it ended
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// What to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    /// As it comes, also that of a run that is aborted
    Live,
    /// Once the transaction has committed
    Commit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HowUnsupported {
    /// Do not let it, and abort
    Abort,
    /// Let it, and say so
    Warn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HowNetwork {
    /// They are made, and counted in the last line
    Pass,
    /// They are what cannot be undone
    Refuse,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a number of seconds, such as 30 or 0.5");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|span| !span.is_zero()).ok_or_else(wrong)
}

impl Run {
    /// With nothing said but this.
    pub(super) fn plain(quiet: bool, no_durable: bool, command: Vec<String>) -> Self {
        Self {
            guest: None,
            name: None,
            retry: RETRIES,
            ignore: Vec::new(),
            timeout: None,
            strict: false,
            dry_run: false,
            output: Output::Live,
            unsupported: HowUnsupported::Abort,
            in_memory: None,
            net: HowNetwork::Pass,
            no_durable,
            no_daemons: false,
            quiet,
            command: command.into_iter().map(OsString::from).collect(),
        }
    }

    pub(super) fn run(self, root: &StateRoot, home: &StateDirectory) -> anyhow::Result<u8> {
        super::standard_descriptors::lead_nowhere()?;
        if let Some(guest) = &self.guest {
            return self.run_in_guest(root, guest);
        }
        if self.strict {
            return Err(Usage::sentence(
                "on the host there is no gate yet: others could see a commit half done, which --strict refuses. Leave it out to run all the same",
            )
            .into());
        }
        let begun = Instant::now();
        let input = ReplayedInput::of_this_process(self.retry == 0).context("cannot pass the input on")?;
        let (contention, keep) = super::settings::of_run(root)?;
        let memory = self.in_memory.map(memory_size::of).transpose()?;
        let waiting = Waiting::take()?;
        let ignored = Named::on_host()?.with_links(&self.ignore)?;
        let mut host = OnHost { run: &self, root, home, waiting, input, contention, keep, memory, ignored };
        let policy = RetryPolicy { retries: self.retry, exclusive_last: false };
        let concluded = run_with_retries(&mut host, policy)?;
        Ok(self.conclude(&concluded, begun.elapsed(), "none"))
    }

    /// Says how it ended. `gate` is what kept others out while it was committed.
    pub(super) fn conclude(&self, concluded: &Concluded, time: Duration, gate: &str) -> u8 {
        let Concluded { tried: Tried { attempt, ended, read_only, reached }, retries, .. } = concluded;
        let (outcome, code) = outcome(attempt);
        let failed = matches!(attempt, Attempt::Lost(_) | Attempt::NotBegun | Attempt::Outgrown);
        if !self.quiet || failed {
            let (ended, retries, passed) = (*ended, *retries, PassedOutside::of(reached));
            let report = Report { outcome, time, retries, gate, ended, read_only, ignored: &self.ignore, passed };
            eprintln!("pando: {report}");
        }
        code
    }

    /// Runs the command once.
    pub(super) fn attempt(&self, host: &mut OnHost<'_>, number: u32, lesson: &mut Lesson) -> anyhow::Result<Tried> {
        let home = host.home;
        let name = self.name.clone().unwrap_or_else(|| TxName::fresh(number));
        let shown: Vec<String> = self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let begun = host.begin(&name, &shown, lesson);
        let (mut transaction, plan, clearer) = begun.context("cannot begin a transaction")?;
        let read_only = plan.read_only().map(|path| path.display().to_string()).collect();
        let held =
            (self.output == Output::Commit).then(HeldOutput::new).transpose().context("cannot hold the output")?;
        let mut stdio = held
            .as_ref()
            .map(HeldOutput::descriptors)
            .transpose()
            .context("cannot hold the output")?
            .unwrap_or_default();
        let (input, feeding) = host.input.again().context("cannot pass the input on")?;
        stdio[0] = input;
        let waited = match transaction.start(plan, &self.command, stdio, self.network()) {
            Ok(running) => host.waiting.wait(running, self.timeout, self.when_unsupported(), Some(&transaction))?,
            Err(error) => return cannot_start(home, transaction, error, clearer),
        };
        drop(feeding);
        let goes_on = !self.no_daemons && !self.dry_run && waited.has_succeeded() && transaction.doomed().is_none();
        let left = if goes_on { 0 } else { transaction.end_processes()? };
        let doomed = transaction.doomed();
        let (attempt, left_over) = match waited {
            Waited::Ended(Rest { ended: Ended::Exited(0), watch, passed }) if doomed.is_none() => {
                let Passed { held, reached, places, listener, .. } = passed;
                transaction.knows(&places);
                let attempt = match self.finish(transaction, watch.as_ref(), held, host) {
                    Ok(attempt) => attempt,
                    Err(error) => {
                        sweep_soon(home, watch, clearer);
                        return Err(error);
                    }
                };
                if let (Attempt::Committed(_, settled), Some(listener)) = (&attempt, listener)
                    && !settled.moved.is_empty()
                {
                    Keep::start(listener)?;
                }
                (attempt, Left { watch, reached })
            }
            other => {
                let has_outgrown = transaction.outgrows_memory();
                let why = if has_outgrown { Attempt::Outgrown } else { self.misled(&mut transaction, &other) };
                transaction.abort()?;
                (doomed.map_or(why, Attempt::Lost), other.left())
            }
        };
        let Left { watch, reached } = left_over;
        sweep_soon(home, watch, clearer);
        if let (Attempt::Committed(..), Some(held)) = (&attempt, held) {
            held.release().context("cannot pass the held output on")?;
        }
        Ok(Tried { attempt, ended: left, read_only, reached })
    }

    pub(super) fn when_unsupported(&self) -> WhenUnsupported {
        match self.unsupported {
            HowUnsupported::Abort => WhenUnsupported::Abort,
            HowUnsupported::Warn => WhenUnsupported::Warn,
        }
    }

    pub(super) fn network(&self) -> Network {
        match self.net {
            HowNetwork::Pass => Network::Pass,
            HowNetwork::Refuse => Network::Refuse,
        }
    }

    /// Why a transaction is aborted, or is to be run again although its command has failed by itself.
    fn misled(&self, transaction: &mut Transaction, waited: &Waited) -> Attempt {
        match (why(waited), waited) {
            (Attempt::Aborted(code, words), Waited::Ended(Rest { ended: Ended::Exited(_), watch, passed }))
                if self.retry > 0 =>
            {
                transaction.knows(&passed.places);
                match transaction.abort_reason(watch.as_ref()).filter(|reason| !reason.is_lack_of_memory()) {
                    Some(reason) => Attempt::Misled(code, words, reason),
                    None => Attempt::Aborted(code, words),
                }
            }
            (why, _) => why,
        }
    }

    /// The command has succeeded.
    fn finish(
        &self,
        transaction: Transaction,
        watch: Option<&Watch>,
        held: HeldSignals,
        host: &OnHost<'_>,
    ) -> anyhow::Result<Attempt> {
        if self.dry_run {
            diff::show(&transaction.review()?, false)?;
            transaction.abort()?;
            return Ok(Attempt::Aborted(0, "a dry run".to_owned()));
        }
        let attempt = self.commit(transaction, watch, host)?;
        if matches!(attempt, Attempt::Committed(..)) {
            held.send();
        }
        Ok(attempt)
    }

    fn commit(&self, transaction: Transaction, watch: Option<&Watch>, host: &OnHost<'_>) -> anyhow::Result<Attempt> {
        let (selection, durable) = (&Selection::default(), !self.no_durable);
        let (contention, keep) = (Some(host.contention), host.keep);
        let request = CommitRequest { selection, durable, contention, exclusive: None, with_daemons: true, keep };
        match transaction.commit(watch, &request) {
            Ok((figures, settled)) => Ok(Attempt::Committed(figures, settled)),
            Err(EndError::Commit(CommitError::Conflict(conflict))) => Ok(Attempt::Lost(conflict.into())),
            Err(error @ EndError::Commit(CommitError::Unfinished(_))) => {
                Err(anyhow::Error::new(error).context("`pando tx recover` has to finish the commit"))
            }
            Err(error) => Err(anyhow::Error::new(error).context("not committed, and nothing was changed")),
        }
    }
}

/// Why a transaction is aborted.
fn why(waited: &Waited) -> Attempt {
    let (code, words) = match waited {
        Waited::Ended(Rest { ended: Ended::Exited(code), .. }) => (*code, format!("exit code {code}")),
        Waited::Ended(Rest { ended: ended @ Ended::Killed(signal), .. }) => {
            (ended.code(), format!("ended by {}", pando_kernel::process::signal::name(*signal)))
        }
        Waited::TooLong(_) => (crate::complaint::OWN_FAILURE, "it took too long".to_owned()),
        Waited::Stopped(stopped, _) => return stopped.into(),
    };
    Attempt::Aborted(code, words)
}

/// A command that cannot be executed is the caller's matter, as with a shell; anything else is Pando's.
fn cannot_start(
    home: &StateDirectory,
    transaction: Transaction,
    error: pando_tx::StartError,
    clearer: Option<Clearer>,
) -> anyhow::Result<Tried> {
    transaction.end_processes()?;
    transaction.abort()?;
    sweep_soon(home, None, clearer);
    match error {
        pando_tx::StartError::Command(error) => {
            let code = if error.source.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            let why = crate::complaint::sentences(&error.into());
            Ok(Tried::without_command(Attempt::Aborted(code, why)))
        }
        pando_tx::StartError::Shifted => Ok(Tried::without_command(Attempt::NotBegun)),
        pando_tx::StartError::View(error) => {
            Err(anyhow::Error::new(error).context("cannot make the transaction's view"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_a_span() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "x", "nan", "1e400"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
