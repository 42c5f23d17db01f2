//! How a thread of a clone goes on with a call in which it was interrupted, for as long as it had yet to wait. The
//! kernel would go on with it by itself, but knows of no such call of a new thread's; and the time that the call was
//! made with, in memory or in a register, is the program's, and stays what it is. So the thread makes the call from a
//! few instructions of its own in its [trampoline](crate::restore::resume_trampoline), with what is left in the place
//! of that time, and goes on behind its program's own call, with all registers as those would be.
//!
//! ```text
//!       syscall
//!       mov    rdi, …      or rdx, or r10: what stood in the register that tells of the time
//!       mov    rcx, …      behind the program's call; a system call leaves that address in rcx
//!       jmp    rcx
//!       .quad  …, …        what is left
//! ```

use crate::image::memory::USER_END;
use crate::image::{Area, AreaKind, Thread};
use pando_kernel::trace::Registers;
use pando_kernel::trace::foreign_memory;
use std::ops::Range;

/// What the memory file is called that holds a script.
pub(crate) const NAME: &str = "pando-script";

/// Bytes of the instructions, and of what is left behind them.
pub(crate) const LENGTH: usize = CODE + 16;

const CODE: usize = 24;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const JUMP: [u8; 2] = [0xff, 0xe1];
const LOAD_RCX: [u8; 2] = [0x48, 0xb9];

/// Where a thread can be in them: before the call, behind it, and behind each of the next instructions.
const PLACES: [u64; 4] = [0, 2, 12, 22];

/// Places in a frame's registers.
const RSI: usize = 9;

const RAX: usize = 13;
const RIP: usize = 16;

/// A register that tells of a call's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timed {
    Rdi,
    Rdx,
    R10,
}

impl Timed {
    const ALL: [Self; 3] = [Self::Rdi, Self::Rdx, Self::R10];

    /// What loads it.
    fn load(self) -> [u8; 2] {
        match self {
            Self::Rdi => [0x48, 0xbf],
            Self::Rdx => [0x48, 0xba],
            Self::R10 => [0x49, 0xba],
        }
    }

    /// Its place in a frame's registers.
    fn place(self) -> usize {
        match self {
            Self::R10 => 2,
            Self::Rdi => 8,
            Self::Rdx => 12,
        }
    }

    fn set(self, registers: &mut Registers, value: u64) {
        match self {
            Self::Rdi => registers.rdi = value,
            Self::Rdx => registers.rdx = value,
            Self::R10 => registers.r10 = value,
        }
    }
}

/// The instructions of a thread, to lie at an address, and the registers with which it comes to them. `None` for one
/// that makes no call for a time, or one that says itself when that ends.
pub(crate) fn lay(thread: &Thread, address: u64) -> Option<(Vec<u8>, Vec<u64>)> {
    const POLL: u64 = libc::SYS_poll as u64;
    const MILLISECOND: u64 = 1_000_000;
    const SECOND: u64 = 1_000_000_000;
    let left = thread.left?;
    if thread.registers.len() <= RIP {
        return None;
    }
    let call = thread.registers[RAX];
    let timed = match call as i64 {
        libc::SYS_nanosleep => Timed::Rdi,
        libc::SYS_clock_nanosleep | libc::SYS_poll => Timed::Rdx,
        // Other ways to wait for a word are told when to end, rather than after how long.
        libc::SYS_futex if is_plain_wait(thread.registers[RSI]) => Timed::R10,
        _ => return None,
    };
    let mut registers = thread.registers.clone();
    let (program, value) = (registers[RIP].wrapping_add(SYSCALL.len() as u64), registers[timed.place()]);
    registers[RIP] = address;
    registers[timed.place()] = match call {
        POLL => left.div_ceil(MILLISECOND).min(i32::MAX as u64),
        _ => address + CODE as u64,
    };
    let mut code = SYSCALL.to_vec();
    code.extend(timed.load());
    code.extend(value.to_le_bytes());
    code.extend(LOAD_RCX);
    code.extend(program.to_le_bytes());
    code.extend(JUMP);
    code.extend((left / SECOND).to_le_bytes());
    code.extend((left % SECOND).to_le_bytes());
    Some((code, registers))
}

/// Whether what is asked of futex(2) is FUTEX_WAIT, of whatever process and by the monotonic clock.
fn is_plain_wait(operation: u64) -> bool {
    const PRIVATE: u32 = 128;
    operation as u32 & !PRIVATE == libc::FUTEX_WAIT as u32
}

/// The registers of a stopped thread as they would be, had its program made the call itself.
pub(crate) fn undone(tid: i32, registers: &Registers, areas: &[Area]) -> Registers {
    // Nothing else can lie there.
    let is_there = room(areas).is_some_and(|room| room.contains(&registers.rip));
    let within = |place: &u64| {
        let mut code = [0; CODE];
        foreign_memory::read(tid, registers.rip.wrapping_sub(*place), &mut code).ok()?;
        as_of_program(code, *place, registers)
    };
    is_there.then(|| PLACES.iter().find_map(within)).flatten().unwrap_or(*registers)
}

/// The same of one that is at a place in such instructions.
fn as_of_program(code: [u8; CODE], place: u64, registers: &Registers) -> Option<Registers> {
    let [s0, s1, l0, l1, value @ .., j0, j1] = code;
    let (value, rest) = value.split_first_chunk::<8>()?;
    let (load, program) = rest.split_first_chunk::<2>()?;
    let timed = Timed::ALL.into_iter().find(|timed| timed.load() == [l0, l1])?;
    if [s0, s1] != SYSCALL || [j0, j1] != JUMP || *load != LOAD_RCX {
        return None;
    }
    let program = u64::from_le_bytes(program.try_into().ok()?);
    let mut own = *registers;
    timed.set(&mut own, u64::from_le_bytes(*value));
    own.rip = program;
    if place == 0 {
        own.rip = program.wrapping_sub(SYSCALL.len() as u64);
    } else {
        own.rcx = program;
    }
    Some(own)
}

/// Whether a mapping of a file is one.
pub(crate) fn is_one(path: &str) -> bool {
    path.strip_prefix("/memfd:").and_then(|rest| rest.strip_suffix(" (deleted)")) == Some(NAME)
}

/// Room above the stack. Below another area that grows there is none: it would be in that one's way.
pub(crate) fn room(areas: &[Area]) -> Option<Range<u64>> {
    let at = areas.iter().rev().find(|area| area.grows && area.kind == AreaKind::Anonymous)?.end;
    let next = areas.iter().filter(|area| area.start >= at).min_by_key(|area| area.start);
    let end = next.map_or(USER_END, |next| if next.grows { at } else { next.start });
    Some(at..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::registers;

    #[test]
    fn it_is_known_by_its_name() {
        assert!(is_one("/memfd:pando-script (deleted)"));
        assert!(!is_one("/memfd:other (deleted)") && !is_one("/pando-script"));
    }

    fn thread(call: i64, registers: &Registers, left: u64) -> Thread {
        let stopped = Registers { orig_rax: call as u64, rax: -516_i64 as u64, ..*registers };
        Thread { registers: registers::general(&stopped, None), left: Some(left), ..Thread::default() }
    }

    #[test]
    fn what_is_left_stands_behind_the_code_or_in_the_register() {
        let program = Registers { rdi: 1, rdx: 2, r10: 3, rip: 0x1002, ..Registers::default() };
        let laid = |call, left| lay(&thread(call, &program, left), 0x7000).unwrap();
        let (code, registers) = laid(libc::SYS_nanosleep, 3_000_000_007);
        assert_eq!(code[CODE..], [3_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat());
        assert_eq!((registers[RIP], registers[8], registers[12]), (0x7000, 0x7000 + CODE as u64, 2));
        assert_eq!(registers[RAX], libc::SYS_nanosleep as u64);
        assert_eq!(laid(libc::SYS_poll, 1_500_001).1[12], 2);
        assert_eq!(laid(libc::SYS_futex, 5).1[2], 0x7000 + CODE as u64);
    }

    #[test]
    fn who_says_when_it_ends_makes_its_call_itself() {
        let bitset = Registers { rsi: 9 | 128, rip: 0x1002, ..Registers::default() };
        assert_eq!(lay(&thread(libc::SYS_futex, &bitset, 5), 0x7000), None);
        assert_eq!(lay(&thread(libc::SYS_read, &bitset, 5), 0x7000), None);
        let mut forever = thread(libc::SYS_poll, &bitset, 5);
        forever.left = None;
        assert_eq!(lay(&forever, 0x7000), None);
    }

    #[test]
    fn a_thread_that_is_in_them_is_where_its_program_would_be() {
        let program = Registers { rdi: 0x5000, rip: 0x1002, rcx: 9, ..Registers::default() };
        let (code, there) = lay(&thread(libc::SYS_nanosleep, &program, 5), 0x7000).unwrap();
        let code: [u8; CODE] = code[..CODE].try_into().unwrap();
        let at = |place| as_of_program(code, place, &Registers { rdi: there[8], rip: 0x7000 + place, ..program });
        let before = at(0).unwrap();
        assert_eq!((before.rip, before.rdi, before.rcx), (0x1000, 0x5000, 9));
        for place in [2, 12, 22] {
            let behind = at(place).unwrap();
            assert_eq!((behind.rip, behind.rdi, behind.rcx), (0x1002, 0x5000, 0x1002));
        }
        assert_eq!(as_of_program([0x90; CODE], 2, &program), None);
    }
}
