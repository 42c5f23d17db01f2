//! The commit of an import: the order in which things reach the disk.
//!
//! ```text
//!   1  barrier      the content of everything staged is on the disk
//!   2  names        each object by one rename
//!   3  barrier      the directories that got one are on the disk
//!   4  images/ID    the layer exists, and with it all that it needs
//!   5  barrier      and goes on existing
//! ```
//!
//! The first barrier is one for the whole file system where much is new, or where another import's barriers may be
//! missing: one that is under way, or has died or failed between 2 and 3, shows by its staging directory. Else it is
//! one for each new file: a user who wants one more guest does not wait for what all others have written.
//!
//! A crash before 4 leaves objects that nobody asks for, which the next collection removes; never a name without its
//! content.

use crate::crash::{self, Mistake, planted};
use crate::staging::Staging;
use crate::{LayerId, Store, StoreError};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue};
use pando_kernel::{CallError, Context};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

/// Gives a staged image and all that was staged with it their names.
pub(crate) fn publish(store: &Store, staging: &Staging<'_>, image: &Sha256HashValue) -> Result<LayerId, StoreError> {
    let layer = LayerId::from_digest(image);
    crash::point("store.staged");
    if planted(Mistake::WrongOrder) {
        name_layer(store, &layer)?;
        crash::point("store.named-early");
    }
    name_objects(store, staging)?;
    crash::point("store.objects");
    name_layer(store, &layer)?;
    crash::point("store.named");
    Ok(layer)
}

/// Brings staged objects to the disk, then among the others.
pub(crate) fn name_objects(store: &Store, staging: &Staging<'_>) -> Result<(), StoreError> {
    let staged = staging.staged();
    if !planted(Mistake::NoDataSync) {
        first_barrier(store, staging, &staged)?;
    }
    crash::point("store.synced");
    staging.unsettled();
    let mut touched = BTreeSet::new();
    for digest in &staged {
        let directory = store.objects().join(digest.to_object_dir());
        if touched.insert(directory.clone())
            && let Err(error) = std::fs::create_dir(&directory)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            Err(error).context(|| format!("making {}", directory.display()))?;
        }
        let path = store.object(digest);
        std::fs::rename(staging.path(digest), &path).context(|| format!("making {}", path.display()))?;
    }
    crash::point("store.renamed");
    touched.insert(store.objects());
    touched.iter().try_for_each(|directory| sync_directory(directory))?;
    staging.settled();
    Ok(())
}

/// How many new files have a barrier each at most. Of thousands each would take a commit of the journal.
const FEW: usize = 32;

/// What is staged, and the objects that are relied on, are on the disk.
fn first_barrier(store: &Store, staging: &Staging<'_>, staged: &[Sha256HashValue]) -> Result<(), CallError> {
    if staged.len() > FEW || !staging.is_alone() {
        return rustix::fs::syncfs(open(store.path())?).context(|| "bringing new objects to the disk".into());
    }
    staged.iter().try_for_each(|digest| {
        let path = staging.path(digest);
        open(&path)?.sync_all().context(|| format!("bringing {} to the disk", path.display()))
    })
}

/// A layer begins to exist.
fn name_layer(store: &Store, layer: &LayerId) -> Result<(), StoreError> {
    let path = store.image(layer);
    let target = Path::new("../objects").join(layer.digest().to_object_pathname());
    match std::os::unix::fs::symlink(&target, &path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).context(|| format!("making {}", path.display()))?;
        }
        _ => {}
    }
    Ok(sync_directory(&store.images())?)
}

/// Brings a directory's names to the disk.
pub(crate) fn sync_directory(path: &Path) -> Result<(), CallError> {
    if planted(Mistake::NoDirectorySync) {
        return Ok(());
    }
    open(path)?.sync_all().context(|| format!("bringing {} to the disk", path.display()))
}

fn open(path: &Path) -> Result<File, CallError> {
    File::open(path).context(|| format!("opening {}", path.display()))
}
