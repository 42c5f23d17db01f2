//! Writes what each process of a clone opens itself, since it is there only when the process is: files of /proc that
//! tell of the process which has them, as /proc/self/statm does, and descriptors of processes (pidfd_open(2)), by which
//! inits and message buses know whom they deal with. A process is there when it is forked, so its descriptors are
//! opened after that is waited for.

use crate::image::own_files::{is_own_proc, path, process_of};
use crate::image::{Image, OpenFile, Process};
use crate::restore::objects;
use crate::restore::script::{Call, Chapter, Writer};
use crate::restore::slots::Slots;
use pando_restorer::Special;

/// Writes a process's opening of its own, to where the maker would have left them.
pub(crate) fn open_proc_files(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    let mut own: Vec<usize> =
        process.descriptors.iter().map(|one| one.file).filter(|file| is_own_proc(image, *file)).collect();
    own.sort_unstable();
    own.dedup();
    for file in own {
        if let Some(path) = path(image, file) {
            objects::own(writer, chapter, &image.files[file], path, slots.file(file));
        }
    }
}

/// Writes a process's opening of its own, to where the maker would have left them.
pub(crate) fn open_pidfds(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    let mut own: Vec<_> =
        process.descriptors.iter().filter_map(|one| Some((one.file, process_of(image, one.file)?))).collect();
    own.sort_unstable();
    own.dedup();
    for (file, pid) in own {
        let flags = u64::from(image.files[file].flags) & libc::O_NONBLOCK as u64;
        let label = format!("finding process {pid}");
        let open = Call::patient(libc::SYS_pidfd_open);
        writer.open(chapter, label, open, &[pid as u64, flags], slots.file(file));
    }
}

/// Writes the maker's opening of a descriptor of a process that has ended and was asked for: one is forked for it.
pub(crate) fn of_one_that_is_gone(writer: &mut Writer, file: &OpenFile, slot: u64, helper: i32) {
    let (maker, chapter) = (Writer::MAKING, writer.chapter());
    writer.fork(maker, helper, chapter);
    writer.special(chapter, "ending a helper", Special::Exit, &[0, 0]);
    let flags = u64::from(file.flags) & libc::O_NONBLOCK as u64;
    writer.open(maker, "finding a process that ends", libc::SYS_pidfd_open, &[helper as u64, flags], slot);
    writer.call(maker, "waiting for a helper's end", libc::SYS_wait4, &[helper as u64, 0, 0, 0]);
}
