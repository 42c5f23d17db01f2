//! The holder's life: one image, then clone after clone.

use crate::bare::{self, Errno, call, number, plain};
use crate::first;
use crate::maker::{self, MakeRequest};
use crate::packet::{self, Message};
use crate::run::{self, Failure, Script};
use pando_restorer::{Answer, Request, SCRIPT};
use rustix::fd::BorrowedFd;

const SOCKET: u64 = 0;
const EINVAL: Errno = 22;

/// Serves the socket until it closes.
pub(crate) fn serve() -> ! {
    let mut script = None;
    loop {
        // SAFETY: the freezer starts this program with the socket as descriptor 0, and nothing closes it.
        let socket = unsafe { BorrowedFd::borrow_raw(SOCKET as i32) };
        let message = match packet::receive(socket) {
            Ok(Some(message)) => message,
            Ok(None) => bare::exit(0),
            Err(bare::EINTR) => continue,
            Err(_) => bare::exit(1),
        };
        let answer = match (Request::from_words(message.words), &script) {
            (Some(Request::Hold { length, foreign }), None) => {
                hold(&message, length, foreign).map(|held| script = Some(held))
            }
            (Some(Request::Become { length }), None) => first::grow(&message, length),
            (Some(Request::Answer), _) => Ok(()),
            (Some(Request::Offer { start, length, taken_back }), Some(_)) => offer(start, length, taken_back),
            (Some(Request::Clone { cgroups, groups, namespaces, supplied, scopes }), Some(script)) => {
                let counts = [cgroups, groups, supplied].map(|count| count as usize);
                let request = MakeRequest::new(&message, counts, (namespaces, scopes), script);
                request.ok_or(Failure::of_call(EINVAL)).and_then(|request| maker::grow(&request))
            }
            _ => Err(Failure::of_call(EINVAL)),
        };
        for fd in &message.fds[..message.count] {
            let _ = plain(number::CLOSE, [*fd, 0, 0]);
        }
        let answer = answer.map_or_else(|failure| failure.answer(), |()| Answer { errno: 0, step: 0 });
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&answer.errno.to_le_bytes());
        bytes[4..].copy_from_slice(&answer.step.to_le_bytes());
        let _ = bare::write(SOCKET, &bytes);
    }
}

/// Maps the script and takes its staging steps. Paths are relative to the directory that came with it.
fn hold(message: &Message, length: u32, foreign: bool) -> Result<Script, Failure> {
    if message.count != 2 {
        return Err(Failure::of_call(EINVAL));
    }
    let script = map(message.fds[0], length)?;
    plain(number::FCHDIR, [message.fds[1], 0, 0]).map_err(Failure::of_call)?;
    if foreign {
        with_few_powers(|| run::steps(&script, script.staging()))?;
    } else {
        run::steps(&script, script.staging())?;
    }
    Ok(script)
}

/// Offers a range of what is held to the kernel's merger of equal pages, or takes that back. It changes no content.
fn offer(start: u64, length: u64, taken_back: bool) -> Result<(), Failure> {
    const MERGEABLE: u64 = 12;
    const UNMERGEABLE: u64 = 13;
    let result = plain(number::MADVISE, [start, length, if taken_back { UNMERGEABLE } else { MERGEABLE }]);
    result.map(drop).map_err(Failure::of_call)
}

/// Takes steps whose arguments somebody else has chosen: by them memory is filled from files, which takes no other
/// capability than those to open them.
fn with_few_powers(steps: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    /// CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, and CAP_SYS_PTRACE for the file that the daemon has open.
    const KEPT: u32 = 1 << 1 | 1 << 2 | 1 << 19;
    let all = bare::capabilities().map_err(Failure::of_call)?;
    let mut few = all;
    (few[0], few[3]) = (all[0] & KEPT, 0);
    bare::set_capabilities(&few).map_err(Failure::of_call)?;
    let outcome = steps();
    bare::set_capabilities(&all).map_err(Failure::of_call)?;
    outcome
}

/// Maps a script to its place.
pub(crate) fn map(file: u64, length: u32) -> Result<Script, Failure> {
    const READ_WRITE: u64 = 3;
    const PRIVATE_FIXED_NOREPLACE: u64 = 0x10_0002;
    // SAFETY: the place is the script's own and free; the file is sealed, so it stays as long as the mapping. It is
    // private: steps that give back a value write it there.
    unsafe { call(number::MMAP, [SCRIPT, u64::from(length), READ_WRITE, PRIVATE_FIXED_NOREPLACE, file, 0]) }
        .map_err(Failure::of_call)?;
    Script::mapped(u64::from(length)).ok_or(Failure::of_call(EINVAL))
}
