//! Flattening: a guest at rest gets one layer of all that it shows, and begins anew with no files of its own. What it
//! shares with others is then shared.
//!
//! What it shows stays the same. The guest's files and the record of its layers have to change together, and are two:
//! so the new files say which layer they belong over, one exchange of names puts them in place, and whoever finds such
//! a note has the record follow.
//!
//! ```text
//!   files.new/{upper, work, folded}    on the disk, then exchanged with files/: from here on it is done
//!   guest.toml                         names the new layer; then the note goes, then the old files
//! ```

use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::{FILES, GuestRecord, RECORD};
use crate::store::{layers, trash, unused_layers};
use crate::{crash, failure};
use pando_api::Fault;
use pando_guest::Places;
use pando_guest::root::{self, LayerStore, Root};
use pando_kernel::{CallError, Context, process::io_priority};
use pando_store::{ImportError, Lease, Taking, dress_like};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// The files that are to come, and after the exchange those that were.
const NEW: &str = "files.new";
/// The note inside of them: over which layer they belong.
const NOTE: &str = "folded";

/// Who waits for a guest to be flattened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Somebody who wants to start it.
    Awaited,
    /// Nobody: whoever else wants the disk goes first.
    Idle,
}

/// Flattens a guest that does not run and that nobody else works on.
pub(crate) async fn flatten(daemon: &Rc<Daemon>, guest: &Rc<Guest>, pace: Pace) -> Result<(), Fault> {
    let directory = guest.directory(&daemon.places);
    let root = layers::root(&daemon.places, guest);
    let (places, store) = (daemon.places.clone(), Arc::clone(&daemon.store));
    let fault = |error: ImportError| match error {
        ImportError::Store(error) => failure::store("unifying a guest's files", guest.name.as_ref(), &error),
        other => failure::bad(guest.name.as_ref(), format!("guest '{}' cannot be unified: {other}", guest.name)),
    };
    let work = move || at_pace(pace, || make(&places, &root, &directory, &store));
    let (layer, lease) = crate::store::collect::blocking(work).await?.map_err(fault)?;
    let before = std::mem::replace(&mut guest.record.borrow_mut().layers, vec![layer]);
    let record = guest.record.borrow().clone();
    let directory = guest.directory(&daemon.places);
    follow(&daemon.places, &directory, &record)
        .map_err(|error| failure::call("noting a guest's new layer", guest.name.as_ref(), &error))?;
    drop(lease);
    unused_layers::discard_unused(daemon, &before);
    Ok(())
}

/// Does work at a pace: an idle one on a thread of its own, whose priority the threads that it starts inherit.
pub(crate) fn at_pace<T: Send>(pace: Pace, work: impl FnOnce() -> T + Send) -> T {
    if pace == Pace::Awaited {
        return work();
    }
    let idly = || {
        // Where the kernel does not let it, it is as greedy as anybody.
        let _ = io_priority::idle();
        work()
    };
    std::thread::scope(|scope| scope.spawn(idly).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Makes the layer and puts the new files in place.
fn make(places: &Places, root: &Root, directory: &Path, store: &LayerStore) -> Result<(String, Lease), ImportError> {
    root::prepare(&root.files)?;
    let whole = root.mount(None, store)?;
    crash::point("fold.begun");
    let shown = PathBuf::from(format!("/proc/self/fd/{}", whole.tree.as_fd().as_raw_fd()));
    let imported = store.open()?.store().import(&shown, Taking::Copy)?;
    crash::point("fold.imported");
    let layer = layers::word(&imported.layer);
    let new = directory.join(NEW);
    trash::discard(places, &new);
    root::prepare(&new)?;
    let upper = File::open(new.join("upper")).context(|| format!("opening {}", new.display()))?;
    // The root directory of a guest carries what its upper one carries.
    dress_like(whole.tree.as_fd(), upper.as_fd()).context(|| format!("preparing {}", new.display()))?;
    let note = || -> std::io::Result<()> {
        let mut note = File::create(new.join(NOTE))?;
        note.write_all(layer.as_bytes())?;
        note.sync_all()?;
        upper.sync_all()?;
        // All that is new; a barrier for the whole file system would wait for what others write.
        [new.join("work"), new.clone()].iter().try_for_each(|directory| File::open(directory)?.sync_all())
    };
    note().context(|| format!("preparing {}", new.display()))?;
    drop(whole);
    crash::point("fold.prepared");
    renameat_with(CWD, &new, CWD, directory.join(FILES), RenameFlags::EXCHANGE)
        .context(|| format!("putting {} in place", new.display()))?;
    sync(directory)?;
    crash::point("fold.exchanged");
    Ok((layer, imported.lease))
}

/// Has the record follow the files, and throws away the old ones.
fn follow(places: &Places, directory: &Path, record: &GuestRecord) -> Result<(), CallError> {
    record::write_kept(&directory.join(RECORD), record)?;
    crash::point("fold.recorded");
    let note = directory.join(FILES).join(NOTE);
    std::fs::remove_file(&note).context(|| format!("removing {}", note.display()))?;
    trash::discard(places, &directory.join(NEW));
    Ok(())
}

/// Finishes what a crash left half done: the answer is whether the record had to follow.
pub(crate) fn finish(places: &Places, directory: &Path, record: &mut GuestRecord) -> Result<bool, CallError> {
    let note = directory.join(FILES).join(NOTE);
    match std::fs::read_to_string(&note) {
        Ok(layer) => {
            record.layers = vec![layer];
            follow(places, directory, record).map(|()| true)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            trash::discard(places, &directory.join(NEW));
            Ok(false)
        }
        Err(error) => Err(error).context(|| format!("reading {}", note.display())),
    }
}

fn sync(directory: &Path) -> Result<(), CallError> {
    let sync = || File::open(directory)?.sync_all();
    sync().context(|| format!("bringing {} to the disk", directory.display()))
}
