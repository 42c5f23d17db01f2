//! The records of the [task iterator](crate::bpf::task_iterator)'s program, taken apart: one a thread; behind the first
//! thread's one of the process, and behind that those of its contexts of asynchronous input and output.

use crate::image::ByHost;
use crate::image::memory::barriers_registered;
use crate::stop::interrupted::{self, Until};
use crate::stop::task_state::{AioContext, OfProcess, OfThread, UnsupportedState, is_set};
use std::io;

/// Bytes of the program's `struct thread`: words, and a name.
pub(crate) const THREAD: usize = WORDS * 8 + RESTART;

const WORDS: usize = 19;
const RESTART: usize = 40;

/// Bytes of its `struct process`.
pub(crate) const PROCESS: usize = 48 + SIGNALS * ACTION;

const SIGNALS: usize = 64;
const ACTION: usize = 32;

/// Where that says how many records of contexts follow it.
const CONTEXTS_AT: usize = 5;

/// If nobody tells of them.
const UNTOLD: u64 = u64::MAX;

/// Bytes of its `struct context`.
const CONTEXT: usize = 32;

/// In a thread's record: what security modules keep of it, and how many layers each would be if it were a Landlock
/// domain.
const SECURITY_AT: usize = 7;

const SECURITY: usize = 4;
const LAYERS_AT: usize = SECURITY_AT + SECURITY;
const LEADS_AT: usize = LAYERS_AT + SECURITY / 2;

/// `SS_DISABLE`, `SS_ONSTACK` and `SS_AUTODISARM` of sigaltstack(2).
const NO_STACK: u64 = 2;

const ON_STACK: u64 = 1;
const GIVEN_UP_IN_HANDLERS: u64 = 1 << 31;

/// The kernel's flags of a memory: the lowest two say whether it is dumpable, the next nine what a core dump has of it.
/// The others are the kernel's own affair, and have changed their places; those from here up tell, among others, of
/// what a process has asked for its memory as a whole.
const DUMPABLE: u64 = 3;

const CORE_DUMP: u32 = 2;
const CORE_DUMPS: u64 = 0x1ff;
const LATER_FLAGS: u32 = 28;

/// What records mean on this kernel, as our own process's shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usual {
    /// Flags that an ordinary process's memory has.
    pub(crate) flags: u64,
    /// Which of the words that security modules keep of a thread leads to its Landlock domain, if any does.
    pub(crate) domain: Option<usize>,
}

/// What was told of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskRecords {
    threads: Vec<(i32, OfThread)>,
    pub(crate) unsupported: Vec<UnsupportedState>,
    pub(crate) process: OfProcess,
    /// Whether an interval timer runs, or is yet to be wound up again: how much is left only the process can ask.
    pub(crate) intervals: bool,
    /// Whether its memory has flags that are not usual: what it has asked for its memory is to be asked.
    pub(crate) unusual: bool,
    /// The flags of its memory.
    pub(crate) flags: u64,
    /// Its contexts of asynchronous input and output; none if nobody tells of them.
    pub(crate) contexts: Option<Vec<AioContext>>,
}

impl TaskRecords {
    /// Of threads of which nothing else was told.
    #[cfg(test)]
    pub(crate) fn of_unsupported_state(unsupported: Vec<UnsupportedState>, process: OfProcess) -> Self {
        let (threads, contexts) = (Vec::new(), None);
        Self { threads, unsupported, process, intervals: false, unusual: false, flags: 0, contexts }
    }

    /// What was told of a thread, by its number in its own pid namespace and its stack pointer.
    pub(crate) fn thread(&self, tid: i32, stack_pointer: u64) -> Option<OfThread> {
        let (_, told) = self.threads.iter().find(|(whose, _)| *whose == tid)?;
        let mut told = told.clone();
        told.signal_stack[1] = stack_flags(told.signal_stack, stack_pointer);
        Some(told)
    }

    /// Takes records apart; `None` where that of the process is missing.
    pub(crate) fn from_bytes(mut bytes: &[u8], usual: Usual) -> io::Result<Option<Self>> {
        let (mut threads, mut unsupported, mut leader, mut contexts) = (Vec::new(), Vec::new(), None, None);
        while !bytes.is_empty() {
            let record;
            (record, bytes) = bytes.split_at_checked(THREAD).ok_or(io::ErrorKind::InvalidData)?;
            threads.push(of_thread(record));
            let bits = words::<SECURITY_AT>(record)[SECURITY_AT - 1];
            unsupported.push(UnsupportedState { bits, layers: usual.domain.map_or(0, |place| layers(record, place)) });
            if leads(record) {
                let Some((record, rest)) = bytes.split_at_checked(PROCESS) else { return Ok(None) };
                let Some((places, rest)) = rest.split_at_checked(length_of_contexts(record)) else { return Ok(None) };
                (leader, bytes) = (Some(record), rest);
                contexts = (words::<6>(record)[CONTEXTS_AT] != UNTOLD).then(|| of_contexts(places));
            }
        }
        Ok(leader.map(|record| {
            let [_, _, intervals, flags, _, _] = words(record);
            let unusual = (flags & !usual.flags) >> LATER_FLAGS != 0;
            Self {
                threads,
                unsupported,
                process: of_process(record),
                intervals: intervals != 0,
                unusual,
                flags,
                contexts,
            }
        }))
    }
}

fn of_thread(record: &[u8]) -> (i32, OfThread) {
    let [tid_and_death, bits_and_flags, clear, start, size, slack] = words(record);
    let [personality, time, word, files, clock] = words(&record[(LEADS_AT + 1) * 8..]);
    let (tid, parent_death) = (tid_and_death as i32, (tid_and_death >> 32) as i32);
    let (secure_bits, flags) = (bits_and_flags & u64::from(u32::MAX), bits_and_flags >> 32);
    let interrupted = interrupted::by_function(&record[WORDS * 8..], Until { time, clock, word, files });
    let (signal_stack, personality) = ([start, flags, size], personality as u32);
    (tid, OfThread { clear, signal_stack, parent_death, slack, secure_bits, personality, interrupted })
}

fn of_process(record: &[u8]) -> OfProcess {
    let (head, actions) = record.split_at(PROCESS - SIGNALS * ACTION);
    let [heap_end, bits, _, flags, state, _] = words(head);
    OfProcess {
        actions: (1..).zip(actions.chunks_exact(ACTION).map(words)).filter(|one| is_set(*one)).collect(),
        heap_end,
        subreaper: bits as u32 == 1,
        dumpable: flags & DUMPABLE == 1,
        by_host: ByHost { memory_shortage: (bits >> 32) as i32, core_dump: (flags >> CORE_DUMP & CORE_DUMPS) as u32 },
        barriers: barriers_registered(state),
    }
}

/// Bytes of the records of contexts behind a process's.
fn length_of_contexts(process: &[u8]) -> usize {
    const MOST: u64 = 1 << 16;
    let [.., places] = words::<6>(process);
    if places == UNTOLD { 0 } else { places.min(MOST) as usize * CONTEXT }
}

/// Of each place that a process has for a context, where there is one.
fn of_contexts(places: &[u8]) -> Vec<AioContext> {
    let of_context = |[address, made, now, polls]: [u64; 4]| AioContext {
        address,
        requests: made as u32,
        room: (made >> 32) as u32,
        tail: now as u32,
        in_flight: (now >> 32) as u32,
        polls: polls != 0,
    };
    let contexts = places.chunks_exact(CONTEXT).map(words).map(of_context);
    contexts.filter(|context| context.room > 0).collect()
}

/// How many domains lie around one another, if that word leads to one.
fn layers(record: &[u8], place: usize) -> u32 {
    let [pair] = words(&record[(LAYERS_AT + place / 2) * 8..]);
    (pair >> (place % 2 * 32)) as u32
}

/// Whether a record is of a process's first thread, and the process's follows.
fn leads(record: &[u8]) -> bool {
    words(&record[LEADS_AT * 8..]) == [1]
}

/// What security modules keep of the thread with a number, of many records.
pub(crate) fn security_of(mut bytes: &[u8], tid: i32) -> Option<[u64; SECURITY]> {
    while let Some((record, rest)) = bytes.split_at_checked(THREAD) {
        if words::<1>(record)[0] as i32 == tid {
            return Some(words(&record[SECURITY_AT * 8..]));
        }
        bytes = if leads(record) { rest.get(PROCESS + length_of_contexts(rest)..)? } else { rest };
    }
    None
}

/// The numbers that a record begins with.
fn words<const N: usize>(record: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(record.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// The flags with which sigaltstack(2) tells of a stack (address, flags, length) to a thread that runs with this stack
/// pointer.
fn stack_flags([start, flags, size]: [u64; 3], stack_pointer: u64) -> u64 {
    let given_up = flags & GIVEN_UP_IN_HANDLERS;
    let within = stack_pointer > start && stack_pointer - start <= size;
    match (size, given_up) {
        (0, _) => NO_STACK | given_up,
        (_, 0) if within => ON_STACK,
        _ => given_up,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::interrupted::{Interrupted, Wait};

    fn record(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Of a thread: what it begins with up to its unsupported, what security modules keep, the layers of two of these,
    /// whether it leads, its personality.
    fn thread(
        begins: [u64; 7],
        security: [u64; 4],
        layers: u64,
        [leads, personality]: [u64; 2],
        restart: &str,
    ) -> Vec<u8> {
        let mut bytes = record(&begins);
        bytes.extend(record(&security));
        bytes.extend(record(&[layers, 5, leads, personality]));
        bytes.resize(THREAD - RESTART, 0);
        bytes.extend(restart.bytes());
        bytes.resize(THREAD, 0);
        bytes
    }

    /// With a place for a context that is there, and one for none.
    fn process() -> Vec<u8> {
        let mut bytes = record(&[0x5000, 1 | (-3_i32 as u32 as u64) << 32, 0, 1 << 30 | 0x33 << 2 | 1, 0b1010, 2]);
        bytes.resize(PROCESS, 0);
        bytes[48 + 9 * ACTION..][..8].copy_from_slice(&0x4000_u64.to_ne_bytes());
        bytes.extend(record(&[0x9000, 5 | 127 << 32, 3 | 2 << 32, 1, 0, 0, 0, 0]));
        bytes
    }

    fn both() -> Vec<u8> {
        let begins = [7 | 9 << 32, 3, 0x1000, 0x2000, 0x100, 50_000, 0];
        let mut bytes = thread(begins, [0, 0x77, 0, 0], 1 << 32, [1, 0x4_0000], "do_restart_poll");
        bytes.extend(process());
        bytes.extend(thread([8, 0, 0, 0, 0, 50_000, 8], [0, 0x78, 0, 0], 2 << 32, [0; 2], ""));
        bytes
    }

    #[test]
    fn records_of_threads_and_of_their_process_are_taken_apart() {
        let bytes = both();
        let told = TaskRecords::from_bytes(&bytes, Usual::default()).unwrap().unwrap();
        let first = told.thread(7, 0x2080).unwrap();
        assert_eq!((first.parent_death, first.secure_bits, first.clear), (9, 3, 0x1000));
        assert_eq!(first.signal_stack, [0x2000, ON_STACK, 0x100]);
        let poll = Interrupted { wait: Wait::Files, left: None };
        assert_eq!((first.personality, first.interrupted), (0x4_0000, Some(poll)));
        let second = told.thread(8, 0x2080).unwrap();
        assert_eq!((second.signal_stack, second.interrupted), ([0, NO_STACK, 0], None));
        assert_eq!(told.thread(9, 0), None);
        assert_eq!(told.process.actions, [(10, [0x4000, 0, 0, 0])]);
        assert!(told.process.subreaper && told.process.dumpable && !told.intervals);
        assert_eq!(told.process.by_host, ByHost { memory_shortage: -3, core_dump: 0x33 });
        assert_eq!(told.process.barriers, 1 << 4 | 1 << 2);
        let context = AioContext { address: 0x9000, requests: 5, room: 127, tail: 3, in_flight: 2, polls: true };
        assert_eq!(told.contexts, Some(vec![context]));
        let usual = Usual { flags: told.flags, domain: None };
        assert!(told.unusual && !TaskRecords::from_bytes(&bytes, usual).unwrap().unwrap().unusual);
    }

    #[test]
    fn what_security_modules_keep_is_told_by_thread() {
        let bytes = both();
        assert_eq!(security_of(&bytes, 8), Some([0, 0x78, 0, 0]));
        assert_eq!(security_of(&bytes, 9), None);
        let layers = |domain| {
            let told = TaskRecords::from_bytes(&bytes, Usual { domain, ..Usual::default() }).unwrap().unwrap();
            told.unsupported.iter().map(|one| (one.bits, one.layers)).collect::<Vec<_>>()
        };
        assert_eq!(layers(Some(1)), [(0, 1), (8, 2)]);
        assert_eq!(layers(Some(2)), [(0, 5), (8, 5)]);
        assert_eq!(layers(None), [(0, 0), (8, 0)]);
    }

    #[test]
    fn what_is_not_whole_is_not_believed() {
        let thread = thread([7, 0, 0, 0, 0, 0, 0], [0; 4], 0, [1, 0], "");
        assert_eq!(TaskRecords::from_bytes(&thread, Usual::default()).unwrap(), None);
        assert!(TaskRecords::from_bytes(&thread[1..], Usual::default()).is_err());
        assert_eq!(TaskRecords::from_bytes(&[], Usual::default()).unwrap(), None);
    }

    #[test]
    fn a_stack_that_handlers_give_up_is_never_stood_on() {
        let stack = |flags| [0x2000, flags, 0x100];
        assert_eq!(stack_flags(stack(0), 0x2100), ON_STACK);
        assert_eq!(stack_flags(stack(0), 0x2000), 0);
        assert_eq!(stack_flags(stack(GIVEN_UP_IN_HANDLERS), 0x2100), GIVEN_UP_IN_HANDLERS);
    }
}
