//! Stopping a whole tree of processes, every thread of it.

use crate::inspect::proc_file::{Lines, Stat};
use crate::inspect::process_tree::{self, Member, Roots};
use crate::refusal::{FreezeError, Refusal};
use pando_kernel::trace::{Stop, Thread};
use pando_kernel::{CallError, Context};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

/// How long a thread may take to stop. One that waits for its vfork child takes as long as that.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// How long most take at most.
const SOON: Duration = Duration::from_millis(5);

/// Processes come and go while they are being stopped; a tree that has new ones after so many rounds grows faster than
/// it is stopped.
const ROUNDS: usize = 100;

/// A process all of whose threads stand still.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) member: Member,
    /// The first thread first. None if the process has ended and waits to be asked for.
    pub(crate) threads: Vec<Thread>,
    /// Whether a signal had stopped it before. It stays stopped when it is let go.
    pub(crate) by_signal: bool,
}

/// How often a tree is stopped of which a process waits for its vfork child. All run on in between: a child that shares
/// the processor with much else takes its time until it executes.
const TRIES: usize = 10;

/// How long they run on.
const PAUSE: Duration = Duration::from_millis(100);

/// Stops every process below some roots. Dropping the result lets them run on.
pub(crate) fn stop_all(roots: &Roots) -> Result<Vec<Stopped>, FreezeError> {
    for _ in 1..TRIES {
        if let Ok(stopped) = try_to_stop(roots)? {
            return Ok(stopped);
        }
        std::thread::sleep(PAUSE);
    }
    try_to_stop(roots)?.map_err(|waits| FreezeError::Refused(vec![waits]))
}

/// Stops them, or says which of them waits in the kernel and cannot be stopped now.
fn try_to_stop(roots: &Roots) -> Result<Result<Vec<Stopped>, Refusal>, FreezeError> {
    let mut stopped: Vec<Stopped> = Vec::new();
    let mut places: HashMap<i32, usize> = HashMap::new();
    for _ in 0..ROUNDS {
        // All are asked before any is waited for: they stop beside one another.
        let mut asked = Vec::new();
        let members = roots.members();
        let listed: HashSet<i32> = members.iter().map(|member| member.outer).collect();
        for member in members {
            let place = *places.entry(member.outer).or_insert_with(|| {
                stopped.push(Stopped { member, threads: Vec::new(), by_signal: false });
                stopped.len() - 1
            });
            asked.extend(ask_threads(&mut stopped[place])?.into_iter().map(|thread| (place, thread)));
        }
        let news = !asked.is_empty();
        if let Some(waits) = wait_for(asked, &mut stopped)? {
            return Ok(Err(waits));
        }
        // The pid of one that has ended may have been another's when that was stopped, of whoever's. None of those that
        // stand still gets a pid any more: this list has them all, and nobody else.
        let strangers =
            stopped.iter().any(|process| !listed.contains(&process.member.outer) && !process.threads.is_empty());
        if strangers {
            stopped.retain(|process| listed.contains(&process.member.outer));
            places = stopped.iter().enumerate().map(|(place, process)| (process.member.outer, place)).collect();
            continue;
        }
        if !news {
            // One that ended while it was being stopped is not there any more, unless its parent is yet to ask for it.
            stopped.retain(|process| !process.threads.is_empty() || process_tree::has_ended(process.member.outer));
            return Ok(Ok(stopped));
        }
    }
    Err(FreezeError::Restless("new ones kept coming".into()))
}

/// Stops one thread of a process, and none of the others. None where it does not stop soon, has ended, or a signal has
/// stopped it.
pub(crate) fn stop_thread(outer: i32, tid: i32) -> Result<Option<Thread>, FreezeError> {
    let member = process_tree::describe(outer)?;
    let what = || format!("stopping thread {tid} of process {}", member.pid);
    let thread = match Thread::seize(tid) {
        Ok(thread) => thread,
        // Somebody else traces it, or it has gone.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ESRCH)) => return Ok(None),
        Err(error) => return Err(error).context(what)?,
    };
    thread.interrupt().context(what)?;
    Ok((come_to_rest(&thread, &member, PATIENCE)? == Rest::Still).then_some(thread))
}

/// Asks the threads of a process to stop that are not stopped yet.
fn ask_threads(process: &mut Stopped) -> Result<Vec<Thread>, FreezeError> {
    let mut seized = Vec::new();
    if process.member.state == 'Z' {
        return Ok(seized);
    }
    let known: HashSet<i32> = process.threads.iter().map(Thread::tid).collect();
    for tid in process_tree::threads(process.member.outer).unwrap_or_default() {
        if known.contains(&tid) {
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
                if process_tree::has_ended(process.member.outer) {
                    process.member.state = 'Z';
                } else if !process_tree::is_gone(process.member.outer)
                    && !process_tree::is_thread_gone(process.member.outer, tid)
                {
                    if is_traced(process.member.outer, tid) {
                        let traced = refusal(&process.member, TRACED, END_DEBUGGER);
                        return Err(FreezeError::Refused(vec![traced]));
                    }
                    let what = format!("stopping thread {tid} of process {}", process.member.pid);
                    return Err(CallError { what, source: error }.into());
                }
            }
        }
    }
    Ok(seized)
}

/// Waits until threads stand still that were asked to, each given with the place of its process, and adds them to
/// those. The first that does not stop in time is named.
fn wait_for(asked: Vec<(usize, Thread)>, stopped: &mut [Stopped]) -> Result<Option<Refusal>, FreezeError> {
    let mut asked = VecDeque::from(asked);
    while let Some((place, thread)) = asked.pop_front() {
        let mut rest = come_to_rest(&thread, &stopped[place].member, SOON)?;
        if rest == Rest::Late {
            if waits_in_kernel(&stopped[place].member, &thread) {
                let_run(&mut asked, place, stopped)?;
            }
            rest = come_to_rest(&thread, &stopped[place].member, PATIENCE)?;
        }
        match rest {
            Rest::Still | Rest::Stopped => {
                stopped[place].threads.push(thread);
                stopped[place].by_signal |= rest == Rest::Stopped;
            }
            Rest::Ended => {}
            Rest::Late => {
                let advice = "wait until the process that it waits for has ended or executed";
                let kind = "it does not stop: it waits in vfork(2) or for a device";
                return Ok(Some(refusal(&stopped[place].member, kind, advice)));
            }
        }
    }
    Ok(None)
}

/// Lets threads run on that were asked to stop, but for those of one process, which may wait in vfork(2) for one of the
/// others. They are asked again in the next round.
fn let_run(asked: &mut VecDeque<(usize, Thread)>, of: usize, stopped: &[Stopped]) -> Result<(), FreezeError> {
    for (place, thread) in std::mem::take(asked) {
        // The kernel lets go only of a thread that has stopped.
        if place == of || come_to_rest(&thread, &stopped[place].member, SOON)? == Rest::Late {
            asked.push_back((place, thread));
        }
    }
    Ok(())
}

/// Whether a thread waits for something that no signal ends (state D), as it does in vfork(2).
fn waits_in_kernel(member: &Member, thread: &Thread) -> bool {
    let stat = Stat::read(member.outer, &format!("task/{}/", thread.tid()));
    stat.is_ok_and(|stat| stat.field::<char>(3).is_ok_and(|state| state == 'D'))
}

/// What became of a thread that was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// It stands still.
    Still,
    /// The same, and a signal has stopped its process.
    Stopped,
    /// It has ended.
    Ended,
    /// It has not stopped yet.
    Late,
}

/// Waits for a thread's stop.
fn come_to_rest(thread: &Thread, member: &Member, patience: Duration) -> Result<Rest, FreezeError> {
    let what = || format!("stopping thread {} of process {}", thread.tid(), member.pid);
    let begun = Instant::now();
    loop {
        match thread.try_wait().context(what)? {
            Some(stop @ (Stop::Trapped | Stop::GroupStopped)) => {
                // The memory that says so may be the guest's nonsense: then it stays where it is.
                let _ = thread.leave_critical_section();
                return Ok(if stop == Stop::Trapped { Rest::Still } else { Rest::Stopped });
            }
            Some(Stop::Gone) => return Ok(Rest::Ended),
            // Nobody has let it go to one yet.
            Some(stop @ (Stop::Calling | Stop::Forked)) => {
                let source = io::Error::other(format!("it stopped for another reason: {stop:?}"));
                return Err(CallError { what: what(), source }.into());
            }
            Some(Stop::Signal(signal)) => thread.deliver(signal).context(what)?,
            None if begun.elapsed() > patience => return Ok(Rest::Late),
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

fn refusal(member: &Member, kind: &str, advice: &'static str) -> Refusal {
    Refusal { pid: member.pid, name: member.name.clone(), descriptor: None, kind: kind.into(), advice }
}

/// What is said of processes that somebody traces.
pub(crate) const TRACED: &str = "it is being traced";

pub(crate) const END_DEBUGGER: &str = "end the debugger";
