//! Places where a test can make a commit die, as if it were killed just there.

/// The variable of the environment that says at which step. Whoever recovers is not to be killed by it too.
pub(crate) const STEP: &str = "PANDO_TX_CRASH_STEP";

/// The variable that says at which step the process stops, until it gets SIGCONT: what others do just there.
#[cfg(feature = "crash-points")]
const STOP: &str = "PANDO_TX_STOP_STEP";

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
    static LAST: OnceLock<[Option<u64>; 2]> = OnceLock::new();
    let last = LAST.get_or_init(|| [STEP, STOP].map(|name| std::env::var(name).ok()?.parse().ok()));
    let now = Some(TAKEN.fetch_add(1, Ordering::Relaxed));
    for (at, signal) in last.iter().zip([rustix::process::Signal::KILL, rustix::process::Signal::STOP]) {
        if *at == now {
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        }
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
