//! What a system-call filter says of the calls that making a clone takes.
//!
//! Making a filter takes the kernel a tenth of a millisecond, for each thread anew; what is forked has its forker's. So
//! filters that all threads of an image have are made once, by the maker, if they let everything pass that is still to
//! be done. All others are installed when a thread is who it was: a filter can answer a call with success and not make
//! it, or end who makes it. What is called after that is little, and a clone is refused where a filter does anything
//! else to it than to let it pass. Filters are read here as the kernel reads them (bpf(4), seccomp(2)); whatever is not
//! understood counts as a refusal.

use pando_restorer::{EXACT, FORGIVE, ONTO, PATIENT, Report, Special, Step};

/// The restorer's own calls, whose arguments no script has.
const OWN: [i64; 20] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_rt_sigreturn,
    libc::SYS_nanosleep,
    libc::SYS_getpid,
    libc::SYS_socketpair,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_exit,
    libc::SYS_wait4,
    libc::SYS_kill,
    libc::SYS_fcntl,
    libc::SYS_prctl,
    libc::SYS_futex,
    libc::SYS_exit_group,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_clone3,
];

/// What it does for one step that has none of these for arguments.
fn done_for(special: Special) -> &'static [i64] {
    const OF_RINGS: [i64; 4] = [libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_submit, libc::SYS_mremap];
    if special == Special::AioRing { &OF_RINGS } else { &[] }
}

/// Whether each of some filters lets pass all steps from when it holds on, and what the restorer does besides: the
/// filters are in ascending order of that.
pub(crate) fn lets_pass<'a, I: Iterator<Item = &'a Step>>(filters: &[Vec<u8>], steps: impl Fn(usize) -> I) -> bool {
    let own = |filter: &Vec<u8>| OWN.iter().all(|number| allows(filter, &Asked::of(*number)));
    let step = |filter: &[u8], step: &Step| match Special::from_number(step.what) {
        Some(special) => done_for(special).iter().all(|number| allows(filter, &Asked::of(*number))),
        None => allows(filter, &Asked::by(step)),
    };
    filters.iter().enumerate().all(|(number, filter)| own(filter) && steps(number).all(|one| step(filter, one)))
}

/// The first call that a filter does not let pass, among those of steps that a thread takes once it has its filters,
/// and of the restorer between them.
pub(crate) fn obstacle<'a>(filter: &[u8], mut steps: impl Iterator<Item = &'a Step>) -> Option<i64> {
    steps.find_map(|step| {
        let asked = match Special::from_number(step.what) {
            Some(special) => done_under_filters(special, &step.arguments),
            None => vec![Asked::by(step)],
        };
        asked.into_iter().find(|asked| !allows(filter, asked)).map(|asked| asked.number)
    })
}

/// Whether all of some filters let a call pass.
pub(crate) fn let_call(filters: &[Vec<u8>], number: i64, arguments: &[u64]) -> bool {
    let asked = Asked::knowing(number, &arguments.iter().copied().map(Some).collect::<Vec<_>>());
    filters.iter().all(|filter| allows(filter, &asked))
}

/// What the restorer calls on its way from the installing of a thread's filters into its program. Addresses of what is
/// its own are not known.
fn done_under_filters(special: Special, arguments: &[u64; 6]) -> Vec<Asked> {
    const WAIT: Option<u64> = Some(128);
    const WAKE: Option<u64> = Some(129);
    let is_further = |count: u64| count == u64::MAX;
    let futex = |operation| Asked::knowing(libc::SYS_futex, &[None, operation]);
    let mut calls = Vec::new();
    match special {
        Special::Gate => {
            if arguments[0] != 0 {
                calls.extend([futex(WAIT), futex(WAKE)]);
            }
            if !is_further(arguments[0]) {
                let report = Asked::knowing(libc::SYS_write, &[None, None, Some(Report::LENGTH as u64)]);
                let gate = Asked::knowing(libc::SYS_read, &[None, None, Some(1)]);
                calls.extend([report, gate, Asked::of(libc::SYS_close)]);
            }
        }
        Special::Resume => {
            calls.extend([Asked::of(libc::SYS_munmap), Asked::of(libc::SYS_rt_sigreturn)]);
            if arguments[2] != 0 {
                calls.push(futex(WAKE));
            }
        }
        Special::Stop => {
            let stop = Asked::knowing(libc::SYS_kill, &[None, Some(libc::SIGSTOP as u64)]);
            calls.extend([Asked::of(libc::SYS_getpid), stop]);
            if arguments[0] != 0 {
                calls.extend([futex(WAIT), futex(WAKE)]);
            }
        }
        // It calls nothing.
        Special::Compare => {}
        // None of them is taken then.
        _ => calls.extend(OWN.map(Asked::of)),
    }
    calls
}

/// A call, and as much of its arguments as is known.
struct Asked {
    number: i64,
    arguments: [Option<u64>; 6],
}

impl Asked {
    fn of(number: i64) -> Self {
        Self::knowing(number, &[])
    }

    fn knowing(number: i64, known: &[Option<u64>]) -> Self {
        let mut arguments = [None; 6];
        arguments[..known.len()].copy_from_slice(known);
        Self { number, arguments }
    }

    fn by(step: &Step) -> Self {
        let number = (step.what & !(FORGIVE | ONTO | PATIENT | EXACT)) as i64;
        Self { number, arguments: step.arguments.map(Some) }
    }
}

/// Whether a filter lets a call pass, whatever those arguments are that are not known.
fn allows(filter: &[u8], asked: &Asked) -> bool {
    const ALLOW: u32 = 0x7fff_0000;
    const X86_64: u32 = 0xc000_003e;
    let (program, rest) = filter.as_chunks::<8>();
    let (mut accumulator, mut index, mut memory) = (0_u32, 0_u32, [0_u32; 16]);
    let mut at = 0_usize;
    // Jumps lead forward alone.
    while let Some(&[code, code_high, jump, miss, a, b, c, d]) = program.get(at) {
        let (code, k) = (u16::from_le_bytes([code, code_high]), u32::from_le_bytes([a, b, c, d]));
        at += 1;
        let operand = if code & 8 == 0 { k } else { index };
        match code {
            // BPF_LD | BPF_W | BPF_ABS: a word of `struct seccomp_data`.
            0x20 => {
                let word = match k {
                    0 => Some(asked.number as u32),
                    4 => Some(X86_64),
                    16..64 if k % 4 == 0 => asked.arguments[(k as usize - 16) / 8].map(|it| (it >> (k % 8 * 8)) as u32),
                    _ => None,
                };
                let Some(word) = word else { return false };
                accumulator = word;
            }
            0x00 => accumulator = k,
            0x01 => index = k,
            0x60 | 0x61 | 0x02 | 0x03 => {
                let Some(cell) = memory.get_mut(k as usize) else { return false };
                match code {
                    0x60 => accumulator = *cell,
                    0x61 => index = *cell,
                    0x02 => *cell = accumulator,
                    _ => *cell = index,
                }
            }
            0x07 => index = accumulator,
            0x87 => accumulator = index,
            0x44 | 0x4c => accumulator |= operand,
            0x54 | 0x5c => accumulator &= operand,
            0xa4 | 0xac => accumulator ^= operand,
            0x04 | 0x0c => accumulator = accumulator.wrapping_add(operand),
            0x14 | 0x1c => accumulator = accumulator.wrapping_sub(operand),
            0x05 => at = at.saturating_add(k as usize),
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match code & 0xf0 {
                    0x10 => accumulator == operand,
                    0x20 => accumulator > operand,
                    0x30 => accumulator >= operand,
                    _ => accumulator & operand != 0,
                };
                at += usize::from(if holds { jump } else { miss });
            }
            0x06 => return k == ALLOW && rest.is_empty(),
            0x16 => return accumulator == ALLOW && rest.is_empty(),
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(instructions: &[(u16, u8, u8, u32)]) -> Vec<u8> {
        let bytes = |&(code, jump, miss, k): &(u16, u8, u8, u32)| {
            [&code.to_le_bytes()[..], &[jump, miss], &k.to_le_bytes()].concat()
        };
        instructions.iter().flat_map(bytes).collect()
    }

    /// Refuses one call, and another where its first argument is 7.
    fn filter() -> Vec<u8> {
        program(&[
            (0x20, 0, 0, 4),
            (0x15, 0, 6, 0xc000_003e),
            (0x20, 0, 0, 0),
            (0x15, 4, 0, libc::SYS_bpf as u32),
            (0x15, 0, 2, libc::SYS_socket as u32),
            (0x20, 0, 0, 16),
            (0x15, 1, 0, 7),
            (0x06, 0, 0, 0x7fff_0000),
            (0x06, 0, 0, 0x0005_0001),
        ])
    }

    #[test]
    fn a_filter_is_read_as_the_kernel_reads_it() {
        let filter = filter();
        let asked = |number: i64, arguments: Option<[u64; 6]>| match arguments {
            Some(arguments) => Asked::knowing(number, &arguments.map(Some)),
            None => Asked::of(number),
        };
        let allowed = |number, arguments| allows(&filter, &asked(number, arguments));
        assert!(allowed(libc::SYS_read, None) && allowed(libc::SYS_read, Some([7; 6])));
        assert!(!allowed(libc::SYS_bpf, Some([0; 6])));
        assert!(allowed(libc::SYS_socket, Some([6; 6])) && !allowed(libc::SYS_socket, Some([7; 6])));
        assert!(!allowed(libc::SYS_socket, None), "it asks for what is not known");
        let any = Asked::of(0);
        assert!(!allows(&[], &any) && !allows(&filter[1..], &any) && !allows(&program(&[(0xff, 0, 0, 0)]), &any));
    }

    #[test]
    fn every_step_has_to_pass() {
        let step = |what| Step { what, arguments: [7; 6], want: 0 };
        let both = |filters: &[Vec<u8>], steps: &[Step]| lets_pass(filters, |_| steps.iter());
        let passes = |what| both(&[filter()], &[step(libc::SYS_chdir as u64), step(what)]);
        assert!(passes(libc::SYS_mremap as u64) && passes(Special::Fork as u64));
        assert!(!passes(libc::SYS_bpf as u64 | FORGIVE));
        let no_rings = [program(&[
            (0x20, 0, 0, 0),
            (0x15, 1, 0, libc::SYS_io_setup as u32),
            (0x06, 0, 0, 0x7fff_0000),
            (0x06, 0, 0, 38),
        ])];
        assert!(both(&no_rings, &[]) && passes(Special::AioRing as u64));
        assert!(!both(&no_rings, &[step(Special::AioRing as u64)]));
        let no_forks = program(&[
            (0x20, 0, 0, 0),
            (0x15, 1, 0, libc::SYS_clone3 as u32),
            (0x06, 0, 0, 0x7fff_0000),
            (0x06, 0, 0, 38),
        ]);
        assert!(!both(&[no_forks], &[]));
    }

    #[test]
    fn each_filter_is_asked_from_when_it_holds_on() {
        let steps = [libc::SYS_bpf, libc::SYS_chdir].map(|call| Step { what: call as u64, ..Step::default() });
        assert!(lets_pass(&[filter()], |number| steps.iter().skip(number + 1)));
        assert!(!lets_pass(&[filter()], |number| steps.iter().skip(number)));
    }

    #[test]
    fn on_the_way_into_a_program_little_is_called() {
        let step = |special: Special, arguments: [u64; 3]| {
            let [a, b, c] = arguments;
            Step { what: special as u64, arguments: [a, b, c, 0, 0, 0], want: 0 }
        };
        let way = [step(Special::Gate, [0, 7, 0]), step(Special::Resume, [0; 3])];
        let only = |calls: &[i64]| {
            let count = calls.len();
            let jump = |(place, call): (usize, &i64)| (0x15, (count - place) as u8, 0, *call as u32);
            let mut filter = vec![(0x20, 0, 0, 0)];
            filter.extend(calls.iter().enumerate().map(jump));
            filter.extend([(0x06, 0, 0, 0), (0x06, 0, 0, 0x7fff_0000)]);
            program(&filter)
        };
        let most = [libc::SYS_write, libc::SYS_read, libc::SYS_close, libc::SYS_munmap];
        let all = [&most[..], &[libc::SYS_rt_sigreturn]].concat();
        assert_eq!(obstacle(&only(&all), way.iter()), None);
        assert_eq!(obstacle(&only(&most), way.iter()), Some(libc::SYS_rt_sigreturn));
        let threads = [step(Special::Gate, [u64::MAX, 0, 0])];
        assert_eq!(obstacle(&only(&all), threads.iter()), Some(libc::SYS_futex));
    }
}
