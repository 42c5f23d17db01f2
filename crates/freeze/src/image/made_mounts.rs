//! Which changes of an image's mounts make something, and which contents those need.

use crate::image::Image;
use crate::image::mount::{MountChange, is_made};
use std::ops::Range;

/// How many mounts the namespace has made that has most of them.
pub(crate) fn most_made(image: &Image) -> usize {
    all(image).map(|changes| made(changes).count()).max().unwrap_or(0)
}

/// What is changed in each, the first process's before the others.
fn all(image: &Image) -> impl Iterator<Item = &[MountChange]> {
    let others = image.mount_spaces.iter().map(|space| space.changes.as_slice());
    [image.mounts.as_slice()].into_iter().chain(others)
}

pub(crate) fn made(changes: &[MountChange]) -> impl Iterator<Item = &MountChange> {
    changes.iter().filter(|change| is_made(change))
}

/// The contents of an image that are in what is mounted, besides what each clone is given.
pub(crate) fn contents(image: &Image) -> Vec<Range<usize>> {
    let range = |change: &MountChange| match change {
        MountChange::Memory { contents: (first, behind), .. } => Some(*first..*behind),
        _ => None,
    };
    all(image).flatten().filter_map(range).collect()
}
