//! `pando tx run`: one command, one transaction.

use super::diff;
use super::gate::GateOptions;
use super::host::OnHost;
use super::keep::Keep;
use super::memory_size;
use super::named_paths::Named;
use super::outcome::{behind, came_of, not_started, outcome};
use super::prewarmed::Clearer;
use super::recover::sweep_soon;
use super::report::{PassedOutside, Report};
use super::wait::{Left, Waited, Waiting};
use crate::complaint::Usage;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{
    Attempt, CommitRequest, Concluded, Ended, HeldOutput, HeldSignals, Lesson, Network, Passed, ReplayedInput, Rest,
    RetryPolicy, Selection, StateDirectory, Transaction, Tried, TxName, Watch, WhenUnsupported, run_with_retries,
};
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

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
    #[command(flatten)]
    gate: GateOptions,
    /// Show what the command would change, and abort
    #[arg(long)]
    pub(super) dry_run: bool,
    /// When the command's output is passed on
    #[arg(long, value_name = "WHEN", default_value = "live")]
    output: Output,
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
enum Output {
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

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
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
            gate: GateOptions::default(),
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
        crate::verb::to_be_waited_for(super::standard_descriptors::lead_nowhere()?);
        if let Some(guest) = &self.guest {
            return self.run_in_guest(root, guest);
        }
        let gate = self.gate.choose(root, self.strict)?;
        if gate.holds() && !self.ignore.is_empty() {
            let words = "the gate 'hold' would have others wait for what --ignore leaves out; give one of the two";
            return Err(Usage::sentence(words.to_owned()).into());
        }
        let begun = Instant::now();
        let input = ReplayedInput::of_this_process(self.retry == 0).context("cannot pass the input on")?;
        let (contention, keep) = super::settings::of_run(root)?;
        let memory = self.in_memory.map(memory_size::of).transpose()?;
        let waiting = Waiting::take()?;
        let ignored = Named::on_host()?.with_links(&self.ignore)?;
        let mut host =
            OnHost { run: &self, root, home, waiting, input, contention, keep, memory, gate, is_last: false, ignored };
        // One that loses all its retries has others wait, where that is to be had: it ends.
        let policy = RetryPolicy { retries: self.retry, exclusive_last: self.retry > 0 && gate.holding().is_some() };
        let concluded = run_with_retries(&mut host, policy)?;
        Ok(self.conclude(&concluded, begun.elapsed()))
    }

    /// Says how it ended.
    pub(super) fn conclude(&self, concluded: &Concluded, time: Duration) -> u8 {
        let Concluded { tried: Tried { attempt, ended, read_only, reached }, retries, exclusive: alone } = concluded;
        let (outcome, code) = outcome(attempt);
        let failed = matches!(attempt, Attempt::Lost(_) | Attempt::NotBegun | Attempt::Outgrown);
        if !self.quiet || failed {
            let (ended, retries, passed) = (*ended, *retries, PassedOutside::of(reached));
            let alone = *alone && self.guest.is_some();
            let report = Report { outcome, time, retries, alone, ended, read_only, ignored: &self.ignore, passed };
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
        if let Err(error) = host.hold(&mut transaction, &plan, lesson) {
            transaction.abort()?;
            sweep_soon(home, None, clearer);
            return Err(error);
        }
        let read_only = plan.read_only().map(|path| path.display().to_string()).collect();
        let (held, mut stdio) = self.hold_output()?;
        let (input, feeding) = host.input.again().context("cannot pass the input on")?;
        stdio[0] = input;
        let waited = match transaction.start(plan, &self.command, stdio, self.network()) {
            Ok(running) => host.waiting.wait(running, self.timeout, self.when_unsupported(), Some(&transaction))?,
            Err(error) => return cannot_start(home, transaction, error, clearer),
        };
        drop(feeding);
        transaction.is_past_its_command();
        let goes_on = !self.no_daemons && !self.dry_run && waited.has_succeeded() && transaction.doomed().is_none();
        let left = if goes_on { 0 } else { transaction.end_processes()? };
        let doomed = transaction.doomed();
        let (mut attempt, left_over) = match waited {
            Waited::Ended(Rest { ended: Ended::Exited(0), watch, passed }) if doomed.is_none() => {
                let Passed { held, reached, places, listener, .. } = passed;
                transaction.knows(&places);
                let mut attempt = match self.finish(transaction, watch.as_ref(), held, host) {
                    Ok(attempt) => attempt,
                    Err(error) => {
                        sweep_soon(home, watch, clearer);
                        return Err(error);
                    }
                };
                behind(&mut attempt, |settled| Keep::start_for(settled, listener));
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
        behind(&mut attempt, |_| held.map_or(Ok(()), |held| held.release().context("cannot pass the held output on")));
        Ok(Tried { attempt, ended: left, read_only, reached })
    }

    /// What holds the output until the commit, if it is to be held, and the standard descriptors that lead there.
    pub(super) fn hold_output(&self) -> anyhow::Result<(Option<HeldOutput>, [Option<File>; 3])> {
        let hold = || {
            let held = (self.output == Output::Commit).then(HeldOutput::new).transpose()?;
            let descriptors = held.as_ref().map(HeldOutput::descriptors).transpose()?;
            anyhow::Ok((held, descriptors.unwrap_or_default()))
        };
        hold().context("cannot hold the output")
    }

    /// An option that was said and is none of a user's who is not root.
    pub(super) fn roots_alone(&self) -> Option<&'static str> {
        let said = [
            ("--guest", self.guest.is_some()),
            ("--name", self.name.is_some()),
            ("--ignore", !self.ignore.is_empty()),
            ("--strict", self.strict),
            ("--gate", self.gate.is_said()),
            ("--dry-run", self.dry_run),
            ("--output=commit", self.output == Output::Commit),
            ("--unsupported=warn", self.unsupported == HowUnsupported::Warn),
            ("--in-memory", self.in_memory.is_some()),
        ];
        said.into_iter().find(|(_, is_said)| *is_said).map(|(option, _)| option)
    }

    /// Whether connections to other machines are to be refused.
    pub(super) fn refuses_network(&self) -> bool {
        self.net == HowNetwork::Refuse
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
        match (waited.why(), waited) {
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
        let OnHost { keep, gate, .. } = *host;
        let contention = Some(host.contention);
        let request = CommitRequest { selection, durable, contention, exclusive: None, with_daemons: true, keep, gate };
        came_of(transaction.commit(watch, &request))
    }
}

/// Ends a transaction whose command could not be started.
fn cannot_start(
    home: &StateDirectory,
    transaction: Transaction,
    error: pando_tx::StartError,
    clearer: Option<Clearer>,
) -> anyhow::Result<Tried> {
    transaction.end_processes()?;
    transaction.abort()?;
    sweep_soon(home, None, clearer);
    not_started(error).map(Tried::without_command)
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
