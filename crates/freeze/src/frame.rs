//! The signal frame that a thread of a clone resumes through: what the kernel would have pushed, had a handler interrupted the thread where it
//! was frozen (`struct ucontext`, `struct sigcontext`: arch/x86/include/uapi/asm). rt_sigreturn(2) takes all registers, the vector state, the signal
//! mask and the alternative stack from it.

use crate::image::Thread;
use crate::interrupted::Interrupted;
use pando_kernel::trace::Registers;

/// Bytes of a frame before the vector state. That must lie on a multiple of 64.
const STATE: usize = 1024;

/// UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
const FLAGS: u64 = 7;

/// What tells the kernel that extended state follows the legacy 512 bytes, and where that says so.
const MAGIC_1: u32 = 0x4650_5853;

const MAGIC_2: u32 = 0x4650_5845;
const SOFTWARE_BYTES: usize = 464;

/// How many registers a frame holds (`gregset_t`).
const REGISTERS: usize = 23;

/// The registers of a stopped thread in the order of a frame. A system call that was interrupted is made again, as the kernel would have it; where that
/// would go on with one that was interrupted before, `before` tells of that.
pub(crate) fn general(stopped: &Registers, before: Option<Interrupted>) -> Vec<u64> {
    let r = restarted(stopped, before);
    vec![
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.eflags,
        (r.cs & 0xffff) | (r.ss & 0xffff) << 48,
        0,
        0,
        0,
        0,
    ]
}

/// Thread pointers, which no frame holds: FS and GS base.
pub(crate) fn bases(stopped: &Registers) -> [u64; 2] {
    [stopped.fs_base, stopped.gs_base]
}

fn restarted(stopped: &Registers, before: Option<Interrupted>) -> Registers {
    /// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
    const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
    const SYSCALL_LENGTH: u64 = 2;
    let interrupted = stopped.orig_rax as i64 >= 0 && RESTARTS.contains(&(stopped.rax as i64));
    if !interrupted {
        return *stopped;
    }
    let goes_on = stopped.orig_rax == libc::SYS_restart_syscall as u64;
    let call = before.filter(|_| goes_on).map_or(stopped.orig_rax, |call| call.wait.call(stopped.rdi));
    Registers { rax: call, rip: stopped.rip.wrapping_sub(SYSCALL_LENGTH), ..*stopped }
}

/// The frame of a thread that goes on with some registers, to lie at `address`, a multiple of 64.
pub(crate) fn build(thread: &Thread, registers: &[u64], address: u64) -> Vec<u8> {
    let mut words = vec![FLAGS, 0];
    // The signal stack: address; flags in four bytes; length.
    words.extend(thread.signal_stack);
    let mut registers = registers.to_vec();
    registers.resize(REGISTERS, 0);
    words.extend(registers);
    words.push(address + STATE as u64);
    words.extend([0; 8]);
    words.push(thread.mask);
    let mut frame: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    frame.resize(STATE, 0);
    frame.extend(state(&thread.extended));
    frame
}

/// The vector state as a frame holds it.
fn state(extended: &[u8]) -> Vec<u8> {
    let length = extended.len() as u32;
    let mut state = extended.to_vec();
    if state.len() < SOFTWARE_BYTES + 48 {
        return state;
    }
    // XCR0, the features that the state has room for, stands where ptrace(2) and frames both leave room for software.
    let features: [u8; 8] = state[SOFTWARE_BYTES..SOFTWARE_BYTES + 8].try_into().unwrap_or_default();
    let mut software = Vec::with_capacity(48);
    software.extend(MAGIC_1.to_le_bytes());
    software.extend((length + 4).to_le_bytes());
    software.extend(features);
    software.extend(length.to_le_bytes());
    software.resize(48, 0);
    state[SOFTWARE_BYTES..SOFTWARE_BYTES + 48].copy_from_slice(&software);
    state.extend(MAGIC_2.to_le_bytes());
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupted::Wait;

    #[test]
    fn an_interrupted_call_is_made_again_and_a_finished_one_is_not() {
        let stopped = Registers { rax: -512_i64 as u64, orig_rax: 7, rip: 100, ..Registers::default() };
        let frame = general(&stopped, None);
        assert_eq!((frame[13], frame[16]), (7, 98));
        let finished = Registers { rax: -4_i64 as u64, ..stopped };
        assert_eq!(general(&finished, None)[16], 100);
        let no_call = Registers { orig_rax: u64::MAX, ..stopped };
        assert_eq!(general(&no_call, None)[16], 100);
    }

    #[test]
    fn a_call_that_was_interrupted_before_is_made_again_itself() {
        let stopped = Registers { rax: -516_i64 as u64, orig_rax: 219, rip: 100, ..Registers::default() };
        let poll = Some(Interrupted { wait: Wait::Files, left: None });
        let frame = general(&stopped, poll);
        assert_eq!((frame[13], frame[16]), (7, 98));
        // One that waits anew is known by its own number.
        let anew = Registers { orig_rax: 35, ..stopped };
        assert_eq!(general(&anew, poll)[13], 35);
    }

    #[test]
    fn the_vector_state_is_framed_by_its_magic_numbers() {
        let thread = Thread { extended: vec![0; 832], mask: 5, ..Thread::default() };
        let frame = build(&thread, &thread.registers, 0x1000);
        assert_eq!(frame.len(), STATE + 832 + 4);
        assert_eq!(frame[frame.len() - 4..], MAGIC_2.to_le_bytes());
        let pointer = 5 * 8 + REGISTERS * 8;
        assert_eq!(frame[pointer..pointer + 8], (0x1000_u64 + STATE as u64).to_le_bytes());
        assert_eq!(frame[pointer + 72..pointer + 80], 5_u64.to_le_bytes());
    }
}
