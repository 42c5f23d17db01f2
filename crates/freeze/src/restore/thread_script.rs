//! The steps of each thread of a clone, from its first instruction in the restorer to its return into the frozen
//! program.

use crate::image::{Process, Thread};
use crate::refusal::Refusal;
use crate::restore::identity::{self, Inherited, Kept};
use crate::restore::resume_trampoline::ResumeTrampoline;
use crate::restore::script::{Chapter, Writer};
use crate::restore::{filter_verdict, signal_frame, thread_settings, timers};
use pando_restorer::{STACK_LENGTH, Special};

/// FS and GS base of a thread, which stand behind the registers of its frame.
pub(crate) fn bases(thread: &Thread) -> [u64; 2] {
    match thread.registers[..] {
        [.., fs, gs] => [fs, gs],
        _ => [0, 0],
    }
}

/// The rest of a process's first thread, once its memory is in place and `others` further threads are made.
pub(crate) fn first_thread(
    writer: &mut Writer,
    chapter: Chapter,
    process: &Process,
    others: u64,
    (ids_chosen, inherited, trampoline): (bool, Inherited<'_>, &ResumeTrampoline),
) {
    const ARCH_SET_FS: u64 = 0x1002;
    let Some(thread) = process.threads.first() else { return };
    writer.call(chapter, "setting the thread pointer", libc::SYS_arch_prctl, &[ARCH_SET_FS, bases(thread)[0]]);
    writer.call(chapter, "setting the clear-tid address", libc::SYS_set_tid_address, &[thread.clear]);
    common(writer, chapter, process, thread);
    for info in &process.waiting {
        let (signal, info) = (signal(info), writer.data(info, 8));
        let arguments = [process.pid as u64, signal, info];
        writer.call(chapter, "sending a signal that waited", libc::SYS_rt_sigqueueinfo, &arguments);
    }
    for (number, soft, hard) in &process.limits {
        let words = writer.words(&[*soft, *hard]);
        let arguments = [u64::from(*number), words];
        writer.attempt(chapter, "setting a resource limit", libc::SYS_setrlimit, &arguments);
    }
    timers::create(writer, chapter, &process.timers, ids_chosen);
    let shared = shares_filters(process);
    let filters = thread.filters.get(inherited.filters..).unwrap_or_default();
    if shared && !filters.is_empty() {
        writer.special(chapter, "waiting for the other threads", Special::Gather, &[others]);
    }
    let kept = if filters.is_empty() { Kept::Nothing } else { Kept::ToFilter };
    identity::become_it(writer, chapter, &thread.credentials, inherited, kept);
    // Before the gate nobody runs who could make use of it.
    let dumpable = process.flags.dumpable;
    let is_alone = shared || others == 0;
    let early = dumpable && is_alone && !filter_verdict::let_call(filters, libc::SYS_prctl, &DUMPABLE);
    if early {
        writer.call(chapter, "becoming dumpable", libc::SYS_prctl, &DUMPABLE);
    }
    let place = identity::filter(writer, chapter, &thread.credentials, filters, if shared { TO_ALL } else { 0 });
    let gate = [others, process.pid as u64, process.stopped.into()];
    writer.special(chapter, "waiting at the gate", Special::Gate, &gate);
    timers::start(writer, chapter, &process.timers);
    for (which, interval) in process.intervals.iter().enumerate() {
        let Some(interval) = timers::wound(*interval) else { continue };
        let words = writer.words(&interval);
        writer.call(chapter, "setting an interval timer", libc::SYS_setitimer, &[which as u64, words, 0]);
    }
    if dumpable && !early {
        writer.call(chapter, "becoming dumpable", libc::SYS_prctl, &DUMPABLE);
    }
    if process.stopped {
        writer.special(chapter, "being stopped", Special::Stop, &[others]);
    }
    resume(writer, chapter, thread, (trampoline, 0), [0, 0]);
    judge(writer, chapter, (process, thread), filters, |number| place + number + 1);
}

/// All steps of a further thread, whose stack in the restorer begins at `stack`.
pub(crate) fn further_thread(
    writer: &mut Writer,
    chapter: Chapter,
    process: &Process,
    thread: &Thread,
    (stack, inherited): (u64, Inherited<'_>),
    (trampoline, number): (&ResumeTrampoline, usize),
) {
    common(writer, chapter, process, thread);
    let filters = thread.filters.get(inherited.filters..).unwrap_or_default();
    // The first thread gives all of them the filters that they share, while they stand at the gate.
    let shared = shares_filters(process);
    let kept = match (filters, shared) {
        ([], _) => Kept::Nothing,
        (_, true) => Kept::ToBeFiltered,
        _ => Kept::ToFilter,
    };
    identity::become_it(writer, chapter, &thread.credentials, inherited, kept);
    let own = if shared { &[] } else { filters };
    let place = identity::filter(writer, chapter, &thread.credentials, own, 0);
    writer.special(chapter, "waiting at the gate", Special::Gate, &[u64::MAX]);
    resume(writer, chapter, thread, (trampoline, number), [stack, STACK_LENGTH]);
    let holds_from = |number| if shared { place } else { place + number + 1 };
    judge(writer, chapter, (process, thread), filters, holds_from);
}

/// A process is dumpable.
const DUMPABLE: [u64; 5] = [libc::PR_SET_DUMPABLE as u64, 1, 0, 0, 0];

/// Refuses a thread one of whose filters, each of which holds from a step on, would have a say in what comes behind
/// that.
fn judge(
    writer: &mut Writer,
    chapter: Chapter,
    (process, thread): (&Process, &Thread),
    filters: &[Vec<u8>],
    holds_from: impl Fn(usize) -> usize,
) {
    let of = |(number, filter): (usize, &Vec<u8>)| {
        filter_verdict::obstacle(filter, writer.steps_from(chapter, holds_from(number)))
    };
    let Some(call) = filters.iter().enumerate().find_map(of) else { return };
    writer.refuse(Refusal {
        pid: process.pid,
        name: String::from_utf8_lossy(&thread.name).into_owned(),
        descriptor: None,
        kind: format!("a filter of its own that does not let pass {}, which a clone calls under it", name(call)),
        advice: "have the filter allow that call, or start the program without it",
    });
}

/// What a call is called that is made under a filter.
fn name(call: i64) -> String {
    const NAMES: [(i64, &str); 13] = [
        (libc::SYS_getpid, "getpid"),
        (libc::SYS_kill, "kill"),
        (libc::SYS_read, "read"),
        (libc::SYS_write, "write"),
        (libc::SYS_close, "close"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_rt_sigreturn, "rt_sigreturn"),
        (libc::SYS_setitimer, "setitimer"),
        (libc::SYS_capset, "capset"),
        (libc::SYS_prctl, "prctl"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_timer_settime, "timer_settime"),
        (libc::SYS_seccomp, "seccomp"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == call);
    known.map_or_else(|| format!("system call {call}"), |(_, name)| (*name).to_owned())
}

/// Whether the threads of a process have the same filters of system calls, so that it need not be made for each. Who
/// gains no privileges gives that on with them.
fn shares_filters(process: &Process) -> bool {
    let mut filters = process.threads.iter().map(|thread| (&thread.filters, thread.credentials.no_new_privileges));
    let first = filters.next();
    process.threads.len() > 1 && filters.all(|other| Some(other) == first)
}

/// A filter is for all threads: SECCOMP_FILTER_FLAG_TSYNC, and SECCOMP_FILTER_FLAG_TSYNC_ESRCH (since Linux 5.7),
/// without which a refusal looks like success.
const TO_ALL: u64 = 1 | 1 << 4;

fn common(writer: &mut Writer, chapter: Chapter, process: &Process, thread: &Thread) {
    const ARCH_SET_GS: u64 = 0x1001;
    let gs = bases(thread)[1];
    if gs != 0 {
        writer.call(chapter, "setting the GS base", libc::SYS_arch_prctl, &[ARCH_SET_GS, gs]);
    }
    let (head, length) = thread.robust;
    if head != 0 {
        writer.call(chapter, "listing robust futexes", libc::SYS_set_robust_list, &[head, length]);
    }
    let (address, length, signature) = thread.rseq;
    if address != 0 {
        let arguments = [address, u64::from(length), 0, u64::from(signature)];
        writer.call(chapter, "registering restartable sequences", libc::SYS_rseq, &arguments);
    }
    let mut name = thread.name.clone();
    name.resize(16, 0);
    let name = writer.data(&name, 8);
    writer.call(chapter, "setting a thread's name", libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]);
    if thread.slack != 0 {
        let arguments = [libc::PR_SET_TIMERSLACK as u64, thread.slack];
        writer.attempt(chapter, "setting the timer slack", libc::SYS_prctl, &arguments);
    }
    thread_settings::write(writer, chapter, &thread.settings);
    let scheduling = &thread.scheduling;
    if scheduling.policy != 0 {
        let priority = writer.data(&scheduling.priority.to_le_bytes(), 8);
        let arguments = [0, u64::from(scheduling.policy), priority];
        writer.attempt(chapter, "setting the scheduling policy", libc::SYS_sched_setscheduler, &arguments);
    }
    if scheduling.nice != 0 {
        let arguments = [0, 0, scheduling.nice as i64 as u64];
        writer.attempt(chapter, "setting the niceness", libc::SYS_setpriority, &arguments);
    }
    if scheduling.disk != 0 {
        const IOPRIO_WHO_PROCESS: u64 = 1;
        let arguments = [IOPRIO_WHO_PROCESS, 0, u64::from(scheduling.disk)];
        writer.attempt(chapter, "setting the priority on disks", libc::SYS_ioprio_set, &arguments);
    }
    if !scheduling.processors.is_empty() {
        let set = writer.data(&scheduling.processors, 8);
        let arguments = [0, scheduling.processors.len() as u64, set];
        writer.attempt(chapter, "setting the processors", libc::SYS_sched_setaffinity, &arguments);
    }
    for info in &thread.waiting {
        let (signal, info) = (signal(info), writer.data(info, 8));
        let arguments = [process.pid as u64, thread.tid as u64, signal, info];
        writer.call(chapter, "sending a signal that waited", libc::SYS_rt_tgsigqueueinfo, &arguments);
    }
}

/// The number of a signal that waits.
fn signal(info: &[u8]) -> u64 {
    info.first().copied().map_or(0, u64::from)
}

/// The last steps, behind the gate. The maker, which the first processes are children of until then, is gone now: its
/// end is not their parent's.
fn resume(
    writer: &mut Writer,
    chapter: Chapter,
    thread: &Thread,
    (trampoline, number): (&ResumeTrampoline, usize),
    stack: [u64; 2],
) {
    if thread.parent_death != 0 {
        let arguments = [libc::PR_SET_PDEATHSIG as u64, thread.parent_death as u64];
        writer.call(chapter, "asking for a signal at the parent's death", libc::SYS_prctl, &arguments);
    }
    let (frame, code) = trampoline.of(number).unwrap_or_else(|| {
        let address = writer.next_address(64);
        (writer.data(&signal_frame::build(thread, &thread.registers, address), 64), 0)
    });
    writer.special(chapter, "resuming", Special::Resume, &[frame, code, stack[0], stack[1]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_becomes_itself_before_the_gate_and_resumes_last() {
        let thread = Thread { tid: 7, registers: vec![0; 25], extended: vec![0; 576], ..Thread::default() };
        let process = Process { pid: 7, threads: vec![thread], ..Process::default() };
        let mut writer = Writer::new();
        let inherited = Inherited { filters: 0, bounding: u64::MAX, plain: true, space: None };
        first_thread(&mut writer, Writer::MAKING, &process, 0, (true, inherited, &ResumeTrampoline::default()));
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        let place = |label: &str| text.lines().position(|line| line.contains(label)).unwrap();
        assert!(place("setting capabilities") < place("waiting at the gate"));
        assert_eq!(place("resuming") + 1, text.lines().count());
    }

    #[test]
    fn filters_that_threads_share_are_made_once() {
        let thread = |tid, filters| Thread {
            tid,
            registers: vec![0; 25],
            extended: vec![0; 576],
            filters: vec![vec![0; 8]; filters],
            ..Thread::default()
        };
        let made = |filters: [usize; 2], had| {
            let threads = vec![thread(7, filters[0]), thread(8, filters[1])];
            let process = Process { pid: 7, threads, ..Process::default() };
            let inherited = Inherited { filters: had, bounding: u64::MAX, plain: true, space: None };
            let mut writer = Writer::new();
            let trampoline = ResumeTrampoline::default();
            first_thread(&mut writer, Writer::MAKING, &process, 1, (true, inherited, &trampoline));
            let own = writer.chapter();
            further_thread(&mut writer, own, &process, &process.threads[1], (0, inherited), (&trampoline, 1));
            let text = format!("{:?}", writer.finish(9, 3, 1, 0));
            let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
            (count("installing a system-call filter"), count("waiting for the other threads"))
        };
        assert_eq!(made([2, 2], 0), (2, 1));
        assert_eq!(made([2, 2], 1), (1, 1));
        assert_eq!(made([1, 1], 1), (0, 0));
        assert_eq!(made([2, 1], 0), (3, 0));
    }
}
