//! Threads that are made to do something else for a while, and given back as they were, also when who borrowed them is no more: see
//! [`outliving`](crate::outliving).

use crate::foreign_memory;
use crate::outliving::Undivided;
use crate::trace::{Registers, Thread};
use std::cell::Cell;
use std::io;
use std::ptr;

/// A stopped thread whose registers and a piece of whose memory may be changed. While there is one the thread must stand still, but within something
/// [undivided](Undivided). Dropped, it is as it was before.
#[derive(Debug)]
pub struct Borrowed<'a> {
    thread: &'a Thread,
    before: Box<Before>,
}

/// How it was.
#[derive(Debug)]
struct Before {
    tid: i32,
    registers: Registers,
    mask: u64,
    room: u64,
    content: Vec<u8>,
    /// What this thread of ours borrowed before.
    earlier: *const Before,
}

thread_local! {
    /// The newest of what is borrowed here.
    static NEWEST: Cell<*const Before> = const { Cell::new(ptr::null()) };
}

impl<'a> Borrowed<'a> {
    /// Borrows one with registers and blocked signals as they are, and `length` bytes of its memory at `room`. No handler of it runs until it is given
    /// back. What was borrowed last is given back first.
    pub fn new(thread: &'a Thread, registers: Registers, mask: u64, room: u64, length: usize) -> io::Result<Self> {
        let mut content = vec![0; length];
        if length > 0 {
            foreign_memory::read(thread.tid(), room, &mut content)?;
        }
        let earlier = NEWEST.get();
        let before = Box::new(Before { tid: thread.tid(), registers, mask, room, content, earlier });
        NEWEST.set(&raw const *before);
        let borrowed = Self { thread, before };
        borrowed.thread.set_signal_mask(u64::MAX)?;
        Ok(borrowed)
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let undivided = Undivided::begin();
        give_back(&self.before);
        NEWEST.set(self.before.earlier);
        drop(undivided);
    }
}

/// Should one of these fail, the thread has been killed. Nothing here allocates.
fn give_back(before: &Before) {
    // Only looked at: whoever seized it lets it go.
    let thread = std::mem::ManuallyDrop::new(Thread::seized(before.tid));
    if !before.content.is_empty() {
        let _ = foreign_memory::write(before.tid, before.room, &before.content);
    }
    let _ = thread.set_registers(&before.registers);
    let _ = thread.set_signal_mask(before.mask);
    let _ = thread.end_stepping();
}

/// Gives back all that this thread has borrowed.
pub(crate) fn give_back_all() {
    let mut next = NEWEST.get();
    // SAFETY: what is listed is there until it has been taken from the list, by this thread, which does nothing else now.
    while let Some(before) = unsafe { next.as_ref() } {
        give_back(before);
        next = before.earlier;
    }
}
