//! Tests that this machine could not show and that say more on another kernel: the emulated machine shows them.

use crate::case::{Case, Tag};
use libtest_mimic::Completion;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

static UNSHOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Keeps the name of a test that was skipped and runs in the emulated machine too.
pub(crate) fn note(case: &Case, came_of_it: &Completion) {
    if matches!(came_of_it, Completion::Ignored { .. }) && case.tags.contains(&Tag::Vm) {
        UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner).push(case.name);
    }
}

/// Writes their names, a line each.
pub(crate) fn write(file: &Path) -> std::io::Result<()> {
    let names = UNSHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    std::fs::write(file, names.iter().map(|name| format!("{name}\n")).collect::<String>())
}

/// The names in such a file.
pub(crate) fn read(file: &Path) -> std::io::Result<Vec<String>> {
    Ok(std::fs::read_to_string(file)?.lines().map(str::to_owned).collect())
}
