//! The steps of each thread of a clone, from its first instruction in the restorer to its return into the frozen program.

use crate::frame;
use crate::image::{Credentials, Process, Thread};
use crate::script::{Chapter, Writer};
use crate::timers;
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
    (ids_chosen, filtered): (bool, usize),
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
    identity(writer, chapter, thread, filtered);
    writer.special(chapter, "waiting at the gate", Special::Gate, &[others]);
    timers::start(writer, chapter, &process.timers);
    for (which, interval) in process.intervals.iter().enumerate() {
        let Some(interval) = timers::wound(*interval) else { continue };
        let words = writer.words(&interval);
        writer.call(chapter, "setting an interval timer", libc::SYS_setitimer, &[which as u64, words, 0]);
    }
    if process.flags.dumpable {
        writer.call(chapter, "becoming dumpable", libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, 1]);
    }
    resume(writer, chapter, thread, [0, 0]);
}

/// All steps of a further thread, whose stack in the restorer begins at `stack`.
pub(crate) fn further_thread(
    writer: &mut Writer,
    chapter: Chapter,
    process: &Process,
    thread: &Thread,
    (stack, filtered): (u64, usize),
) {
    common(writer, chapter, process, thread);
    identity(writer, chapter, thread, filtered);
    writer.special(chapter, "waiting at the gate", Special::Gate, &[u64::MAX]);
    resume(writer, chapter, thread, [stack, STACK_LENGTH]);
}

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

/// Becomes who the thread was. Filters come first, while there is the right to have them; they let pass what the thread itself did after. So many of them,
/// the guest's own, are there already.
fn identity(writer: &mut Writer, chapter: Chapter, thread: &Thread, filtered: usize) {
    const SECCOMP_SET_MODE_FILTER: u64 = 1;
    let who = &thread.credentials;
    for filter in thread.filters.iter().skip(filtered) {
        let program = writer.data(filter, 8);
        let filter = writer.words(&[filter.len() as u64 / 8, program]);
        writer.call(
            chapter,
            "installing a system-call filter",
            libc::SYS_seccomp,
            &[SECCOMP_SET_MODE_FILTER, 0, filter],
        );
    }
    bound(writer, chapter, who);
    // They may be set only while all capabilities are there.
    if who.secure_bits != 0 {
        let arguments = [libc::PR_SET_SECUREBITS as u64, who.secure_bits];
        writer.call(chapter, "setting the secure bits", libc::SYS_prctl, &arguments);
    }
    let further: Vec<u8> = who.further.iter().flat_map(|group| group.to_le_bytes()).collect();
    let further = writer.data(&further, 8);
    let arguments = [who.further.len() as u64, further];
    writer.call(chapter, "setting further groups", libc::SYS_setgroups, &arguments);
    let [real, effective, saved, of_files] = who.groups.map(u64::from);
    writer.call(chapter, "setting the groups", libc::SYS_setresgid, &[real, effective, saved]);
    if of_files != effective {
        writer.call(chapter, "setting the file-system group", libc::SYS_setfsgid, &[of_files]);
    }
    let [real, effective, saved, of_files] = who.users.map(u64::from);
    if [real, effective, saved, of_files] != [0; 4] {
        // Capabilities outlive the change of user, to be set as they were.
        writer.attempt(chapter, "keeping capabilities", libc::SYS_prctl, &[libc::PR_SET_KEEPCAPS as u64, 1]);
        writer.call(chapter, "setting the users", libc::SYS_setresuid, &[real, effective, saved]);
        if of_files != effective {
            writer.call(chapter, "setting the file-system user", libc::SYS_setfsuid, &[of_files]);
        }
        let keeps = who.secure_bits >> libc::SECBIT_KEEP_CAPS.trailing_zeros() & 1;
        writer.attempt(
            chapter,
            "no longer keeping capabilities",
            libc::SYS_prctl,
            &[libc::PR_SET_KEEPCAPS as u64, keeps],
        );
    }
    capabilities(writer, chapter, who);
    if who.no_new_privileges {
        let arguments = [libc::PR_SET_NO_NEW_PRIVS as u64, 1];
        writer.call(chapter, "giving up new privileges", libc::SYS_prctl, &arguments);
    }
}

/// The highest capability of any kernel so far is 40; more are tried.
const CAPABILITIES: u64 = 48;

fn bound(writer: &mut Writer, chapter: Chapter, who: &Credentials) {
    for number in (0..CAPABILITIES).filter(|number| who.capabilities[3] >> number & 1 == 0) {
        let arguments = [libc::PR_CAPBSET_DROP as u64, number];
        writer.attempt(chapter, "bounding capabilities", libc::SYS_prctl, &arguments);
    }
}

fn capabilities(writer: &mut Writer, chapter: Chapter, who: &Credentials) {
    const VERSION_3: u32 = 0x2008_0522;
    let [inheritable, permitted, effective, _, ambient] = who.capabilities;
    let header: Vec<u8> = [VERSION_3, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let half = |set: u64, high: bool| if high { (set >> 32) as u32 } else { set as u32 };
    let sets = [false, true].map(|high| [effective, permitted, inheritable].map(|set| half(set, high)));
    let sets: Vec<u8> = sets.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let (header, sets) = (writer.data(&header, 8), writer.data(&sets, 8));
    writer.call(chapter, "setting capabilities", libc::SYS_capset, &[header, sets]);
    for number in (0..CAPABILITIES).filter(|number| ambient >> number & 1 == 1) {
        let arguments = [libc::PR_CAP_AMBIENT as u64, libc::PR_CAP_AMBIENT_RAISE as u64, number, 0, 0];
        writer.call(chapter, "raising an ambient capability", libc::SYS_prctl, &arguments);
    }
}

/// The last steps, behind the gate. The maker, which the first processes are children of until then, is gone now: its end is not their parent's.
fn resume(writer: &mut Writer, chapter: Chapter, thread: &Thread, stack: [u64; 2]) {
    if thread.parent_death != 0 {
        let arguments = [libc::PR_SET_PDEATHSIG as u64, thread.parent_death as u64];
        writer.call(chapter, "asking for a signal at the parent's death", libc::SYS_prctl, &arguments);
    }
    let address = writer.next_address(64);
    let frame = writer.data(&frame::build(thread, address), 64);
    writer.special(chapter, "resuming", Special::Resume, &[frame, stack[0], stack[1]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_becomes_itself_before_the_gate_and_resumes_last() {
        let thread = Thread { tid: 7, registers: vec![0; 25], extended: vec![0; 576], ..Thread::default() };
        let process = Process { pid: 7, threads: vec![thread], ..Process::default() };
        let mut writer = Writer::new();
        first_thread(&mut writer, Writer::MAKING, &process, 0, (true, 0));
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        let place = |label: &str| text.lines().position(|line| line.contains(label)).unwrap();
        assert!(place("setting capabilities") < place("waiting at the gate"));
        assert_eq!(place("resuming") + 1, text.lines().count());
    }
}
