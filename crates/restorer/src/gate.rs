//! The gate that a clone waits at, until every thread of it stands there and the cloner opens it: a pipe with a byte
//! for each process. A process's first thread reports for all of them and goes through first. Should the cloner end
//! instead, so does the clone.

use crate::bare::{self, number, plain};
use core::sync::atomic::{AtomicU32, Ordering};
use pando_restorer::Report;

/// Further threads of this process that have come to the gate. Every process has its own copy.
static COME: AtomicU32 = AtomicU32::new(0);
/// Whether it is open.
static OPEN: AtomicU32 = AtomicU32::new(0);
/// Further threads that have passed: each counts itself when it needs nothing of this program any more.
static PASSED: AtomicU32 = AtomicU32::new(0);

/// What a further thread gives in place of their number.
const OTHER: u64 = u64::MAX;

/// Waits. `free` is where the first thread's report goes, the gate is the next descriptor; `others` is how many further
/// threads it waits for, `pid` what it reports. If the process `stops` they do not pass yet. The program's own filters
/// may hold here: whoever installs them has looked whether they let pass what is called.
pub(crate) fn pass(free: u64, others: u64, pid: u64, stops: bool) {
    if others == OTHER {
        COME.fetch_add(1, Ordering::SeqCst);
        wake(&COME);
        until(&OPEN, 1);
        return;
    }
    until(&COME, others as u32);
    let _ = bare::write(free, &Report { errno: 0, step: pid as u32 }.bytes());
    if !bare::take_byte(free + 1) {
        bare::exit(1);
    }
    if !stops {
        let_pass(others);
    }
    let _ = plain(number::CLOSE, [free, 0, 0]);
    let _ = plain(number::CLOSE, [free + 1, 0, 0]);
}

/// Lets the further threads of this process pass, so many, and waits until they have.
pub(crate) fn let_pass(others: u64) {
    if others > 0 {
        OPEN.store(1, Ordering::SeqCst);
        wake(&OPEN);
        until(&PASSED, others as u32);
    }
}

/// Where further threads count themselves.
pub(crate) fn passed() -> &'static AtomicU32 {
    &PASSED
}

/// Waits until so many further threads stand at the gate.
pub(crate) fn gather(others: u64) {
    until(&COME, others as u32);
}

/// Wakes all who wait for a word to change.
fn wake(word: &AtomicU32) {
    const FUTEX_WAKE_PRIVATE: u64 = 129;
    let _ = plain(number::FUTEX, [word.as_ptr() as u64, FUTEX_WAKE_PRIVATE, i32::MAX as u64]);
}

/// Waits for a count.
fn until(word: &AtomicU32, count: u32) {
    const FUTEX_WAIT_PRIVATE: u64 = 128;
    loop {
        let seen = word.load(Ordering::SeqCst);
        if seen >= count {
            return;
        }
        let _ = plain(number::FUTEX, [word.as_ptr() as u64, FUTEX_WAIT_PRIVATE, u64::from(seen)]);
    }
}
