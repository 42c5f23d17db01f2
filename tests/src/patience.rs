//! How long to wait for what must happen. No test measures time: these limits only keep a broken one from hanging.

use std::time::{Duration, Instant};

/// How often something is looked at again.
const PAUSE: Duration = Duration::from_millis(10);

/// Seconds, times `PANDO_TEST_PATIENCE`: an emulated machine takes many times as long.
pub(crate) fn seconds(number: u64) -> Duration {
    let factor = std::env::var("PANDO_TEST_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    Duration::from_secs(number * factor)
}

/// Waits until something holds; `false` if it does not in time.
pub(crate) fn comes_true(mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + seconds(20);
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(comes_true(holds), "this never came true: {what}");
}
