//! Where things lie in a holder's address space, and in that of a clone until it runs.

/// Where the program lives. Programs put their memory low, near 0x5555…, or near 0x7fff…; engines that choose addresses
/// at random stay below 2⁴⁶.
pub const REGION: u64 = 0x4000_0000_0000;

/// How far the region reaches: nothing in it is unmapped while a process is restored.
pub const REGION_LENGTH: u64 = 1 << 32;

/// Where the kernel's own mappings (vdso, vvar) wait while all else is unmapped: in a GiB of their own, so that there
/// is no table of theirs which the kernel would make another one for where they go.
pub const PARKING: u64 = REGION + 0x8000_0000;

/// Where the ring of a context of asynchronous input and output lies for a moment, on its way to its place. The kernel
/// makes none of more than 256 MiB.
pub const RINGS: u64 = REGION + 0xc000_0000;

/// Where the stacks of restored threads begin.
pub const STACKS: u64 = REGION + 0x0200_0000;

/// Bytes of a restored thread's stack, which goes when the thread returns into its program.
pub const STACK_LENGTH: u64 = 8192;

/// The descriptor of what memory is copied from.
pub const MEMORY: u64 = 101;

/// The descriptor over which a first process is handed what the others share.
pub const HANDOVER: u64 = 102;

/// Where the script is mapped, privately.
pub const SCRIPT: u64 = REGION + 0x1000_0000;

/// Where the stack of a process's `number`th further thread begins.
pub const fn thread_stack(number: u64) -> u64 {
    STACKS + number * STACK_LENGTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap() {
        /// As many threads as an image may have (`MOST_THREADS` of the freezer's checks).
        const THREADS: u64 = 16_384;
        let places = [REGION, STACKS, thread_stack(THREADS), SCRIPT, PARKING, RINGS, REGION + REGION_LENGTH];
        assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:x?}");
        assert!(places.iter().all(|place| place % 4096 == 0), "{places:x?}");
        assert!(HANDOVER != MEMORY);
    }

    #[test]
    fn stacks_stand_side_by_side() {
        assert_eq!(thread_stack(0), STACKS);
        assert_eq!(thread_stack(7) - thread_stack(6), STACK_LENGTH);
    }
}
