//! A guest's own files on a disk of their own.

use crate::root::{Owner, prepare};
use crate::spare;
use pando_kernel::CallError;
use pando_kernel::mount::Tree;
use pando_limit::disk::Image;

/// Opens the disk, ready for an overlay.
pub(crate) fn open(image: &Image, owner: Option<Owner<'_>>) -> Result<Tree, CallError> {
    let tree = image.mount()?;
    spare::give_back(&tree);
    prepare(&spare::top(&tree))?;
    if let Some(owner) = owner {
        tree.map_ids(owner.namespace)?;
    }
    Ok(tree)
}
