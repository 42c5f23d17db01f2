//! The guest's first process: reaps what dies, passes signals on to the command, and ends with the command's exit code.
//!
//! When it ends the kernel ends everything else in the guest.

use crate::bare::memory::{self, Mapped};
use crate::bare::{self, signals};
use crate::command;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;
const SIGPWR: i32 = 30;
const CAP_KILL: u64 = 1 << 5;

/// Where the word of the command's end goes, of all descriptors the only one that is kept.
const WORD: u32 = 0;

/// Stands until the command, if there is one, has ended. `word` is told of that first, where nothing else ends with it.
/// The plan is not needed any more.
pub(crate) fn stand(command: Option<i32>, word: Option<BorrowedFd<'_>>, plan: impl IntoIterator<Item = Mapped>) -> ! {
    let heard = word.is_some_and(|word| bare::duplicate(word, WORD as i32).is_ok());
    // It needs no other descriptor any more. Letting go of the report's socket says that all went well; should the
    // command's own steps fail, its process still holds a copy.
    bare::close_range(if heard { WORD + 1 } else { 0 }, u32::MAX);
    // Of its capabilities it needs the one to signal a command that runs as another user.
    let _ = command::hold(CAP_KILL);
    bare::undumpable();
    memory::alone(plan, wait, command, heard)
}

fn wait(command: Option<i32>, heard: bool) -> ! {
    loop {
        match signals::next(None) {
            Some(SIGCHLD) => reap(command, heard),
            Some(signal) => match command {
                Some(pid) => forward(pid, signal),
                None if matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM | SIGPWR) => leave(),
                None => {}
            },
            None => {}
        }
    }
}

/// Takes every dead child; the command's death is this process's own.
fn reap(command: Option<i32>, heard: bool) {
    let mut ended = None;
    let rest = loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if Some(pid.as_raw_nonzero().get()) == command => ended = Some(status),
            Ok(Some(_)) => {}
            rest => break rest,
        }
    };
    let Some(status) = ended else { return };
    let code = status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(125);
    // A daemon that hears of the end may count on everything that the command began being over: what has lost its
    // parent is a child of this process.
    if heard && matches!(rest, Err(Errno::CHILD)) {
        let count = u64::from(code.unsigned_abs()) + 1;
        let _ = rustix::io::write(bare::standard_input(), &count.to_ne_bytes());
    }
    bare::exit(code);
}

fn forward(pid: i32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(pid), bare::signal(signal)) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// An idle guest was told to stop: whatever runs in it by `exec` is asked to end and given a moment.
fn leave() -> ! {
    const MOMENT_MS: u64 = 2;
    const MOMENTS: u32 = 1000;
    bare::signal_all(Signal::TERM);
    for _ in 0..MOMENTS {
        if !bare::anyone_else() {
            break;
        }
        let _ = signals::next(Some(MOMENT_MS));
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
    }
    bare::exit(0)
}
