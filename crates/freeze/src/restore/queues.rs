//! Writes the making of POSIX message queues with what is in them.

use crate::image::{Image, OpenFile, Queue};
use crate::restore::script::Writer;
use crate::restore::slots::Slots;

/// Writes the maker's making of all message queues.
pub(crate) fn make(writer: &mut Writer, image: &Image, slots: Slots) {
    let (chapter, slot) = (Writer::MAKING, slots.spare());
    for queue in &image.queues {
        let name = writer.string(&queue.name);
        let about = writer.words(&[0, queue.capacity, queue.longest, 0, 0, 0, 0, 0]);
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let label = format!("making the message queue /{}", queue.name);
        writer.open(chapter, label, libc::SYS_mq_open, &[name, flags as u64, 0o600, about], slot);
        for (priority, message) in &queue.messages {
            let bytes = writer.data(message, 1);
            let arguments = [slot, bytes, message.len() as u64, u64::from(*priority), 0];
            writer.call(chapter, "filling a message queue", libc::SYS_mq_timedsend, &arguments);
        }
        let (user, group) = queue.owner;
        writer.attempt(chapter, "setting an owner", libc::SYS_fchown, &[slot, user.into(), group.into()]);
        writer.attempt(chapter, "setting a mode", libc::SYS_fchmod, &[slot, queue.mode.into()]);
        writer.call(chapter, "closing a message queue", libc::SYS_close, &[slot]);
    }
}

/// Writes the opening of one for a descriptor.
pub(crate) fn open(writer: &mut Writer, file: &OpenFile, queue: &Queue, slot: u64) {
    let name = writer.string(&queue.name);
    let flags = u64::from(file.flags) & (libc::O_ACCMODE | libc::O_NONBLOCK) as u64 | libc::O_CLOEXEC as u64;
    let label = format!("opening the message queue /{}", queue.name);
    writer.open(Writer::MAKING, label, libc::SYS_mq_open, &[name, flags, 0, 0], slot);
}
