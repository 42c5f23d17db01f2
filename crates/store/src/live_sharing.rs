//! Sharing the blocks of files that are in use, where the file system can (btrfs, xfs).
//!
//! A running guest's files must not be exchanged for others. But the kernel can have two files share the blocks of what
//! both contain, comparing them itself with both locked: nothing that can be observed changes, not even a time, and a
//! write gets blocks of its own again. That saves disk and no memory, since each file keeps its own pages; memory is
//! saved when the guest is next started from a layer.

use crate::known::{Extras, Known};
use crate::look::{Place, inside};
use crate::{Store, StoreError, Survey};
use composefs::fsverity::Sha256HashValue;
use pando_kernel::file::dedupe::share_blocks;
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The table of files whose blocks are shared already.
const TABLE: &str = "live";

/// Blocks that came to be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivelyShared {
    /// Files that share blocks now and did not before.
    pub files: u64,
    /// Bytes of the files that share blocks now.
    pub bytes: u64,
}

impl Survey {
    /// Has the files of the trees share blocks with the objects of the store, or where it lacks them with the file that
    /// was met first. `trees` are those of the survey, of which only the `chosen` ones are touched.
    pub fn share_live(
        &self,
        store: &Store,
        trees: &[PathBuf],
        chosen: &[bool],
    ) -> Result<Vec<LivelyShared>, StoreError> {
        // Nothing goes meanwhile.
        let _lease = store.lease()?;
        let known = Known::load(store, TABLE);
        let mut next = Known::default();
        let mut met: HashMap<Sha256HashValue, (usize, &Path)> = HashMap::new();
        let mut told = Vec::new();
        for (number, tree) in trees.iter().enumerate() {
            let mut shared = LivelyShared::default();
            for place in self.places.get(number).into_iter().flatten() {
                let first = *met.entry(place.content.clone()).or_insert((number, &place.path));
                if !chosen.get(number).is_some_and(|chosen| *chosen) {
                    continue;
                }
                let is_first = first == (number, place.path.as_path());
                let done = known.get(&place.fingerprint) == Some(&place.content);
                if !done {
                    let source = source(store, &place.content, || inside_tree(&trees[first.0], first.1), is_first);
                    let Some(bytes) = source.and_then(|source| share(&source, tree, place)) else { continue };
                    shared.files += 1;
                    shared.bytes += bytes;
                }
                if !place.fingerprint.is_fresh() {
                    next.add(place.fingerprint, &place.content, Extras::Perhaps);
                }
            }
            told.push(shared);
        }
        next.save(store, TABLE)?;
        Ok(told)
    }
}

/// What a file is to share blocks with: the store's object, else another file; nothing for the first of its kind.
fn source(
    store: &Store,
    content: &Sha256HashValue,
    other: impl FnOnce() -> Option<File>,
    is_first: bool,
) -> Option<File> {
    File::open(store.object(content)).ok().or_else(|| if is_first { None } else { other() })
}

fn inside_tree(tree: &Path, path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = rustix::fs::open(tree, flags, Mode::empty()).ok()?;
    inside(root.as_fd(), path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW).ok().map(File::from)
}

/// How many bytes of a file share blocks afterwards; `None` where they cannot, or where it changed and is another by
/// now.
fn share(source: &File, tree: &Path, place: &Place) -> Option<u64> {
    let file = inside_tree(tree, &place.path)?;
    let length = file.metadata().ok()?.len().min(source.metadata().ok()?.len());
    share_blocks(source, &file, length).ok().filter(|bytes| *bytes > 0)
}
