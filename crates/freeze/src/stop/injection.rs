//! Making a stopped thread execute system calls of the freezer's choice, and leaving it as it was.
//!
//! Much of what a process is can be asked by nobody but itself: what its signals do, its alternative stack, its timers.
//! No code is put into it: its instruction pointer is set to the `syscall` instruction in its vdso and it stops when
//! that call has ended; results go to a piece of its stack below what it uses, whose old content is put back.

use crate::image::{Area, AreaKind};
use crate::inspect::proc_file::malformed;
use pando_kernel::trace::injected_thread::InjectedThread;
use pando_kernel::trace::survivor::Undivided;
use pando_kernel::trace::{Registers, Thread};
use pando_kernel::{CallError, Context, trace::foreign_memory};
use std::io;

/// Bytes that calls may write their results to.
pub(crate) const ROOM: u64 = 1024;

/// The ABI lets a function use so much below its stack pointer.
const RED_ZONE: u64 = 128;

/// A thread that executes calls. Dropped, it is as it was before.
pub(crate) struct Injection<'a> {
    thread: &'a Thread,
    before: Registers,
    instruction: u64,
    room: u64,
    _borrowed: InjectedThread<'a>,
}

impl<'a> Injection<'a> {
    /// Prepares a stopped thread. `instruction` is the address of a `syscall` instruction in its memory.
    pub(crate) fn new(thread: &'a Thread, before: Registers, mask: u64, instruction: u64) -> Result<Self, CallError> {
        let what = || format!("preparing thread {} for calls", thread.tid());
        let room = (before.rsp - RED_ZONE - ROOM) & !63;
        // No handler may run on what it does not know of.
        let borrowed = InjectedThread::new(thread, before, mask, room, ROOM as usize).context(what)?;
        Ok(Self { thread, before, instruction, room, _borrowed: borrowed })
    }

    /// The same for calls that write nothing: no memory of the thread is touched.
    pub(crate) fn without_room(
        thread: &'a Thread,
        before: Registers,
        mask: u64,
        instruction: u64,
    ) -> Result<Self, CallError> {
        let what = || format!("preparing thread {} for calls", thread.tid());
        let borrowed = InjectedThread::new(thread, before, mask, 0, 0).context(what)?;
        Ok(Self { thread, before, instruction, room: 0, _borrowed: borrowed })
    }

    /// Where results can be written.
    pub(crate) fn room(&self) -> u64 {
        self.room
    }

    /// Executes a call.
    pub(crate) fn call(&self, number: i64, arguments: &[u64]) -> Result<u64, CallError> {
        let what = || format!("having thread {} execute system call {number}", self.thread.tid());
        let undivided = Undivided::begin();
        let result = self.thread.call(&self.registers(number, arguments));
        drop(undivided);
        let result = result.context(what)? as i64;
        if (-4095..0).contains(&result) {
            return Err(io::Error::from_raw_os_error(-result as i32)).context(what);
        }
        Ok(result as u64)
    }

    /// The same for a call that not every kernel has: `None` where it is not known.
    pub(crate) fn call_if_known(&self, number: i64, arguments: &[u64]) -> Result<Option<u64>, CallError> {
        match self.call(number, arguments) {
            Err(error) if matches!(error.source.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => Ok(None),
            told => told.map(Some),
        }
    }

    /// The registers with which a thread of this memory executes a call next.
    fn registers(&self, number: i64, arguments: &[u64]) -> Registers {
        let argument = |place: usize| arguments.get(place).copied().unwrap_or(0);
        Registers {
            rip: self.instruction,
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi: argument(0),
            rsi: argument(1),
            rdx: argument(2),
            r10: argument(3),
            r8: argument(4),
            r9: argument(5),
            ..self.before
        }
    }

    /// Has a thread of this memory make a process, which stands still; its pid as its parent knows it. `flags` are
    /// those of clone(2). Neither of them touches the stack that they share.
    pub(crate) fn fork(&self, thread: &Thread, flags: u64) -> Result<(Thread, u64), CallError> {
        let what = || format!("having thread {} make a process", thread.tid());
        thread.call_fork(&self.registers(libc::SYS_clone, &[flags])).context(what)
    }

    /// Reads words that a call wrote.
    pub(crate) fn words<const N: usize>(&self, offset: u64) -> Result<[u64; N], CallError> {
        let mut bytes = [[0; 8]; N];
        foreign_memory::read(self.thread.tid(), self.room + offset, bytes.as_flattened_mut())
            .context(|| format!("reading a result in thread {}", self.thread.tid()))?;
        Ok(bytes.map(u64::from_le_bytes))
    }
}

/// The address of a `syscall` instruction in a process's memory: there is one in its vdso.
pub(crate) fn syscall_instruction(pid: i32, areas: &[Area]) -> Result<u64, CallError> {
    let is_vdso = |area: &&Area| area.kind == AreaKind::Kernel { name: "[vdso]".into() };
    let vdso = areas.iter().find(is_vdso).ok_or_else(|| malformed(format!("looking for the vdso of process {pid}")))?;
    find_instruction(pid, vdso.start, vdso.end)
}

/// Finds a `syscall` instruction between two addresses of a process, its vdso.
fn find_instruction(pid: i32, start: u64, end: u64) -> Result<u64, CallError> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const LONGEST: u64 = 64 * 1024;
    let what = || format!("looking for a syscall instruction in the vdso of process {pid}");
    let mut code = vec![0; (end - start).min(LONGEST) as usize];
    foreign_memory::read(pid, start, &mut code).context(what)?;
    let place = code.windows(2).position(|window| window == SYSCALL);
    place.map(|place| start + place as u64).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)).context(what)
}
