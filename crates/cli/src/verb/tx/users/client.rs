//! `pando tx run` of a user who is not root.

use super::super::run::Run;
use super::conversation;
use super::request::{Answer, Request, bytes};
use crate::complaint::{OWN_FAILURE, Usage};
use crate::session::signals::{Asked, Signals};
use crate::state_root::StateRoot;
use anyhow::{Context, bail, ensure};
use pando_kernel::process::user_rights::peer;
use pando_kernel::socket::packet;
use pando_tx::ReplayedInput;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// No longer is waited before another attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Has a command run as a transaction by the server, as often as it takes.
pub(in super::super) fn run(run: &Run, root: &StateRoot) -> anyhow::Result<u8> {
    if let Some(option) = run.roots_alone() {
        Err(Usage::sentence(format!("{option} is for root alone: leave it out, or become root")))?;
    }
    crate::verb::to_be_waited_for(super::super::standard_descriptors::lead_nowhere()?);
    let input = ReplayedInput::of_this_process(run.retry == 0).context("cannot pass the input on")?;
    let mut signals = Signals::take(false).context("cannot take over the signals")?;
    for retries in 0.. {
        let begun = Instant::now();
        let (own, feeding) = input.again().context("cannot pass the input on")?;
        let connection = connected(root)?;
        let stdin = own.as_ref().map_or(rustix::stdio::stdin(), AsFd::as_fd);
        let stdio = [stdin, rustix::stdio::stdout(), rustix::stdio::stderr()];
        let asked = conversation::ask(&connection, &request(run, retries)?, stdio);
        drop(own);
        let answer = match asked {
            Ok(()) => followed(&connection, &mut signals)?,
            // Who is refused is told so before all that he asks is read.
            Err(error) => conversation::answered(&connection).ok().flatten().ok_or(error)?,
        };
        let Answer::End { code, line, again, failed } = answer;
        drop(feeding);
        conversation::wait_for_end(&connection);
        if again && retries < run.retry {
            eprintln!("pando: {line}; running it again ({} of {})", retries + 1, run.retry);
            std::thread::sleep((begun.elapsed() / 3).min(LONGEST_PAUSE));
            continue;
        }
        if !run.quiet || failed {
            eprintln!("pando: {line}");
        }
        return Ok(code);
    }
    Ok(OWN_FAILURE)
}

/// A connection to the server, which must be root's: it gets this process's descriptors.
fn connected(root: &StateRoot) -> anyhow::Result<OwnedFd> {
    let path = super::socket(root);
    let connection = packet::connect(&path).with_context(|| {
        format!(
            "you are not root, and nobody serves users' transactions at {}: root has to say who may have them ([transactions] users in pando.toml), and to start `pando tx serve`",
            path.display()
        )
    })?;
    let (server, _) = peer(connection.as_raw_fd()).context("cannot tell whose the server is")?;
    ensure!(server.uid == 0, "the server at {} is not root's, but user {}'s", path.display(), server.uid);
    Ok(connection)
}

fn request(run: &Run, retries: u32) -> anyhow::Result<Request> {
    let pair = |(mut key, value): (std::ffi::OsString, std::ffi::OsString)| {
        key.push("=");
        key.push(value);
        bytes(key)
    };
    Ok(Request {
        command: run.command.iter().map(bytes).collect(),
        environment: std::env::vars_os().map(pair).collect(),
        directory: bytes(std::env::current_dir().context("cannot tell the working directory")?),
        timeout: run.timeout.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
        refuses_network: run.refuses_network(),
        durable: !run.no_durable,
        retries,
    })
}

/// Passes signals on until the end. The command is not in the terminal's foreground, so that what the terminal sends is
/// passed on, too.
fn followed(connection: &OwnedFd, signals: &mut Signals) -> anyhow::Result<Answer> {
    loop {
        let mut fds = [PollFd::new(connection, PollFlags::IN), PollFd::new(&*signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for the command"),
        }
        let [answered, signalled] = fds.map(|fd| !fd.revents().is_empty());
        if signalled {
            while let Some(asked) = signals.next() {
                if let Asked::Forward(signal) | Asked::FromTerminal(signal) = asked {
                    conversation::send_signal(connection, signal);
                }
            }
        }
        if answered {
            match conversation::answered(connection)? {
                Some(answer) => return Ok(answer),
                None => bail!(
                    "the server for users' transactions has gone. What the command changed was committed as a whole, or not at all, which the files tell"
                ),
            }
        }
    }
}
