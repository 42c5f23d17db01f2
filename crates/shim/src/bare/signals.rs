//! What becomes of signals: of those that come, and of those that tell of a child's end.

use super::{SIGCHLD, call, number};
use rustix::io::Errno;

/// Every signal, as a kernel signal set.
const ALL_SIGNALS: u64 = u64::MAX;

/// Has every signal do what it does by default: the shell that started the daemon may have ignored some, those of the
/// keyboard for example, and the C library ignores two of its own in whatever it starts. Guests' programs would inherit
/// that.
pub(crate) fn all_default() {
    const DEFAULT: [u64; 4] = [0; 4];
    for signal in 1..=u64::BITS as usize {
        // SAFETY: reads 32 bytes at most, which name no handler; what has none has nothing to call. Two signals cannot
        // be set, and need not be.
        let _ = unsafe { call(number::RT_SIGACTION, [signal, DEFAULT.as_ptr() as usize, 0, 8, 0, 0]) };
    }
}

/// Lets the kernel forget each child as soon as it has ended, until [`all_default`]. One that waits to be asked after
/// keeps its control groups, its namespaces and its task: a quarter of a megabyte.
pub(crate) fn forget_children() {
    const SA_NOCLDWAIT: u64 = 2;
    // The handler (the default one), the flags, the restorer, the mask.
    const FORGETFUL: [u64; 4] = [0, SA_NOCLDWAIT, 0, 0];
    // SAFETY: reads 32 bytes at most, which name no handler.
    let _ = unsafe { call(number::RT_SIGACTION, [SIGCHLD as usize, FORGETFUL.as_ptr() as usize, 0, 8, 0, 0]) };
}

/// Blocks every signal for good, so that they wait for [`next`].
pub(crate) fn block() {
    set_mask(ALL_SIGNALS);
}

/// Blocks none, as a program expects to find it.
pub(crate) fn unblock() {
    set_mask(0);
}

fn set_mask(mask: u64) {
    const SIG_SETMASK: usize = 2;
    // SAFETY: reads eight bytes at the mask.
    let _ = unsafe { call(number::RT_SIGPROCMASK, [SIG_SETMASK, (&raw const mask) as usize, 0, 8, 0, 0]) };
}

/// Waits for the next signal and takes it; its number, or `None` after `milliseconds`.
pub(crate) fn next(milliseconds: Option<u64>) -> Option<i32> {
    let time = milliseconds.map(|ms| [ms / 1000, ms % 1000 * 1_000_000]);
    let time = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    loop {
        // SAFETY: reads eight bytes at the set and sixteen at the time, writes nothing.
        match unsafe { call(number::RT_SIGTIMEDWAIT, [(&raw const ALL_SIGNALS_SET) as usize, 0, time, 8, 0, 0]) } {
            Ok(signal) => return Some(signal as i32),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

static ALL_SIGNALS_SET: u64 = ALL_SIGNALS;
