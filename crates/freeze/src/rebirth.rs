//! The steps of each thread of a clone, from its first instruction in the restorer to its return into the frozen program.

use crate::frame;
use crate::image::{Credentials, Image, Process, Thread, UserSpace};
use crate::landing::Landing;
use crate::script::{Chapter, Writer};
use crate::thread_settings;
use crate::timers;
use pando_restorer::{STACK_LENGTH, Special};

/// FS and GS base of a thread, which stand behind the registers of its frame.
pub(crate) fn bases(thread: &Thread) -> [u64; 2] {
    match thread.registers[..] {
        [.., fs, gs] => [fs, gs],
        _ => [0, 0],
    }
}

/// What a thread has already of what it was when it was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inherited<'a> {
    /// So many filters of system calls, the guest's own.
    pub(crate) filters: usize,
    /// Capabilities that it can ever have.
    pub(crate) bounding: u64,
    /// Whether it is root without further groups.
    pub(crate) plain: bool,
    /// The user namespace that it has entered, with all further groups.
    pub(crate) space: Option<&'a UserSpace>,
}

impl Inherited<'_> {
    /// Of the maker, which gives up what no thread of the image has: each call that it makes is one less for every thread.
    pub(crate) fn of_maker(writer: &mut Writer, image: &Image, filters: &[Vec<u8>]) -> Self {
        let threads = image.processes.iter().flat_map(|process| &process.threads);
        let bounding = threads.fold(0, |all, thread| all | thread.credentials.capabilities[3]);
        bound(writer, Writer::MAKING, bounding, u64::MAX);
        install(writer, Writer::MAKING, filters, 0);
        Self { filters: filters.len(), bounding, plain: true, space: None }
    }
}

fn install(writer: &mut Writer, chapter: Chapter, filters: &[Vec<u8>], flags: u64) {
    const SECCOMP_SET_MODE_FILTER: u64 = 1;
    for filter in filters {
        let program = writer.data(filter, 8);
        let filter = writer.words(&[filter.len() as u64 / 8, program]);
        let arguments = [SECCOMP_SET_MODE_FILTER, flags, filter];
        writer.call(chapter, "installing a system-call filter", libc::SYS_seccomp, &arguments);
    }
}

/// The rest of a process's first thread, once its memory is in place and `others` further threads are made.
pub(crate) fn first_thread(
    writer: &mut Writer,
    chapter: Chapter,
    process: &Process,
    others: u64,
    (ids_chosen, inherited, landing): (bool, Inherited<'_>, &Landing),
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
    if shared && thread.filters.len() > inherited.filters {
        writer.special(chapter, "waiting for the other threads", Special::Gather, &[others]);
    }
    identity(writer, chapter, thread, inherited, if shared { TO_ALL } else { 0 });
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
    resume(writer, chapter, thread, (landing, 0), [0, 0]);
}

/// All steps of a further thread, whose stack in the restorer begins at `stack`.
pub(crate) fn further_thread(
    writer: &mut Writer,
    chapter: Chapter,
    process: &Process,
    thread: &Thread,
    (stack, inherited): (u64, Inherited<'_>),
    (landing, number): (&Landing, usize),
) {
    common(writer, chapter, process, thread);
    // The first thread gives all of them the filters that they share.
    let filters = if shares_filters(process) { usize::MAX } else { inherited.filters };
    identity(writer, chapter, thread, Inherited { filters, ..inherited }, 0);
    writer.special(chapter, "waiting at the gate", Special::Gate, &[u64::MAX]);
    resume(writer, chapter, thread, (landing, number), [stack, STACK_LENGTH]);
}

/// Whether the threads of a process have the same filters of system calls, so that it need not be made for each.
fn shares_filters(process: &Process) -> bool {
    let mut filters = process.threads.iter().map(|thread| &thread.filters);
    let first = filters.next();
    process.threads.len() > 1 && filters.all(|other| Some(other) == first)
}

/// A filter is for all threads: SECCOMP_FILTER_FLAG_TSYNC, and SECCOMP_FILTER_FLAG_TSYNC_ESRCH (since Linux 5.7), without which a refusal looks like success.
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

/// Becomes who the thread was. Filters come last where it has the right to have them then, for they may end who becomes somebody else, as those of services do. Where
/// it has not, they come first, and let pass what the thread itself did after.
fn identity(writer: &mut Writer, chapter: Chapter, thread: &Thread, inherited: Inherited<'_>, flags: u64) {
    let seen = inherited.space.map(|space| space.seen(&thread.credentials));
    let who = seen.as_ref().unwrap_or(&thread.credentials);
    let filters = thread.filters.get(inherited.filters..).unwrap_or_default();
    let may_have_them = who.no_new_privileges || who.capabilities[2] & SYS_ADMIN != 0;
    if !may_have_them {
        install(writer, chapter, filters, flags);
    }
    bound(writer, chapter, who.capabilities[3], inherited.bounding);
    // They may be set only while all capabilities are there.
    if who.secure_bits != 0 {
        let arguments = [libc::PR_SET_SECUREBITS as u64, who.secure_bits];
        writer.call(chapter, "setting the secure bits", libc::SYS_prctl, &arguments);
    }
    if inherited.space.is_none() && !(inherited.plain && who.further.is_empty()) {
        let further: Vec<u8> = who.further.iter().flat_map(|group| group.to_le_bytes()).collect();
        let further = writer.data(&further, 8);
        let arguments = [who.further.len() as u64, further];
        writer.call(chapter, "setting further groups", libc::SYS_setgroups, &arguments);
    }
    let [real, effective, saved, of_files] = who.groups.map(u64::from);
    if !(inherited.plain && [real, effective, saved] == [0; 3]) {
        writer.call(chapter, "setting the groups", libc::SYS_setresgid, &[real, effective, saved]);
    }
    if of_files != effective {
        writer.call(chapter, "setting the file-system group", libc::SYS_setfsgid, &[of_files]);
    }
    let [real, effective, saved, of_files] = who.users.map(u64::from);
    if inherited.space.is_some() || [real, effective, saved, of_files] != [0; 4] {
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
    if may_have_them {
        install(writer, chapter, filters, flags);
    }
}

/// CAP_SYS_ADMIN.
const SYS_ADMIN: u64 = 1 << 21;

/// The highest capability of any kernel so far is 40; more are tried.
const CAPABILITIES: u64 = 48;

/// Gives up the capabilities of a set that are not of another.
fn bound(writer: &mut Writer, chapter: Chapter, kept: u64, of: u64) {
    for number in (0..CAPABILITIES).filter(|number| (of & !kept) >> number & 1 == 1) {
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
fn resume(
    writer: &mut Writer,
    chapter: Chapter,
    thread: &Thread,
    (landing, number): (&Landing, usize),
    stack: [u64; 2],
) {
    if thread.parent_death != 0 {
        let arguments = [libc::PR_SET_PDEATHSIG as u64, thread.parent_death as u64];
        writer.call(chapter, "asking for a signal at the parent's death", libc::SYS_prctl, &arguments);
    }
    let (frame, code) = landing.of(number).unwrap_or_else(|| {
        let address = writer.next_address(64);
        (writer.data(&frame::build(thread, &thread.registers, address), 64), 0)
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
        first_thread(&mut writer, Writer::MAKING, &process, 0, (true, inherited, &Landing::default()));
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
            let landing = Landing::default();
            first_thread(&mut writer, Writer::MAKING, &process, 1, (true, inherited, &landing));
            let own = writer.chapter();
            further_thread(&mut writer, own, &process, &process.threads[1], (0, inherited), (&landing, 1));
            let text = format!("{:?}", writer.finish(9, 3, 1, 0));
            let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
            (count("installing a system-call filter"), count("waiting for the other threads"))
        };
        assert_eq!(made([2, 2], 0), (2, 1));
        assert_eq!(made([2, 2], 1), (1, 1));
        assert_eq!(made([1, 1], 1), (0, 0));
        assert_eq!(made([2, 1], 0), (3, 0));
    }

    #[test]
    fn filters_come_last_where_a_thread_may_have_them_then() {
        let order = |no_new_privileges, effective| {
            let credentials = Credentials {
                users: [7; 4],
                capabilities: [0, effective, effective, 0, 0],
                no_new_privileges,
                ..Credentials::default()
            };
            let thread = Thread { credentials, filters: vec![vec![0; 8]], ..Thread::default() };
            let inherited = Inherited { filters: 0, bounding: 0, plain: true, space: None };
            let mut writer = Writer::new();
            identity(&mut writer, Writer::MAKING, &thread, inherited, 0);
            let text = format!("{:?}", writer.finish(9, 3, 1, 0));
            let place = |label: &str| text.lines().position(|line| line.contains(label)).unwrap();
            place("setting the users") < place("installing")
        };
        assert_eq!([order(true, 0), order(false, SYS_ADMIN), order(false, 1)], [true, true, false]);
    }

    #[test]
    fn what_no_thread_has_is_given_up_once() {
        let of = |bounding| {
            let mut thread = Thread { registers: vec![0; 25], extended: vec![0; 576], ..Thread::default() };
            thread.credentials.capabilities[3] = bounding;
            Process { threads: vec![thread], ..Process::default() }
        };
        let image = Image { processes: vec![of(0b11), of(0b01)], ..Image::default() };
        let mut writer = Writer::new();
        let inherited = Inherited::of_maker(&mut writer, &image, &[]);
        let chapters = [writer.chapter(), writer.chapter()];
        for (process, chapter) in image.processes.iter().zip(chapters) {
            identity(&mut writer, chapter, &process.threads[0], inherited, 0);
        }
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        let dropped = text.lines().filter(|line| line.contains("bounding capabilities")).count() as u64;
        assert_eq!(dropped, CAPABILITIES - 2 + 1, "{text}");
    }
}
