//! The registers that a thread of a clone resumes with, in the order of a signal frame.

use crate::stop::interrupted::Interrupted;
use pando_kernel::trace::Registers;

/// The registers of a stopped thread in the order of a frame. A system call that was interrupted is made again, as the
/// kernel would have it; where that would go on with one that was interrupted before, `before` tells of that.
pub(crate) fn general(stopped: &Registers, before: Option<Interrupted>) -> Vec<u64> {
    let r = restarted(stopped, before);
    vec![
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.eflags,
        (r.cs & 0xffff) | (r.ss & 0xffff) << 48,
        0,
        0,
        0,
        0,
    ]
}

/// Thread pointers, which no frame holds: FS and GS base.
pub(crate) fn bases(stopped: &Registers) -> [u64; 2] {
    [stopped.fs_base, stopped.gs_base]
}

fn restarted(stopped: &Registers, before: Option<Interrupted>) -> Registers {
    /// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
    const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
    const SYSCALL_LENGTH: u64 = 2;
    let interrupted = stopped.orig_rax as i64 >= 0 && RESTARTS.contains(&(stopped.rax as i64));
    if !interrupted {
        return *stopped;
    }
    let goes_on = stopped.orig_rax == libc::SYS_restart_syscall as u64;
    let call = before.filter(|_| goes_on).map_or(stopped.orig_rax, |call| call.wait.call(stopped.rdi));
    Registers { rax: call, rip: stopped.rip.wrapping_sub(SYSCALL_LENGTH), ..*stopped }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::interrupted::Wait;

    #[test]
    fn an_interrupted_call_is_made_again_and_a_finished_one_is_not() {
        let stopped = Registers { rax: -512_i64 as u64, orig_rax: 7, rip: 100, ..Registers::default() };
        let frame = general(&stopped, None);
        assert_eq!((frame[13], frame[16]), (7, 98));
        let finished = Registers { rax: -4_i64 as u64, ..stopped };
        assert_eq!(general(&finished, None)[16], 100);
        let no_call = Registers { orig_rax: u64::MAX, ..stopped };
        assert_eq!(general(&no_call, None)[16], 100);
    }

    #[test]
    fn a_call_that_was_interrupted_before_is_made_again_itself() {
        let stopped = Registers { rax: -516_i64 as u64, orig_rax: 219, rip: 100, ..Registers::default() };
        let poll = Some(Interrupted { wait: Wait::Files, left: None });
        let frame = general(&stopped, poll);
        assert_eq!((frame[13], frame[16]), (7, 98));
        // One that waits anew is known by its own number.
        let anew = Registers { orig_rax: 35, ..stopped };
        assert_eq!(general(&anew, poll)[13], 35);
    }
}
