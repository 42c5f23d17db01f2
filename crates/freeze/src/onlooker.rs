//! What the kernel tells of stopped processes to a BPF program of ours (`bpf/onlooker.bpf.c`): an iterator over the threads of one process reads in
//! microseconds what each would have to be made to ask for otherwise, one system call and two switches to it for every answer ([`crate::asking`]).
//!
//! Iterators over one process: since Linux 6.1. Where there are none, or the kernel has no room for what they need, processes are asked.

use crate::asking::{OfProcess, OfThread, is_set};
use libbpf_rs::{ObjectBuilder, Program};
use pando_kernel::{CallError, Context, bpf_iterator};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/onlooker.bpf.o"));

/// Bytes of the program's `struct thread`, and of its `struct process`.
const THREAD: usize = 56;
const PROCESS: usize = 24 + SIGNALS * ACTION;
const SIGNALS: usize = 64;
const ACTION: usize = 32;

/// `SS_DISABLE`, `SS_ONSTACK` and `SS_AUTODISARM` of sigaltstack(2).
const NO_STACK: u64 = 2;
const ON_STACK: u64 = 1;
const GIVEN_UP_IN_HANDLERS: u64 = 1 << 31;

/// The program, loaded: once is enough for as many freezes as there will be.
#[derive(Debug)]
pub struct Onlooker {
    program: OwnedFd,
    number: u32,
}

impl Onlooker {
    /// Loads it, which takes some tens of milliseconds: it is fitted to the running kernel.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_BPF and CAP_PERFMON; others where the kernel has no such iterators or other structures.
    pub fn load() -> io::Result<Self> {
        // What it has to say about a refusal is in its errors as well.
        libbpf_rs::set_print(None);
        let open = ObjectBuilder::default().open_memory(OBJECT);
        let object = open.and_then(libbpf_rs::OpenObject::load).map_err(io::Error::other)?;
        let program = object.progs().next().ok_or(io::ErrorKind::NotFound)?;
        let program = program.as_fd().try_clone_to_owned()?;
        let number = Program::id_from_fd(program.as_fd()).map_err(io::Error::other)?;
        let onlooker = Self { program, number };
        // A kernel with other structures shows at once.
        let told = onlooker.of(std::process::id().cast_signed()).map_err(|error| error.source)?;
        told.map(|_| onlooker).ok_or_else(|| io::Error::other("it tells nothing of this process"))
    }

    /// The same for a task with descriptors of its own.
    pub(crate) fn again(&self) -> io::Result<Self> {
        let program = Program::fd_from_id(self.number).map_err(io::Error::other)?;
        Ok(Self { program, number: self.number })
    }

    /// What there is to tell of a process that stands still; `None` if the kernel has something else than the program looks for.
    pub(crate) fn of(&self, pid: i32) -> Result<Option<Told>, CallError> {
        let what = || format!("looking at process {pid} while it stands still");
        let link = bpf_iterator::over_process(self.program.as_fd(), pid.unsigned_abs()).context(what)?;
        let mut bytes = Vec::with_capacity(PROCESS + 8 * THREAD);
        bpf_iterator::run(link.as_fd()).and_then(|mut run| run.read_to_end(&mut bytes)).context(what)?;
        Told::from_bytes(&bytes).context(what)
    }
}

/// What was told of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    threads: Vec<(i32, OfThread)>,
    pub(crate) process: OfProcess,
    /// Whether an interval timer runs, or is yet to be wound up again: how much is left only the process can ask.
    pub(crate) intervals: bool,
}

impl Told {
    /// What was told of a thread, by its number in its own pid namespace and its stack pointer.
    pub(crate) fn thread(&self, tid: i32, stack_pointer: u64) -> Option<OfThread> {
        let (_, told) = self.threads.iter().find(|(whose, _)| *whose == tid)?;
        let mut told = told.clone();
        told.signal_stack[1] = stack_flags(told.signal_stack, stack_pointer);
        Some(told)
    }

    fn from_bytes(mut bytes: &[u8]) -> io::Result<Option<Self>> {
        let (mut threads, mut leader) = (Vec::new(), None);
        while !bytes.is_empty() {
            let record;
            (record, bytes) = bytes.split_at_checked(THREAD).ok_or(io::ErrorKind::InvalidData)?;
            let [tid_and_death, bits_and_flags, clear, start, size, slack, leads] = words(record);
            let (tid, parent_death) = (tid_and_death as i32, (tid_and_death >> 32) as i32);
            let (secure_bits, flags) = (bits_and_flags & u64::from(u32::MAX), bits_and_flags >> 32);
            threads
                .push((tid, OfThread { clear, signal_stack: [start, flags, size], parent_death, slack, secure_bits }));
            if leads == 1 {
                let Some((record, rest)) = bytes.split_at_checked(PROCESS) else { return Ok(None) };
                (leader, bytes) = (Some(record), rest);
            }
        }
        Ok(leader.map(|record| {
            let (head, actions) = record.split_at(PROCESS - SIGNALS * ACTION);
            let [heap_end, bits, intervals] = words(head);
            let (subreaper, dumpable) = (bits as u32 == 1, bits >> 32 == 1);
            let actions = (1..).zip(actions.chunks_exact(ACTION).map(words)).filter(|one| is_set(*one)).collect();
            Self { threads, process: OfProcess { actions, heap_end, subreaper, dumpable }, intervals: intervals != 0 }
        }))
    }
}

/// The numbers that a record begins with.
fn words<const N: usize>(record: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(record.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// The flags with which sigaltstack(2) tells of a stack (address, flags, length) to a thread that runs with this stack pointer.
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

    fn record(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn process() -> Vec<u8> {
        let mut bytes = record(&[0x5000, 1 | 1 << 32, 0]);
        bytes.resize(PROCESS, 0);
        bytes[24 + 9 * ACTION..][..8].copy_from_slice(&0x4000_u64.to_ne_bytes());
        bytes
    }

    #[test]
    fn records_of_threads_and_of_their_process_are_taken_apart() {
        let mut bytes = record(&[7 | 9 << 32, 3, 0x1000, 0x2000, 0x100, 50_000, 1]);
        bytes.extend(process());
        bytes.extend(record(&[8, 0, 0, 0, 0, 50_000, 0]));
        let told = Told::from_bytes(&bytes).unwrap().unwrap();
        let first = told.thread(7, 0x2080).unwrap();
        assert_eq!((first.parent_death, first.secure_bits, first.clear), (9, 3, 0x1000));
        assert_eq!(first.signal_stack, [0x2000, ON_STACK, 0x100]);
        assert_eq!(told.thread(8, 0x2080).unwrap().signal_stack, [0, NO_STACK, 0]);
        assert_eq!(told.thread(9, 0), None);
        assert_eq!(told.process.actions, [(10, [0x4000, 0, 0, 0])]);
        assert!(told.process.subreaper && told.process.dumpable && !told.intervals);
    }

    #[test]
    fn what_is_not_whole_is_not_believed() {
        let thread = record(&[7, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Told::from_bytes(&thread).unwrap(), None);
        assert!(Told::from_bytes(&thread[1..]).is_err());
        assert_eq!(Told::from_bytes(&[]).unwrap(), None);
    }

    #[test]
    fn a_stack_that_handlers_give_up_is_never_stood_on() {
        let stack = |flags| [0x2000, flags, 0x100];
        assert_eq!(stack_flags(stack(0), 0x2100), ON_STACK);
        assert_eq!(stack_flags(stack(0), 0x2000), 0);
        assert_eq!(stack_flags(stack(GIVEN_UP_IN_HANDLERS), 0x2100), GIVEN_UP_IN_HANDLERS);
    }
}
