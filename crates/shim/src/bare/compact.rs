//! Two processes in two megabytes: their stacks lie beside the program, and the mappings that the kernel gave it are
//! gone. They would take three further page tables of every guest.

use super::memory::give_back_stack;
use super::{call, number};
use core::arch::asm;
use core::ops::Range;

/// Where the stack is: the last of the two megabytes that the program lies in.
const STACK: usize = 0x3c_0000;
const END: usize = 0x40_0000;

/// Where that of the init is, which shares the shim's memory: with nothing mapped on either side, so that neither
/// stack grows into another.
pub(super) const TRUNK: Range<usize> = 0x3a_0000..0x3b_0000;

/// Where addresses end (x86-64 with four levels of page tables); the kernel puts nothing above unless it is asked to.
const USER_END: usize = 0x7fff_ffff_f000;

/// What is seen of it in ps(1): the words of its command would go with the kernel's stack. The kernel shows them out of
/// anonymous memory alone, so they lie at the end of the stack.
const NAME: [u8; 16] = *b"pando-shim\0\0\0\0\0\0";
const NAME_LENGTH: usize = 11;

/// Where the stack begins.
const TOP: usize = END - NAME.len();

/// `struct prctl_mm_map` (linux/prctl.h).
#[repr(C)]
struct MemoryMap {
    code: [usize; 2],
    data: [usize; 2],
    heap: [usize; 2],
    stack: usize,
    arguments: [usize; 2],
    environment: [usize; 2],
    auxiliary: usize,
    auxiliary_length: u32,
    executable: i32,
}

/// Maps it and tells the kernel; where it begins. `None` where the kernel has the place for something else, or cannot
/// be told (PR_SET_MM_MAP, since Linux 3.18 with CONFIG_CHECKPOINT_RESTORE): its own does then.
pub(super) fn stack() -> Option<usize> {
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS_FIXED_NOREPLACE: usize = 0x10_0022;
    const PR_SET_MM: usize = 35;
    const PR_SET_MM_MAP: usize = 14;
    let named = [TOP, TOP + NAME_LENGTH];
    let map = MemoryMap {
        code: named,
        data: named,
        heap: [END, END],
        stack: TOP,
        arguments: named,
        environment: [named[1], named[1]],
        auxiliary: 0,
        auxiliary_length: 0,
        executable: -1,
    };
    // SAFETY: a new mapping where there is none, at whose end the name is written; the kernel reads the map.
    unsafe {
        let length = END - STACK;
        let at =
            call(number::MMAP, [STACK, length, READ_WRITE, PRIVATE_ANONYMOUS_FIXED_NOREPLACE, usize::MAX, 0]).ok()?;
        if at != STACK {
            let _ = call(number::MUNMAP, [at, length, 0, 0, 0, 0]);
            return None;
        }
        (TOP as *mut [u8; NAME.len()]).write(NAME);
        let arguments = [PR_SET_MM, PR_SET_MM_MAP, (&raw const map) as usize, size_of::<MemoryMap>(), 0, 0];
        if call(number::PRCTL, arguments).is_err() {
            let _ = call(number::MUNMAP, [at, length, 0, 0, 0, 0]);
            return None;
        }
    }
    Some(TOP)
}

/// Gives back the kernel's stack, and the code and the clock that it maps for C libraries.
pub(super) fn leave_the_kernels() {
    // SAFETY: the program and its stack lie below, and nothing else has been mapped yet. Nothing refers to the kernel's
    // stack, the words on it included.
    let _ = unsafe { call(number::MUNMAP, [END, USER_END - END, 0, 0, 0, 0]) };
}

/// Goes on with `act` for good at the top of the init's stack, if that is where it was requested for, and without what
/// earlier calls have used of it.
pub(super) fn from_the_top(act: fn(Option<i32>, bool) -> !, command: Option<i32>, heard: bool) -> ! {
    #[expect(
        improper_ctypes_definitions,
        reason = "it is called here alone, and a function's address is a register's worth in either convention"
    )]
    extern "C" fn go_on(act: fn(Option<i32>, bool) -> !, command: i32, heard: usize) -> ! {
        give_back_stack();
        act((command != 0).then_some(command), heard != 0)
    }
    let here: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    if !TRUNK.contains(&here) {
        act(command, heard);
    }
    let (command, heard) = (command.unwrap_or(0), usize::from(heard));
    // SAFETY: the caller does not go on, and what is passed on are numbers and a function: nothing on the stack is
    // needed any more.
    unsafe {
        asm!("mov rsp, {top}", "xor ebp, ebp", "call {go_on}", "ud2", top = const TRUNK.end, go_on = sym go_on,
             in("rdi") act, in("esi") command, in("rdx") heard, options(noreturn));
    }
}
