//! How much memory there is for a transaction's changes: `--in-memory`, or `--in-memory=SIZE`.

use crate::complaint::Usage;
use pando_limit::machine::Free;
use pando_limit::quantity;

/// Less is of no use: a single directory takes a page.
const LEAST: u64 = 1 << 20;

/// Where nothing is said, this part of what is free.
const PART: u64 = 4;

/// Reads a size.
pub(super) fn read(text: &str) -> Result<u64, String> {
    let size = quantity::size(text).map_err(|why| format!("memory for changes cannot be '{text}': {why}"))?;
    if size < LEAST { Err(format!("memory for changes cannot be '{text}': it takes at least 1M")) } else { Ok(size) }
}

/// What was said, or what is fit, as far as there is so much.
pub(super) fn of(said: Option<u64>) -> Result<u64, Usage> {
    let free = Free::look().memory;
    match said {
        Some(said) if said > free => Err(Usage::sentence(format!(
            "there are {} of memory free, and --in-memory wants {}. Name a size that is there, or leave the option out",
            super::report::bytes(free),
            super::report::bytes(said)
        ))),
        Some(said) => Ok(said),
        None => Ok((free / PART).max(LEAST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_what_is_too_little_or_too_much_is_told() {
        assert_eq!(read("64M"), Ok(64 << 20));
        for (text, word) in [("4K", "at least 1M"), ("x", "such as 512M"), ("", "such as 512M")] {
            assert!(read(text).is_err_and(|why| why.contains(word)), "{text}");
        }
        assert!(of(Some(1 << 52)).is_err());
        assert!(of(None).is_ok_and(|size| size >= LEAST));
    }
}
