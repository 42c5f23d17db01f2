//! What the store costs, and which guest costs it.

use crate::{LayerId, Store, StoreError, deep_stack, image};
use composefs::fsverity::Sha256HashValue;
use composefs::generic_tree::LeafContent;
use composefs::tree::RegularFile;
use pando_kernel::Context;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes in a block of stat(2).
const BLOCK: u64 = 512;

/// What the store takes of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of objects, images of layers included.
    pub objects: u64,
    /// Bytes of disk that they take.
    pub bytes: u64,
    /// What each of its layers takes.
    pub layers: Vec<LayerUsage>,
}

/// What a layer takes of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerUsage {
    /// The layer that this is about.
    pub layer: LayerId,
    /// Its files, each hard-linked one once.
    pub files: u64,
    /// Bytes of disk of its image.
    pub image: u64,
    /// Bytes of disk of objects that no other layer has.
    pub own: u64,
    /// Bytes of disk of objects that other layers have too.
    pub shared: u64,
    /// Bytes of disk that its files would take without a store.
    pub apart: u64,
}

impl Store {
    /// Counts what objects and layers take of the disk.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        let _lease = self.lease()?;
        deep_stack::run(|| self.add_up())
    }

    fn add_up(&self) -> Result<Usage, StoreError> {
        let mut contents: Vec<(LayerId, [u64; 2], HashSet<Sha256HashValue>)> = Vec::new();
        let mut users: HashMap<Sha256HashValue, u32> = HashMap::new();
        for layer in self.layers()? {
            let tree = image::read(self, &layer)?;
            let mut apart = 0;
            let mut objects = HashSet::new();
            for leaf in &tree.leaves {
                if let LeafContent::Regular(RegularFile::External(digest, _)) = &leaf.content {
                    apart += self.disk(digest);
                    objects.insert(digest.clone());
                }
            }
            objects.iter().for_each(|digest| *users.entry(digest.clone()).or_default() += 1);
            contents.push((layer, [tree.leaves.len() as u64, apart], objects));
        }
        let layers = contents.into_iter().map(|(layer, [files, apart], objects)| {
            let (own, shared): (Vec<_>, Vec<_>) = objects.iter().partition(|digest| users[digest] == 1);
            let sum = |digests: Vec<&Sha256HashValue>| digests.into_iter().map(|digest| self.disk(digest)).sum();
            let image = self.disk(&layer.digest());
            LayerUsage { layer, files, image, own: sum(own), shared: sum(shared), apart }
        });
        let (objects, bytes) = self.total()?;
        Ok(Usage { objects, bytes, layers: layers.collect() })
    }

    fn disk(&self, digest: &Sha256HashValue) -> u64 {
        self.object(digest).metadata().map_or(0, |object| object.blocks() * BLOCK)
    }

    pub(crate) fn total(&self) -> Result<(u64, u64), StoreError> {
        let (mut objects, mut bytes) = (0, 0);
        let read = |path: &Path| std::fs::read_dir(path).context(|| format!("reading {}", path.display()));
        for directory in read(&self.objects())?.flatten() {
            for object in read(&directory.path())?.flatten() {
                objects += 1;
                bytes += object.metadata().map_or(0, |object| object.blocks() * BLOCK);
            }
        }
        Ok((objects, bytes))
    }
}
