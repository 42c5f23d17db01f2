//! What a crash left: finished if it was committed, removed if it was not.

use crate::crash::planted;
use crate::gate;
use crate::journal::commit::finish;
use crate::journal::commit_error::CommitError;
use crate::journal::file::{Journal, JournalFile};
use crate::journal::meeting::Touched;
use crate::journal::staging::StagingArea;
use crate::log;
use crate::prewarm::prewarmed;
use crate::state::commit_mark::CommitMark;
use crate::state::directory::{StateDirectory, wait_for_lock};
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::state::target::Target;
use crate::state::trash;
use crate::transaction::end_holder;
use pando_kernel::process::identity::ProcessId;
use pando_kernel::{CallError, Context};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// What became of a transaction.
#[derive(Debug)]
pub enum Recovered {
    /// It was committed, and is in place now.
    Finished(TxName),
    /// It was not, and left no trace.
    Dropped(TxName),
    /// It was committed, in a target that does not run: it is finished when that is put together again, before anything
    /// runs there.
    Waits(TxName),
    /// It cannot be finished now.
    Stuck(TxName, CommitError),
}

/// Looks at every transaction whose process is gone.
///
/// # Errors
///
/// Where the transactions cannot be listed. What goes wrong with one is its own matter.
pub fn recover(home: &StateDirectory) -> Result<Vec<Recovered>, CallError> {
    recover_in(home, None)
}

/// The same for the transactions of a target, which has just been put together: nothing runs in it yet. `root` leads to
/// its root directory.
pub fn recover_in(home: &StateDirectory, target: Option<(&Path, u32)>) -> Result<Vec<Recovered>, CallError> {
    if !home.directory().exists() {
        return Ok(Vec::new());
    }
    let _lock = home.lock()?;
    let mut recovered = Vec::new();
    for name in home.names()? {
        // One whose processes do not end, for example, keeps no other from being looked at.
        let stuck = |error: CallError| {
            Recovered::Stuck(name.clone(), CommitError::Prepare { what: error.what, source: error.source })
        };
        recovered.extend(recover_one(home, name.clone(), target).unwrap_or_else(|error| Some(stuck(error))));
    }
    gate::open_again(home);
    prewarmed::clear(home);
    trash::sweep(home);
    Ok(recovered)
}

/// Finishes commits of the host whose processes have ended behind the commit point: whoever commits next would change
/// what they have not changed yet, and be undone by them later. One of a user who is not root that cannot be finished
/// keeps nobody else from committing, but for [what it is to change](is_apart_from_unfinished).
///
/// # Errors
///
/// Where one of root's cannot be finished.
pub(crate) fn finish_published(home: &StateDirectory) -> Result<(), CommitError> {
    let failed = |error: CallError| CommitError::Prepare { what: error.what, source: error.source };
    if planted("unfinished-before") {
        return Ok(());
    }
    for name in home.names().map_err(failed)? {
        let directory = home.of(&name);
        let file = JournalFile::of(&directory);
        if !file.is_published() {
            continue;
        }
        let what = || format!("locking {}", directory.display());
        let lock = wait_for_lock(&Record::lock(&directory), Some(Duration::ZERO)).context(what).map_err(failed)?;
        let read = |source| CommitError::Prepare { what: format!("reading the journal of '{name}'"), source };
        let Some(_held) = lock else { continue };
        match file.read().map_err(read)? {
            Some(journal) if journal.parts.iter().all(|(part, _)| part.target.is_none()) => {
                match finish(&file, &journal) {
                    // Nobody who commits now can change what lies on file systems that are not mounted.
                    Err(_) if journal.parts.iter().all(|(part, _)| part.is_unmounted()) => continue,
                    // What a user cannot have finished is an error to nobody but him.
                    Err(_) if file.is_users() => continue,
                    finished => finished?,
                }
            }
            _ => continue,
        }
        log::add(home, &directory).map_err(failed)?;
        let what = || format!("removing {}", directory.display());
        trash::throw_away(home, &directory).context(what).map_err(failed)?;
    }
    Ok(())
}

/// Fails where a commit changes what one of a user's is to change that could not be [finished](finish_published), and
/// that would undo it later.
pub(crate) fn is_apart_from_unfinished(
    home: &StateDirectory,
    me: &TxName,
    journal: &Journal,
) -> Result<(), CommitError> {
    let failed = |error: CallError| CommitError::Prepare { what: error.what, source: error.source };
    let mut touched = None;
    for name in home.names().map_err(failed)?.into_iter().filter(|name| name != me) {
        let file = JournalFile::of(&home.of(&name));
        if !(file.is_published() && file.is_users()) {
            continue;
        }
        let read = |source| CommitError::Prepare { what: format!("reading the journal of '{name}'"), source };
        let Some(unfinished) = file.read().map_err(read)? else { continue };
        let both = touched.get_or_insert_with(|| Touched::by(journal)).meets(&Touched::by(&unfinished));
        if let Some(path) = both {
            let words =
                format!("'{name}', a user's commit, changes it too and is not finished: `pando tx recover` says why");
            return Err(CommitError::Prepare {
                what: format!("changing {}", path.display()),
                source: std::io::Error::other(words),
            });
        }
    }
    Ok(())
}

fn recover_one(
    home: &StateDirectory,
    name: TxName,
    target: Option<(&Path, u32)>,
) -> Result<Option<Recovered>, CallError> {
    let directory = home.of(&name);
    let what = || format!("locking {}", directory.display());
    let _held = match wait_for_lock(&Record::lock(&directory), Some(Duration::ZERO)).context(what)? {
        Some(lock) => lock,
        None => match held_in_vain(&directory).context(what)? {
            Some(holder) => end_holder(&directory, holder).context(what)?,
            None => return Ok(None),
        },
    };
    // Without a record nothing but its directory was made.
    let record = Record::read(&directory).ok();
    if let Some(record) = &record {
        let scope = Scope::at(&record.group);
        scope.kill()?;
        scope.remove();
    }
    let file = JournalFile::of(&directory);
    let read = file.read().map(|journal| {
        journal.map(|journal| match target {
            Some((root, first_id)) => journal.moved_to(root, first_id),
            None => journal,
        })
    });
    let outcome = match read {
        Ok(Some(journal)) if waits_for_its_target(&journal) => return Ok(Some(Recovered::Waits(name))),
        Ok(Some(journal)) => match finish(&file, &journal) {
            Ok(()) => Recovered::Finished(name),
            Err(error) => return Ok(Some(Recovered::Stuck(name, error))),
        },
        Ok(None) if file.is_done() => Recovered::Finished(name),
        Ok(None) => {
            record.iter().flat_map(|record| &record.parts).for_each(|part| forget(part, target));
            Recovered::Dropped(name)
        }
        Err(source) => {
            let error =
                CommitError::Prepare { what: format!("reading the journal in {}", directory.display()), source };
            return Ok(Some(Recovered::Stuck(name, error)));
        }
    };
    if matches!(outcome, Recovered::Finished(_)) {
        log::add(home, &directory)?;
    }
    trash::throw_away(home, &directory).context(|| format!("removing {}", directory.display()))?;
    Ok(Some(outcome))
}

/// Removes what the preparation of a commit has left in a target, as far as that is there. What stays the next commit
/// removes.
fn forget(part: &OverlayPart, again: Option<(&Path, u32)>) {
    let mut part = part.clone();
    let Some(target) = &mut part.target else { return };
    if let Some((root, first_id)) = again {
        target.live_again(root, first_id);
    }
    let target = target.clone();
    let _ = part.live_tree().and_then(|live| StagingArea::forget(&target, &live));
}

/// Who holds a transaction that nobody can go on with: the one that ran its command was killed while he committed it.
/// One that was begun to be entered can still be looked at, and is aborted by hand; its processes go on until then.
fn held_in_vain(directory: &Path) -> std::io::Result<Option<ProcessId>> {
    if !CommitMark::was_interrupted(directory)? {
        return Ok(None);
    }
    let Ok(record) = Record::read(directory) else { return Ok(None) };
    if record.command.is_empty() {
        let _ = Scope::at(&record.group).freeze(false);
        return Ok(None);
    }
    Ok(Some(record.holder()))
}

/// Whether there is nothing at present that a commit's changes could be made to.
fn waits_for_its_target(journal: &Journal) -> bool {
    let missing = |target: &Target| target.root().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    journal.parts.iter().filter_map(|(part, _)| part.target.as_ref()).any(missing)
}
