//! The gate that every thread of a clone waits at, until all of them stand there and the cloner opens it: a pipe with a byte for each. Should the
//! cloner end instead, so does the clone.

use crate::bare::{self, number, plain};
use core::sync::atomic::{AtomicU64, Ordering};
use pando_restorer::Report;

/// Threads of this process that have passed the gate. Every process has its own copy.
static PASSED: AtomicU64 = AtomicU64::new(0);

/// How many further threads the process waits for: none of the others may touch the gate's descriptor once it has another meaning.
const OTHER: u64 = u64::MAX;

/// Reports and waits. `free` is where the report goes, the gate is the next descriptor.
pub(crate) fn pass(free: u64, others: u64) {
    let _ = bare::write(free, &Report { errno: 0, step: 0 }.bytes());
    if !bare::take_byte(free + 1) {
        bare::exit(1);
    }
    if others == OTHER {
        PASSED.fetch_add(1, Ordering::SeqCst);
        wake();
        return;
    }
    loop {
        let passed = PASSED.load(Ordering::SeqCst);
        if passed >= others {
            break;
        }
        wait(passed);
    }
    let _ = plain(number::CLOSE, [free, 0, 0]);
    let _ = plain(number::CLOSE, [free + 1, 0, 0]);
}

fn wake() {
    const FUTEX_WAKE_PRIVATE: u64 = 129;
    let _ = plain(number::FUTEX, [PASSED.as_ptr() as u64, FUTEX_WAKE_PRIVATE, 1]);
}

fn wait(passed: u64) {
    const FUTEX_WAIT_PRIVATE: u64 = 128;
    let _ = plain(number::FUTEX, [PASSED.as_ptr() as u64, FUTEX_WAIT_PRIVATE, passed & u64::from(u32::MAX)]);
}
