//! The four memory routines that the compiler calls and that a C library would bring.
//!
//! Written as single instructions, since a loop here would be compiled into a call of itself.

use core::arch::asm;

#[unsafe(no_mangle)]
// SAFETY: the caller, compiled code, passes valid ranges that do not overlap.
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: as above; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") length => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags))
    };
    to
}

#[unsafe(no_mangle)]
// SAFETY: the caller, compiled code, passes valid ranges.
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= length {
        // SAFETY: copying forwards does not overwrite what is still to be read.
        return unsafe { memcpy(to, from, length) };
    }
    // SAFETY: copies backwards, from the last byte, and clears the direction flag again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") length => _, inout("rdi") to.wrapping_add(length).wrapping_sub(1) => _,
             inout("rsi") from.wrapping_add(length).wrapping_sub(1) => _, options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
// SAFETY: the caller, compiled code, passes a valid range.
unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    // SAFETY: as above; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") length => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags))
    };
    to
}

#[unsafe(no_mangle)]
// SAFETY: the caller, compiled code, passes valid ranges.
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, length: usize) -> i32 {
    for index in 0..length {
        // SAFETY: the index is inside both ranges.
        let (a, b) = unsafe { (a.add(index).read_volatile(), b.add(index).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

#[unsafe(no_mangle)]
// SAFETY: as for memcmp.
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, length: usize) -> i32 {
    // SAFETY: passed on as it came.
    unsafe { memcmp(a, b, length) }
}
