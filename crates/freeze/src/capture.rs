//! Reading a stopped process: all that a clone needs of it but the contents of its memory.

use crate::ahead::Ahead;
use crate::aio;
use crate::asking::{Asking, OfProcess, OfThread};
use crate::credentials::{self, IdMaps};
use crate::descriptors::{self, Notebook};
use crate::epoll::Watched;
use crate::frame;
use crate::freeze::{Known, Subject};
use crate::host_names;
use crate::image::{Area, Image, Layout, MountChange, Process, ProcessFlags, Scheduling, Thread, mount};
use crate::in_flight::Flight;
use crate::leases;
use crate::limits;
use crate::memory_rules;
use crate::nested::Nested;
use crate::net_spaces;
use crate::proc_file::{self, Lines, Stat};
use crate::refusal::{FreezeError, Refusal};
use crate::resumption;
use crate::stop::Stopped;
use crate::survey::Findings;
use crate::sysv;
use crate::terminals;
use crate::thread_settings;
use crate::timers;
use crate::told::Told;
use crate::tree;
use crate::unix_socket;
use crate::user_spaces;
use pando_kernel::trace::{self, Registers};
use pando_kernel::{CallError, Context, io_priority, scheduling_policy};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::{HashMap, HashSet};
use std::io;

/// Reads every process and what is in flight between them, except for which pages it has, which [`crate::areas::find_pages`] tells, and their content. Parents come before children.
pub(crate) fn capture(
    subject: &Subject<'_>,
    stopped: &[Stopped],
    known: &Known<'_>,
    found: Findings,
) -> Result<(Image, Flight), FreezeError> {
    let Known { searched, ipc: kept, ahead, .. } = *known;
    let Subject { init, outside, in_memory, .. } = *subject;
    let mut image = Image { init: tree::number_inside(init), ..Image::default() };
    let maps = IdMaps::of(init)?;
    let Findings { mut areas, mut descriptors, told, nested, groups, flight: (mut flight, waiting), .. } = found;
    let spaces = &nested.mounts;
    let mut notebook = Notebook::new(init, &nested, searched, &kept.queues)?;
    image.queues = notebook.queues.capture(&maps)?;
    if let Some(number) = subject.console {
        terminals::console(init, number, &mut image)?;
    }
    image.host_names = host_names::capture(&nested.host_names)?;
    image.ipc_spaces = nested.ipc.all().len();
    image.net_spaces = net_spaces::capture(&nested.networks);
    image.net_settings = known.net_settings.to_vec();
    image.user_spaces = user_spaces::capture(&nested.users, &maps)?;
    if let Some(groups) = &groups {
        image.control_groups = groups.capture(&maps)?;
    }
    let mut watched = Watched::default();
    for process in stopped {
        let outer = process.member.outer;
        let (stat, status) = (Stat::read(outer, "")?, Lines::read(outer, "status")?);
        let mut captured = relatives(process, &stat, &status)?;
        if !process.threads.is_empty() {
            let mut areas = areas.remove(&outer).map_or_else(|| read_areas(outer, ahead), Ok)?;
            aio::capture(outer, told.get(&outer), &mut areas)?;
            // Whom it tells nothing of is asked.
            fill(&mut captured, (process, &areas), (&stat, &status), &maps, told.get(&outer))?;
            captured.areas = areas;
            spaces.translate(process.member.outer, &mut captured);
            nested.note(outer, &mut captured)?;
            if let Some(groups) = &groups {
                captured.control_group = image.control_groups.place(&groups.of_process(process.member.outer)?);
            }
            let found = descriptors.remove(&outer).map_or_else(|| descriptors::list(outer), Ok)?;
            notebook.contents.of_areas(process.member.outer, captured.pid, &mut captured.areas, &mut image)?;
            captured.descriptors = notebook.capture(&process.member, &found, outside, &mut image)?;
            captured.deleted_directory = notebook.contents.of_working_directory(outer, captured.pid, &mut image)?;
            captured.leases = leases::capture(outer, (&found, &captured.descriptors), &image, &maps)?;
            captured.locks = found.iter().flat_map(descriptors::record_locks).collect();
            watched.note((outer, image.processes.len()), &found, &mut captured);
        }
        image.processes.push(captured);
    }
    let lost = watched.find_files(&mut image)?;
    if !lost.is_empty() {
        return Err(FreezeError::Refused(lost));
    }
    flight.capture(&waiting, &mut notebook, outside, &mut image)?;
    (image.mounts, image.shared_mounts) = spaces.first();
    notebook.contents.expect(image.mounts.iter().filter(|one| mount::is_made(one)).map(mount::path));
    for directory in in_memory.iter().filter(|path| !spaces.is_changed_at(path)) {
        notebook.contents.of_tree(directory, subject.own_files, &mut image)?;
    }
    own_mounts(&nested, (init, image.init), &mut notebook, &mut image)?;
    let lost = notebook.contents.objections();
    if !lost.is_empty() {
        let (pid, name) = stopped.first().map_or((0, String::new()), |one| (one.member.pid, one.member.name.clone()));
        let refusal = |(kind, advice)| Refusal { pid, name: name.clone(), descriptor: None, kind, advice };
        return Err(FreezeError::Refused(lost.into_iter().map(refusal).collect()));
    }
    image.keyed = sysv::capture(&kept.keys, init, &maps)?;
    terminals::sessions(&mut image, stopped);
    unix_socket::capture(init, &nested, &mut image, (notebook.places(), &mut flight))?;
    parents_first(&mut image.processes);
    leave_out_usual(&mut image.processes, init)?;
    Ok((image, flight))
}

/// What is mounted in each namespace, the first process's before the others, and what is in those that are in memory.
fn own_mounts(
    nested: &Nested,
    first: (i32, i32),
    notebook: &mut Notebook<'_>,
    image: &mut Image,
) -> Result<(), FreezeError> {
    let mut changes = std::mem::take(&mut image.mounts);
    complete(&mut changes, first, nested, notebook, image)?;
    image.mounts = changes;
    for (mut space, outer, pid) in nested.mounts.each() {
        complete(&mut space.changes, (outer, pid), nested, notebook, image)?;
        image.mount_spaces.push(space);
    }
    Ok(())
}

/// Says what is in file systems in memory, and which namespaces others are of. A process that sees them is known by its pid here and inside.
fn complete(
    changes: &mut [MountChange],
    process: (i32, i32),
    nested: &Nested,
    notebook: &mut Notebook<'_>,
    image: &mut Image,
) -> Result<(), FreezeError> {
    for change in changes {
        match change {
            MountChange::Memory { path, contents, .. } => {
                *contents = notebook.contents.of_mount(process, path, image)?;
            }
            MountChange::Queues { space, device, .. } => *space = nested.queues_on(device).unwrap_or(0),
            MountChange::Devices { space, device, .. } => *space = nested.devices_on(device).unwrap_or(0),
            _ => {}
        }
    }
    Ok(())
}

/// Orders processes so that each comes before its children, and a subtree lies together.
fn parents_first(processes: &mut Vec<Process>) {
    let mut ordered: Vec<Process> = Vec::with_capacity(processes.len());
    let pids: HashSet<i32> = processes.iter().map(|process| process.pid).collect();
    let mut children: HashMap<i32, Vec<usize>> = HashMap::new();
    for (place, process) in processes.iter().enumerate() {
        // Whose parent is none of them is a child of nobody.
        let parent = if pids.contains(&process.parent) { process.parent } else { 0 };
        children.entry(parent).or_default().push(place);
    }
    let mut next = children.remove(&0).unwrap_or_default();
    next.reverse();
    while let Some(place) = next.pop() {
        let process = std::mem::take(&mut processes[place]);
        next.extend(children.remove(&process.pid).unwrap_or_default().into_iter().rev());
        ordered.push(process);
    }
    *processes = ordered;
}

/// Pid, parent, group, session: all in the numbers of the process's own namespace.
fn relatives(process: &Stopped, stat: &Stat, status: &Lines) -> Result<Process, CallError> {
    let inner = |key: &str| status.words(key).last().and_then(|word| word.parse().ok()).unwrap_or(0);
    let parent: i32 = stat.field(4)?;
    let parent_status = Lines::read(parent, "status").ok();
    let depth = |lines: &Lines| lines.words("NSpid").count();
    let parent = match parent_status {
        Some(lines) if depth(&lines) == depth(status) => tree::inner(&lines).unwrap_or(0),
        _ => 0,
    };
    let ended = process.threads.is_empty().then(|| stat.field(52)).transpose()?;
    Ok(Process {
        pid: process.member.pid,
        parent,
        group: inner("NSpgid"),
        session: inner("NSsid"),
        ended,
        stopped: process.by_signal,
        ..Process::default()
    })
}

fn read_areas(outer: i32, ahead: &Ahead) -> Result<Vec<Area>, CallError> {
    ahead.read(outer).map(|seen| seen.into_iter().map(|seen| seen.area).collect())
}

fn fill(
    captured: &mut Process,
    (process, areas): (&Stopped, &[Area]),
    (stat, status): (&Stat, &Lines),
    maps: &IdMaps,
    told: Option<&Told>,
) -> Result<(), CallError> {
    let outer = process.member.outer;
    captured.executable = proc_file::link(outer, "exe")?;
    captured.directory = proc_file::link(outer, "cwd")?;
    captured.limits = limits::read(outer)?;
    captured.umask = status.number("Umask", 8)? as u32;
    for (number, thread) in process.threads.iter().enumerate() {
        let what = || format!("reading thread {}", thread.tid());
        let (registers, mask) = (thread.registers().context(what)?, thread.signal_mask().context(what)?);
        let asking = Asking::new(thread, (registers, mask), areas);
        let seen = resumption::undone(thread.tid(), &registers, areas);
        captured.threads.push(read_thread(outer, (thread, &seen, mask), &asking, told, maps)?);
        if number == 0 {
            captured.waiting = waiting(thread, true)?;
            read_first(captured, outer, (stat, status), &asking, told)?;
        }
    }
    Ok(())
}

fn waiting(thread: &trace::Thread, shared: bool) -> Result<Vec<Vec<u8>>, CallError> {
    let queue = thread.waiting_signals(shared).context(|| format!("reading the signals of thread {}", thread.tid()))?;
    Ok(queue.into_iter().map(|info| info.to_vec()).collect())
}

fn read_thread(
    outer: i32,
    (thread, registers, mask): (&trace::Thread, &Registers, u64),
    asking: &Asking<'_>,
    told: Option<&Told>,
    maps: &IdMaps,
) -> Result<Thread, CallError> {
    let what = || format!("reading thread {}", thread.tid());
    let below = format!("task/{}/", thread.tid());
    let (stat, status) = (Stat::read(outer, &below)?, Lines::read(outer, &format!("{below}status"))?);
    let tid = tree::inner(&status).unwrap_or(thread.tid());
    let told = told.and_then(|told| told.thread(tid, registers.rsp));
    let OfThread { clear, signal_stack, parent_death, slack, secure_bits, personality, interrupted } =
        told.map_or_else(|| asking.thread(), Ok)?;
    let rseq = thread.rseq().context(what)?;
    let mut name = proc_file::bytes(outer, &format!("{below}comm"))?;
    name.pop();
    let mut general = frame::general(registers, interrupted);
    general.extend(frame::bases(registers));
    Ok(Thread {
        tid,
        name,
        registers: general,
        extended: thread.extended_state().context(what)?,
        mask,
        waiting: waiting(thread, false)?,
        signal_stack,
        clear,
        robust: thread.robust_list().context(what)?,
        rseq: (rseq.address, rseq.length, rseq.signature),
        credentials: credentials::read(&status, maps, secure_bits)?,
        scheduling: scheduling(&stat, thread.tid())?,
        filters: filters(thread, &status)?,
        parent_death,
        slack,
        left: interrupted.and_then(|call| call.left),
        settings: thread_settings::read(stat.field(9)?, &status, personality),
    })
}

fn filters(thread: &trace::Thread, status: &Lines) -> Result<Vec<Vec<u8>>, CallError> {
    const MOST: usize = 64;
    let mut filters = Vec::new();
    if status.get("Seccomp") == "2" {
        for number in 0..MOST {
            match thread.filter(number).context(|| format!("reading the filters of thread {}", thread.tid()))? {
                Some(filter) => filters.push(filter),
                None => break,
            }
        }
    }
    Ok(filters)
}

fn scheduling(stat: &Stat, tid: i32) -> Result<Scheduling, CallError> {
    let processors = processors(tid).context(|| format!("asking where thread {tid} may run"))?;
    let what = || format!("asking how thread {tid} is scheduled");
    let (policy, disk) = (scheduling_policy::of(tid).context(what)?, io_priority::of(tid).context(what)?);
    Ok(Scheduling { nice: stat.field(19)?, policy, priority: stat.field(40)?, disk, processors })
}

/// The processors that a thread may run on.
fn processors(tid: i32) -> io::Result<Vec<u8>> {
    let set = sched_getaffinity(Pid::from_raw(tid))?;
    let byte = |number: usize| (0..8).fold(0, |byte, bit| byte | u8::from(set.is_set(number * 8 + bit)) << bit);
    let mut bytes: Vec<u8> = (0..CpuSet::MAX_CPU / 8).map(byte).collect();
    // The kernel takes words.
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(8));
    bytes.truncate(length);
    Ok(bytes)
}

/// Who may run where the first process may is not told of: a clone's may have others.
fn leave_out_usual(processes: &mut [Process], init: i32) -> Result<(), CallError> {
    let usual = processors(init).context(|| format!("asking where process {init} may run"))?;
    let threads = processes.iter_mut().flat_map(|process| &mut process.threads);
    for thread in threads.filter(|thread| thread.scheduling.processors == usual) {
        thread.scheduling.processors.clear();
    }
    Ok(())
}

/// What all threads of a process have in common.
fn read_first(
    captured: &mut Process,
    outer: i32,
    (stat, status): (&Stat, &Lines),
    asking: &Asking<'_>,
    told: Option<&Told>,
) -> Result<(), CallError> {
    let handled = status.number("SigCgt", 16)? | status.number("SigIgn", 16)?;
    let OfProcess { actions, heap_end, subreaper, dumpable, by_host, barriers } =
        told.map_or_else(|| asking.process(handled), |told| Ok(told.process.clone()))?;
    (captured.actions, captured.by_host) = (actions, by_host);
    let is_usual = told.is_some_and(|told| !told.unusual);
    captured.memory_rules = memory_rules::read(barriers, (!is_usual).then_some(asking))?;
    if told.is_none_or(|told| told.intervals) {
        captured.intervals = asking.intervals()?;
    }
    captured.timers = timers::read(outer, asking)?;
    // Told so since Linux 5.0; asking takes it ten times as long.
    let small_pages = match status.get("THP_enabled") {
        "" => asking.small_pages()?,
        enabled => enabled == "0",
    };
    captured.flags = ProcessFlags { dumpable, subreaper, small_pages };
    captured.layout = layout(outer, stat, heap_end)?;
    Ok(())
}

/// Where the parts of the memory lie, from the fields of /proc/PID/stat in the order of `struct prctl_mm_map`.
fn layout(outer: i32, stat: &Stat, heap_end: u64) -> Result<Layout, CallError> {
    let field = |number| stat.field::<u64>(number);
    Ok(Layout {
        words: [
            field(26)?,
            field(27)?,
            field(45)?,
            field(46)?,
            field(47)?,
            heap_end,
            field(28)?,
            field(48)?,
            field(49)?,
            field(50)?,
            field(51)?,
        ],
        auxiliary: proc_file::bytes(outer, "auxv")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_first_and_subtrees_lie_together() {
        let process = |pid, parent| Process { pid, parent, ..Process::default() };
        let mut processes = vec![process(9, 2), process(2, 1), process(3, 1), process(5, 2), process(4, 3)];
        parents_first(&mut processes);
        let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [2, 9, 5, 3, 4]);
    }
}
