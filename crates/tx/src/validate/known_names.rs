//! The names that a directory of the live tree had when a transaction had begun.
//!
//! Of a name that came by a rename it is not known whether something was there before, and others who change names
//! beside it are taken for a conflict. A run that was lost so is told apart by this: what had no name when the next one
//! begins, and has none at its end, was nobody's to be replaced, unless others have made it and removed it again
//! meanwhile.

use crate::state::overlay_part::OverlayPart;
use crate::tree::path::TreePath;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of a directory with more it is not kept.
const MOST: usize = 1 << 18;

/// The names in one directory, as they were at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNames {
    directory: PathBuf,
    /// Shared: what a transaction is validated by is made anew for each look.
    names: Arc<BTreeSet<OsString>>,
}

impl KnownNames {
    /// Those of a directory on one of these parts, now. Nothing where it cannot be listed.
    pub fn of(directory: &Path, parts: &[OverlayPart]) -> Option<Self> {
        let around = parts.iter().filter(|part| directory.starts_with(&part.live));
        let part = around.max_by_key(|part| part.live.components().count())?;
        let names = part.live_tree().and_then(|live| live.names(&below(directory, part)?)).ok()?;
        (names.len() <= MOST)
            .then(|| Self { directory: directory.to_owned(), names: Arc::new(names.into_iter().collect()) })
    }

    /// Whether they are those of a directory of a part, and this is none of them.
    pub(crate) fn lack(&self, part: &OverlayPart, directory: &TreePath, name: &OsStr) -> bool {
        below(&self.directory, part).is_ok_and(|own| own == *directory) && !self.names.contains(name)
    }
}

fn below(directory: &Path, part: &OverlayPart) -> std::io::Result<TreePath> {
    let path = directory.strip_prefix(&part.live).ok().and_then(|path| TreePath::new(path.as_os_str().as_bytes()));
    path.ok_or_else(|| std::io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_and_what_was_not_are_told_apart() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("d")).unwrap();
        std::fs::write(place.path().join("d/old"), "").unwrap();
        let part = OverlayPart::new(place.path().to_owned(), place.path().join("base"));
        let known = KnownNames::of(&place.path().join("d"), std::slice::from_ref(&part)).unwrap();
        let d = TreePath::new(b"d").unwrap();
        assert!(known.lack(&part, &d, "new".as_ref()));
        assert!(!known.lack(&part, &d, "old".as_ref()) && !known.lack(&part, &TreePath::ROOT, "new".as_ref()));
        assert_eq!(KnownNames::of(&place.path().join("missing"), std::slice::from_ref(&part)), None);
        assert_eq!(KnownNames::of(Path::new("/elsewhere"), &[part]), None);
    }
}
