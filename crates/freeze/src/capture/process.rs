//! Captures a process and its threads: what /proc, the task iterator and ptrace(2) say of them.

use crate::bpf::task_records::TaskRecords;
use crate::capture::ahead::Ahead;
use crate::capture::ptrace_query::PtraceQuery;
use crate::capture::registers;
use crate::image::{Area, Layout, MemoryRules, Process, ProcessFlags, Scheduling, Thread, Timer};
use crate::inspect::credentials::{self, IdMaps};
use crate::inspect::posix_timers::listed;
use crate::inspect::proc_file::{self, Lines, Stat};
use crate::inspect::{limits, process_tree, thread_settings};
use crate::stop::seize::Stopped;
use crate::stop::task_state::{OfProcess, OfThread};
use crate::trampoline;
use pando_kernel::trace::{self, Registers};
use pando_kernel::{CallError, Context, process::io_priority, process::scheduling_policy};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::io;

/// Pid, parent, group, session: all in the numbers of the process's own namespace.
pub(crate) fn relatives(process: &Stopped, stat: &Stat, status: &Lines) -> Result<Process, CallError> {
    let inner = |key: &str| status.words(key).last().and_then(|word| word.parse().ok()).unwrap_or(0);
    let parent: i32 = stat.field(4)?;
    let parent_status = Lines::read(parent, "status").ok();
    let depth = |lines: &Lines| lines.words("NSpid").count();
    let parent = match parent_status {
        Some(lines) if depth(&lines) == depth(status) => process_tree::inner(&lines).unwrap_or(0),
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

pub(crate) fn read_areas(outer: i32, ahead: &Ahead) -> Result<Vec<Area>, CallError> {
    ahead.read(outer).map(|seen| seen.into_iter().map(|seen| seen.area).collect())
}

pub(crate) fn fill(
    captured: &mut Process,
    (process, areas): (&Stopped, &[Area]),
    (stat, status): (&Stat, &Lines),
    maps: &IdMaps,
    told: Option<&TaskRecords>,
) -> Result<(), CallError> {
    let outer = process.member.outer;
    captured.executable = proc_file::link(outer, "exe")?;
    captured.directory = proc_file::link(outer, "cwd")?;
    captured.root = proc_file::root(outer)?;
    captured.limits = limits::read(outer)?;
    captured.umask = status.number("Umask", 8)? as u32;
    for (number, thread) in process.threads.iter().enumerate() {
        let what = || format!("reading thread {}", thread.tid());
        let (registers, mask) = (thread.registers().context(what)?, thread.signal_mask().context(what)?);
        let asking = PtraceQuery::new(thread, (registers, mask), areas);
        let seen = trampoline::undone(thread.tid(), &registers, areas);
        captured.threads.push(read_thread(outer, (thread, &seen, mask), &asking, told, maps)?);
        if number == 0 {
            captured.waiting = waiting(thread, true)?;
            read_first(captured, outer, (stat, status), &asking, told)?;
        }
    }
    Ok(())
}

pub(crate) fn waiting(thread: &trace::Thread, shared: bool) -> Result<Vec<Vec<u8>>, CallError> {
    let queue = thread.waiting_signals(shared).context(|| format!("reading the signals of thread {}", thread.tid()))?;
    Ok(queue.into_iter().map(|info| info.to_vec()).collect())
}

fn read_thread(
    outer: i32,
    (thread, registers, mask): (&trace::Thread, &Registers, u64),
    asking: &PtraceQuery<'_>,
    told: Option<&TaskRecords>,
    maps: &IdMaps,
) -> Result<Thread, CallError> {
    let what = || format!("reading thread {}", thread.tid());
    let below = format!("task/{}/", thread.tid());
    let (stat, status) = (Stat::read(outer, &below)?, Lines::read(outer, &format!("{below}status"))?);
    let tid = process_tree::inner(&status).unwrap_or(thread.tid());
    let told = told.and_then(|told| told.thread(tid, registers.rsp));
    let OfThread { clear, signal_stack, parent_death, slack, secure_bits, personality, interrupted } =
        told.map_or_else(|| asking.thread(), Ok)?;
    let rseq = thread.rseq().context(what)?;
    let mut name = proc_file::bytes(outer, &format!("{below}comm"))?;
    name.pop();
    let mut general = registers::general(registers, interrupted);
    general.extend(registers::bases(registers));
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
pub(crate) fn processors(tid: i32) -> io::Result<Vec<u8>> {
    let set = sched_getaffinity(Pid::from_raw(tid))?;
    let byte = |number: usize| (0..8).fold(0, |byte, bit| byte | u8::from(set.is_set(number * 8 + bit)) << bit);
    let mut bytes: Vec<u8> = (0..CpuSet::MAX_CPU / 8).map(byte).collect();
    // The kernel takes words.
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(8));
    bytes.truncate(length);
    Ok(bytes)
}

/// What all threads of a process have in common.
fn read_first(
    captured: &mut Process,
    outer: i32,
    (stat, status): (&Stat, &Lines),
    asking: &PtraceQuery<'_>,
    told: Option<&TaskRecords>,
) -> Result<(), CallError> {
    let handled = status.number("SigCgt", 16)? | status.number("SigIgn", 16)?;
    let OfProcess { actions, heap_end, subreaper, dumpable, by_host, barriers } =
        told.map_or_else(|| asking.process(handled), |told| Ok(told.process.clone()))?;
    (captured.actions, captured.by_host) = (actions, by_host);
    let is_usual = told.is_some_and(|told| !told.unusual);
    captured.memory_rules = read_memory_rules(barriers, (!is_usual).then_some(asking))?;
    if told.is_none_or(|told| told.intervals) {
        captured.intervals = asking.intervals()?;
    }
    captured.timers = read_timers(outer, asking)?;
    // Reported so since Linux 5.0; the call takes ten times as long.
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

/// Reads what is not told of a stopped process, where there may be anything.
pub(crate) fn read_memory_rules(barriers: u32, asking: Option<&PtraceQuery<'_>>) -> Result<MemoryRules, CallError> {
    let (execution, merged) = asking.map_or(Ok((0, false)), PtraceQuery::memory)?;
    Ok(MemoryRules { barriers, execution, merged })
}

/// Every timer of a stopped process.
pub(crate) fn read_timers(pid: i32, asking: &PtraceQuery<'_>) -> Result<Vec<Timer>, CallError> {
    let mut timers = listed(pid)?;
    for timer in &mut timers {
        let injection = asking.injection()?;
        injection.call(libc::SYS_timer_gettime, &[timer.id as u64, injection.room()])?;
        timer.setting = injection.words(0)?;
    }
    Ok(timers)
}
