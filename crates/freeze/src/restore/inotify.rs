//! Writes the making of instances of inotify(7) with their watches.

use crate::image::FileWatch;
use crate::restore::script::{Chapter, Writer};

/// Writes the making of an instance onto a slot, with some of its watches.
pub(crate) fn make<'a>(writer: &mut Writer, watches: impl Iterator<Item = &'a FileWatch>, slot: u64) {
    let chapter = Writer::MAKING;
    writer.open(chapter, "making an inotify instance", libc::SYS_inotify_init1, &[0], slot);
    watches.for_each(|watch| add(writer, chapter, watch, slot));
}

/// Writes the adding of those that had to wait for what they watch. New ones are numbered from behind all of the
/// instance's, as they would be.
pub(crate) fn add_late<'a>(
    writer: &mut Writer,
    chapter: Chapter,
    (watches, late): (&[FileWatch], impl Iterator<Item = &'a FileWatch>),
    slot: u64,
) {
    late.for_each(|watch| add(writer, chapter, watch, slot));
    let behind = watches.iter().map(|watch| watch.number).max().unwrap_or(0) as u64 + 1;
    number(writer, chapter, behind, slot);
}

fn add(writer: &mut Writer, chapter: Chapter, watch: &FileWatch, slot: u64) {
    number(writer, chapter, watch.number as u64, slot);
    let path = writer.string(&watch.path);
    let events = watch.events | libc::IN_DONT_FOLLOW;
    let label = format!("watching {}", watch.path);
    writer.exact(chapter, label, libc::SYS_inotify_add_watch, &[slot, path, u64::from(events)], watch.number as u64);
}

fn number(writer: &mut Writer, chapter: Chapter, next: u64, slot: u64) {
    /// `_IOW('I', 0, s32)`: the number of the next watch (since Linux 4.16).
    const INOTIFY_IOC_SETNEXTWD: u64 = 0x4004_4900;
    writer.attempt(chapter, "numbering a watch", libc::SYS_ioctl, &[slot, INOTIFY_IOC_SETNEXTWD, next]);
}
