//! Moves the program out of its executable into anonymous memory, at the same addresses.
//!
//! The kernel lets a process take another executable as its own (PR_SET_MM_MAP) only when nothing of the old one is
//! mapped.

use crate::bare::{self, call, number};

unsafe extern "C" {
    /// First byte of the program, as the linker names it.
    static __executable_start: u8;
    /// End of its code.
    static etext: u8;
    /// End of everything.
    static _end: u8;
}

const PAGE: u64 = 4096;
const READ: u64 = 1;
const WRITE: u64 = 2;
const EXECUTE: u64 = 4;

/// Must run on a stack that is not the program's own.
pub(crate) fn settle() {
    let (start, code_end, end) = (at(&raw const __executable_start), at(&raw const etext), at(&raw const _end));
    let code_end = code_end.next_multiple_of(PAGE);
    let end = end.next_multiple_of(PAGE);
    if replace(start, code_end, READ | EXECUTE).is_err() || replace(code_end, end, READ | WRITE).is_err() {
        bare::exit(112);
    }
}

fn at(symbol: *const u8) -> u64 {
    symbol as u64
}

/// Puts a copy of a range into its place.
fn replace(start: u64, end: u64, protection: u64) -> Result<(), bare::Errno> {
    const PRIVATE_ANONYMOUS: u64 = 0x22;
    const MAY_MOVE_FIXED: u64 = 3;
    const NO_ADVICE: u64 = 0;
    /// Not where the kernel would put it, beside its own mappings: a page table that it leaves there moves with those,
    /// and to every clone.
    const ASIDE: u64 = 1 << 30;
    let length = end - start;
    // SAFETY: the copy is byte for byte what was there, the exchange is one system call, and nothing writes to the
    // range between: this is the only thread, and it runs on another stack. Every segment can be read.
    unsafe {
        let copy = call(number::MMAP, [start + ASIDE, length, READ | WRITE, PRIVATE_ANONYMOUS, u64::MAX, 0])?;
        for page in (0..length).step_by(PAGE as usize) {
            // A page that nothing is mapped at belongs to no segment; the kernel says so where a load would kill.
            if call(number::MADVISE, [start + page, PAGE, NO_ADVICE, 0, 0, 0]).is_ok() {
                core::ptr::copy_nonoverlapping((start + page) as *const u8, (copy + page) as *mut u8, PAGE as usize);
            }
        }
        call(number::MPROTECT, [copy, length, protection, 0, 0, 0])?;
        call(number::MREMAP, [copy, length, length, MAY_MOVE_FIXED, start, 0])?;
    }
    Ok(())
}
