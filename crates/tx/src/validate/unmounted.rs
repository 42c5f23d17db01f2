//! Parts whose file system others have unmounted since the view was made of it. A stick that was pulled out, or the
//! files of a user who has left, are no matter to a transaction which never looked there.

use crate::change::selection::Selection;
use crate::state::overlay_part::OverlayPart;
use crate::tree::path::TreePath;
use crate::validate::change_set::Basis;
use crate::validate::read_set::{CANARY, pandos_own};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether a part is gone, and the transaction has neither changed nor, as far as the basis tells, read anything on it.
pub(crate) fn is_left_alone(part: &OverlayPart, basis: Option<&Basis>) -> bool {
    if part.target.is_none() {
        return part.is_unmounted() && basis.is_some_and(|basis| was_untouched(part, basis));
    }
    let is_empty = || std::fs::read_dir(part.upper()).is_ok_and(|mut names| names.next().is_none());
    part.is_gone() && is_empty() && !basis.is_some_and(|basis| was_read(part, basis))
}

/// Whether nothing was looked up on one of this machine's own parts, and its root is what it was. What is changed lies
/// on the mount itself, where nobody finds it any more; but whoever changes anything else than the root has looked it
/// up before.
pub(crate) fn was_untouched(part: &OverlayPart, basis: &Basis) -> bool {
    let Some((_, read)) = basis.read.iter().flatten().find(|(other, _)| other.is(part)) else { return false };
    let before = basis.roots.iter().find(|(base, _)| *base == part.base).map(|(_, root)| *root);
    // Of what is left out it is not known whether it was looked up.
    basis.selection == Selection::default() && before.is_some() && read.root == before && !was_read(part, basis)
}

fn was_read(part: &OverlayPart, basis: &Basis) -> bool {
    let Some((_, read)) = basis.read.iter().flatten().find(|(other, _)| other.is(part)) else { return false };
    let below = |path: &Path| TreePath::new(path.strip_prefix(&part.live).ok()?.as_os_str().as_bytes());
    let places: Vec<_> = basis.places.iter().filter_map(|place| below(place)).collect();
    let pandos = pandos_own(&read.looked, &places);
    let is_canary = |path: &TreePath| path.as_bytes().starts_with(CANARY.as_bytes());
    !read.listed.is_empty() || read.looked.iter().any(|one| !pandos.contains(&one.path) && !is_canary(&one.path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::read_set::{Looked, ReadSet};

    #[test]
    fn what_pando_itself_looked_up_was_not_read() {
        let part = OverlayPart::new("/run".into(), "/nowhere".into());
        let read = |names: &[&str], listed: &[&str]| {
            let path = |name: &&str| TreePath::new(name.as_bytes()).unwrap();
            let looked = |name: &&str| Looked { path: path(name), found: None, directory: false, settled: false };
            let (looked, listed) = (names.iter().map(looked).collect(), listed.iter().map(path).collect());
            let set = ReadSet { looked, listed, ..ReadSet::default() };
            let places = vec!["/run/dbus/socket".into(), "/".into()];
            let (read, baselines) = (Some(vec![(part.clone(), set)]), Vec::new());
            was_read(
                &part,
                &Basis {
                    read,
                    places,
                    durable: false,
                    sound_times: true,
                    baselines,
                    known_names: Vec::new(),
                    selection: Selection::default(),
                    roots: Vec::new(),
                },
            )
        };
        assert!(!read(&[], &[]) && !read(&["dbus", "dbus/socket", ".pando-tx-canary-7"], &[]));
        assert!(read(&["dbus/other"], &[]) && read(&["file"], &[]) && read(&[], &[""]));
    }
}
