//! Starting a holder from an image on disk. Every bit of it is checked before anything is done.

use crate::clone::frozen::Frozen;
use crate::clone::holder::Holder;
use crate::clone::planted;
use crate::disk::chain::Memory;
use crate::disk::difference::Parent;
use crate::disk::image_file::{ImageFileError, Kind, Opened};
use crate::disk::powers::Powers;
use crate::disk::save::{self, TREE, Tree};
use crate::disk::{bounded, check};
use crate::image::aio;
use crate::inspect::limits;
use crate::inspect::machine::{self, Machine};
use crate::origin;
use crate::refusal::FreezeError;
use crate::restore::plan;
use pando_kernel::CallError;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The longest file `tree` that is read.
pub const LONGEST_TREE: u64 = 1 << 30;

/// Why an image on disk has no holder. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file is missing, or not as it was written.
    #[error(transparent)]
    ImageFile(#[from] ImageFileError),
    /// It needs what is not here.
    #[error("{0}")]
    Elsewhere(String),
    /// The kernel did not do its part.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its processes cannot be made.
    #[error(transparent)]
    Unmade(#[from] FreezeError),
}

/// Reads what is in a directory that [`Frozen::keep`] filled. `root` has the files that were frozen with it.
pub fn load(directory: &Path, root: BorrowedFd<'_>) -> Result<Frozen, LoadError> {
    // What was frozen here had all of it in memory before.
    let (mut tree, memory) = open(directory, usize::MAX)?;
    if let Some(objection) = tree.machine.objection(&Machine::here()?) {
        return Err(LoadError::Elsewhere(objection));
    }
    if let Some(objection) = machine::changed(&tree.files, &machine::mapped(&tree.image, root)?) {
        return Err(LoadError::Elsewhere(objection));
    }
    if aio::are_in(&tree.image) {
        aio::fit(&mut tree.image, machine::most_processors()?).map_err(LoadError::Elsewhere)?;
    }
    memory.check()?;
    let mut holder = Holder::start()?;
    let script = plan::script(&planted::of(&tree.image), &holder.facts(memory.origin(&tree.image))?)?;
    limits::lift(&tree.image, holder.pid())?;
    holder.hold(script, root, tree.image.adopted)?;
    let Tree { image, pause, files, .. } = tree;
    let (connections, generators) = (Vec::new(), Vec::new());
    let (unheard, alike) = (0, AtomicBool::new(false));
    Ok(Frozen { image, holder, pause, connections, generators, unheard, files, alike })
}

/// Looks through an image that came from elsewhere, and notes in it that it did; what its processes hold.
pub fn adopt(directory: &Path) -> Result<Powers, LoadError> {
    let (mut tree, memory) = open(directory, bounded::MOST)?;
    memory.check()?;
    tree.image.adopted = true;
    save::rewrite(directory, &tree)?;
    Ok(Powers::of(&tree.image))
}

/// Understands the body of a file `tree`, checks all of it, and puts it anew: for a process that has no powers, which
/// reads what others have made before anybody else does.
///
/// # Errors
///
/// What is wrong with it.
pub fn put_anew(body: &[u8]) -> Result<Vec<u8>, String> {
    postcard::to_stdvec(&understood(body, bounded::MOST)?).map_err(|error| error.to_string())
}

/// No more than so many bytes may describe it.
fn understood(body: &[u8], most: usize) -> Result<Tree, String> {
    let tree: Tree = bounded::from_bytes(body, most).map_err(|error| format!("it cannot be read ({error})"))?;
    check::check(&tree.image)?;
    Ok(tree)
}

/// Everything but whether the memory is as it was written, which takes a while.
fn open(directory: &Path, most: usize) -> Result<(Tree, Memory), LoadError> {
    let image_file = Opened::open(&directory.join(TREE), Kind::Tree)?;
    let body = image_file.body(LONGEST_TREE)?;
    let tree = understood(&body, most).map_err(|what| image_file.damaged(what))?;
    if tree.memory != origin::length(&tree.image) {
        return Err(image_file.damaged("it is not of its memory").into());
    }
    let memory = Memory::open(directory, &tree.image)?;
    Ok((tree, memory))
}

/// An image that others are compared with as they are written.
pub(crate) fn parent(directory: &Path) -> Result<Parent<'_>, LoadError> {
    let (tree, memory) = open(directory, usize::MAX)?;
    Ok(Parent::new(directory, &tree.image, memory))
}

/// Writes the memory of an image in a directory into an empty file, as one that needs no other: for an export.
pub fn fold(directory: &Path, into: std::fs::File) -> Result<(), LoadError> {
    let (_, memory) = open(directory, usize::MAX)?;
    memory.check()?;
    memory.fold(into).map_err(|source| ImageFileError::Read { path: directory.to_owned(), source }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::chain::MEMORY;
    use crate::disk::image_file::{BODY, write_image_file};
    use crate::example::image;
    use crate::image::Image;
    use crate::origin::Origin;
    use crate::restore::facts::Facts;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn an_image_comes_back_as_it_was() {
        let bytes = postcard::to_stdvec(&image()).unwrap();
        let back: Image = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(back, image());
        assert_eq!(check::check(&back), Ok(()));
    }

    #[test]
    fn what_is_adopted_says_so_and_nothing_else_of_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let own = Image { adopted: false, ..image() };
        let (machine, memory) = (Machine::here().unwrap(), origin::length(&own));
        let tree = Tree { machine, files: Vec::new(), pause: Duration::ZERO, memory, image: own };
        let write = |name: &str, kind, body: &[u8]| write_image_file(&directory.path().join(name), kind, body).unwrap();
        write(TREE, Kind::Tree, &postcard::to_stdvec(&tree).unwrap());
        write(MEMORY, Kind::Memory, &vec![0; memory as usize]);
        adopt(directory.path()).unwrap();
        assert_eq!(open(directory.path(), usize::MAX).unwrap().0.image, image());
    }

    #[test]
    fn what_becomes_gigabytes_in_memory_is_not_adopted() {
        let directory = tempfile::tempdir().unwrap();
        let mut image = image();
        // Each a byte in the file and 24 in memory; none of them is a filter that could be.
        image.processes[0].threads[0].filters = vec![Vec::new(); bounded::MOST];
        let (machine, memory) = (Machine::here().unwrap(), origin::length(&image));
        let tree = Tree { machine, files: Vec::new(), pause: Duration::ZERO, memory, image };
        write_image_file(&directory.path().join(TREE), Kind::Tree, &postcard::to_stdvec(&tree).unwrap()).unwrap();
        let said = adopt(directory.path()).unwrap_err().to_string();
        assert!(said.contains("describes more than an image that comes from elsewhere may"), "{said}");
    }

    proptest! {
        /// Whatever a file says whose checksum was put right by hand: it is refused, or a script can be written from
        /// it.
        #[test]
        fn nothing_that_is_read_leads_astray(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let mut bytes = postcard::to_stdvec(&image()).unwrap();
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            if let Ok(image) = postcard::from_bytes::<Image>(&bytes)
                && check::check(&image).is_ok()
            {
                let origin = Origin::File { path: "/x".into(), start: BODY };
                if let Ok(script) = plan::script(&image, &Facts { origin, ..Facts::default() }) {
                    script.check_bounds();
                }
            }
        }
    }
}
