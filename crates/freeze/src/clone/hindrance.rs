//! What a step of a script that failed stood for.

use crate::clone::error::CloneError;
use crate::clone::holder;
use crate::restore::script::Script;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::BorrowedFd;

/// Why the processes of a clone do not stand.
#[derive(Debug)]
pub(crate) enum Hindrance {
    /// A step, and the error.
    Step {
        errno: i32,
        step: u32,
    },
    Other(CloneError),
}

impl From<(i32, u32)> for Hindrance {
    fn from((errno, step): (i32, u32)) -> Self {
        Self::Step { errno, step }
    }
}

impl From<CloneError> for Hindrance {
    fn from(error: CloneError) -> Self {
        Self::Other(error)
    }
}

impl Hindrance {
    /// In words. With a first process all others end, and what it says itself is the reason; but where it waits in vain
    /// for what the maker hands over, that is.
    pub(crate) fn explained(self, script: &Script, first: Option<&(Script, BorrowedFd<'_>)>) -> CloneError {
        let own = first.and_then(|(_, handoff)| {
            let mut polled = [PollFd::new(handoff, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let said = matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1));
            said.then(|| holder::answer(handoff).ok()).flatten()
        });
        let in_vain =
            |errno: i32| errno == libc::EPIPE && matches!(self, Self::Step { errno, .. } if errno != libc::EPIPE);
        let own = own.filter(|answer| !in_vain(answer.errno));
        let hindrance = own.map_or(self, |answer| (answer.errno, answer.step).into());
        let (errno, step) = match hindrance {
            Self::Step { errno, step } => (errno, step),
            Self::Other(error) => return error,
        };
        let beyond = u64::from(step).checked_sub(script.length());
        let label = match (beyond, first) {
            (Some(step), Some((own, _))) => own.label(u32::try_from(step).unwrap_or(u32::MAX)),
            _ => script.label(step),
        };
        CloneError::Step { step: label.to_owned(), source: io::Error::from_raw_os_error(errno) }
    }
}
