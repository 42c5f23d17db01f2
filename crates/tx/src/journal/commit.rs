//! From the directories that a transaction leaves to the live tree.
//!
//! ```text
//!   upper, index ─walk─▶ Node ─validate─▶ ─plan─▶ Steps ─▶ sync ─▶ revalidate ─▶ journal (the commit point)
//!   └───────────────── change_set ────────────────────┘ └─ prepare ────────────┘        │
//!                   journal closed ◀─ sync ◀─ apply ◀───────────────────────────────────┘
//!                   └── a crash after the commit point is finished by `recover` ──┘
//! ```

use crate::change::Steps;
use crate::crash::step;
use crate::journal::apply::{Apply, ApplyError};
use crate::journal::commit_error::CommitError;
use crate::journal::file::{Journal, JournalFile};
use crate::journal::order::keeps_names;
use crate::journal::prepare::{Prepared, sync};
use crate::journal::progress::Progress;
use crate::state::overlay_part::OverlayPart;
use crate::state::private_place;
use crate::state::target::Target;
use std::rc::Rc;

/// Commits what was prepared. `applied` is called as soon as everything is in place, before it is waited for the disk.
pub(crate) fn commit(prepared: &Prepared, applied: impl FnOnce()) -> Result<(), CommitError> {
    let Prepared { file, journal, ordered, looked, .. } = prepared;
    if journal.parts.is_empty() {
        return Ok(());
    }
    step();
    let failed = |source| CommitError::Prepare { what: "writing the journal".into(), source };
    let has_target = journal.parts.iter().any(|(part, _)| part.target.is_some());
    let progress = if has_target { Progress::default() } else { Progress::begin(file, *looked) };
    file.publish().map_err(failed)?;
    // It is committed from here on, whatever fails.
    if journal.durable && !ordered {
        file.sync_name().map_err(|source| ApplyError::new("bringing the journal's name to the disk", source))?;
    }
    apply(file, journal, Circumstances { again: false, ordered: *ordered }, progress, applied)
}

/// What a commit can rely on when it is applied.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    /// Whether some of it may have been done before.
    again: bool,
    /// Whether the [order](crate::journal::order) of all that it does is kept, also that of its journal's closing.
    ordered: bool,
}

/// Does what a journal that was found says, from the start, and closes it.
pub(crate) fn finish(file: &JournalFile, journal: &Journal) -> Result<(), CommitError> {
    let taken_up = if journal.parts.iter().any(|(part, _)| part.target.is_some()) {
        Ok(Progress::default())
    } else {
        Progress::take_up(file)
    };
    let progress = taken_up.map_err(|source| ApplyError::new("reading how far the commit is", source))?;
    apply(file, journal, Circumstances { again: true, ordered: false }, progress, || ())
}

fn apply(
    file: &JournalFile,
    journal: &Journal,
    circumstances: Circumstances,
    progress: Progress,
    applied: impl FnOnce(),
) -> Result<(), CommitError> {
    let Circumstances { again, ordered } = circumstances;
    let target = journal.parts.iter().find_map(|(part, _)| part.target.as_ref());
    let owner = target.map(Target::owner).transpose();
    let _as_its_owner = owner.map_err(|source| ApplyError::new("taking on the ids of its owner", source))?;
    let progress = Rc::new(progress);
    let within = file.read_within().map_err(|source| ApplyError::new("reading what the commit may change", source))?;
    let trees: Vec<_> = journal
        .parts
        .iter()
        .zip(0..)
        .filter(|((part, _), _)| !is_lost_memory(part) && !part.is_gone())
        .map(|((part, steps), number)| {
            let privileged = journal.privileged.iter().filter(|one| one.part == number);
            let trees = Apply::new(part, steps, (again, journal.kept.is_some()), &progress)?;
            // A part that is not spoken of there may be changed nowhere.
            let directories = |all: &Vec<_>| all.get(number as usize).cloned().unwrap_or_default();
            let trees = trees.within(within.as_ref().map(directories), steps);
            Ok((trees.with_privileged(privileged, steps), part, steps))
        })
        .collect::<Result<_, ApplyError>>()?;
    if !file.is_applied() {
        do_all(file, (journal.durable && !ordered, again), &trees)?;
        applied();
        if journal.durable && !ordered {
            sync(trees.iter().map(|(_, part, _)| *part)).map_err(ApplyError::from)?;
        }
        // What was put aside in a target must be gone before the target goes on, and must not be looked for after that.
        if target.is_some() {
            let marked = file.mark_applied(journal.durable);
            marked.map_err(|source| ApplyError::new("noting how far the commit is", source))?;
        }
    }
    for (apply, _, steps) in &trees {
        apply.clear(steps)?;
    }
    step();
    // A journal that came back would undo what others have brought to the disk since, and look for parts on other file
    // systems, which are thrown away next. Where the order is kept, to wait for this is to wait for everything, and for
    // nothing that others have written.
    file.mark_done(journal.durable).map_err(|source| ApplyError::new("closing the journal", source))?;
    trees.iter().for_each(|(apply, _, steps)| apply.unlink_staged(steps));
    step();
    Ok(())
}

fn do_all(
    file: &JournalFile,
    (waits, again): (bool, bool),
    trees: &[(Apply, &OverlayPart, &Steps)],
) -> Result<(), CommitError> {
    if file.is_staged() {
        if again {
            trees.iter().try_for_each(|(apply, _, steps)| apply.stage_links_again(steps))?;
        }
    } else {
        for (apply, part, steps) in trees {
            // Whatever it kept free is needed from now on. Where it is gone already, this is a recovery.
            let _ = std::fs::remove_file(part.room());
            apply.stage(steps)?;
        }
        step();
        let staging = || trees.iter().filter(|(_, _, steps)| !steps.stage.is_empty());
        if staging().next().is_some() {
            if waits {
                // The mark must not be on the disk before what it tells of.
                let is_in_order =
                    |part: &OverlayPart| part.target.is_none() && file.is_beside(&part.base) && keeps_names(&part.base);
                let mut others = staging().filter(|(_, part, _)| !is_in_order(part));
                others.try_for_each(|(apply, ..)| apply.sync_stage())?;
            }
            file.mark_staged().map_err(|source| ApplyError::new("noting how far the commit is", source))?;
        }
    }
    for (apply, _, steps) in trees {
        apply.change(steps)?;
    }
    step();
    Ok(())
}

/// Whether a part was on a file system in memory that is gone, with all that was on it: the machine has lost its power
/// since. Any other file system whose part is missing is one that is not mounted yet. What somebody else has put in its
/// place is not the part.
fn is_lost_memory(part: &OverlayPart) -> bool {
    !(private_place::is_private(&part.base) && part.base.exists())
        && rustix::fs::statfs(&part.live).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC)
}
