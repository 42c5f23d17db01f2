//! The call in which a thread waits that was interrupted, and with which the kernel would go on (`restart_block`): what
//! it waits for, and how much longer.
//!
//! The kernel goes on with such a call by restart_syscall(2). Who is frozen again has that number in its registers,
//! beside the arguments of the call that it once made; in a clone it would end with EINTR, since the kernel knows of no
//! call to go on with there. So the call itself is made again, for [what is left](crate::trampoline).

use pando_kernel::trace::Registers;
use pando_kernel::trace::foreign_memory;
use rustix::time::{ClockId, clock_gettime};

/// A call that was interrupted, and with which the kernel would go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    pub(crate) wait: Wait,
    /// Nanoseconds that it had yet to wait; none if it waits for ever, or if nobody tells.
    pub(crate) left: Option<u64>,
}

/// What a thread waits for in an interrupted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Time: nanosleep(2), or clock_nanosleep(2).
    Time,
    /// A word of memory: futex(2).
    Word,
    /// Open files: poll(2).
    Files,
}

/// When it would end, whatever it waits for: by the clock of that number, and by the monotonic one for a word and for
/// files. 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Until {
    pub(crate) time: u64,
    pub(crate) clock: u64,
    pub(crate) word: u64,
    pub(crate) files: u64,
}

const MONOTONIC: u64 = libc::CLOCK_MONOTONIC as u64;

/// One with which the kernel would go on by a function: its name, and zeros.
pub(crate) fn by_function(name: &[u8], until: Until) -> Option<Interrupted> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let (wait, left) = match name {
        b"hrtimer_nanosleep_restart" => (Wait::Time, left(until.time, until.clock)),
        // By the processor's time, or by a clock that wakes the machine.
        b"posix_cpu_nsleep_restart" | b"alarm_timer_nsleep_restart" => (Wait::Time, None),
        b"futex_wait_restart" => (Wait::Word, left(until.word, MONOTONIC)),
        b"do_restart_poll" => (Wait::Files, left(until.files, MONOTONIC)),
        _ => return None,
    };
    Some(Interrupted { wait, left })
}

fn left(until: u64, clock: u64) -> Option<u64> {
    const SECOND: u64 = 1_000_000_000;
    let clock = match clock as i32 {
        libc::CLOCK_REALTIME => ClockId::Realtime,
        libc::CLOCK_MONOTONIC => ClockId::Monotonic,
        libc::CLOCK_BOOTTIME => ClockId::Boottime,
        _ => return None,
    };
    let now = clock_gettime(clock);
    let now = now.tv_sec as u64 * SECOND + now.tv_nsec as u64;
    (until != 0).then_some(until.saturating_sub(now))
}

/// The same, where the kernel does not tell: by the instruction in front of the call, which loads its number in most
/// programs. `None` where it is another.
pub(crate) fn by_code(tid: i32, registers: &Registers) -> Option<Interrupted> {
    if registers.orig_rax != libc::SYS_restart_syscall as u64 {
        return None;
    }
    let mut code = [0; 7];
    foreign_memory::read(tid, registers.rip.wrapping_sub(7), &mut code).ok()?;
    loaded(code).map(|wait| Interrupted { wait, left: None })
}

/// By `mov eax, NUMBER` and `syscall`.
fn loaded(code: [u8; 7]) -> Option<Wait> {
    let [0xb8, a, b, c, d, 0x0f, 0x05] = code else { return None };
    match i64::from(u32::from_le_bytes([a, b, c, d])) {
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Some(Wait::Time),
        libc::SYS_futex => Some(Wait::Word),
        libc::SYS_poll => Some(Wait::Files),
        _ => None,
    }
}

impl Wait {
    /// The call's number, by its first argument.
    pub(crate) fn call(self, first: u64) -> u64 {
        /// That is a clock's number, or an address; there are no addresses as low.
        const CLOCKS: u64 = 16;
        let number = match self {
            Self::Time if first < CLOCKS => libc::SYS_clock_nanosleep,
            Self::Time => libc::SYS_nanosleep,
            Self::Word => libc::SYS_futex,
            Self::Files => libc::SYS_poll,
        };
        number as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_known_by_the_kernels_function() {
        let wait = |name: &[u8]| by_function(name, Until::default()).map(|interrupted| interrupted.wait);
        assert_eq!(wait(b"futex_wait_restart\0\0"), Some(Wait::Word));
        assert_eq!(wait(b"do_restart_poll"), Some(Wait::Files));
        assert_eq!(wait(b"do_no_restart_syscall\0"), None);
        assert_eq!(wait(b"\0\0"), None);
    }

    #[test]
    fn what_is_left_is_counted_from_now() {
        const HOUR: u64 = 3_600_000_000_000;
        let now = clock_gettime(ClockId::Monotonic);
        let until = now.tv_sec as u64 * 1_000_000_000 + HOUR;
        let of = |until| by_function(b"hrtimer_nanosleep_restart", until).unwrap().left;
        let told = of(Until { time: until, clock: MONOTONIC, ..Until::default() }).unwrap();
        assert!(told <= HOUR && told > HOUR / 2, "{told}");
        assert_eq!(of(Until { time: 5, clock: MONOTONIC, ..Until::default() }), Some(0));
        assert_eq!(of(Until::default()), None);
        assert_eq!(of(Until { time: until, clock: 99, ..Until::default() }), None);
    }

    #[test]
    fn or_by_the_number_that_was_loaded() {
        let code = |number: u8| [0xb8, number, 0, 0, 0, 0x0f, 0x05];
        let known = [35, 230, 202, 7].map(|number| loaded(code(number)));
        assert_eq!(known, [Wait::Time, Wait::Time, Wait::Word, Wait::Files].map(Some));
        assert_eq!([loaded(code(1)), loaded([0x90; 7])], [None, None]);
    }

    #[test]
    fn sleeps_are_told_apart_by_their_first_argument() {
        assert_eq!(Wait::Time.call(1), libc::SYS_clock_nanosleep as u64);
        assert_eq!(Wait::Time.call(0x7fff_0000_1000), libc::SYS_nanosleep as u64);
    }
}
