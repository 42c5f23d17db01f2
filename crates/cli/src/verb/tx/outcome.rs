//! What is told of an attempt to run a command in a transaction.

use super::heed::Stopped;
use super::report::Outcome;
use crate::complaint::OWN_FAILURE;
use pando_tx::{AbortReason, Attempt, Otherwise, Retry};

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

/// What an attempt was lost to, whatever its command did.
fn lost_to(attempt: &Attempt) -> String {
    match attempt {
        Attempt::Lost(reason) | Attempt::Misled(.., reason) => reason.to_string(),
        Attempt::NotBegun => AbortReason::MountsChanged.to_string(),
        Attempt::Outgrown => OUTGROWN.to_owned(),
        Attempt::Committed(..) | Attempt::Aborted(..) => String::new(),
    }
}

/// Says that a command runs again, of so many times at most, and why.
pub(super) fn announce(retry: &Retry<'_>, most: u32) {
    let how = match retry.otherwise {
        Some(Otherwise::WritesSynchronously) => ", each write to the disk at once",
        Some(Otherwise::OnDisk) => " on the disk",
        None => "",
    };
    let which = match retry.exclusive {
        true => "with the guest's other processes frozen".to_owned(),
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
