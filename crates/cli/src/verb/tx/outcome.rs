//! What is told of an attempt to run a command in a transaction.

use super::heed::Stopped;
use super::report::Outcome;
use crate::complaint::OWN_FAILURE;
use pando_tx::{AbortReason, Attempt, CommitError, EndError, Figures, Otherwise, Retry, Settled, StartError};
use std::io::ErrorKind;

/// What is told of an attempt that has outgrown its memory.
const OUTGROWN: &str = "its changes outgrew the memory for them (leave out --in-memory, or give it a larger size)";

/// What is told of an attempt at the end, and the exit code.
pub(super) fn outcome(attempt: &Attempt) -> (Outcome<'_>, u8) {
    match attempt {
        Attempt::Committed(figures, settled) => (Outcome::Committed(*figures, settled), 0),
        Attempt::Aborted(code, why) | Attempt::Misled(code, why, _) => (Outcome::Aborted(why.into()), *code),
        Attempt::Lost(_) | Attempt::NotBegun | Attempt::Outgrown => {
            (Outcome::Aborted(lost_to(attempt).into()), OWN_FAILURE)
        }
    }
}

/// What a commit has come to.
///
/// # Errors
///
/// Whatever has failed that is no conflict with others.
pub(super) fn came_of(committed: Result<(Figures, Settled), EndError>) -> anyhow::Result<Attempt> {
    match committed {
        Ok((figures, settled)) => Ok(Attempt::Committed(figures, settled)),
        Err(EndError::Commit(CommitError::Conflict(conflict))) => Ok(Attempt::Lost(conflict.into())),
        Err(error) => Err(failed(error, "not committed, and nothing was changed".to_owned())),
    }
}

/// Does what is left to do behind a commit. What fails there is told beside it, and never in its place.
pub(super) fn behind(attempt: &mut Attempt, what: impl FnOnce(&Settled) -> anyhow::Result<()>) {
    if let Attempt::Committed(_, settled) = attempt
        && let Err(error) = what(settled)
    {
        settled.failed.push(format!("{error:#}"));
    }
}

/// What is told of a commit that has failed: `not_committed`, unless it only has to be finished.
pub(super) fn failed(error: EndError, not_committed: String) -> anyhow::Error {
    let context = match &error {
        EndError::Commit(CommitError::Unfinished(_)) => {
            "`pando tx recover`, by root, has to finish the commit".to_owned()
        }
        _ => not_committed,
    };
    anyhow::Error::new(error).context(context)
}

/// What a shell says of a program that is not there, and of one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// What came of a command that could not be started: that it cannot be executed is its caller's matter, as with a
/// shell.
///
/// # Errors
///
/// Where the transaction's view cannot be made, which is Pando's.
pub(super) fn not_started(error: StartError) -> anyhow::Result<Attempt> {
    match error {
        StartError::Command(error) => {
            let code = if error.source.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            Ok(Attempt::Aborted(code, crate::complaint::sentences(&error.into())))
        }
        StartError::Shifted => Ok(Attempt::NotBegun),
        StartError::View(error) => Err(anyhow::Error::new(error).context("cannot make the transaction's view")),
    }
}

/// What an attempt was lost to, whatever its command did.
fn lost_to(attempt: &Attempt) -> String {
    match attempt {
        Attempt::Lost(reason) | Attempt::Misled(.., reason) => reason.to_string(),
        Attempt::NotBegun => AbortReason::MountsChanged.to_string(),
        Attempt::Outgrown => OUTGROWN.to_owned(),
        Attempt::Committed(..) | Attempt::Aborted(..) => String::new(),
    }
}

/// Says that a command runs again, of so many times at most, and why. `exclusively` says how the last one of
/// all runs, which has lost the others.
pub(super) fn announce(retry: &Retry<'_>, most: u32, exclusively: &str) {
    let how = match retry.otherwise {
        Some(Otherwise::WritesSynchronously) => ", each write to the disk at once",
        Some(Otherwise::OnDisk) => " on the disk",
        None => "",
    };
    let which = match retry.exclusive {
        true => exclusively.to_owned(),
        false => format!("{} of {most}", retry.number),
    };
    eprintln!("pando: {}; running it again{how} ({which})", lost_to(retry.after));
}

impl From<&Stopped> for Attempt {
    fn from(stopped: &Stopped) -> Self {
        match stopped {
            Stopped::Unsupported(unsupported) => Self::Aborted(OWN_FAILURE, unsupported.to_string()),
            Stopped::Lost(reason) => Self::Lost(reason.clone()),
            Stopped::Outgrown => Self::Outgrown,
        }
    }
}
