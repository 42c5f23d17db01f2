//! Contention: which of two transactions goes on when one is about to commit what the other has read or changed.
//!
//! ```text
//!   changes of the one that commits ─┬─▶ overlap ─▶ a rival that is favoured?  wait for its end, and validate again
//!   what a rival has looked up so far ┘         └─▶ committed: the rival is doomed, and stopped
//! ```
//!
//! TxOS's paper, section 4.5: a policy that the administrator sets, by default in favour of the higher scheduling
//! priority.

use crate::change::Sign;
use crate::state::directory::{StateDirectory, wait_for_lock};
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::tree::confined::Tree;
use crate::tree::path::TreePath;
use crate::validate::abort_reason::AbortReason;
use crate::validate::change_set::PartChanges;
use crate::validate::read_set::{Looked, looked_so_far, pandos_own};
use pando_kernel::file::lock::FileLock;
use pando_kernel::process;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a commit waits for a rival that is favoured. One that takes longer has its turn like any other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which of two transactions is favoured when they meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Contention {
    /// The one with the higher scheduling priority; of equals, the first that commits.
    #[default]
    Priority,
    /// The one that was begun first, its first run counting.
    Oldest,
    /// The first that commits.
    First,
}

impl Contention {
    fn favours(self, rival: &Record, me: &Record) -> bool {
        // No user has root wait for him.
        if rival.user.is_some() {
            return false;
        }
        let urgency = |record: &Record| process::priority(record.holder).ok();
        match self {
            Self::Priority => matches!((urgency(rival), urgency(me)), (Some(rival), Some(me)) if rival < me),
            Self::Oldest => rival.age() < me.age(),
            Self::First => false,
        }
    }
}

/// Names that a commit changes, by mount.
#[derive(Debug)]
pub(crate) struct Changed(Vec<(PathBuf, HashMap<TreePath, Sign>)>);

impl Changed {
    pub(crate) fn of(changes: &[PartChanges]) -> Self {
        let names = |part: &PartChanges| part.changes.iter().map(|one| (one.path.clone(), one.sign)).collect();
        Self(changes.iter().map(|part| (part.part.live.clone(), names(part))).collect())
    }
}

/// Another transaction that runs a command of its own. One that is entered may stay open for hours: nobody waits for
/// it, and what becomes of it is seen when it commits.
#[derive(Debug)]
pub(crate) struct Rival {
    directory: PathBuf,
    record: Record,
}

/// The transactions beside one that live.
pub(crate) fn rivals(home: &StateDirectory, me: &Record) -> Vec<Rival> {
    let others = home.records().unwrap_or_default().into_iter();
    let others = others.filter(|record| record.name != me.name && !record.command.is_empty());
    let rivals = others.map(|record| Rival { directory: home.of(&record.name), record });
    rivals.filter(|rival| matches!(FileLock::try_take(&Record::lock(&rival.directory)), Ok(None))).collect()
}

/// A rival that is favoured, and that a commit of these changes would doom.
pub(crate) fn favoured<'a>(
    contention: Contention,
    home: &StateDirectory,
    me: &Record,
    changed: &Changed,
    rivals: &'a [Rival],
) -> Option<&'a Rival> {
    let favoured = rivals.iter().filter(|rival| contention.favours(&rival.record, me));
    favoured.into_iter().find(|rival| rival.meets(home, changed).is_some())
}

/// Stops those that a commit of these changes has doomed: they find out why, and are run again.
pub(crate) fn doom(home: &StateDirectory, changed: &Changed, rivals: &[Rival]) {
    for rival in rivals {
        if let Some(path) = rival.meets(home, changed) {
            let words = format!("{} was changed by another transaction", path.display());
            // One that ends just now is validated, which says the same.
            doom_by(&rival.directory, &Scope::at(&rival.record.group), &words);
        }
    }
}

/// Stops the transaction that is kept in a directory, and says why.
pub(crate) fn doom_by(directory: &Path, scope: &Scope, words: &str) {
    let _ = std::fs::write(doomed_mark(directory), words);
    let _ = scope.kill_unseen();
}

/// Why a transaction was stopped, if it was.
pub(crate) fn doomed(directory: &Path) -> Option<AbortReason> {
    std::fs::read_to_string(doomed_mark(directory)).ok().map(AbortReason::CommittedBefore)
}

fn doomed_mark(directory: &Path) -> PathBuf {
    directory.join("doomed")
}

impl Rival {
    /// Waits until it has ended, at most [`PATIENCE`].
    pub(crate) fn wait_for_end(&self) {
        // Its directory is gone with it, which is an error here.
        let _ = wait_for_lock(&Record::lock(&self.directory), Some(PATIENCE));
    }

    /// A path that changes, and that it has looked up or changed.
    fn meets(&self, home: &StateDirectory, changed: &Changed) -> Option<PathBuf> {
        let sets = self.view().and_then(|view| looked_so_far(home, &view, &self.record.parts).ok()).unwrap_or_default();
        changed.0.iter().find_map(|(live, names)| {
            let part = self.record.parts.iter().find(|part| part.live == *live)?;
            let looked = sets.iter().find(|(other, _)| other.is(part)).map_or(&[][..], |(_, looked)| looked);
            let met = wrote(part, names).or_else(|| self.looked(part, looked, names))?;
            Some(live.join(met.as_path()))
        })
    }

    fn looked(&self, part: &OverlayPart, looked: &[Looked], names: &HashMap<TreePath, Sign>) -> Option<TreePath> {
        let below = |path: &PathBuf| {
            use std::os::unix::ffi::OsStrExt;
            TreePath::new(path.strip_prefix(&part.live).ok()?.as_os_str().as_bytes())
        };
        let places: Vec<TreePath> = self.record.places.iter().filter_map(below).collect();
        let pandos = pandos_own(looked, &places);
        let matters = |one: &&Looked| {
            let is_ignored = || self.record.ignored.iter().any(|at| part.live.join(one.path.as_path()).starts_with(at));
            !pandos.contains(&one.path)
                && match names.get(&one.path) {
                    Some(Sign::Added) => one.found.is_none(),
                    Some(Sign::Changed) => one.found.is_some() && !one.directory,
                    Some(Sign::Removed) => one.found.is_some(),
                    None => is_in_removed(&one.path, names),
                }
                && !is_ignored()
        };
        looked.iter().find(matters).map(|one| one.path.clone())
    }

    /// A path that leads into its view: the root of one of its processes. In a target, whose processes may have other
    /// roots, that of who holds it.
    fn view(&self) -> Option<PathBuf> {
        if self.record.target.is_some() {
            let is_there = self.record.holder().is_there();
            return is_there.then(|| PathBuf::from(format!("/proc/{}/root/", self.record.holder)));
        }
        let roots = Scope::at(&self.record.group).processes().into_iter().map(|pid| format!("/proc/{pid}/root/"));
        let is_view = |root: &String| {
            rustix::fs::statfs(root.as_str()).is_ok_and(|found| found.f_type == libc::OVERLAYFS_SUPER_MAGIC)
        };
        roots.into_iter().find(is_view).map(PathBuf::from)
    }
}

/// A path that changes, and that a transaction has changed too.
fn wrote(part: &OverlayPart, names: &HashMap<TreePath, Sign>) -> Option<TreePath> {
    use rustix::fs::FileType;
    let upper = Tree::open(&part.upper()).ok()?;
    let is_there = |path: &TreePath, sign: Sign| {
        let found = upper.look(path).ok().flatten();
        // A directory is there as soon as anything in it was changed.
        found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory || sign == Sign::Removed)
    };
    names.iter().find(|(path, sign)| is_there(path, **sign)).map(|(path, _)| path.clone())
}

fn is_in_removed(path: &TreePath, names: &HashMap<TreePath, Sign>) -> bool {
    let mut at = path.split().map(|(around, _)| around);
    while let Some(around) = at {
        if names.get(&around) == Some(&Sign::Removed) {
            return true;
        }
        at = around.split().map(|(around, _)| around);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_in_a_removed_directory_is_removed() {
        let names = HashMap::from([(path("a/b"), Sign::Removed), (path("c"), Sign::Changed)]);
        assert!(is_in_removed(&path("a/b/d/e"), &names));
        assert!(!is_in_removed(&path("a/x"), &names) && !is_in_removed(&path("c/d"), &names));
    }

    #[test]
    fn what_a_transaction_wrote_is_met_and_a_directory_it_wrote_in_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let part = OverlayPart::new("/".into(), directory.path().to_owned());
        std::fs::create_dir_all(part.upper().join("d")).unwrap();
        std::fs::write(part.upper().join("d/f"), "").unwrap();
        let met = |at: &str, sign| wrote(&part, &HashMap::from([(path(at), sign)])).is_some();
        assert!(met("d/f", Sign::Changed) && met("d", Sign::Removed));
        assert!(!met("d", Sign::Changed) && !met("d/g", Sign::Added));
    }

    #[test]
    fn who_is_favoured_is_what_the_settings_say() {
        #[derive(Deserialize)]
        struct Settings {
            contention: Contention,
        }
        let read = |text: &str| serde_json::from_str::<Settings>(text).map(|settings| settings.contention).ok();
        assert_eq!(read(r#"{"contention": "oldest"}"#), Some(Contention::Oldest));
        assert_eq!(read(r#"{"contention": "newest"}"#), None);
    }
}
