//! A fork bomb that lasts: every process of it makes more of itself for ever, whether it may or not. One of a shell's ends at the first fork that fails.

use std::convert::Infallible;
use std::process::{Command, Stdio};

/// The name under which the benchmark runs itself inside a guest.
pub(crate) const NAME: &str = "fork-bomb";

/// Never ends.
pub(crate) fn main() -> anyhow::Result<Infallible> {
    let program = std::env::current_exe()?;
    loop {
        // Its output would fill the guest's log.
        let _ =
            Command::new(&program).arg(NAME).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    }
}
