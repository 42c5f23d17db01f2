//! Stopping a whole tree of processes, every thread of it.

use crate::proc_file::Lines;
use crate::refusal::{FreezeError, Refusal};
use crate::survey;
use crate::tree::{self, Member, Roots};
use pando_kernel::trace::{Stop, Thread};
use pando_kernel::{CallError, Context};
use std::time::{Duration, Instant};

/// How long a thread may take to stop. One that waits for its vfork child takes as long as that.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Processes come and go while they are being stopped; a tree that has new ones after so many rounds grows faster than it is stopped.
const ROUNDS: usize = 100;

/// A process all of whose threads stand still.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) member: Member,
    /// The first thread first. None if the process has ended and waits to be asked for.
    pub(crate) threads: Vec<Thread>,
}

/// Stops every process below some roots. Dropping the result lets them run on.
pub(crate) fn stop_all(roots: &Roots) -> Result<Vec<Stopped>, FreezeError> {
    let mut stopped: Vec<Stopped> = Vec::new();
    for _ in 0..ROUNDS {
        let mut news = false;
        for member in roots.members() {
            let place = stopped.iter().position(|known| known.member.outer == member.outer);
            let place = place.unwrap_or_else(|| {
                stopped.push(Stopped { member, threads: Vec::new() });
                stopped.len() - 1
            });
            news |= stop_threads(&mut stopped[place])?;
        }
        if !news {
            // One that ended while it was being stopped is not there any more, unless its parent is yet to ask for it.
            stopped.retain(|process| !process.threads.is_empty() || tree::has_ended(process.member.outer));
            return Ok(stopped);
        }
    }
    Err(FreezeError::Restless("new ones kept coming".into()))
}

/// Stops the threads of a process that are not stopped yet; whether there were any.
fn stop_threads(process: &mut Stopped) -> Result<bool, FreezeError> {
    if process.member.state == 'Z' {
        return Ok(false);
    }
    let mut seized = Vec::new();
    for tid in tree::threads(process.member.outer).unwrap_or_default() {
        if process.threads.iter().any(|thread| thread.tid() == tid) {
            continue;
        }
        match Thread::seize(tid) {
            Ok(thread) => {
                if thread.interrupt().is_ok() {
                    seized.push(thread);
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => {
                // A process that has just ended gives the same error as one that cannot be traced.
                if tree::has_ended(process.member.outer) {
                    process.member.state = 'Z';
                } else if !tree::is_gone(process.member.outer) {
                    if is_traced(process.member.outer, tid) {
                        return Err(refusal(&process.member, survey::TRACED, survey::END_DEBUGGER));
                    }
                    let what = format!("stopping thread {tid} of process {}", process.member.pid);
                    return Err(CallError { what, source: error }.into());
                }
            }
        }
    }
    let news = !seized.is_empty();
    for thread in seized {
        if come_to_rest(&thread, &process.member)? {
            process.threads.push(thread);
        }
    }
    Ok(news)
}

/// Waits for a thread's stop; whether it stands still rather than having ended.
fn come_to_rest(thread: &Thread, member: &Member) -> Result<bool, FreezeError> {
    let what = || format!("stopping thread {} of process {}", thread.tid(), member.pid);
    let begun = Instant::now();
    loop {
        match thread.try_wait().context(what)? {
            Some(Stop::Trapped) => {
                // The memory that says so may be the guest's nonsense: then it stays where it is.
                let _ = thread.leave_critical_section();
                return Ok(true);
            }
            Some(Stop::Gone) => return Ok(false),
            Some(Stop::Signal(signal)) => thread.deliver(signal).context(what)?,
            Some(Stop::GroupStopped) => {
                return Err(refusal(member, survey::STOPPED, survey::CONTINUE));
            }
            None if begun.elapsed() > PATIENCE => {
                let advice = "wait until the process that it waits for has ended or executed";
                return Err(refusal(member, "it does not stop: it waits in vfork(2) or for a device", advice));
            }
            None if begun.elapsed() > Duration::from_millis(2) => std::thread::sleep(Duration::from_micros(50)),
            None => std::thread::yield_now(),
        }
    }
}

/// Whether somebody else traces a thread: only one may.
fn is_traced(outer: i32, tid: i32) -> bool {
    let status = Lines::read(outer, &format!("task/{tid}/status"));
    status.is_ok_and(|status| !matches!(status.get("TracerPid"), "" | "0"))
}

fn refusal(member: &Member, kind: &str, advice: &'static str) -> FreezeError {
    FreezeError::Refused(vec![Refusal {
        pid: member.pid,
        name: member.name.clone(),
        descriptor: None,
        kind: kind.into(),
        advice,
    }])
}
