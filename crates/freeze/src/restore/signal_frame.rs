//! The signal frame that a thread of a clone resumes through: what the kernel would have pushed, had a handler
//! interrupted the thread where it was frozen (`struct ucontext`, `struct sigcontext`: arch/x86/include/uapi/asm).
//! rt_sigreturn(2) takes all registers, the vector state, the signal mask and the alternative stack from it.

use crate::image::Thread;

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
