//! Figure 2 of the papers: all guests started at once, in less memory than separate ones would fill.
//!
//! One group holds all guests of a daemon. It gets as much memory as the unified guests need, and room for the
//! processes of each; the separate ones then push each other's pages out while they start.

use super::{MIB, crowd, footprint, roots::Roots};
use crate::own_pando::OwnPando;
use crate::quiesce::Quiesce;
use crate::report::Report;
use anyhow::Context;
use pando_kernel::cgroup::{Hierarchies, Seat};
use std::path::PathBuf;

/// What the processes of one guest take at most while it does its work, with what the kernel keeps for them, in bytes.
const EACH: u64 = 12 << 20;

/// A bound on the memory of all guests, gone with this value.
struct Bound(PathBuf);

impl Bound {
    fn set(pando: &OwnPando, bytes: u64) -> anyhow::Result<Self> {
        let field = Hierarchies::detect()?.field(&pando.field())?;
        let seat = field.seat("memory").context("the host has no controller of memory")?;
        let Seat { unified, group } = seat;
        let bound = Self(group.join(if unified { "memory.max" } else { "memory.limit_in_bytes" }));
        std::fs::write(&bound.0, bytes.to_string()).with_context(|| format!("cannot write {}", bound.0.display()))?;
        Ok(bound)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let none = if self.0.ends_with("memory.max") { "max" } else { "-1" };
        let _ = std::fs::write(&self.0, none);
    }
}

/// Starts the guests that exist and the separate ones once more, all at once; `cache` is what the unified ones have in
/// memory. None may run.
pub(super) fn measure(
    roots: &Roots,
    pando: &OwnPando,
    quiesce: Option<&str>,
    cache: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let guests = roots.trees().len();
    let bytes = cache + guests as u64 * EACH;
    report.add("together: bound on the memory of all", "MB", bytes as f64 / MIB);
    let kept: Vec<PathBuf> = ["store", "guests"].iter().map(|name| pando.state().join(name)).collect();
    let bound = Bound::set(pando, bytes)?;
    footprint::evict(roots.trees())?;
    footprint::evict(&kept)?;
    {
        let _quiet = Quiesce::begin(quiesce)?;
        let time = crowd::start_unified_together(pando, 0..guests)?;
        report.add("together: start and work of all, unified", "s", time);
    }
    crowd::stop(pando, 0..guests)?;
    let mut separate = crowd::Separate::default();
    {
        let _quiet = Quiesce::begin(quiesce)?;
        let time = separate.start_together(pando, roots.trees(), crowd::WORK)?;
        report.add("together: start and work of all, separate", "s", time);
    }
    separate.end(pando)?;
    drop(bound);
    Ok(())
}

/// Holds both against each other.
pub(super) fn judge(report: &mut Report) {
    let median = |kind: &str| report.median(&format!("together: start and work of all, {kind}"));
    let part = median("unified").zip(median("separate")).map(|(unified, separate)| unified / separate);
    report.hold("figure 2: together, time of unified against separate", part, 0.5, "x");
}
