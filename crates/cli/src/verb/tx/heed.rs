//! What a call that reaches outside comes to, for the command that made it.

use pando_tx::{AbortReason, Answered, Unsupported, WhenUnsupported};

/// Why a command is not let go on.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It did what cannot be undone.
    Unsupported(Unsupported),
    /// It would have reached outside, and cannot be committed any more.
    Lost(AbortReason),
    /// What it changes takes more memory than there is for that.
    Outgrown,
}

/// Tells what is to be told of an answered call; whether the command is to end.
pub(super) fn heed(answered: Answered, when: WhenUnsupported) -> Option<Stopped> {
    match answered {
        Answered::Unsupported(unsupported) if when == WhenUnsupported::Abort => {
            return Some(Stopped::Unsupported(unsupported));
        }
        Answered::Unsupported(unsupported) => {
            let was_done = unsupported.was_done.unwrap_or(when == WhenUnsupported::Warn);
            let done = if was_done { "done" } else { "not done" };
            eprintln!("pando: warning: {unsupported}; it was {done}");
        }
        Answered::Lost(reason) => return Some(Stopped::Lost(reason)),
        Answered::Done => {}
    }
    None
}
