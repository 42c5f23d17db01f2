//! Removing what nobody uses.

use crate::crash::{self, Mistake, planted};
use crate::store::Lease;
use crate::{LayerId, Store, StoreError, deep_stack, digest, publish};
use composefs::fsverity::FsVerityHashValue;
use pando_kernel::file::tree_removal::{nothing_is_mounted_in, remove_child};
use pando_kernel::{CallError, Context};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A store that nobody else works with, and in which nothing begins to be used.
#[derive(Debug)]
pub struct Exclusive {
    store: Store,
    _lock: Lease,
}

/// What a collection removed from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// The number of layers that were removed.
    pub layers: u64,
    /// The number of objects that were removed, images of layers included.
    pub objects: u64,
    /// Bytes of disk that the removed objects took.
    pub bytes: u64,
}

impl Store {
    /// Keeps everybody else out. Which layers are in use must be asked after this, not before: until then one may have
    /// been added.
    ///
    /// # Errors
    ///
    /// [`StoreError::Busy`] where a layer is being made, or was made and nobody has said yet that it is in use.
    pub fn exclusive(&self) -> Result<Exclusive, StoreError> {
        Ok(Exclusive { _lock: self.shut()?, store: self.clone() })
    }
}

impl Exclusive {
    /// Removes every layer that is not `used`, and every object that no used layer needs.
    ///
    /// # Errors
    ///
    /// Before anything is removed: where the image of a used layer is damaged, since what it needs cannot be known;
    /// where something is mounted in the store.
    pub fn collect(self, used: &HashSet<LayerId>) -> Result<Collected, StoreError> {
        let nothing = HashSet::new();
        let used = if planted(Mistake::CollectUsed) { &nothing } else { used };
        deep_stack::run(|| self.collect_deep(used))
    }

    fn collect_deep(&self, used: &HashSet<LayerId>) -> Result<Collected, StoreError> {
        let store = &self.store;
        self.check_mounts()?;
        let all = store.layers()?;
        for layer in all.iter().filter(|layer| used.contains(layer)) {
            self.check_image(layer)?;
        }
        let mut layers = 0;
        // A layer goes before what it needs: after a crash none is found that lacks something.
        for layer in all.iter().filter(|layer| !used.contains(layer)) {
            remove(&store.image(layer))?;
            layers += 1;
        }
        publish::sync_directory(&store.images())?;
        crash::point("store.forgotten");
        self.clear_farms(used)?;
        self.clear_directory(&store.staging(), |_| true)?;
        let (_, before) = store.total()?;
        let roots: Vec<String> = used.iter().map(LayerId::to_string).collect();
        let roots: Vec<&str> = roots.iter().map(String::as_str).collect();
        let removed = store.repository()?.gc(&roots).map_err(StoreError::repository("removing unused objects"))?;
        crash::point("store.collected");
        // Blocks of the disk, as `usage` counts them, and not the lengths of files.
        let (_, after) = store.total()?;
        Ok(Collected { layers, objects: removed.objects_removed, bytes: before.saturating_sub(after) })
    }

    /// What is mounted in the store is not ours to collect in. Objects may lie on a file system of their own, all of
    /// them.
    fn check_mounts(&self) -> Result<(), StoreError> {
        let store = self.store.path();
        let looked = nothing_is_mounted_in(store, &[store, &self.store.objects()]);
        Ok(looked.context(|| "nothing was collected".into())?)
    }

    /// An image that was changed by accident may name other objects than it did.
    fn check_image(&self, layer: &LayerId) -> Result<(), StoreError> {
        let path = self.store.image(layer);
        let read = || digest::of_file(&File::open(&path)?);
        let (found, _) = read().context(|| format!("reading {}", path.display()))?;
        if found == layer.digest() {
            return Ok(());
        }
        let reason = format!("its digest is {}: run 'pando store verify'", found.to_hex());
        Err(StoreError::repository(format!("the image of layer {layer} is damaged, and nothing was removed"))(reason))
    }

    /// Farms of unused layers go, and then the inodes that no farm has a link to.
    fn clear_farms(&self, used: &HashSet<LayerId>) -> Result<(), StoreError> {
        let is_used = |name: &str| name.parse().is_ok_and(|layer: LayerId| used.contains(&layer));
        self.clear_directory(&self.store.farms(), |entry| !entry.file_name().to_str().is_some_and(is_used))?;
        self.clear_directory(&self.store.inodes(), |entry| entry.metadata().is_ok_and(|inode| inode.nlink() == 1))
    }

    fn clear_directory(&self, path: &Path, is_unused: impl Fn(&std::fs::DirEntry) -> bool) -> Result<(), StoreError> {
        let reading = || format!("reading {}", path.display());
        let directory = File::open(path).context(reading)?;
        let entries = std::fs::read_dir(path).context(reading)?;
        for entry in entries.flatten().filter(is_unused) {
            remove_child(directory.as_fd(), &entry.file_name())
                .context(|| format!("removing {}", entry.path().display()))?;
        }
        Ok(())
    }
}

fn remove(path: &Path) -> Result<(), CallError> {
    std::fs::remove_file(path).context(|| format!("removing {}", path.display()))
}
