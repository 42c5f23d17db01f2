//! The steps of a script.

/// What stands at the beginning of a script.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Offset of the array of all steps, in bytes.
    pub steps: u64,
    /// How many steps that array has.
    pub count: u64,
    /// The staging steps are the first so many.
    pub staging: u64,
    /// The maker's are so many behind them.
    pub making: u64,
    /// The pid that the maker has in the clone's pid namespace: one that the image does not use.
    pub maker: u64,
    /// The lowest descriptor that no process of the image uses; reports go to it, the gate is the next, supplied ones
    /// follow.
    pub free: u64,
    /// How many steps of another script are counted before these when one is named.
    pub before: u64,
}

/// One step. `what` is the number of a system call or a [`Special`], with flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The system call or special step, or'ed with [`FORGIVE`], [`ONTO`], [`PATIENT`], [`EXACT`].
    pub what: u64,
    /// Its arguments. Pointers point into the script as mapped at [`crate::SCRIPT`].
    pub arguments: [u64; 6],
    /// If not 0, the result that a call must have. With [`ONTO`], the descriptor that the call's result becomes.
    pub want: u64,
}

/// A failure does not matter.
pub const FORGIVE: u64 = 1 << 32;

/// The call's result is a descriptor; it becomes the one wanted.
pub const ONTO: u64 = 1 << 33;

/// A failure may be due to another process that has not come as far: it is tried again for some seconds.
pub const PATIENT: u64 = 1 << 34;

/// The result has to be the one wanted, also where that is 0.
pub const EXACT: u64 = 1 << 35;

/// A thread's tid is the next that there is, and not to be asked for.
pub const NEXT_NUMBER: u64 = 1 << 32;

/// Steps that are no single system call. Numbers lie above all of those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Special {
    /// Fork a process: its pid, its first step, how many it has.
    Fork = 0x1_0000,
    /// Make a thread: its tid, or'ed with [`NEXT_NUMBER`], thread pointer, clear-tid address, end of its stack, its
    /// first step, how many it has.
    Thread = 0x1_0001,
    /// Report and wait at the gate: how many further threads the process has, its pid, and whether they wait on for
    /// [`Self::Stop`], for its first one; `u64::MAX` for the others.
    Gate = 0x1_0002,
    /// Return into the frozen program through a signal frame: its address, and that of the
    /// [trampoline](crate::trampoline), if there is one, in whose favour a process's first thread gives up all else
    /// that the restorer has there; then, for a further thread, its stack: address, length.
    Resume = 0x1_0003,
    /// Make a pipe: the descriptors that its two ends become.
    Pipe = 0x1_0004,
    /// End the process, with a code or by a signal.
    Exit = 0x1_0005,
    /// Make two connected unix sockets: the descriptors that they become, and their type.
    Pair = 0x1_0006,
    /// Send what is open of a range of descriptors over a socket: the socket, the first, the one behind the last. An
    /// empty range says that this was all.
    Hand = 0x1_0007,
    /// Take what is sent so, over a socket, to where it was.
    Take = 0x1_0008,
    /// Wait, as a process's first thread, until its further threads, so many, stand at the gate.
    Gather = 0x1_0009,
    /// Make a context of asynchronous input and output (io_setup(2)) whose ring lies at an address: how many requests
    /// it is for, how many events the ring has room for, that address, where in the ring the next event is taken, and
    /// the events that wait there: their address, and how many they are.
    AioRing = 0x1_000a,
    /// Compare what a call has written with what is expected: the addresses of both, and how many bytes there are.
    /// EPERM where they differ.
    Compare = 0x1_000b,
    /// Stop the process, as SIGSTOP does; once it is to go on, its further threads, so many, pass the gate.
    Stop = 0x1_000c,
}

impl Special {
    /// The special step of a number.
    pub fn from_number(number: u64) -> Option<Self> {
        let all = [Self::Fork, Self::Thread, Self::Gate, Self::Resume, Self::Pipe, Self::Exit, Self::Pair];
        all.into_iter()
            .chain([Self::Hand, Self::Take, Self::Gather, Self::AioRing, Self::Compare, Self::Stop])
            .find(|special| *special as u64 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of them, by name: of a new one the compiler says that it is missing here.
    fn number(special: Special) -> u64 {
        match special {
            Special::Fork => 0x1_0000,
            Special::Thread => 0x1_0001,
            Special::Gate => 0x1_0002,
            Special::Resume => 0x1_0003,
            Special::Pipe => 0x1_0004,
            Special::Exit => 0x1_0005,
            Special::Pair => 0x1_0006,
            Special::Hand => 0x1_0007,
            Special::Take => 0x1_0008,
            Special::Gather => 0x1_0009,
            Special::AioRing => 0x1_000a,
            Special::Compare => 0x1_000b,
            Special::Stop => 0x1_000c,
        }
    }

    #[test]
    fn every_special_step_is_known_by_its_number_and_no_other_number_is_one() {
        for word in 0x1_0000..=0x1_000c {
            assert_eq!(Special::from_number(word).map(number), Some(word));
        }
        for word in [0, 0xffff, 0x1_000d, u64::MAX, 0x1_0000 | FORGIVE] {
            assert_eq!(Special::from_number(word), None, "{word:#x}");
        }
    }

    #[test]
    fn flags_are_apart_from_each_other_and_from_every_number() {
        let flags = [FORGIVE, ONTO, PATIENT, EXACT];
        assert_eq!(flags.iter().fold(0, |all, flag| all | flag).count_ones(), 4);
        assert!(flags.iter().all(|flag| *flag > Special::Stop as u64));
        // A tid is never so large.
        assert!(NEXT_NUMBER > i32::MAX as u64);
    }

    #[test]
    fn a_script_is_of_whole_words() {
        assert_eq!((size_of::<Header>(), align_of::<Header>()), (56, 8));
        assert_eq!((size_of::<Step>(), align_of::<Step>()), (64, 8));
    }
}
