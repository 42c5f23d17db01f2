//! Control groups for what is measured natively, as deep as a guest's: every service of systemd is in some, and the scheduler gives a group among others its
//! part of the processors, whatever it does there. Without them it would be compared how many neighbours each has.

use anyhow::Context;
use pando_kernel::cgroup::{Field, Hierarchies, Plot};

/// Goes when it is dropped; its processes have to be gone by then.
#[derive(Debug)]
pub(crate) struct ServiceGroup {
    field: Field,
    plot: Plot,
}

impl ServiceGroup {
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        let field = Hierarchies::detect()?.field(&format!("pando-bench-{name}-{}", std::process::id()))?;
        let group = Self { plot: field.plot(0), field };
        group.plot.make()?;
        Ok(group)
    }

    /// Moves a process into it, with all of its threads.
    pub(crate) fn take(&self, pid: u32) -> anyhow::Result<()> {
        let unified = self.plot.guest();
        // Of version 2 processes are only where no group is below.
        let whole = unified.as_deref().and_then(|guest| guest.parent());
        let groups =
            self.plot.paths().into_iter().filter(|group| Some(group.as_path()) != whole).chain(unified.clone());
        for group in groups {
            let path = group.join("cgroup.procs");
            std::fs::write(&path, pid.to_string()).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for ServiceGroup {
    fn drop(&mut self) {
        let _ = self.plot.remove();
        self.field.remove();
    }
}
