//! Writes the making of contexts of asynchronous input and output (io_setup(2)).
//!
//! Each context has a ring of events in its process's memory. The kernel puts in what has been done of what the program
//! asked for, and the program, or a call of it, takes that out. What has been asked for and not been done is nowhere
//! but in the kernel.
//!
//! That ends by itself, where it is about files, and is waited for when the processes stand still: then what is in the
//! rings is all there is. What does not end is refused, for it would be lost. How much there is only the [task
//! iterator](crate::bpf::task_iterator) tells.

use crate::image::Process;
use crate::image::aio::{of, room};
use crate::restore::script::{Chapter, Writer};
use pando_restorer::Special;

/// Writes the making of a process's contexts, once all else of its memory is in its place.
pub(crate) fn make(writer: &mut Writer, chapter: Chapter, process: &Process) {
    const READ_WRITE: u32 = (libc::PROT_READ | libc::PROT_WRITE) as u32;
    for (area, ring) in process.areas.iter().filter_map(|area| Some((area, of(area)?))) {
        let events = writer.words(ring.events.as_flattened());
        let count = ring.events.len() as u64;
        let label = "making a context of asynchronous input and output, of which the machine has as many as /proc/sys/fs/aio-max-nr allows";
        let (requests, room) = (u64::from(ring.requests), u64::from(room(area)));
        let arguments = [requests, room, area.start, u64::from(ring.head), events, count];
        writer.special(chapter, label, Special::AioRing, &arguments);
        if area.protection != READ_WRITE {
            let arguments = [area.start, area.end - area.start, u64::from(area.protection)];
            writer.call(chapter, "protecting memory", libc::SYS_mprotect, &arguments);
        }
    }
}
