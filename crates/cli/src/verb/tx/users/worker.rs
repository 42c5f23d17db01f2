//! One attempt of a user's transaction: begun and committed by root, run with his rights, and bounded by them.

use super::super::outcome::{came_of, not_started, outcome};
use super::super::recover::sweep_soon;
use super::super::report::{PassedOutside, Report};
use super::super::settings;
use super::super::wait::{Asker, Left, Waited, wait};
use super::caller::Caller;
use super::conversation;
use super::request::{Answer, Request, texts};
use crate::complaint::OWN_FAILURE;
use crate::state_root::StateRoot;
use anyhow::{Context, bail, ensure};
use pando_front::{Passage, passage};
use pando_kernel::process::user_rights::AsUser;
use pando_tx::{
    Attempt, CommitError, CommitRequest, EndError, Ended, HostGate, Memory, Network, Passed, Reached, Rest, Running,
    Selection, StartError, StateDirectory, Transaction, TxName, Watch, WhenUnsupported,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

/// What the kernel keeps of a file in memory takes about so much room: as many files there may be.
const ROOM_OF_FILE: u64 = 4096;

/// The exit code of a worker whose commit is not in place yet.
pub(super) const UNFINISHED: u8 = 3;

/// Its standard input is the connection that a user has made.
#[derive(Debug, clap::Args)]
pub(crate) struct Work {}

impl Work {
    pub(crate) fn run(self, root: &StateRoot, home: &StateDirectory) -> anyhow::Result<u8> {
        // Before anything is begun: what it has begun ends with it.
        set_parent_process_death_signal(Some(Signal::KILL)).context("cannot be bound to the server")?;
        ensure!(rustix::process::getppid().is_some_and(|parent| !parent.is_init()), "the server has ended");
        let connection = std::io::stdin().as_fd().try_clone_to_owned().context("there is no connection")?;
        let null = File::open("/dev/null").context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdin(&null).context("cannot close the connection to commands")?;
        raise_limit_of_descriptors();
        let mut code = 0;
        let end = attempt(root, home, &connection).unwrap_or_else(|error| {
            if is_unfinished(&error) {
                code = UNFINISHED;
            }
            let line = crate::complaint::sentences(&error);
            Answer::End { code: OWN_FAILURE, line, again: false, failed: true }
        });
        // Who does not listen any more is told nothing.
        let _ = conversation::answer(&connection, &end);
        Ok(code)
    }
}

/// Whether an attempt has failed behind its commit point.
fn is_unfinished(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EndError::Commit(CommitError::Unfinished(_))))
}

/// What came of the command.
struct Came {
    attempt: Attempt,
    ended: usize,
    reached: Reached,
    watch: Option<Watch>,
}

fn attempt(root: &StateRoot, home: &StateDirectory, connection: &OwnedFd) -> anyhow::Result<Answer> {
    let begun = Instant::now();
    let Caller { ids, umask, nice, oom_score, limits } = Caller::of(connection)?;
    ensure!(ids.uid != 0, "root has transactions of its own");
    let (request, stdio) = conversation::asked(connection)?;
    stdio.iter().try_for_each(leads_nowhere)?;
    let Request { command, environment, directory, timeout, refuses_network, durable, retries } = request;
    let command = texts(command);
    ensure!(!command.is_empty(), "a request takes a command");
    let room = settings::of_users(root)?.room()?;
    let memory = Memory::bounded(room, room / ROOM_OF_FILE, home).context("cannot keep changes in memory")?;
    let name = format!("user{}-{}", ids.uid, std::process::id());
    let name: TxName = name.parse().context("cannot name the transaction")?;
    let shown: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let user = AsUser {
        ids: ids.clone(),
        environment: texts(environment),
        directory: OsString::from_vec(directory),
        umask: umask & 0o777,
        nice,
        limits,
    };
    let begin = Transaction::begin_for_user(home, &name, &shown, memory, ids);
    let (mut transaction, plan) = begin.context("cannot begin a transaction")?;
    let read_only: Vec<String> = plan.read_only().map(|path| path.display().to_string()).collect();
    let network = if refuses_network { Network::Refuse } else { Network::Pass };
    let stdio = stdio.map(|descriptor| Some(File::from(descriptor)));
    let limit = timeout.map(|limit| Duration::from_millis(limit).saturating_sub(begun.elapsed()));
    let started = with_oom_score(oom_score, || transaction.start_as(plan, &command, stdio, network, Some(user)));
    let came = match started {
        Ok(running) => follow(transaction, running, connection, limit, durable)?,
        Err(error) => cannot_start(transaction, error)?,
    };
    let Came { attempt, ended, reached, watch } = came;
    sweep_soon(home, watch, None);
    let again = matches!(attempt, Attempt::Lost(_) | Attempt::NotBegun | Attempt::Misled(..));
    let failed = matches!(attempt, Attempt::Lost(_) | Attempt::NotBegun | Attempt::Outgrown);
    let (outcome, code) = outcome(&attempt);
    let (read_only, passed) = (&read_only[..], PassedOutside::of(&reached));
    let report =
        Report { outcome, time: begun.elapsed(), retries, alone: false, ended, read_only, ignored: &[], passed };
    Ok(Answer::End { code, line: report.to_string(), again, failed })
}

/// Starts the command, which the kernel is to end for want of memory as soon as whoever has asked for it, and not as
/// late perhaps as the server. The worker is as it was after that.
fn with_oom_score<T>(score: i32, start: impl FnOnce() -> T) -> T {
    const OWN: &str = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(OWN);
    // A server that may not have it lower has it as it is.
    let _ = std::fs::write(OWN, score.to_string());
    let started = start();
    let _ = before.and_then(|before| std::fs::write(OWN, before));
    started
}

/// All that this process may have open at once: what a commit writes to stays open until that is done. The command has
/// its caller's limits.
fn raise_limit_of_descriptors() {
    let now = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
}

/// Through a directory, or an open path, a command would reach past its view.
fn leads_nowhere(descriptor: &OwnedFd) -> anyhow::Result<()> {
    match passage(descriptor.as_fd()).context("cannot look at a standard descriptor")? {
        Passage::Refuse(what) => bail!(
            "a standard descriptor is {what}, through which the command could change what it should only see. Redirect it, for example < /dev/null"
        ),
        _ => Ok(()),
    }
}

/// The user: signals come over his connection, and with that his interest ends.
struct User<'a>(&'a OwnedFd);

impl Asker for User<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn pass(&mut self, running: &Running) -> bool {
        let signal = conversation::next_signal(self.0);
        signal.inspect(|signal| running.signal(*signal)).is_some()
    }
}

/// Waits for the command, and does what follows of its end.
fn follow(
    transaction: Transaction,
    running: Running,
    connection: &OwnedFd,
    limit: Option<Duration>,
    durable: bool,
) -> anyhow::Result<Came> {
    let waited = wait(&mut User(connection), running, limit, WhenUnsupported::Abort, Some(&transaction));
    // Before anything is looked at that they could change.
    let ended = transaction.end_processes()?;
    let doomed = transaction.doomed();
    let waited = match waited {
        Ok(waited) => waited,
        Err(error) => {
            transaction.abort()?;
            return Err(error);
        }
    };
    let attempt = match (doomed, &waited) {
        (None, Waited::Ended(Rest { ended: Ended::Exited(0), watch, passed })) => {
            committed(transaction, watch.as_ref(), passed, durable)?
        }
        (doomed, waited) => {
            transaction.abort()?;
            doomed.map_or_else(|| waited.why(), Attempt::Lost)
        }
    };
    let Left { watch, reached } = waited.left();
    Ok(Came { attempt, ended, reached, watch })
}

/// Commits: nobody else waits for it, no other transaction gives way to it, and nothing is kept of it.
fn committed(
    mut transaction: Transaction,
    watch: Option<&Watch>,
    passed: &Passed,
    durable: bool,
) -> anyhow::Result<Attempt> {
    transaction.knows(&passed.places);
    let (selection, gate) = (&Selection::default(), HostGate::NONE);
    let request =
        CommitRequest { selection, durable, contention: None, exclusive: None, with_daemons: false, keep: None, gate };
    came_of(transaction.commit(watch, &request))
}

fn cannot_start(transaction: Transaction, error: StartError) -> anyhow::Result<Came> {
    transaction.end_processes()?;
    transaction.abort()?;
    Ok(Came { attempt: not_started(error)?, ended: 0, reached: Reached::default(), watch: None })
}
