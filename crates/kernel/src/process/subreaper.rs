//! Child subreapers (PR_SET_CHILD_SUBREAPER of prctl(2), since Linux 3.4): processes to which the orphans among their
//! descendants fall.
//!
//! A tracer that makes a process fork, and has the child become an orphan, does not want it to fall to one of them: it
//! would have a child that it never asked for, hear of its end, and keep it as a zombie if it does not wait for it. So
//! a subreaper gives the attribute up meanwhile.

use crate::trace::pending_undo::{PendingUndo, PutBack};
use crate::trace::{Registers, Thread};
use std::io;
use std::marker::PhantomData;

/// A subreaper that has given the attribute up for now. Dropped, it has it again; so it has when the process that holds
/// this is killed ([`survivor`](crate::trace::survivor)).
#[derive(Debug)]
pub struct Suspended<'a> {
    _pending_undo: PendingUndo,
    _thread: PhantomData<&'a Thread>,
}

/// A thread of it, and how that was.
#[derive(Debug)]
struct Before {
    tid: i32,
    registers: Registers,
    mask: u64,
    instruction: u64,
}

impl<'a> Suspended<'a> {
    /// Suspends one, by a thread of it that stands still, has these registers, and blocks these signals. `instruction`
    /// is the address of a `syscall` instruction in its memory.
    ///
    /// # Errors
    ///
    /// The thread could not be made to execute the call; it is as it was.
    pub fn new(thread: &'a Thread, registers: Registers, mask: u64, instruction: u64) -> io::Result<Self> {
        let before = Before { tid: thread.tid(), registers, mask, instruction };
        let again = Before { ..before };
        let pending_undo = PendingUndo::new(again);
        before.set(false)?;
        Ok(Self { _pending_undo: pending_undo, _thread: PhantomData })
    }
}

impl Before {
    /// Has the thread say whether its process is one, and leaves it as it was. System calls alone.
    fn set(&self, is_one: bool) -> io::Result<()> {
        // Only looked at: the tracer that seized it lets it go.
        let thread = std::mem::ManuallyDrop::new(Thread::seized(self.tid));
        thread.set_signal_mask(u64::MAX)?;
        thread.suspend_filters();
        let called = thread.call(&Registers {
            rip: self.instruction,
            rax: libc::SYS_prctl as u64,
            orig_rax: u64::MAX,
            rdi: libc::PR_SET_CHILD_SUBREAPER as u64,
            rsi: u64::from(is_one),
            rdx: 0,
            r10: 0,
            r8: 0,
            ..self.registers
        });
        let _ = thread.set_registers(&self.registers);
        let _ = thread.set_signal_mask(self.mask);
        // Before the kernel may have it go on in any way.
        let _ = thread.enforce_filters();
        let _ = thread.end_calling();
        match called? {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error((error as i64).wrapping_neg() as i32)),
        }
    }
}

impl PutBack for Before {
    /// Should it fail, the thread has been killed, and its process with it.
    fn put_back(&self) {
        let _ = self.set(true);
    }
}
