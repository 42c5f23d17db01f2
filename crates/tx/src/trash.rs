//! Deleting what is not needed any more: out of the way by one rename, and gone later.

use crate::commit::PartChanges;
use crate::home::{HIDDEN, Home};
use crate::part::Part;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name that nothing else has.
fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{now}", std::process::id())
}

/// The parts on other mounts in which nothing was changed.
pub(crate) fn untouched(directory: &Path, changes: &[PartChanges]) -> Vec<Part> {
    let untouched = changes.iter().filter(|one| one.steps.is_empty() && !one.part.base.starts_with(directory));
    untouched.map(|one| one.part.clone()).collect()
}

/// Removes parts that nothing is in, ahead of [`throw_away`]: whatever becomes of their transaction, they are needed no more.
pub(crate) fn remove_empty(parts: &[Part]) {
    for part in parts {
        // What is not empty is put away with the rest.
        part.remove_empty();
    }
}

/// Puts a transaction's directory, and those of its parts on other mounts, where [`sweep`] finds them.
pub(crate) fn throw_away(home: &Home, directory: &Path, parts: &[Part]) -> io::Result<()> {
    for part in parts.iter().filter(|part| !part.base.starts_with(directory)) {
        if part.remove_empty() {
            continue;
        }
        let Some(around) = part.base.parent() else { continue };
        move_away(&part.base, &around.join(".trash"))?;
    }
    // Last, since its record is what leads to the others.
    create(&home.trash())?;
    match std::fs::rename(directory, home.trash().join(unique())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Moves a directory that may be gone already into the trash, which others who find it empty remove.
fn move_away(base: &Path, trash: &Path) -> io::Result<()> {
    const TRIES: usize = 100;
    let mut last = Ok(());
    for _ in 0..TRIES {
        if !base.exists() {
            return Ok(());
        }
        if create(trash).is_err() {
            // A full disk has no room for a directory: what is to go is deleted where it is, though that takes longer.
            std::fs::remove_dir_all(base)?;
            if let Some(hidden) = trash.parent() {
                // Where others have a part in it, it stays.
                let _ = std::fs::remove_dir(hidden);
            }
            return Ok(());
        }
        match std::fs::rename(base, trash.join(unique())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = Err(error),
            moved => return moved,
        }
    }
    last
}

fn create(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Deletes what was thrown away, on these mounts and beside the transactions. What cannot be deleted stays for the next time.
pub fn sweep(home: &Home, mounts: &[PathBuf]) {
    empty(&home.trash());
    sweep_mounts(mounts);
}

/// Deletes what was thrown away on these mounts.
pub fn sweep_mounts(mounts: &[PathBuf]) {
    for mount in mounts {
        let hidden = mount.join(HIDDEN);
        empty(&hidden.join(".trash"));
        let _ = std::fs::remove_dir(hidden.join(".trash"));
        // Where another transaction still has a part in it, it stays.
        let _ = std::fs::remove_dir(hidden);
    }
}

/// How many names are in what was thrown away, on these mounts and beside the transactions if those are meant, counted up to `most`.
pub fn rubbish(home: Option<&Home>, mounts: &[PathBuf], most: usize) -> usize {
    let elsewhere = mounts.iter().map(|mount| mount.join(HIDDEN).join(".trash"));
    home.map(Home::trash).into_iter().chain(elsewhere).fold(0, |count, trash| count_below(&trash, count, most))
}

fn count_below(directory: &Path, mut count: usize, most: usize) -> usize {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if count >= most {
            break;
        }
        count += 1;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            count = count_below(&entry.path(), count, most);
        }
    }
    count
}

fn empty(trash: &Path) {
    for entry in std::fs::read_dir(trash).into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir_all(entry.path());
    }
}
