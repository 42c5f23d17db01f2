//! What the kernel tells of stopped processes to a BPF program of ours (`bpf/task_iterator.bpf.c`): an iterator over
//! the threads of one process reads in microseconds what each would have to be made to ask for otherwise, one system
//! call and two switches to it for every answer ([`crate::capture::ptrace_query`]).
//!
//! Iterators over one process: since Linux 6.1. Where there are none, or the kernel has no room for what they need,
//! processes are asked.

use crate::bpf::object;
use crate::bpf::task_records::{PROCESS, THREAD, TaskRecords, Usual, security_of};
use crate::inspect::proc_file::Lines;
use crate::inspect::process_tree;
use libbpf_rs::Program;
use pando_kernel::{CallError, Context, bpf, probe};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/task_iterator.bpf.o"));

/// The program, loaded: once is enough for as many freezes as there will be.
#[derive(Debug)]
pub struct TaskIterator {
    program: OwnedFd,
    number: u32,
    usual: Usual,
}

impl TaskIterator {
    /// Loads it, which takes some tens of milliseconds: it is fitted to the running kernel.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_BPF and CAP_PERFMON; others where the kernel has no such iterators or other structures.
    pub fn load() -> io::Result<Self> {
        let (_, program) = object::load(OBJECT)?;
        let number = Program::id_from_fd(program.as_fd()).map_err(io::Error::other)?;
        let task_iterator = Self { program, number, usual: Usual::default() };
        // A kernel with other structures shows at once.
        let told = task_iterator.bytes(own()).and_then(|bytes| TaskRecords::from_bytes(&bytes, Usual::default()))?;
        let told = told.ok_or_else(|| io::Error::other("it tells nothing of this process"))?;
        let usual = Usual { flags: told.flags, domain: task_iterator.find_domain() };
        Ok(Self { usual, ..task_iterator })
    }

    /// Where the kernel keeps the Landlock domain of a thread it tells nobody: it is what changes in one that enters a
    /// domain.
    fn find_domain(&self) -> Option<usize> {
        let look = || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let bytes = self.bytes(own()).ok()?;
            security_of(&bytes, inner(tid)?)
        };
        let [before, after] = probe::around_a_landlock_domain(look).ok()?;
        let (before, after) = (before?, after?);
        before.iter().zip(&after).position(|(before, after)| before != after)
    }

    /// The same for a task with descriptors of its own.
    pub(crate) fn again(&self) -> io::Result<Self> {
        let program = Program::fd_from_id(self.number).map_err(io::Error::other)?;
        Ok(Self { program, number: self.number, usual: self.usual })
    }

    /// What there is to tell of a process; `None` if the kernel has something else than the program looks for. What it
    /// tells is of one moment only if the process stands still.
    pub(crate) fn of(&self, pid: i32) -> Result<Option<TaskRecords>, CallError> {
        let told = self.bytes(pid).and_then(|bytes| TaskRecords::from_bytes(&bytes, self.usual));
        told.context(|| format!("looking at process {pid}"))
    }

    fn bytes(&self, pid: i32) -> io::Result<Vec<u8>> {
        let link = bpf::iterator::over_process(self.program.as_fd(), pid.unsigned_abs())?;
        let mut bytes = Vec::with_capacity(PROCESS + 8 * THREAD);
        bpf::iterator::run(link.as_fd())?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

fn own() -> i32 {
    std::process::id().cast_signed()
}

/// The number that a thread of ours has in its own pid namespace.
fn inner(tid: i32) -> Option<i32> {
    process_tree::inner(&Lines::read(own(), &format!("task/{tid}/status")).ok()?)
}
