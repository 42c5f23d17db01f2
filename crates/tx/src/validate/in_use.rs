//! What a commit may not take away, because it is in use in a way that is no change of it: mounts that lie in a
//! directory, swap space.
//!
//! What is mounted at the beginning is mounted in the view, too, so that the transaction cannot remove what it lies in.
//! What others mount since would go along to where removed things are deleted. And in the view's overlay a file that
//! the kernel swaps to is one as any other.

use crate::change::{Op, Steps};
use crate::state::overlay_part::OverlayPart;
use crate::tree::confined::{is_missing, leads_elsewhere};
use crate::tree::path::TreePath;
use pando_kernel::filesystem::swap_files::swap_files;
use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a path is on a part, if it is below its root.
fn below(part: &OverlayPart, path: &Path) -> Option<TreePath> {
    TreePath::new(path.strip_prefix(&part.live).ok()?.as_os_str().as_bytes()).filter(|path| *path != TreePath::ROOT)
}

/// What goes for good: what is put aside before has another place by then, and what is mounted in it goes there too, as
/// by any rename.
fn removed(steps: &Steps) -> HashSet<&TreePath> {
    let mut gone: HashSet<_> = steps
        .change
        .iter()
        .filter_map(|op| match op {
            Op::Remove { at, .. } => Some(at),
            _ => None,
        })
        .collect();
    for op in &steps.stage {
        if let Op::StageDirectory { from, .. } = op {
            gone.remove(from);
        }
    }
    gone
}

/// The mount that would be removed together with what it lies in, of these.
pub(crate) fn mount_in_the_way(
    part: &OverlayPart,
    steps: &Steps,
    mounts: impl FnOnce() -> io::Result<Vec<PathBuf>>,
) -> io::Result<Option<TreePath>> {
    let removed = removed(steps);
    if removed.is_empty() {
        return Ok(None);
    }
    let mut mounts = mounts()?.into_iter().filter_map(|mount| below(part, &mount));
    let goes = |mount: &TreePath| {
        let around = std::iter::successors(Some(mount.clone()), |path| path.split().map(|(around, _)| around));
        around.into_iter().any(|path| removed.contains(&path))
    };
    Ok(mounts.find(goes))
}

/// The swap file that would be removed, replaced or written to.
pub(crate) fn swap_in_the_way(part: &OverlayPart, steps: &Steps) -> io::Result<Option<PathBuf>> {
    // A target's own files are in use by nobody but itself.
    if part.target.is_some() {
        return Ok(None);
    }
    for path in swap_files()? {
        let Some(at) = below(part, &path) else { continue };
        let ino = match part.live_tree()?.stat(&at) {
            Err(error) if is_missing(&error) || leads_elsewhere(&error) => continue,
            stat => stat?.st_ino,
        };
        if is_about(steps, &at, ino) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Whether a file at a path, or by another of its names, would not be what it was.
fn is_about(steps: &Steps, path: &TreePath, number: u64) -> bool {
    steps.change.iter().any(|op| match op {
        Op::Remove { at, ino, .. } => *ino == number || path.is_within(at),
        Op::Move { at, .. } | Op::Place { at, .. } => at == path,
        Op::Update { ino, .. } => *ino == number,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{OpTarget, Source};
    use crate::tree::attributes::Moment;

    fn path(text: &str) -> TreePath {
        TreePath::new(text.as_bytes()).unwrap()
    }

    fn steps(op: Op) -> Steps {
        Steps { change: vec![op], ..Steps::default() }
    }

    #[test]
    fn a_mount_goes_with_what_it_lies_in_and_stays_beside_it() {
        let part = OverlayPart::new("/srv".into(), "/nowhere".into());
        let remove = steps(Op::Remove { at: path("d"), ino: 1, changed: Moment::EPOCH, slot: 0 });
        let found = |mount: &str| mount_in_the_way(&part, &remove, || Ok(vec![mount.into()])).unwrap();
        assert_eq!((found("/srv/d/e"), found("/srv/d")), (Some(path("d/e")), Some(path("d"))));
        assert_eq!((found("/srv"), found("/srv/de"), found("/"), found("/other/d")), (None, None, None, None));
        let aside = Steps { stage: vec![Op::StageDirectory { from: path("d"), ino: 1, slot: 1 }], ..remove.clone() };
        assert_eq!(mount_in_the_way(&part, &aside, || Ok(vec!["/srv/d/e".into()])).unwrap(), None);
        let made = steps(Op::MakeDirectory { at: path("d"), slot: 0 });
        assert_eq!(mount_in_the_way(&part, &made, || panic!("nobody need look")).unwrap(), None);
    }

    #[test]
    fn a_swap_file_is_known_by_each_of_its_names() {
        let is = |op: Op| is_about(&steps(op), &path("a/swap"), 7);
        assert!(
            is(Op::Remove { at: path("a/swap"), ino: 7, changed: Moment::EPOCH, slot: 0 })
                && is(Op::Remove { at: path("a"), ino: 1, changed: Moment::EPOCH, slot: 0 })
        );
        assert!(
            is(Op::Remove { at: path("other"), ino: 7, changed: Moment::EPOCH, slot: 0 })
                && !is(Op::Remove { at: path("b"), ino: 1, changed: Moment::EPOCH, slot: 0 })
        );
        let moved = |at: &str| Op::Move { at: path(at), ino: 9, directory: false, marked: false, over: None };
        assert!(is(moved("a/swap")) && !is(moved("a/other")));
        let update = |ino: u64| Op::Update { source: Source::Upper(path("x")), target: OpTarget::Root, ino };
        assert!(is(update(7)) && !is(update(8)));
    }
}
