//! Having a stopped thread execute a system call of the tracer's choice (ptrace(2), PTRACE_SYSCALL).
//!
//! ```text
//!   registers set ─▶ entry: is it this call? ─▶ exit: has it returned from there?
//!                      │ no: it is skipped
//! ```
//!
//! The thread is not stepped: the trap after a step is a forced SIGTRAP, which takes the handler away from a process
//! that blocks it, and ends one that ignores it. Between the thread's stop and the call, and in the call, it may stop
//! for other reasons: its process may be stopped (SIGSTOP cannot be blocked). None of these is taken for the call's
//! end.

use crate::trace::{PTRACE_O_SUSPEND_SECCOMP, Registers, Stop, TELL_CALLS, Thread, check, request};
use std::io;

/// Bytes of the instruction `syscall`.
const INSTRUCTION: u64 = 2;

/// The processor traps after each instruction while this flag is set, as a program's own debugger may have it.
const TRAP_FLAG: u64 = 1 << 8;

/// No more stops than this come between a call and its end. Each comes of a signal that was sent on purpose.
const MOST_STOPS: usize = 64;

impl Thread {
    /// Has it execute a call: `registers` have the call's number in `rax`, its arguments, and in `rip` the address of a
    /// `syscall` instruction. What the call returns, an error too. It must block all signals; how its registers were is
    /// the caller's to put back.
    ///
    /// # Errors
    ///
    /// The call has not been executed, or not to its end: a signal came that cannot be blocked, or the thread has gone
    /// (ESRCH).
    pub fn call(&self, registers: &Registers) -> io::Result<u64> {
        self.enter_call(registers)?;
        self.leave_call(registers)
    }

    /// The same for a call that makes a process, and waits for that. The child is traced too, stands still before its
    /// first instruction, and dies with its tracer; its pid as its parent knows it. ECHILD: the call made none.
    ///
    /// # Errors
    ///
    /// ECHILD where the call made no process; else as [`Self::call`].
    pub fn call_fork(&self, registers: &Registers) -> io::Result<(Self, u64)> {
        const FOLLOW: i32 = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK;
        let follow = FOLLOW as usize | TELL_CALLS;
        request(libc::PTRACE_SETOPTIONS, self.tid(), 0, PTRACE_O_SUSPEND_SECCOMP | follow)
            .or_else(|_| request(libc::PTRACE_SETOPTIONS, self.tid(), 0, follow))?;
        self.enter_call(registers)?;
        if self.next_stop()? != Stop::Forked {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        let mut message = 0 as libc::c_ulong;
        // SAFETY: the kernel writes one word.
        check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, self.tid(), 0_usize, &raw mut message) })?;
        let child = Self::seized(message as i32);
        child.wait()?;
        request(libc::PTRACE_SETOPTIONS, child.tid(), 0, libc::PTRACE_O_EXITKILL as usize | follow)?;
        // The call itself is yet to return.
        let pid = self.leave_call(registers)?;
        Ok((child, pid))
    }

    /// Has it begin the call, and nothing else.
    fn enter_call(&self, registers: &Registers) -> io::Result<()> {
        self.set_registers(&Registers { eflags: registers.eflags & !TRAP_FLAG, ..*registers })?;
        if self.next_stop()? != Stop::Calling {
            return Err(io::Error::other("it did not come to the system call"));
        }
        let entered = self.registers()?;
        let is_it = entered.rip == registers.rip + INSTRUCTION && entered.orig_rax == registers.rax;
        if is_it { Ok(()) } else { Err(self.skip_call(entered)) }
    }

    /// Has it return from a call that nobody asked for without executing it: none has this number.
    fn skip_call(&self, entered: Registers) -> io::Error {
        let skipped = self.set_registers(&Registers { orig_rax: u64::MAX, ..entered }).and_then(|()| self.next_stop());
        skipped.err().unwrap_or_else(|| io::Error::other("it came to another system call"))
    }

    /// Has it end the call that it has begun; what that returns.
    fn leave_call(&self, begun: &Registers) -> io::Result<u64> {
        if self.next_stop()? != Stop::Calling {
            return Err(io::Error::other("the system call did not return"));
        }
        let left = self.registers()?;
        let is_it = left.rip == begun.rip + INSTRUCTION && left.orig_rax == begun.rax;
        if is_it { Ok(left.rax) } else { Err(io::Error::other("it returned from another system call")) }
    }

    /// Lets it go to where it begins a system call, ends one, or makes a process; or where it takes a signal, which is
    /// an error unless that stops its process: it is stopped then, and will be when it is let go.
    fn next_stop(&self) -> io::Result<Stop> {
        let mut signal = 0;
        for _ in 0..MOST_STOPS {
            request(libc::PTRACE_SYSCALL, self.tid(), 0, signal as usize)?;
            signal = match self.wait()? {
                Stop::Signal(libc::SIGSTOP) => libc::SIGSTOP,
                // It was asked to stop once more, or its process was stopped, or is to go on: it has executed nothing.
                Stop::Trapped | Stop::GroupStopped => 0,
                Stop::Signal(signal) => return Err(io::Error::other(format!("it stopped for signal {signal}"))),
                Stop::Gone => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
                stop @ (Stop::Calling | Stop::Forked) => return Ok(stop),
            };
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::foreign_memory;
    use crate::trace::injected_thread::InjectedThread;
    use std::process::{Child, Command};

    /// A child that stands still, and the address of a `syscall` instruction of its.
    fn standing() -> (Child, Thread, u64) {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id() as i32;
        // Until it is executed its memory is this program's.
        while !std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep")) {}
        let thread = Thread::seize(pid).unwrap();
        thread.interrupt().unwrap();
        while thread.wait().unwrap() != Stop::Trapped {}
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
        let start = u64::from_str_radix(vdso.split('-').next().unwrap(), 16).unwrap();
        let mut code = vec![0; 4096];
        foreign_memory::read(pid, start, &mut code).unwrap();
        let place = code.windows(2).position(|two| two == [0x0f, 0x05]).unwrap();
        (child, thread, start + place as u64)
    }

    fn call(before: Registers, at: u64, number: i64) -> Registers {
        Registers { rip: at, rax: number as u64, orig_rax: u64::MAX, ..before }
    }

    #[test]
    fn a_call_is_executed_and_another_is_not_taken_for_it() {
        let (mut child, thread, at) = standing();
        let (before, mask) = (thread.registers().unwrap(), thread.signal_mask().unwrap());
        let borrowed = InjectedThread::new(&thread, before, mask, 0, 0).unwrap();
        assert_eq!(thread.call(&call(before, at, libc::SYS_getpid)).unwrap(), u64::from(child.id()));
        // Where there is no such instruction it takes a signal.
        let astray = thread.call(&call(before, 0, libc::SYS_getpid)).unwrap_err();
        assert!(astray.to_string().contains("signal"), "{astray}");
        drop(borrowed);
        assert_eq!(thread.registers().unwrap().rsp, before.rsp);
        drop(thread);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_stop_that_comes_in_between_is_not_lost_and_no_end_of_a_call() {
        let (mut child, thread, at) = standing();
        let (before, mask) = (thread.registers().unwrap(), thread.signal_mask().unwrap());
        let borrowed = InjectedThread::new(&thread, before, mask, 0, 0).unwrap();
        // SAFETY: it touches no memory.
        assert_eq!(unsafe { libc::kill(thread.tid(), libc::SIGSTOP) }, 0);
        assert_eq!(thread.call(&call(before, at, libc::SYS_getpid)).unwrap(), u64::from(child.id()));
        drop(borrowed);
        drop(thread);
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.rsplit(')').next().unwrap().trim().chars().next().unwrap()
        };
        // The tracer has let it go: it stops in its own time.
        for _ in 0..1000 {
            if state() == 'T' {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(state(), 'T', "it was stopped, and is");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
