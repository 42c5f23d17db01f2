//! Stopping another process's threads and looking into them (ptrace(2)).
//!
//! A trace belongs to the thread that made it: every call must come from there, so a [`Thread`] cannot be sent to
//! another.

pub(crate) mod calls;
pub mod foreign_memory;
pub mod injected_thread;
pub(crate) mod pending_undo;
pub mod survivor;

use crate::mistake::planted;
use std::io;
use std::marker::PhantomData;
use std::ptr;

/// A thread that this one traces. Dropped, it is let go and runs on as if nothing had been.
#[derive(Debug)]
pub struct Thread {
    tid: i32,
    /// Not `Send`: the kernel knows the tracing thread, not its process.
    _here: PhantomData<*const ()>,
}

/// The general registers of a stopped thread (`struct user_regs_struct`, x86-64).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the system call that was interrupted; negative if the thread was in none.
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

/// Why a traced thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The thread was interrupted (PTRACE_INTERRUPT).
    Trapped,
    /// It is about to execute a system call, or has just executed one.
    Calling,
    /// The thread has just made a process.
    Forked,
    /// Its process is stopped by a signal (SIGSTOP and the like).
    GroupStopped,
    /// The thread is about to take a signal: the number. It may be SIGTRAP, as any other.
    Signal(i32),
    /// The thread has ended.
    Gone,
}

/// A thread's restartable-sequence area (rseq(2)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rseq {
    /// Its address; 0 if the thread has none.
    pub address: u64,
    /// The length of the area, in bytes.
    pub length: u32,
    /// The signature that abort handlers carry.
    pub signature: u32,
    flags: u32,
    padding: u32,
}

/// One entry of a queue of signals that wait: `siginfo_t` as the kernel keeps it.
pub type SignalInfo = [u8; 128];

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
pub(crate) const PTRACE_O_SUSPEND_SECCOMP: usize = 1 << 21;
/// Stops at system calls look like nothing else: without this they would look like the thread's own SIGTRAP.
pub(crate) const TELL_CALLS: usize = libc::PTRACE_O_TRACESYSGOOD as usize;
const PTRACE_EVENT_STOP: i32 = 128;
const NT_X86_XSTATE: usize = 0x202;
/// Longer than any extended state so far; AMX brings it to 11 KiB.
const LONGEST_STATE: usize = 32 * 1024;
/// Without AMX, 2.7 KiB.
const USUAL_STATE: usize = 4096;
/// How many signals are asked for at a time.
const MOST_SIGNALS: usize = 128;
/// No more than so many wait, as a rule.
const FEW_SIGNALS: usize = 8;

impl Thread {
    /// Starts to trace a thread, without stopping it (PTRACE_SEIZE, since Linux 3.4). Its system-call filters stay in
    /// force: it still runs.
    ///
    /// # Errors
    ///
    /// EPERM where another process traces it, or it is beyond this process's reach; ESRCH where it has gone.
    pub fn seize(tid: i32) -> io::Result<Self> {
        let options = if planted("suspend-while-running") { PTRACE_O_SUSPEND_SECCOMP } else { 0 };
        request(libc::PTRACE_SEIZE, tid, 0, options | TELL_CALLS)?;
        Ok(Self { tid, _here: PhantomData })
    }

    /// Suspends the system-call filters of a thread that stands still (PTRACE_O_SUSPEND_SECCOMP, since Linux 4.3), for
    /// calls of the tracer's choice. Where the kernel does not allow it they stay in force. They must be [in
    /// force](Self::enforce_filters) again before it runs on.
    pub(crate) fn suspend_filters(&self) {
        let _ = request(libc::PTRACE_SETOPTIONS, self.tid, 0, PTRACE_O_SUSPEND_SECCOMP | TELL_CALLS);
    }

    /// Has its system-call filters in force again. It follows no forks from here on either.
    pub(crate) fn enforce_filters(&self) -> io::Result<()> {
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, TELL_CALLS)
    }

    /// One that this thread traces already.
    pub(crate) fn seized(tid: i32) -> Self {
        Self { tid, _here: PhantomData }
    }

    /// The tid of the thread, as this process sees it.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Asks the thread to stop; [`Self::wait`] tells when it has (PTRACE_INTERRUPT).
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone.
    pub fn interrupt(&self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)
    }

    /// Waits for the next stop.
    ///
    /// # Errors
    ///
    /// ECHILD where the thread was killed and somebody else has reaped it.
    pub fn wait(&self) -> io::Result<Stop> {
        self.poll(0).map(|stop| stop.unwrap_or(Stop::Gone))
    }

    /// The next stop, if it has come.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`].
    pub fn try_wait(&self) -> io::Result<Option<Stop>> {
        self.poll(libc::WNOHANG)
    }

    fn poll(&self, flags: i32) -> io::Result<Option<Stop>> {
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes the status.
            match unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | flags) } {
                0 => return Ok(None),
                -1 => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        Some(libc::EINTR) => {}
                        Some(libc::ECHILD) => return Ok(Some(Stop::Gone)),
                        _ => return Err(error),
                    }
                }
                _ => return Ok(Some(meaning(status))),
            }
        }
    }

    /// The registers of the thread, which has to be stopped, as for all that follows.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still, as for all that follows.
    pub fn registers(&self) -> io::Result<Registers> {
        let mut registers = Registers::default();
        // SAFETY: the kernel writes a `struct user_regs_struct`, which this is, field by field.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.tid, 0_usize, &raw mut registers) })?;
        Ok(registers)
    }

    /// Sets the registers of the thread, which has to be stopped.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still; EIO, EINVAL for registers that it cannot have.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        // SAFETY: the kernel reads a `struct user_regs_struct`.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.tid, 0_usize, std::ptr::from_ref(registers)) })
    }

    /// The floating-point and vector state of the thread, in the standard layout of XSAVE.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still; ENODEV where the processor has no XSAVE.
    pub fn extended_state(&self) -> io::Result<Vec<u8>> {
        let read = |room: usize| {
            let mut bytes = vec![0_u8; room];
            let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            // SAFETY: the kernel writes at most the vector's length and says how much it was.
            check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE, &raw mut vector) })?;
            bytes.truncate(vector.iov_len);
            Ok(bytes)
        };
        // What fills all the room there is may have been cut off.
        read(USUAL_STATE).and_then(|bytes| if bytes.len() < USUAL_STATE { Ok(bytes) } else { read(LONGEST_STATE) })
    }

    /// The signals that the thread blocks, bit N−1 for signal N.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still.
    pub fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        // SAFETY: the kernel writes eight bytes.
        check(unsafe { libc::ptrace(libc::PTRACE_GETSIGMASK, self.tid, 8_usize, &raw mut mask) })?;
        Ok(mask)
    }

    /// Sets the signals that the thread blocks, bit N−1 for signal N.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still.
    pub fn set_signal_mask(&self, mask: u64) -> io::Result<()> {
        // SAFETY: the kernel reads eight bytes.
        check(unsafe { libc::ptrace(libc::PTRACE_SETSIGMASK, self.tid, 8_usize, &raw const mask) })
    }

    /// Signals that wait for it, or, if `shared`, for its whole process; at most 128 of them (PTRACE_PEEKSIGINFO, since
    /// Linux 3.10).
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still.
    pub fn waiting_signals(&self, shared: bool) -> io::Result<Vec<SignalInfo>> {
        #[repr(C)]
        struct Peek {
            offset: u64,
            flags: u32,
            count: i32,
        }
        let read = |most: usize| {
            let peek = Peek { offset: 0, flags: u32::from(shared), count: most as i32 };
            let mut queue = vec![[0_u8; 128]; most];
            // SAFETY: the kernel writes at most `count` entries of 128 bytes.
            let count =
                unsafe { libc::ptrace(libc::PTRACE_PEEKSIGINFO, self.tid, &raw const peek, queue.as_mut_ptr()) };
            check(count)?;
            queue.truncate(usize::try_from(count).unwrap_or(0));
            Ok(queue)
        };
        read(FEW_SIGNALS).and_then(|queue| if queue.len() < FEW_SIGNALS { Ok(queue) } else { read(MOST_SIGNALS) })
    }

    /// The restartable-sequence area of the thread (since Linux 5.13).
    ///
    /// # Errors
    ///
    /// EIO before Linux 5.13.
    pub fn rseq(&self) -> io::Result<Rseq> {
        let mut rseq = Rseq::default();
        // SAFETY: the kernel writes at most the size that is passed.
        check(unsafe { libc::ptrace(PTRACE_GET_RSEQ_CONFIGURATION, self.tid, size_of::<Rseq>(), &raw mut rseq) })?;
        Ok(rseq)
    }

    /// One of its system-call filters, 0 being the one that was installed first, whatever ptrace(2) says: `struct
    /// sock_filter`s of eight bytes. `None` after the last (PTRACE_SECCOMP_GET_FILTER, since Linux 4.4).
    ///
    /// # Errors
    ///
    /// EACCES without CAP_SYS_ADMIN, or where this process has a filter itself; EMEDIUMTYPE for a filter that is none
    /// of programs.
    pub fn filter(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        // SAFETY: without an address the kernel writes nothing, and says how many instructions there are.
        let count = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, self.tid, number, ptr::null_mut::<u64>()) };
        match check(count) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => return Ok(None),
            counted => counted?,
        }
        let mut program = vec![0_u64; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the kernel writes as many instructions of eight bytes: the thread stands still, and a filter never
        // changes.
        check(unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, self.tid, number, program.as_mut_ptr()) })?;
        Ok(Some(program.iter().flat_map(|word| word.to_ne_bytes()).collect()))
    }

    /// Whether its system calls are handed back to it (PR_SET_SYSCALL_USER_DISPATCH). Told since Linux 6.4; before
    /// that, `false`.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still.
    pub fn dispatches_calls(&self) -> io::Result<bool> {
        // Mode, address of the selector, the range from which calls pass.
        let mut setting = [0_u64; 4];
        // SAFETY: the kernel writes as many bytes as are passed.
        let result = unsafe {
            libc::ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, self.tid, size_of_val(&setting), setting.as_mut_ptr())
        };
        match check(result) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => Ok(false),
            told => told.map(|()| setting[0] != 0),
        }
    }

    /// The address and the length of the thread's list of robust futexes (get_robust_list(2)).
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone; EPERM where it may not be traced.
    pub fn robust_list(&self) -> io::Result<(u64, u64)> {
        let (mut head, mut length) = (0_u64, 0_u64);
        // SAFETY: the kernel writes two words.
        let result = unsafe { libc::syscall(libc::SYS_get_robust_list, self.tid, &raw mut head, &raw mut length) };
        check(result)?;
        Ok((head, length))
    }

    /// Lets the thread go on, taking a signal that [`Stop::Signal`] told of.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone or does not stand still.
    pub fn deliver(&self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_CONT, self.tid, 0, signal as usize)
    }

    /// Has it stop once more without executing anything, and no longer at system calls: only so is a call that was
    /// interrupted begun again when it runs on, also should its tracer be killed.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone.
    pub fn end_calling(&self) -> io::Result<Stop> {
        self.interrupt()?;
        self.deliver(0)?;
        self.wait()
    }

    /// Kills its process and waits for its end, which is then its parent's to hear of.
    pub fn kill(self) {
        // SAFETY: kill(2) touches no memory.
        if unsafe { libc::kill(self.tid, libc::SIGKILL) } == 0 {
            while !matches!(self.wait(), Ok(Stop::Gone) | Err(_)) {}
        }
        // There is nothing left to be let go.
        std::mem::forget(self);
    }

    /// Takes it out of a critical section of restartable sequences (rseq(2), since Linux 4.18), to where that begins
    /// again: as the kernel does when the thread loses its processor. Registers that are changed and put back hide from
    /// the kernel that it was in one.
    ///
    /// # Errors
    ///
    /// ESRCH where the thread has gone; EFAULT where what it has registered is no memory of its.
    pub fn leave_critical_section(&self) -> io::Result<()> {
        /// Where `struct rseq` points to the section, and the bytes of `struct rseq_cs`.
        const SECTION: u64 = 8;
        let area = self.rseq()?;
        if area.address == 0 {
            return Ok(());
        }
        let mut pointer = [0; 8];
        foreign_memory::read(self.tid, area.address + SECTION, &mut pointer)?;
        let section = u64::from_ne_bytes(pointer);
        if section == 0 {
            return Ok(());
        }
        // Version and flags, where it starts, its length, where it is begun again.
        let mut words = [[0; 8]; 4];
        foreign_memory::read(self.tid, section, words.as_flattened_mut())?;
        let [_, start, length, again] = words.map(u64::from_ne_bytes);
        let registers = self.registers()?;
        if registers.rip.wrapping_sub(start) < length {
            self.set_registers(&Registers { rip: again, ..registers })?;
        }
        Ok(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = request(libc::PTRACE_DETACH, self.tid, 0, 0);
    }
}

pub(crate) fn request(what: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: only requests come here whose arguments are numbers.
    check(unsafe { libc::ptrace(what, tid, address, data) })
}

pub(crate) fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn meaning(status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Gone;
    }
    let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
    const CALLING: i32 = libc::SIGTRAP | 0x80;
    match (event, signal) {
        (PTRACE_EVENT_STOP, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => Stop::GroupStopped,
        (libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK, _) => Stop::Forked,
        (0, CALLING) => Stop::Calling,
        // Its own, as by raise(3) or of a breakpoint that it has put into itself, among them.
        (0, signal) => Stop::Signal(signal),
        _ => Stop::Trapped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_child_shows_its_registers_and_runs_on() {
        let mut child = std::process::Command::new("sleep").arg("0.2").spawn().unwrap();
        let thread = Thread::seize(child.id() as i32).unwrap();
        thread.interrupt().unwrap();
        assert_eq!(thread.wait().unwrap(), Stop::Trapped);
        let registers = thread.registers().unwrap();
        assert_ne!(registers.rip, 0);
        assert!(thread.extended_state().unwrap().len() >= 576);
        assert_eq!(thread.filter(0).unwrap(), None);
        drop(thread);
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn many_signals_that_wait_are_all_told_of() {
        const SENT: usize = 20;
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let thread = Thread::seize(child.id() as i32).unwrap();
        thread.interrupt().unwrap();
        assert_eq!(thread.wait().unwrap(), Stop::Trapped);
        let before = thread.signal_mask().unwrap();
        thread.set_signal_mask(u64::MAX).unwrap();
        assert_eq!(thread.waiting_signals(true).unwrap().len(), 0);
        for _ in 0..SENT {
            // SAFETY: it touches no memory. Signals from this one on queue.
            assert_eq!(unsafe { libc::kill(thread.tid(), libc::SIGRTMIN()) }, 0);
        }
        assert_eq!(thread.waiting_signals(true).unwrap().len(), SENT);
        thread.set_signal_mask(before).unwrap();
        drop(thread);
        // What waited ends it.
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_process_that_is_none_is_not_seized() {
        assert_eq!(Thread::seize(0x3fff_ffff).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn stops_are_told_apart() {
        let stopped = |signal: i32, event: i32| (signal << 8 | 0x7f) | event << 16;
        assert_eq!(meaning(stopped(libc::SIGTRAP, PTRACE_EVENT_STOP)), Stop::Trapped);
        assert_eq!(meaning(stopped(libc::SIGSTOP, PTRACE_EVENT_STOP)), Stop::GroupStopped);
        assert_eq!(meaning(stopped(libc::SIGUSR1, 0)), Stop::Signal(libc::SIGUSR1));
        assert_eq!(meaning(stopped(libc::SIGTRAP, 0)), Stop::Signal(libc::SIGTRAP), "it is the thread's own");
        assert_eq!(meaning(stopped(libc::SIGTRAP | 0x80, 0)), Stop::Calling);
        assert_eq!(meaning(stopped(libc::SIGTRAP, libc::PTRACE_EVENT_CLONE)), Stop::Forked);
        assert_eq!(meaning(0), Stop::Gone);
    }
}
