//! Sets what is set of processes in files of /proc for those of a clone.

use crate::image::{ByHost, Image, Process};
use crate::inspect::host_settings::{CORE_DUMP, MEMORY_SHORTAGE, shortage, write};
use crate::inspect::process_tree::Roots;
use pando_kernel::CallError;

impl ByHost {
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

/// Sets what the processes of a clone do not have yet from whom they were forked. They are below `init`, or that. What
/// came from elsewhere may ask for anything: its processes are no less likely to be ended than the clone's first one,
/// which is what a guest's is.
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
