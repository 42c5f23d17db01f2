//! The guest that is frozen: three processes, five threads, and memory that no two pages of are alike.

use anyhow::{Context, bail};
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// This program, told to be that guest.
pub(crate) const NAME: &str = "clone-subject";

/// The file that says that the memory is filled, in the working directory.
pub(crate) const READY: &str = "ready";

/// Puts this program into a root file system.
pub(crate) fn install(root: &Path) -> anyhow::Result<()> {
    let copied = std::fs::copy(std::env::current_exe()?, root.join("bin").join(NAME));
    copied.map(drop).context("cannot copy this program")
}

/// The guest's command.
pub(crate) fn command(mib: usize) -> Vec<String> {
    vec![format!("/bin/{NAME}"), NAME.to_owned(), mib.to_string()]
}

/// Be it: `MIB` for the first process, `threads N` for one that it starts.
pub(crate) fn main(arguments: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let memory = match words[..] {
        ["threads", number] => {
            for _ in 1..number.parse::<usize>()? {
                std::thread::spawn(|| idle(&[]));
            }
            Vec::new()
        }
        [mib] => {
            let me = std::env::current_exe()?;
            for number in ["1", "3"] {
                let _child = Command::new(&me).args([NAME, "threads", number]).spawn()?;
            }
            let memory = filled(mib.parse::<usize>()? << 20);
            std::fs::write(READY, "")?;
            memory
        }
        _ => bail!("{NAME} takes MIB"),
    };
    idle(&memory)
}

fn filled(bytes: usize) -> Vec<u64> {
    (0..bytes as u64 / 8).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

fn idle(memory: &[u64]) -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
        black_box(memory);
    }
}
