//! What is set of a process in files of /proc: reading and writing it.
//!
//! What is set of a process in files of /proc, inherited by what it forks, and set in a clone from the outside: the
//! processes themselves cannot open those files there, which belong to the host's root as long as they are not
//! dumpable, and guests may have no /proc.
//!
//! * `oom_score_adj`: how likely the kernel ends the process when memory runs short. Only who has CAP_SYS_RESOURCE can
//!   set it lower than somebody with that has set it before, for the process or for whom it was inherited from.
//! * `coredump_filter`: what of its memory a core dump has.

use crate::image::ByHost;
use crate::inspect::proc_file::{self, malformed};
use pando_kernel::{CallError, Context};

pub(crate) const MEMORY_SHORTAGE: &str = "oom_score_adj";
pub(crate) const CORE_DUMP: &str = "coredump_filter";

impl ByHost {
    /// Reads the settings of a process out of /proc.
    pub(crate) fn of(pid: i32) -> Result<Self, CallError> {
        let core_dump = proc_file::text(pid, CORE_DUMP)?;
        let core_dump = u32::from_str_radix(core_dump.trim(), 16);
        let core_dump = core_dump.map_err(|_| malformed(format!("parsing /proc/{pid}/{CORE_DUMP}")))?;
        Ok(Self { memory_shortage: shortage(pid)?, core_dump })
    }
}

pub(crate) fn shortage(pid: i32) -> Result<i32, CallError> {
    let text = proc_file::text(pid, MEMORY_SHORTAGE)?;
    text.trim().parse().map_err(|_| malformed(format!("parsing /proc/{pid}/{MEMORY_SHORTAGE}")))
}

pub(crate) fn write(pid: i32, name: &str, value: &str) -> Result<(), CallError> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::write(&path, value).context(|| format!("writing {value} to {path}"))
}
