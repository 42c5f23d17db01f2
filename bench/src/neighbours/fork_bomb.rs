//! A fork bomb that lasts: every process of it makes more of itself for ever, whether it may or not. One of a shell's
//! ends at the first fork that fails.
//!
//! What the kernel has set aside for forks that were refused counts as the guest's memory until it is given back, some
//! time later: a bomb of two hundred processes was seen to fill 128 MB with it, and to be killed for that, all of it.
//! So its first process makes it anew whenever it is gone.

use std::convert::Infallible;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The name under which the benchmark runs itself inside a guest.
pub(crate) const NAME: &str = "fork-bomb";

/// What a process of the bomb is called by.
const PART: &str = "part";

/// Never ends: the first process, or, by its name, a part of the bomb.
pub(crate) fn main(part: Option<&str>) -> anyhow::Result<Infallible> {
    let program = std::env::current_exe()?;
    // Its output would fill the guest's log.
    let spawn = || {
        let mut command = Command::new(&program);
        command.args([NAME, PART]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    if part == Some(PART) {
        // Whoever is killed for want of memory is not the first process.
        std::fs::write("/proc/self/oom_score_adj", "1000")?;
        loop {
            let _: std::io::Result<Child> = spawn();
        }
    }
    loop {
        match spawn() {
            Ok(mut bomb) => drop(bomb.wait()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
