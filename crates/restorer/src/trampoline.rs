//! The last instructions that a thread of a clone takes before it is in the frozen program: they give its stack back,
//! or all of the restorer, and return through the thread's signal frame.
//!
//! They need no stack and may lie anywhere. Where they lie in the frozen program's memory, beside the frames, nothing
//! of the restorer is left there, and the page tables that it took are the kernel's again: four pages a process, more
//! than most clones write to.

/// What is done, in machine code (x86-64). On entry: rdi and rsi are the address and length of what is unmapped, rax
/// the number of munmap(2), r12 the signal frame, r13 the word that counts threads that have passed, or 0.
///
/// ```text
///       syscall                        munmap
///       test   r13, r13
///       jz     1f
///       lock inc dword ptr [r13]       from here on nothing of the restorer is needed by this thread
///       mov    rdi, r13
///       mov    esi, 129                FUTEX_WAKE_PRIVATE
///       mov    edx, 1
///       mov    eax, 202                futex
///       syscall
///   1:  mov    rsp, r12
///       mov    eax, 15                 rt_sigreturn
///       syscall
///       ud2
/// ```
pub const CODE: [u8; 44] = [
    0x0f, 0x05, //
    0x4d, 0x85, 0xed, //
    0x74, 0x19, //
    0xf0, 0x41, 0xff, 0x45, 0x00, //
    0x4c, 0x89, 0xef, //
    0xbe, 0x81, 0x00, 0x00, 0x00, //
    0xba, 0x01, 0x00, 0x00, 0x00, //
    0xb8, 0xca, 0x00, 0x00, 0x00, //
    0x0f, 0x05, //
    0x4c, 0x89, 0xe4, //
    0xb8, 0x0f, 0x00, 0x00, 0x00, //
    0x0f, 0x05, //
    0x0f, 0x0b, //
];

#[cfg(test)]
mod tests {
    use super::*;

    const SYSCALL: [u8; 2] = [0x0f, 0x05];

    #[test]
    fn the_jump_leads_past_the_count_to_the_return() {
        let jump = CODE.iter().position(|byte| *byte == 0x74).unwrap();
        let target = jump + 2 + usize::from(CODE[jump + 1]);
        // mov rsp, r12; mov eax, 15 (rt_sigreturn); syscall; ud2
        assert_eq!(CODE[target..], [0x4c, 0x89, 0xe4, 0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b]);
        assert_eq!(CODE[target - 2..target], SYSCALL, "what is jumped over ends with the waking");
    }

    #[test]
    fn it_makes_three_calls_and_nothing_follows_the_last() {
        assert_eq!(CODE.windows(2).filter(|pair| *pair == SYSCALL).count(), 3);
        assert_eq!(CODE[..2], SYSCALL);
        assert_eq!(CODE[CODE.len() - 2..], [0x0f, 0x0b]);
        // futex(2) is asked to wake one who waits in this process's own memory.
        let numbers = |number: u32| CODE.windows(4).any(|word| word == number.to_le_bytes());
        assert!(numbers(202) && numbers(129) && numbers(1));
    }
}
