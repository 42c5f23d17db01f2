//! The guest that is cloned: memory that no two pages of are alike, all of which a clone writes to and leaves as it
//! was, but for a page now and then.

use anyhow::{Context, bail};
use pando_kernel::memory::ksm;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

/// This program, told to be that guest.
pub(crate) const NAME: &str = "pages-subject";

/// The name of the guest that is frozen: whoever finds himself to have another is a clone.
pub(crate) const SOURCE: &str = "pages-source";

/// Words of a page.
const PAGE: usize = 512;

/// One page of so many is another in each clone.
const OTHER: usize = 64;

/// Puts this program into a root file system.
pub(crate) fn install(root: &Path) -> anyhow::Result<()> {
    let copied = std::fs::copy(std::env::current_exe()?, root.join("bin").join(NAME));
    copied.map(drop).context("cannot copy this program")
}

/// The guest's command; `merges` where all its memory is offered to the kernel's merger.
pub(crate) fn command(mib: usize, merges: bool) -> Vec<String> {
    let how = if merges { "merge" } else { "plain" };
    vec![format!("/bin/{NAME}"), NAME.to_owned(), mib.to_string(), how.to_owned()]
}

/// Be it: `MIB`, and `merge` or `plain`.
pub(crate) fn main(arguments: &[String]) -> anyhow::Result<()> {
    let [mib, how] = arguments else { bail!("{NAME} takes MIB and how") };
    if how == "merge" {
        ksm::merge_all()?;
    }
    let words = (mib.parse::<u64>()? << 20) / 8;
    let mut memory: Vec<u64> = (0..words).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    while host_name()? == SOURCE {
        std::thread::sleep(Duration::from_millis(20));
        black_box(&memory);
    }
    let me = host_name()?.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
    for (number, page) in memory.chunks_mut(PAGE).enumerate() {
        let word = black_box(&mut page[0]);
        *word = if number % OTHER == 0 { *word ^ me } else { black_box(*word) };
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
        black_box(&memory);
    }
}

fn host_name() -> anyhow::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned())
}
