//! Writing an image to the disk, out of its holder.

use crate::clone::frozen::Frozen;
use crate::disk::image_file::{ImageFile, Kind, write_image_file};
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

/// Their memory.
pub(crate) const MEMORY: &str = "memory";

/// What the file `tree` says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tree {
    pub(crate) machine: Machine,
    /// The files that are mapped.
    pub(crate) files: Vec<MappedFile>,
    pub(crate) pause: Duration,
    /// Bytes of the file `memory`, without its head.
    pub(crate) memory: u64,
    pub(crate) image: Image,
}

impl Frozen {
    /// Writes it into a directory, as files that [`crate::load`] makes a holder from. When this returns they are on the
    /// disk.
    pub fn keep(&self, directory: &Path) -> Result<(), CallError> {
        let what = |name: &str| format!("writing {}", directory.join(name).display());
        self.keep_memory(&directory.join(MEMORY)).context(|| what(MEMORY))?;
        let tree = Tree {
            machine: Machine::here()?,
            files: self.files.clone(),
            pause: self.pause,
            memory: origin::length(&self.image),
            image: self.image.clone(),
        };
        write_tree(directory, &tree).context(|| what(TREE))
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
        let slots = Slots::of(&self.image);
        for (number, content) in self.image.contents.iter().enumerate() {
            if !content.kind.has_bytes() {
                continue;
            }
            let held = File::open(format!("/proc/{holder}/fd/{}", slots.held(number)))?;
            for (at, length) in &content.runs {
                image_file.add_from(&held, *at, *length)?;
            }
        }
        image_file.finish()
    }
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
