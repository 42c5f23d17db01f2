//! Clones that run, and are not on the disk yet.
//!
//! Making a clone takes less time than the disk takes to say that it has something. So a clone's directory comes with a
//! mark, made ahead: as long as it is there, the clone may have been made by halves. The mark goes, in the background,
//! once everything else is on the disk. Whoever finds a mark later keeps the clone only if it runs; a loss of power, or
//! of the daemon in the middle, leaves the whole clone or none of it.

use crate::runtime::idle::Idle;
use pando_guest::Places;
use pando_kernel::{CallError, Context};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// The mark, in a guest's directory.
const MARK: &str = "unsettled";

/// How long a clone may wait for the disk where clones are made all the time.
const LATEST: Duration = Duration::from_millis(500);

/// The clones that wait for the disk.
#[derive(Debug)]
pub(crate) struct Unsettled {
    places: Places,
    idle: Idle,
    directories: RefCell<Vec<PathBuf>>,
    writing: Cell<bool>,
}

/// Marks a clone's directory as not settled.
pub(crate) fn mark(directory: &Path) -> Result<(), CallError> {
    let path = directory.join(MARK);
    File::create(&path).map(drop).context(|| format!("making {}", path.display()))
}

/// Whether a guest's directory has the mark.
pub(crate) fn is_marked(directory: &Path) -> bool {
    directory.join(MARK).exists()
}

impl Unsettled {
    pub(crate) fn new(places: &Places, idle: Idle) -> Rc<Self> {
        let (directories, writing) = (RefCell::default(), Cell::new(false));
        Rc::new(Self { places: places.clone(), idle, directories, writing })
    }

    /// Has a clone's directory written to the disk, and the mark removed.
    pub(crate) fn settle(self: &Rc<Self>, directory: PathBuf) {
        self.directories.borrow_mut().push(directory);
        if self.writing.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        tokio::task::spawn_local(async move {
            loop {
                let _ = tokio::time::timeout(LATEST, this.idle.come()).await;
                let directories = this.directories.take();
                if directories.is_empty() {
                    break;
                }
                let places = this.places.clone();
                let written = tokio::task::spawn_blocking(move || write(&places, &directories)).await;
                if let Ok(Err(error)) = written {
                    tracing::warn!(%error, "clones are not known to be on the disk; a loss of power would lose them");
                }
            }
            this.writing.set(false);
        });
    }
}

/// Blocking. A clone that has been removed meanwhile is not missed.
fn write(places: &Places, directories: &[PathBuf]) -> Result<(), CallError> {
    let guests = places.guests();
    let what = || format!("writing {}", guests.display());
    let disk = File::open(&guests).context(what)?;
    rustix::fs::syncfs(&disk).context(what)?;
    for directory in directories {
        let _ = std::fs::remove_file(directory.join(MARK));
    }
    rustix::fs::syncfs(&disk).context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_goes_when_all_is_written() {
        let root = tempfile::tempdir().unwrap();
        let places = Places::new(root.path());
        let [kept, removed] = ["kept", "removed"].map(|name| places.guests().join(name));
        std::fs::create_dir_all(&kept).unwrap();
        mark(&kept).unwrap();
        assert!(is_marked(&kept));
        write(&places, &[kept.clone(), removed]).unwrap();
        assert!(!is_marked(&kept));
    }
}
