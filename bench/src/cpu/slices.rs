//! How much of a bounded group's time one processor takes at once: a setting of the whole machine, 5 ms as it comes.
//! `pando doctor` asks for 1 ms.

use anyhow::Context;

const AT: &str = "/proc/sys/kernel/sched_cfs_bandwidth_slice_us";

/// In microseconds; see dist/60-pando.conf.
const RECOMMENDED: u32 = 1000;

/// The recommended slices, until this goes.
#[derive(Debug)]
pub(super) struct Slices {
    /// What was set before, in microseconds.
    before: u32,
}

/// What is set now, in microseconds.
fn now() -> anyhow::Result<u32> {
    let text = std::fs::read_to_string(AT).with_context(|| format!("cannot read {AT}"))?;
    text.trim().parse().with_context(|| format!("{AT} says {text}"))
}

impl Slices {
    /// Sets them; `None` where they are as small already.
    pub(super) fn small() -> anyhow::Result<Option<Self>> {
        let before = now()?;
        if before <= RECOMMENDED {
            return Ok(None);
        }
        std::fs::write(AT, RECOMMENDED.to_string()).with_context(|| format!("cannot write {AT}"))?;
        Ok(Some(Self { before }))
    }
}

impl Drop for Slices {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(AT, self.before.to_string()) {
            eprintln!("{AT} was {}, and cannot be set to that again: {error}", self.before);
        }
    }
}
