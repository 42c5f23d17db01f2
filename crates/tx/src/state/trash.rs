//! Deleting what is not needed any more: out of the way by one rename, and gone later.

use crate::journal::file::JournalFile;
use crate::state::directory::StateDirectory;
use crate::state::overlay_part::{ENTRY, OverlayPart};
use crate::state::private_place;
use crate::state::record::Record;
use crate::validate::change_set::PartChanges;
use pando_kernel::file::tree_removal::{Protected, RemovalError, nothing_is_mounted_in, remove_tree_with};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name that nothing else has.
pub(crate) fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{now}", std::process::id())
}

/// The parts on other mounts in which nothing was changed.
pub(crate) fn untouched(directory: &Path, changes: &[PartChanges]) -> Vec<OverlayPart> {
    let untouched = changes.iter().filter(|one| one.steps.is_empty() && !one.part.base.starts_with(directory));
    untouched.map(|one| one.part.on_disk()).collect()
}

/// Removes parts that nothing is in, ahead of [`throw_away`]: whatever becomes of their transaction, they are needed no
/// more.
pub(crate) fn remove_empty(parts: &[OverlayPart]) {
    for part in parts {
        // What is not empty is thrown away with the rest.
        part.remove_empty();
    }
}

/// Puts a transaction's directory where [`sweep`] finds it. Its record comes along, and leads to its parts on other
/// mounts.
pub(crate) fn throw_away(home: &StateDirectory, directory: &Path) -> io::Result<()> {
    create(&home.trash())?;
    match std::fs::rename(directory, home.trash().join(unique())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Puts a directory where [`sweep`] finds it, under a name in a directory of its own.
pub(crate) fn throw_away_as(home: &StateDirectory, directory: &Path, name: &str) -> io::Result<()> {
    create(&home.trash())?;
    let thrown = home.trash().join(unique());
    create(&thrown)?;
    std::fs::rename(directory, thrown.join(name))
}

fn create(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Deletes what was thrown away. What cannot be deleted stays for the next time.
pub fn sweep(home: &StateDirectory) {
    for entry in entries(&home.trash()) {
        let are_gone = kept_elsewhere(&entry).iter().filter(|kept| !remove_kept(kept)).count() == 0;
        if are_gone && parts_elsewhere(home, &entry).iter().all(remove) {
            let _ = remove_all(&entry);
        }
    }
}

/// Why some of what was thrown away is not going to be deleted, by [`sweep`] or later: something is mounted in it.
pub fn mounted_in_trash(home: &StateDirectory) -> Vec<RemovalError> {
    let trash = home.trash();
    let places = entries(&trash).flat_map(|entry| {
        let parts = parts_elsewhere(home, &entry).into_iter().map(|part| part.base);
        std::iter::once(entry).chain(parts)
    });
    let mounted = |place: PathBuf| match nothing_is_mounted_in(&place, &[]) {
        Err(error @ RemovalError::Mounted { .. }) => Some(error),
        _ => None,
    };
    places.filter_map(mounted).collect()
}

/// A [`sweep`] that is done later. It knows by itself what was thrown away at the roots of other mounts: where the home
/// has been removed by then, with all that it says of that, nobody else would ever find it.
#[derive(Debug)]
pub struct Sweep {
    home: StateDirectory,
    /// The home's directory as it was then: another one may come to be in its place, which knows nothing of the parts.
    directory: Option<OwnedFd>,
    elsewhere: Vec<OverlayPart>,
}

impl Sweep {
    /// One of all that was thrown away.
    pub fn of(home: &StateDirectory) -> Self {
        Self::new(home, entries(&home.trash()).flat_map(|entry| parts_elsewhere(home, &entry)).collect())
    }

    /// One behind a transaction with these parts, of which nothing was thrown away yet.
    pub(crate) fn behind<'a>(home: &StateDirectory, parts: impl Iterator<Item = &'a OverlayPart>) -> Self {
        Self::new(home, parts.filter(|part| is_elsewhere(home, part)).map(OverlayPart::on_disk).collect())
    }

    fn new(home: &StateDirectory, elsewhere: Vec<OverlayPart>) -> Self {
        // What is below the home goes with it.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(home.directory(), flags, Mode::empty()).ok();
        Self { home: home.clone(), directory: if elsewhere.is_empty() { None } else { open() }, elsewhere }
    }

    fn has_home(&self) -> bool {
        let was_removed = |directory| rustix::fs::fstat(directory).is_ok_and(|about| about.st_nlink == 0);
        self.home.directory().exists() && !self.directory.as_ref().is_some_and(was_removed)
    }

    /// Sweeps. As long as its state directory is there, what that says of a transaction counts: that may have to be
    /// finished.
    pub fn run(&self) {
        sweep(&self.home);
        if !self.has_home() {
            for part in &self.elsewhere {
                remove(part);
            }
        }
    }
}

fn is_elsewhere(home: &StateDirectory, part: &OverlayPart) -> bool {
    !part.base.starts_with(home.directory())
}

/// Deletes what of it lies at the roots of other mounts.
pub fn sweep_mounts(home: &StateDirectory) {
    for entry in entries(&home.trash()) {
        for part in parts_elsewhere(home, &entry) {
            remove(&part);
        }
        for kept in kept_elsewhere(&entry) {
            remove_kept(&kept);
        }
    }
}

/// Removes a part on another mount, and what it lies in, if nobody else has a part in that; whether it is gone.
pub(crate) fn remove(part: &OverlayPart) -> bool {
    // Where its mount is another by now, as one in memory is after a reboot, what is found at its place may be
    // anybody's.
    if !private_place::is_private(&part.base) {
        return true;
    }
    let is_gone = part.remove_empty() || remove_all(&part.base).is_ok() || !part.base.exists();
    if let Some(hidden) = part.base.parent() {
        let _ = std::fs::remove_dir(hidden);
    }
    is_gone
}

/// Removes a directory with everything in it, whether it is protected or not. What is mounted in it, if ever anything
/// is, is not what was thrown away, and keeps the rest.
fn remove_all(directory: &Path) -> Result<(), RemovalError> {
    nothing_is_mounted_in(directory, &[])?;
    remove_tree_with(directory, Protected::Go)
}

fn entries(trash: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(trash).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The parts that a transaction that was thrown away has on other mounts.
fn parts_elsewhere(home: &StateDirectory, thrown: &Path) -> Vec<OverlayPart> {
    let parts = Record::read(thrown).map(|record| record.parts).unwrap_or_default();
    parts.iter().filter(|part| is_elsewhere(home, part)).map(OverlayPart::on_disk).collect()
}

/// What was kept at the roots of other mounts for what was thrown away: an entry of the log, or a transaction that
/// never became one. What became one has its entry there, and not here.
fn kept_elsewhere(thrown: &Path) -> Vec<PathBuf> {
    let entry = thrown.join(ENTRY);
    if !entry.exists() {
        return Vec::new();
    }
    let journal = JournalFile::of(&entry).read().ok().flatten();
    let of_entry = journal.into_iter().flat_map(|journal| journal.parts).map(|(part, _)| part);
    let of_transaction = Record::read(thrown).map(|record| record.parts).unwrap_or_default();
    of_entry.chain(of_transaction).filter_map(|part| part.kept_beside()).collect()
}

/// Removes what was kept at the root of another mount; whether it is gone.
fn remove_kept(kept: &Path) -> bool {
    if !private_place::is_private(kept) {
        return true;
    }
    let is_gone = remove_all(kept).is_ok() || !kept.exists();
    if let Some(hidden) = kept.parent() {
        let _ = std::fs::remove_dir(hidden);
    }
    is_gone
}

/// How many names are in what was thrown away, counted up to `most`.
pub fn rubbish(home: &StateDirectory, most: usize) -> usize {
    let trash = home.trash();
    let parts = entries(&trash).flat_map(|entry| parts_elsewhere(home, &entry)).map(|part| part.base);
    parts.chain([trash.clone()]).fold(0, |count, place| count_below(&place, count, most))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::private_place::HIDDEN;
    use crate::tree::attributes::Moment;

    /// A transaction that was thrown away, with two parts on another mount.
    fn thrown_away(home: &StateDirectory, mount: &Path) {
        home.prepare().unwrap();
        let name = "t".parse().unwrap();
        let hidden = mount.join(HIDDEN);
        let part = |at: &str| OverlayPart::new(mount.to_owned(), hidden.join(at));
        let parts = vec![part("0.t"), part("1.t")];
        for part in &parts {
            part.make().unwrap();
        }
        std::fs::write(parts[1].upper().join("new"), "").unwrap();
        std::fs::create_dir(home.of(&name)).unwrap();
        let begun = Moment { seconds: 0, nanoseconds: 0 };
        let record = Record {
            name: name.clone(),
            begun,
            clock: None,
            first_begun: None,
            parts,
            roots: Vec::new(),
            target: None,
            group: PathBuf::new(),
            holder: 1,
            holder_started: 0,
            places: Vec::new(),
            listener: None,
            synchronous_writes: false,
            baselines: Vec::new(),
            known_names: Vec::new(),
            ignored: Vec::new(),
            user: None,
            lost: None,
            command: Vec::new(),
        };
        record.write(&home.of(&name)).unwrap();
        throw_away(home, &home.of(&name)).unwrap();
        assert!(!home.of(&name).exists() && rubbish(home, 100) > 2);
    }

    #[test]
    fn what_was_thrown_away_is_swept_with_its_parts_on_other_mounts() {
        let [root, mount] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let home = StateDirectory::new(root.path());
        thrown_away(&home, mount.path());
        sweep(&home);
        assert!(!mount.path().join(HIDDEN).exists());
        assert_eq!(rubbish(&home, 100), 0);
    }

    #[test]
    fn parts_on_other_mounts_go_also_if_the_home_was_removed_meanwhile_and_stay_as_long_as_it_may_need_them() {
        let [root, mount] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let home = StateDirectory::new(root.path());
        thrown_away(&home, mount.path());
        let later = Sweep::of(&home);
        // It is a transaction again, that of a commit that was killed for example.
        let thrown = entries(&home.trash()).next().unwrap();
        std::fs::rename(thrown, home.directory().join("t")).unwrap();
        later.run();
        assert!(mount.path().join(HIDDEN).join("1.t").exists());
        pando_kernel::file::tree_removal::remove_tree(home.directory()).unwrap();
        later.run();
        assert!(!mount.path().join(HIDDEN).exists());
    }

    #[test]
    fn a_home_that_was_made_in_the_place_of_theirs_does_not_keep_them() {
        let [root, mount] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let home = StateDirectory::new(root.path());
        thrown_away(&home, mount.path());
        let later = Sweep::of(&home);
        pando_kernel::file::tree_removal::remove_tree(home.directory()).unwrap();
        home.prepare().unwrap();
        later.run();
        assert!(!mount.path().join(HIDDEN).exists());
    }
}
