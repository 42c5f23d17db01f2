//! What is set of a process in files of /proc, inherited by what it forks, and set in a clone from the outside: the processes themselves cannot open those
//! files there, which belong to the host's root as long as they are not dumpable, and guests may have no /proc.
//!
//! * `oom_score_adj`: how likely the kernel ends the process when memory runs short. Only who has CAP_SYS_RESOURCE can set it lower than somebody with that has
//!   set it before, for the process or for whom it was inherited from.
//! * `coredump_filter`: what of its memory a core dump has.

use crate::image::{ByHost, Image, Process};
use crate::proc_file::{self, malformed};
use crate::refusal::Refusal;
use crate::tree::{Member, Roots};
use pando_kernel::{CallError, Context};
use std::io;

const MEMORY_SHORTAGE: &str = "oom_score_adj";
const CORE_DUMP: &str = "coredump_filter";

impl ByHost {
    /// Those of a process.
    pub(crate) fn of(pid: i32) -> Result<Self, CallError> {
        let core_dump = proc_file::text(pid, CORE_DUMP)?;
        let core_dump = u32::from_str_radix(core_dump.trim(), 16);
        let core_dump = core_dump.map_err(|_| malformed(format!("parsing /proc/{pid}/{CORE_DUMP}")))?;
        Ok(Self { memory_shortage: shortage(pid)?, core_dump })
    }

    /// The same of a process that is at least so likely to be ended.
    pub(crate) fn at_least(self, least: i32) -> Self {
        Self { memory_shortage: self.memory_shortage.max(least), ..self }
    }

    /// Gives a process these in place of those that it has.
    pub(crate) fn replace(self, had: Self, pid: i32) -> Result<(), CallError> {
        if had.memory_shortage != self.memory_shortage {
            write(pid, MEMORY_SHORTAGE, &self.memory_shortage.to_string())?;
        }
        if had.core_dump != self.core_dump {
            write(pid, CORE_DUMP, &format!("{:#x}", self.core_dump))?;
        }
        Ok(())
    }
}

fn shortage(pid: i32) -> Result<i32, CallError> {
    let text = proc_file::text(pid, MEMORY_SHORTAGE)?;
    text.trim().parse().map_err(|_| malformed(format!("parsing /proc/{pid}/{MEMORY_SHORTAGE}")))
}

fn write(pid: i32, name: &str, value: &str) -> Result<(), CallError> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::write(&path, value).context(|| format!("writing {value} to {path}"))
}

/// Who is less likely to be ended than a clone could be made to be: `holder` is whom its processes are forked from, and is tried with.
pub(crate) fn objections(members: &[Member], holder: i32) -> Result<Vec<Refusal>, CallError> {
    let own = shortage(holder)?;
    let living = members.iter().filter(|member| member.state != 'Z');
    // One that has ended meanwhile has nothing against it.
    let mut lower: Vec<(&Member, i32)> = living
        .filter_map(|member| Some((member, shortage(member.outer).ok()?)))
        .filter(|(_, its)| *its < own)
        .collect();
    lower.sort_by_key(|(_, its)| *its);
    let Some((_, lowest)) = lower.first() else { return Ok(Vec::new()) };
    match write(holder, MEMORY_SHORTAGE, &lowest.to_string()) {
        Ok(()) => write(holder, MEMORY_SHORTAGE, &own.to_string()).map(|()| Vec::new()),
        Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => {
            let named = lower.iter().take_while(|(_, its)| its == lowest);
            Ok(named.map(|(member, its)| refusal(member, *its)).collect())
        }
        Err(error) => Err(error),
    }
}

fn refusal(member: &Member, its: i32) -> Refusal {
    Refusal {
        pid: member.pid,
        name: member.name.clone(),
        descriptor: None,
        kind: format!("its {MEMORY_SHORTAGE} of {its}, which its clones could not have"),
        advice: "raise it to what Pando's daemon has, or give that CAP_SYS_RESOURCE",
    }
}

/// Sets what the processes of a clone do not have yet from whom they were forked. They are below `init`, or that. What came from elsewhere may ask for anything: its
/// processes are no less likely to be ended than the clone's first one, which is what a guest's is.
pub(crate) fn restore(image: &Image, holder: i32, init: i32) -> Result<(), CallError> {
    let inherited = ByHost::of(holder)?;
    let least = if image.adopted { shortage(init)? } else { i32::MIN };
    let is_first = |process: &Process| process.pid == image.init;
    // A first process was forked by somebody else.
    let had = |process: &Process| if is_first(process) { ByHost::of(init) } else { Ok(inherited) };
    let mut others = Vec::new();
    for process in image.processes.iter().filter(|process| !process.threads.is_empty()) {
        let (had, wanted) = (had(process)?, process.by_host.at_least(least));
        if had != wanted {
            others.push((process, had, wanted));
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let members = Roots::below(init, image.first().is_some()).members();
    for (process, had, wanted) in others {
        // One that is gone is missed by whoever waits for it.
        if let Some(member) = members.iter().find(|member| member.pid == process.pid) {
            wanted.replace(had, member.outer)?;
        }
    }
    Ok(())
}
