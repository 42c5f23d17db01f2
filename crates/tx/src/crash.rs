//! Places where a test can make a commit die, as if it were killed just there.

/// The variable of the environment that says at which step. Whoever recovers is not to be killed by it too.
pub(crate) const STEP: &str = "PANDO_TX_CRASH_STEP";

/// A step of a commit or of a recovery. Where [`STEP`] is the number of the step, counted from 0, the process kills
/// itself. In ordinary builds this is nothing.
#[inline]
pub(crate) fn step() {
    #[cfg(feature = "crash-points")]
    counted();
}

#[cfg(feature = "crash-points")]
fn counted() {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    static LAST: OnceLock<Option<u64>> = OnceLock::new();
    let last = LAST.get_or_init(|| std::env::var(STEP).ok()?.parse().ok());
    if *last == Some(TAKEN.fetch_add(1, Ordering::Relaxed)) {
        let me = rustix::process::getpid();
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }
}

/// When the machine is to have been powered on, in seconds since 1970, where a test has cut the power of a disk alone
/// (`PANDO_TX_POWERED_ON`). Never in ordinary builds.
pub(crate) fn powered_on() -> Option<i64> {
    #[cfg(feature = "crash-points")]
    return std::env::var("PANDO_TX_POWERED_ON").ok()?.parse().ok();
    #[cfg(not(feature = "crash-points"))]
    None
}

/// Whether a bug is to be planted, for the tests to find (`PANDO_TX_PLANT`). Never in ordinary builds.
#[inline]
pub(crate) fn planted(bug: &str) -> bool {
    #[cfg(feature = "crash-points")]
    return std::env::var("PANDO_TX_PLANT").is_ok_and(|planted| planted == bug);
    #[cfg(not(feature = "crash-points"))]
    {
        let _ = bug;
        false
    }
}
