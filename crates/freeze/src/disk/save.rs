//! Writing an image to the disk, out of its holder.

use crate::clone::frozen::Frozen;
use crate::disk::chain::MEMORY;
use crate::disk::image_file::{ImageFile, Kind, write_image_file};
use crate::disk::{difference, load};
use crate::image::Image;
use crate::inspect::machine::{Machine, MappedFile};
use crate::origin;
use crate::restore::slots::Slots;
use crate::restore::staging;
use pando_kernel::{CallError, Context};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The processes.
pub(crate) const TREE: &str = "tree";

/// What the file `tree` says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tree {
    pub(crate) machine: Machine,
    /// The files that are mapped.
    pub(crate) files: Vec<MappedFile>,
    pub(crate) pause: Duration,
    /// Bytes of memory, whatever files it lies in.
    pub(crate) memory: u64,
    pub(crate) image: Image,
}

impl Frozen {
    /// Writes it into a directory, as files that [`crate::load`] makes a holder from. When this returns they are on the
    /// disk. What it has in common with a `parent`, the directory of an image that was written before, is not written
    /// again: the parent's files get further names here, so that the parent may be removed.
    pub fn keep(&self, directory: &Path, parent: Option<&Path>) -> Result<(), CallError> {
        let what = |name: &str| format!("writing {}", directory.join(name).display());
        if !parent.is_some_and(|parent| self.keep_difference(directory, parent)) {
            self.keep_memory(&directory.join(MEMORY)).context(|| what(MEMORY))?;
        }
        let tree = Tree {
            machine: Machine::here()?,
            files: self.files.clone(),
            pause: self.pause,
            memory: origin::length(&self.image),
            image: self.image.clone(),
        };
        write_tree(directory, &tree).context(|| what(TREE))
    }

    /// Writes what differs from a parent. Where that cannot be, or is not worth while, nothing is left of it.
    fn keep_difference(&self, directory: &Path, parent: &Path) -> bool {
        let parent = load::parent(parent).ok();
        let is_kept = parent.is_some_and(|parent| difference::write(self, directory, &parent).unwrap_or(false));
        if !is_kept {
            difference::remove(directory);
        }
        is_kept
    }

    fn keep_memory(&self, path: &Path) -> io::Result<()> {
        let mut image_file = ImageFile::create(path, Kind::Memory)?;
        let holder = self.holder.pid();
        let memory = File::open(format!("/proc/{holder}/mem"))?;
        let stages = staging::arrange(&self.image);
        for (process, area) in self.image.kept_areas() {
            let Some(at) = stages[process].place(area) else { continue };
            for (from, length) in &area.pages {
                image_file.add_from(&memory, at + (from - area.start), *length)?;
            }
        }
        add_contents(self, &mut image_file)?;
        image_file.finish()
    }
}

/// Adds what files without a name have.
pub(crate) fn add_contents(frozen: &Frozen, image_file: &mut ImageFile) -> io::Result<()> {
    let (holder, slots) = (frozen.holder.pid(), Slots::of(&frozen.image));
    for (number, content) in frozen.image.contents.iter().enumerate() {
        if !content.kind.has_bytes() {
            continue;
        }
        let held = File::open(format!("/proc/{holder}/fd/{}", slots.held(number)))?;
        for (at, length) in &content.runs {
            image_file.add_from(&held, *at, *length)?;
        }
    }
    Ok(())
}

/// Writes the file `tree` anew. A crash leaves none.
pub(crate) fn rewrite(directory: &Path, tree: &Tree) -> Result<(), CallError> {
    let path = directory.join(TREE);
    let write = || std::fs::remove_file(&path).and_then(|()| write_tree(directory, tree));
    write().context(|| format!("writing {}", path.display()))
}

fn write_tree(directory: &Path, tree: &Tree) -> io::Result<()> {
    let body = postcard::to_stdvec(tree).map_err(io::Error::other)?;
    write_image_file(&directory.join(TREE), Kind::Tree, &body)
}
