//! What is mounted below a directory that a guest runs on as it lies there.
//!
//! An overlay shows one file system. What is mounted below is shown like a volume, and read-only: what the guest writes
//! is its own, and there is no layer of its own above these.

use crate::failure;
use pando_api::{Fault, Spec, Volume};
use pando_guest::source::{MountsBelow, mounts_below};
use std::path::{Path, PathBuf};

/// Places that a guest has something of its own at.
const OWN: [&str; 3] = ["proc", "sys", "dev"];

/// Has a guest that is to run on `directory` see what is mounted below it. What it does not see is answered, in a
/// sentence.
pub(crate) fn show(directory: &Path, spec: &mut Spec) -> Result<Option<String>, Fault> {
    let MountsBelow { shown, left_out } = mounts_below(directory, !spec.user_namespace).map_err(|error| {
        failure::call("looking at what is mounted below the guest's files", &directory.to_string_lossy(), &error)
    })?;
    let is_own = |path: &PathBuf| OWN.iter().any(|own| path.starts_with(own));
    let given: Vec<String> = spec.volumes.iter().map(|volume| volume.target.trim_matches('/').to_owned()).collect();
    let is_given = |path: &PathBuf| given.iter().any(|target| Path::new(target) == path);
    for path in shown.iter().filter(|path| !is_own(path) && !is_given(path)) {
        spec.volumes.push(Volume {
            source: directory.join(path).to_string_lossy().into_owned(),
            target: Path::new("/").join(path).to_string_lossy().into_owned(),
            read_only: true,
        });
    }
    let missing: Vec<String> = left_out
        .iter()
        .filter(|path| !is_own(path) && !is_given(path))
        .map(|path| directory.join(path).display().to_string())
        .collect();
    Ok((!missing.is_empty()).then(|| {
        format!(
            "what is mounted on {} is left out: it lies in memory, on another machine, on a disk that can be pulled out, or its owners cannot be mapped; -v shows it",
            missing.join(", ")
        )
    }))
}
