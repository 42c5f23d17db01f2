//! Control groups for what is measured natively, as deep and as heavy as a guest's: every service of systemd is in
//! some, and the scheduler gives a group among others its part of the processors, whatever it does there. Without them
//! it would be compared how many neighbours each has, and how heavy it is.

use crate::many::group_charge;
use anyhow::Context;
use pando_kernel::cgroup::{Field, Hierarchies, Plot};
use pando_limit::{Groups, meter};
use std::path::Path;
use std::rc::Rc;

/// Goes when it is dropped; its processes have to be gone by then.
#[derive(Debug)]
pub(crate) struct ServiceGroup {
    plot: Plot,
    _field: Rc<Whole>,
}

/// What one or more are below. It goes with the last of them.
#[derive(Debug)]
struct Whole(Field);

impl Drop for Whole {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl ServiceGroup {
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        Self::several(name, 1)?.pop().context("one group is one")
    }

    /// Beside one another, as guests are.
    pub(crate) fn several(name: &str, count: u32) -> anyhow::Result<Vec<Self>> {
        let field = Hierarchies::detect()?.field(&format!("pando-bench-{name}-{}", std::process::id()))?;
        meter::weigh_field(&Groups::find(|name| field.seat(name), None))?;
        let field = Rc::new(Whole(field));
        let groups = (0..count).map(|slot| {
            let group = Self { plot: field.0.plot(slot), _field: Rc::clone(&field) };
            group.plot.make().map(|()| group)
        });
        Ok(groups.collect::<Result<_, _>>()?)
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

    /// Kilobytes that the kernel charges it.
    pub(crate) fn charge(&self) -> anyhow::Result<f64> {
        let files = self.plot.paths().into_iter().flat_map(|group| group_charge::FILES.map(|file| group.join(file)));
        let file =
            files.into_iter().find(|file| file.exists()).context("no control group is charged for memory here")?;
        group_charge::kib(&file)
    }

    /// Bounds what it has of the processors: so many microseconds in every period of so many.
    pub(crate) fn bound(&self, quota: u64, period: u64) -> anyhow::Result<()> {
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        for group in self.plot.paths() {
            let (one, other) = (group.join("cpu.max"), group.join("cpu.cfs_period_us"));
            if one.exists() {
                return write(&one, format!("{quota} {period}"));
            }
            if other.exists() {
                write(&other, period.to_string())?;
                return write(&group.join("cpu.cfs_quota_us"), quota.to_string());
            }
        }
        anyhow::bail!("no control group bounds processor time here")
    }
}

impl Drop for ServiceGroup {
    fn drop(&mut self) {
        let _ = self.plot.remove();
    }
}
