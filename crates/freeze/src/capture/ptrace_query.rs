//! What the files of /proc do not tell of a process: what its signals do, its alternative stacks, how long its timers
//! run. A stopped thread can be made to ask for all of it ([`crate::stop::injection`]), which takes two switches to it
//! for every answer; so it is asked only for what the kernel tells nobody else ([`crate::bpf::task_iterator`]).

use crate::image::{Area, ByHost};
use crate::stop::injection::{self, Injection};
use crate::stop::interrupted;
use crate::stop::task_state::{OfProcess, OfThread, is_set};
use pando_kernel::CallError;
use pando_kernel::trace::{Registers, Thread};
use std::cell::OnceCell;

/// A thread that can be asked. It is made ready by the first question; dropped, it is as it was before.
pub(crate) struct PtraceQuery<'a> {
    thread: &'a Thread,
    registers: Registers,
    mask: u64,
    areas: &'a [Area],
    ready: OnceCell<Injection<'a>>,
}

impl<'a> PtraceQuery<'a> {
    /// A stopped thread, with its registers, the signals that it has blocked, and the memory of its process.
    pub(crate) fn new(thread: &'a Thread, (registers, mask): (Registers, u64), areas: &'a [Area]) -> Self {
        Self { thread, registers, mask, areas, ready: OnceCell::new() }
    }

    /// The thread, made ready.
    pub(crate) fn injection(&self) -> Result<&Injection<'a>, CallError> {
        if let Some(ready) = self.ready.get() {
            return Ok(ready);
        }
        let instruction = injection::syscall_instruction(self.thread.tid(), self.areas)?;
        let made = Injection::new(self.thread, self.registers, self.mask, instruction)?;
        Ok(self.ready.get_or_init(|| made))
    }

    /// What it is.
    pub(crate) fn thread(&self) -> Result<OfThread, CallError> {
        const PR_GET_TID_ADDRESS: u64 = 40;
        const NOTHING_NEW: u64 = 0xffff_ffff;
        let asked = self.injection()?;
        asked.call(libc::SYS_prctl, &[PR_GET_TID_ADDRESS, asked.room()])?;
        asked.call(libc::SYS_sigaltstack, &[0, asked.room() + 64])?;
        asked.call(libc::SYS_prctl, &[libc::PR_GET_PDEATHSIG as u64, asked.room() + 128])?;
        let slack = asked.call(libc::SYS_prctl, &[libc::PR_GET_TIMERSLACK as u64])?;
        let secure_bits = asked.call(libc::SYS_prctl, &[libc::PR_GET_SECUREBITS as u64])?;
        let personality = asked.call(libc::SYS_personality, &[NOTHING_NEW])? as u32;
        let interrupted = interrupted::by_code(self.thread.tid(), &self.registers);
        let [clear] = asked.words(0)?;
        let mut signal_stack: [u64; 3] = asked.words(64)?;
        signal_stack[1] &= u64::from(u32::MAX);
        let [parent_death] = asked.words(128)?;
        let parent_death = (parent_death & 0xff) as i32;
        Ok(OfThread { clear, signal_stack, parent_death, slack, secure_bits, personality, interrupted })
    }

    /// What its process is; `handled` are the signals that are not left to the kernel, the first of them in the lowest
    /// bit.
    pub(crate) fn process(&self, handled: u64) -> Result<OfProcess, CallError> {
        let asked = self.injection()?;
        let mut actions = Vec::new();
        let handled = handled | 1 << (libc::SIGCHLD - 1);
        for signal in (1..=64).filter(|signal| handled >> (signal - 1) & 1 == 1) {
            asked.call(libc::SYS_rt_sigaction, &[signal as u64, 0, asked.room(), 8])?;
            actions.push((signal, asked.words(0)?));
        }
        actions.retain(|one| is_set(*one));
        let dumpable = asked.call(libc::SYS_prctl, &[libc::PR_GET_DUMPABLE as u64])? == 1;
        asked.call(libc::SYS_prctl, &[libc::PR_GET_CHILD_SUBREAPER as u64, asked.room()])?;
        let [subreaper] = asked.words(0)?;
        let heap_end = asked.call(libc::SYS_brk, &[0])?;
        let (by_host, barriers) = (ByHost::of(self.thread.tid())?, self.barriers()?);
        Ok(OfProcess { actions, heap_end, subreaper: subreaper & 0xff == 1, dumpable, by_host, barriers })
    }

    /// What its memory is registered for; nothing where membarrier(2) cannot tell (before Linux 6.3).
    fn barriers(&self) -> Result<u32, CallError> {
        const GET_REGISTRATIONS: u64 = 1 << 9;
        let asked = self.injection()?;
        asked.call_if_known(libc::SYS_membarrier, &[GET_REGISTRATIONS]).map(|told| told.unwrap_or(0) as u32)
    }

    /// What its process has asked for its memory as a whole: that nothing of it becomes executable, as PR_GET_MDWE has
    /// it (since Linux 6.3), and that equal pages of it are merged (since 6.4).
    pub(crate) fn memory(&self) -> Result<(u32, bool), CallError> {
        const PR_GET_MDWE: u64 = 66;
        const PR_GET_MEMORY_MERGE: u64 = 68;
        let asked = self.injection()?;
        let tell = |what| asked.call_if_known(libc::SYS_prctl, &[what]).map(|told| told.unwrap_or(0));
        Ok((tell(PR_GET_MDWE)? as u32, tell(PR_GET_MEMORY_MERGE)? == 1))
    }

    /// The interval timers of its process, each as getitimer(2) tells of it.
    pub(crate) fn intervals(&self) -> Result<[[u64; 4]; 3], CallError> {
        let asked = self.injection()?;
        let mut intervals = [[0; 4]; 3];
        for (which, interval) in (0..).zip(&mut intervals) {
            asked.call(libc::SYS_getitimer, &[which, asked.room()])?;
            *interval = asked.words(0)?;
        }
        Ok(intervals)
    }

    /// Whether its process has forbidden itself huge pages.
    pub(crate) fn small_pages(&self) -> Result<bool, CallError> {
        Ok(self.injection()?.call(libc::SYS_prctl, &[libc::PR_GET_THP_DISABLE as u64])? == 1)
    }
}
