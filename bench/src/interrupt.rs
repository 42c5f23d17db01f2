//! Ctrl-C: the measurement stops at the next sample, so that everything made for it is taken down.

use anyhow::bail;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Notes signals from here on instead of dying of them.
pub(crate) fn listen() -> std::io::Result<()> {
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ASKED))?;
    }
    Ok(())
}

/// Fails once somebody wants it to stop.
pub(crate) fn check() -> anyhow::Result<()> {
    if ASKED.load(Ordering::Relaxed) {
        bail!("interrupted; everything was taken down");
    }
    Ok(())
}

/// Sleeps, and fails early when somebody wants it to stop.
pub(crate) fn pause(span: Duration) -> anyhow::Result<()> {
    const STEP: Duration = Duration::from_millis(100);
    let mut left = span;
    while !left.is_zero() {
        check()?;
        let step = left.min(STEP);
        std::thread::sleep(step);
        left -= step;
    }
    check()
}
