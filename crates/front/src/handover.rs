//! A call that the front has made and that `main` is to see to its end.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use rustix::fd::{FromRawFd, OwnedFd};

/// How much of the daemon's words the front keeps; more it does not understand.
const MOST_HEARD: usize = 4096;

/// Where the front leaves it: memory of the program, all zero at the start.
#[repr(C)]
pub(crate) struct Handover {
    /// The connection; 0 for none, since that is standard input.
    socket: AtomicI32,
    length: AtomicUsize,
    heard: UnsafeCell<[u8; MOST_HEARD]>,
}

// SAFETY: the bytes are written by the front alone, before the program has its first thread, and only read afterwards.
unsafe impl Sync for Handover {}

/// A call that was made, and what came back so far.
#[derive(Debug)]
pub struct Call {
    /// The connection to the daemon.
    pub socket: OwnedFd,
    /// Everything that the daemon has said on it.
    pub heard: &'static [u8],
}

/// Takes over the call that the front has made, if it has made one.
pub fn handed_over() -> Option<Call> {
    unsafe extern "C" {
        static PANDO_HANDOVER: Handover;
    }
    // SAFETY: the front, which is linked into every program that has this function, defines it with this very type.
    let handover = unsafe { &PANDO_HANDOVER };
    let socket = handover.socket.swap(0, Ordering::AcqRel);
    if socket == 0 {
        return None;
    }
    let length = handover.length.load(Ordering::Acquire).min(MOST_HEARD);
    // SAFETY: the front has run to its end, nobody writes there any more.
    let heard = unsafe { &*handover.heard.get() };
    // SAFETY: the front has opened it and forgotten it; the swap above lets one caller have it.
    Some(Call { socket: unsafe { OwnedFd::from_raw_fd(socket) }, heard: &heard[..length] })
}

#[cfg(feature = "program")]
pub(crate) use writing::{hand_over, space};

#[cfg(feature = "program")]
mod writing {
    use super::*;
    use rustix::fd::IntoRawFd;

    #[unsafe(no_mangle)]
    static PANDO_HANDOVER: Handover =
        Handover { socket: AtomicI32::new(0), length: AtomicUsize::new(0), heard: UnsafeCell::new([0; MOST_HEARD]) };

    /// Where to keep what is heard. To be asked for once.
    pub(crate) fn space() -> &'static mut [u8; MOST_HEARD] {
        // SAFETY: the front has one thread and asks once; `main` reads only after the front has returned.
        unsafe { &mut *PANDO_HANDOVER.heard.get() }
    }

    /// Leaves the call to `main`: the first `length` bytes of the space are what was heard.
    pub(crate) fn hand_over(socket: OwnedFd, length: usize) {
        PANDO_HANDOVER.length.store(length, Ordering::Release);
        PANDO_HANDOVER.socket.store(socket.into_raw_fd(), Ordering::Release);
    }
}
