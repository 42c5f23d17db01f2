//! Places where a test can make the daemon die, as if it were killed just there, or pause, so that the test can kill
//! something else.

#[cfg(feature = "crash-points")]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "crash-points")]
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Dies here if the environment's `PANDO_CRASH_AT` names this place; stops like a job, once, if `PANDO_PAUSE_AT` does.
/// In ordinary builds this is nothing.
#[inline]
pub(crate) fn point(name: &str) {
    #[cfg(feature = "crash-points")]
    if std::env::var("PANDO_CRASH_AT").is_ok_and(|wanted| wanted == name) {
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }
    #[cfg(feature = "crash-points")]
    if std::env::var("PANDO_PAUSE_AT").is_ok_and(|wanted| wanted == name) && !PAUSED.swap(true, Ordering::Relaxed) {
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, rustix::process::Signal::STOP);
    }
    #[cfg(not(feature = "crash-points"))]
    let _ = name;
}
