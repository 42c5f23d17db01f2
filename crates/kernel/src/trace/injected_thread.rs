//! Threads that are made to do something else for a while, and given back as they were, also when their borrower is
//! killed: see [`survivor`](crate::trace::survivor).

use crate::trace::foreign_memory;
use crate::trace::pending_undo::{PendingUndo, PutBack};
use crate::trace::{Registers, Thread};
use std::io;
use std::marker::PhantomData;

/// A stopped thread whose registers and a piece of whose memory may be changed. While there is one the thread must
/// stand still, but within something [undivided](crate::trace::survivor::Undivided). Dropped, it is as it was before.
#[derive(Debug)]
pub struct InjectedThread<'a> {
    _pending_undo: PendingUndo,
    _thread: PhantomData<&'a Thread>,
}

/// How it was.
#[derive(Debug)]
struct Before {
    tid: i32,
    registers: Registers,
    mask: u64,
    room: u64,
    content: Vec<u8>,
}

impl<'a> InjectedThread<'a> {
    /// Borrows one with registers and blocked signals as they are, and `length` bytes of its memory at `room`. No
    /// handler of it runs until it is given back.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still; EFAULT where `room` is no memory of its.
    pub fn new(thread: &'a Thread, registers: Registers, mask: u64, room: u64, length: usize) -> io::Result<Self> {
        let mut content = vec![0; length];
        if length > 0 {
            foreign_memory::read(thread.tid(), room, &mut content)?;
        }
        let pending_undo = PendingUndo::new(Before { tid: thread.tid(), registers, mask, room, content });
        thread.set_signal_mask(u64::MAX)?;
        // It stands still: a thread that runs must never be without its filters.
        thread.suspend_filters();
        Ok(Self { _pending_undo: pending_undo, _thread: PhantomData })
    }
}

impl PutBack for Before {
    /// Should one of these fail, the thread has been killed.
    fn put_back(&self) {
        // Only looked at: the tracer that seized it lets it go.
        let thread = std::mem::ManuallyDrop::new(Thread::seized(self.tid));
        if !self.content.is_empty() {
            let _ = foreign_memory::write(self.tid, self.room, &self.content);
        }
        let _ = thread.set_registers(&self.registers);
        let _ = thread.set_signal_mask(self.mask);
        // Before the kernel may have it go on in any way.
        let _ = thread.enforce_filters();
        let _ = thread.end_calling();
    }
}
