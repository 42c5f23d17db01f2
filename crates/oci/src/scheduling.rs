//! When and where a process runs: its processors, its scheduler, and its turn at the disk. Set from outside, before the
//! process becomes its program.

use anyhow::{Context, Result, bail};
use oci_spec::runtime::{
    IOPriorityClass, LinuxIOPriority, LinuxSchedulerFlag, LinuxSchedulerPolicy, Process, Scheduler,
};
use pando_kernel::process::{io_priority, scheduling_policy};
use rustix::process::Pid;
use rustix::thread::CpuSet;

/// Sets all that a configuration says of a process. It has every processor that its control groups allow, whatever this
/// command has, unless the configuration names some.
pub(crate) fn set(pid: i32, process: &Process, processors: Option<&str>) -> Result<()> {
    let processors = processors.map(read_processors).transpose()?.unwrap_or_else(all_processors);
    rustix::thread::sched_setaffinity(Pid::from_raw(pid), &processors).context("giving the process its processors")?;
    if let Some(scheduler) = process.scheduler() {
        let attributes = attributes(scheduler)?;
        scheduling_policy::set(pid, &attributes).context("setting the process's scheduler")?;
    }
    if let Some(priority) = process.io_priority() {
        io_priority::set(pid, class(priority), level(priority)?).context("setting the process's io priority")?;
    }
    Ok(())
}

/// Moves this command to the processors where a process is to begin, before it is in the container's groups.
pub(crate) fn begin_at(process: &Process) -> Result<()> {
    let Some(listed) = process.exec_cpu_affinity().as_ref().and_then(|affinity| affinity.initial().clone()) else {
        return Ok(());
    };
    rustix::thread::sched_setaffinity(None, &read_processors(&listed)?).context("moving to the initial processors")
}

fn all_processors() -> CpuSet {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    all
}

/// A list such as `0-3,7`.
fn read_processors(text: &str) -> Result<CpuSet> {
    let mut found = CpuSet::new();
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|number| *number < CpuSet::MAX_CPU);
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first..=last).for_each(|processor| found.set(processor)),
            _ => bail!("'{text}' is no list of processors; write 0-3,7"),
        }
    }
    if found.count() == 0 {
        bail!("'{text}' is no list of processors; write 0-3,7");
    }
    Ok(found)
}

fn attributes(scheduler: &Scheduler) -> Result<scheduling_policy::Attributes> {
    let policy = match scheduler.policy() {
        LinuxSchedulerPolicy::SchedOther => 0,
        LinuxSchedulerPolicy::SchedFifo => 1,
        LinuxSchedulerPolicy::SchedRr => 2,
        LinuxSchedulerPolicy::SchedBatch => 3,
        LinuxSchedulerPolicy::SchedIso => bail!("SCHED_ISO is a scheduler that Linux does not have"),
        LinuxSchedulerPolicy::SchedIdle => 5,
        LinuxSchedulerPolicy::SchedDeadline => 6,
    };
    let flag = |flag: &LinuxSchedulerFlag| match flag {
        LinuxSchedulerFlag::SchedResetOnFork => 0x1,
        LinuxSchedulerFlag::SchedFlagReclaim => 0x2,
        LinuxSchedulerFlag::SchedFlagDLOverrun => 0x4,
        LinuxSchedulerFlag::SchedFlagKeepPolicy => 0x8,
        LinuxSchedulerFlag::SchedFlagKeepParams => 0x10,
        LinuxSchedulerFlag::SchedFlagUtilClampMin => 0x20,
        LinuxSchedulerFlag::SchedFlagUtilClampMax => 0x40,
    };
    let priority = scheduler.priority().unwrap_or(0);
    Ok(scheduling_policy::Attributes {
        policy,
        flags: scheduler.flags().iter().flatten().map(flag).fold(0, |all, one| all | one),
        nice: scheduler.nice().unwrap_or(0),
        priority: u32::try_from(priority).with_context(|| format!("{priority} is no priority of a scheduler"))?,
        runtime: scheduler.runtime().unwrap_or(0),
        deadline: scheduler.deadline().unwrap_or(0),
        period: scheduler.period().unwrap_or(0),
    })
}

fn class(priority: &LinuxIOPriority) -> u32 {
    match priority.class() {
        IOPriorityClass::IoprioClassRt => 1,
        IOPriorityClass::IoprioClassBe => 2,
        IOPriorityClass::IoprioClassIdle => 3,
    }
}

fn level(priority: &LinuxIOPriority) -> Result<u32> {
    let level = u32::try_from(priority.priority()).ok().filter(|level| *level < 8);
    level.with_context(|| format!("{} is no io priority; they are 0 to 7", priority.priority()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_processors_has_numbers_and_ranges() {
        let read = |text: &str| {
            let set = read_processors(text)?;
            anyhow::Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect::<Vec<_>>())
        };
        assert_eq!(read("0-2,7").unwrap(), [0, 1, 2, 7]);
        assert_eq!(read("3").unwrap(), [3]);
        for wrong in ["", ",", "a", "2-1", "-1", "1-", "100000"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
