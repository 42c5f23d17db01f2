//! What an image that was read is refused with.

use crate::image::memory::PAGE;

/// What is wrong, in a few words.
pub(crate) type Wrong = String;

pub(crate) fn ensure(right: bool, what: impl FnOnce() -> String) -> Result<(), Wrong> {
    if right { Ok(()) } else { Err(what()) }
}

pub(crate) fn is_path(path: &str) -> Result<(), Wrong> {
    let plain = path.starts_with('/') && !path.contains('\0') && path.len() < PAGE as usize;
    ensure(plain, || format!("'{}' is no path", path.chars().take(80).collect::<String>()))
}
