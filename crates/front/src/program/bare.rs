//! The machine below: the entry, and the system calls that rustix leaves out. All unsafe code of the program but the
//! handover's stands here.

use core::arch::{asm, naked_asm};
use core::ffi::{CStr, c_char};
use core::panic::PanicInfo;
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;

const RT_SIGPROCMASK: usize = 14;
const EXIT_GROUP: usize = 231;
const SIGNALFD4: usize = 289;

/// Where the kernel enters the command. What the front does not see to goes on at the C library's entry, with stack and
/// registers as they were.
#[unsafe(naked)]
#[unsafe(no_mangle)]
// SAFETY: the kernel enters here with the stack pointer at argc. rbx and r12 are kept by what is called; rdx is what
// the C library is to call at exit.
unsafe extern "C" fn pando_begin() -> ! {
    naked_asm!(
        "xor ebp, ebp", "mov rbx, rsp", "mov r12, rdx", "mov rdi, rsp", "and rsp, -16", "call {begin}",
        "mov rsp, rbx", "mov rdx, r12", "jmp _start", begin = sym begin
    )
}

extern "C" fn begin(stack: *const usize) {
    // SAFETY: the kernel has put there, on the initial stack (System V ABI, "Process Initialization"): the number of
    // words, that many pointers, a null pointer, the environment's pointers, a null pointer. All strings end in NUL and
    // live as long as the process.
    let (words, environment) = unsafe {
        let words = stack.add(1).cast::<*const c_char>();
        (Strings(words), Strings(words.add(stack.read() + 1)))
    };
    super::front(words, environment);
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // Nothing here can panic but by a mistake in this crate; a command that does not know how its call ended has
    // failed.
    exit(125)
}

/// Strings that a table of pointers with a null pointer at its end leads to.
#[derive(Clone, Copy)]
pub(super) struct Strings(*const *const c_char);

impl Iterator for Strings {
    type Item = &'static CStr;

    fn next(&mut self) -> Option<&'static CStr> {
        // SAFETY: made from the kernel's tables alone, and never moved past the null pointer.
        unsafe {
            let string = self.0.read();
            if string.is_null() {
                return None;
            }
            self.0 = self.0.add(1);
            // Counted here, and in a way that the compiler does not take for a call of the C library's strlen(3).
            let mut length = 0;
            while string.add(length).read_volatile() != 0 {
                length += 1;
            }
            Some(CStr::from_bytes_with_nul_unchecked(core::slice::from_raw_parts(string.cast(), length + 1)))
        }
    }
}

/// Standard input, output and error. One that the caller had closed is found out by the first call on it; none is
/// opened in its place before that.
pub(super) fn standard() -> [BorrowedFd<'static>; 3] {
    // SAFETY: nothing in this program closes them.
    unsafe { [BorrowedFd::borrow_raw(0), BorrowedFd::borrow_raw(1), BorrowedFd::borrow_raw(2)] }
}

/// Ends the process.
pub(super) fn exit(code: u8) -> ! {
    loop {
        // SAFETY: does not return, touches no memory.
        let _ = unsafe { call(EXIT_GROUP, [usize::from(code), 0, 0, 0]) };
    }
}

/// Makes a system call.
///
/// # Safety
///
/// The call must be sound with these arguments: pointers valid for what the kernel reads and writes.
unsafe fn call(number: usize, a: [usize; 4]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the caller vouches for the call; the kernel clobbers rcx and r11 besides the result.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3],
             lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

/// Blocks signals, besides those that are blocked; what was blocked before.
pub(super) fn block(signals: u64) -> Result<u64, Errno> {
    const SIG_BLOCK: usize = 0;
    let mut before = 0_u64;
    // SAFETY: the kernel reads eight bytes at one place and writes eight at the other.
    unsafe { call(RT_SIGPROCMASK, [SIG_BLOCK, (&raw const signals) as usize, (&raw mut before) as usize, 8]) }?;
    Ok(before)
}

/// Blocks these signals and no others.
pub(super) fn block_only(signals: u64) {
    const SIG_SETMASK: usize = 2;
    // SAFETY: the kernel reads eight bytes.
    let _ = unsafe { call(RT_SIGPROCMASK, [SIG_SETMASK, (&raw const signals) as usize, 0, 8]) };
}

/// A descriptor that is readable when one of these signals, which are blocked, has come (signalfd4(2), since Linux
/// 2.6.27).
pub(super) fn signal_descriptor(signals: u64) -> Result<OwnedFd, Errno> {
    const SFD_CLOEXEC: usize = 0o2_000_000;
    // SAFETY: the kernel reads eight bytes; the descriptor that it makes is nobody else's.
    unsafe {
        let made = call(SIGNALFD4, [usize::MAX, (&raw const signals) as usize, 8, SFD_CLOEXEC])?;
        Ok(OwnedFd::from_raw_fd(made as i32))
    }
}
