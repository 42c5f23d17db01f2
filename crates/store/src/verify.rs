//! Reading everything again, and naming the guests that damage concerns.

use crate::{LayerId, Store, StoreError, deep_stack, image};
use composefs::fsverity::{FsVerityHashValue, Sha256HashValue};
use composefs::generic_tree::{Inode, LeafContent};
use composefs::repository::FsckError;
use composefs::tree::{Directory, FileSystem, RegularFile};
use pando_kernel::Context;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a check of everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Objects that were read, images among them.
    pub objects: u64,
    /// The number of layers that were read.
    pub layers: u64,
    /// What is not as it has to be.
    pub damages: Vec<Damage>,
}

/// An object that is not what its name says, or is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its name: the digest of what it has to contain; empty for something that is no object.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
    /// How many bytes it has to have, where a layer says so.
    pub size: Option<u64>,
    /// The files that contain it, by layer; for an image, the layer with no file.
    pub files: Vec<(LayerId, PathBuf)>,
}

/// Where an object is used.
#[derive(Debug, Default)]
struct Uses {
    size: Option<u64>,
    files: Vec<(LayerId, PathBuf)>,
}

impl Store {
    /// Reads every object and every image again. Others may go on working meanwhile.
    pub fn verify(&self) -> Result<Verified, StoreError> {
        let _lease = self.lease()?;
        deep_stack::run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.context(|| "starting a check".into())?;
            let checked = runtime
                .block_on(self.repository()?.fsck())
                .map_err(StoreError::repository("checking the repository"))?;
            let mut damages: BTreeMap<String, Damage> = BTreeMap::new();
            for error in checked.errors() {
                let (object, what) = told(error);
                let key = if object.is_empty() { what.clone() } else { object.clone() };
                let damage = Damage { object, what, size: None, files: Vec::new() };
                damages.entry(key).or_insert(damage);
            }
            self.name_files(&mut damages)?;
            Ok(Verified {
                objects: checked.objects_checked(),
                layers: checked.images_checked(),
                damages: damages.into_values().collect(),
            })
        })
    }

    /// Finds which files of which layers contain damaged objects. Images that cannot be read are passed over: they are
    /// damage themselves.
    fn name_files(&self, damages: &mut BTreeMap<String, Damage>) -> Result<(), StoreError> {
        if damages.is_empty() {
            return Ok(());
        }
        let mut uses: BTreeMap<String, Uses> = damages.keys().map(|object| (object.clone(), Uses::default())).collect();
        for layer in self.layers()? {
            if let Some(own) = uses.get_mut(&layer.to_string()) {
                own.files.push((layer, PathBuf::new()));
                continue;
            }
            if let Ok(tree) = image::read(self, &layer) {
                find_uses(&tree, &tree.root, Path::new("/"), layer, &mut uses);
            }
        }
        for (object, found) in uses {
            if let Some(damage) = damages.get_mut(&object) {
                (damage.size, damage.files) = (found.size, found.files);
            }
        }
        Ok(())
    }
}

fn find_uses(
    tree: &FileSystem<Sha256HashValue>,
    directory: &Directory<Sha256HashValue>,
    path: &Path,
    layer: LayerId,
    uses: &mut BTreeMap<String, Uses>,
) {
    for (name, inode) in directory.entries() {
        match inode {
            Inode::Directory(below) => find_uses(tree, below, &path.join(name), layer, uses),
            Inode::Leaf(id, _) => {
                let LeafContent::Regular(RegularFile::External(digest, size)) = &tree.leaf(*id).content else {
                    continue;
                };
                if let Some(found) = uses.get_mut(&digest.to_hex()) {
                    found.size = Some(*size);
                    found.files.push((layer, path.join(name)));
                }
            }
        }
    }
}

/// Which object an error of the repository's check is about, and what it says.
fn told(error: &FsckError) -> (String, String) {
    let named = |path: &str| -> String {
        let digits: String = path.strip_prefix("objects/").unwrap_or_default().replace('/', "");
        digits.parse::<LayerId>().map(|object| object.to_string()).unwrap_or_default()
    };
    match error {
        FsckError::ObjectDigestMismatch { path, .. } => (named(path), "its content is not what was put in".to_owned()),
        FsckError::ObjectOpenFailed { path, detail } | FsckError::ObjectVerityFailed { path, detail } => {
            (named(path), format!("it cannot be read: {detail}"))
        }
        FsckError::ImageMissingObject { object_id, .. } => (object_id.clone(), "it is missing".to_owned()),
        FsckError::ObjectCheckFailed { object_id, detail, .. } => {
            (object_id.clone(), format!("it cannot be read: {detail}"))
        }
        FsckError::BrokenSymlink { path } => (
            path.strip_prefix("images/").unwrap_or_default().to_owned(),
            "the image of this layer is missing".to_owned(),
        ),
        FsckError::ImageInvalid { path, .. } => (
            path.strip_prefix("images/").unwrap_or_default().to_owned(),
            "the image of this layer is damaged".to_owned(),
        ),
        other => (String::new(), other.to_string()),
    }
}
