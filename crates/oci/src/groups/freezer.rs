//! Pausing: all processes of the groups stand still until they are thawed.

use crate::plan::cgroup_mount::GroupTree;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long processes may take to stand still.
const PATIENCE: Duration = Duration::from_secs(10);

/// What freezes, and what says that it has.
struct Freezer<'a> {
    group: &'a Path,
    unified: bool,
}

/// By version 2, or by the controller of version 1.
fn freezer(groups: &GroupTree) -> Option<Freezer<'_>> {
    let unified = groups.unified().filter(|group| group.join("cgroup.freeze").exists());
    unified
        .map(|group| Freezer { group, unified: true })
        .or_else(|| groups.legacy("freezer").map(|group| Freezer { group, unified: false }))
}

impl Freezer<'_> {
    fn say(&self, frozen: bool) -> std::io::Result<()> {
        let (file, word) = match (self.unified, frozen) {
            (true, true) => ("cgroup.freeze", "1"),
            (true, false) => ("cgroup.freeze", "0"),
            (false, true) => ("freezer.state", "FROZEN"),
            (false, false) => ("freezer.state", "THAWED"),
        };
        fs::write(self.group.join(file), word)
    }

    fn is_frozen(&self) -> bool {
        let read = |file: &str| fs::read_to_string(self.group.join(file)).unwrap_or_default();
        if self.unified {
            read("cgroup.events").lines().any(|line| line == "frozen 1")
        } else {
            read("freezer.state").trim() == "FROZEN"
        }
    }

    /// Whether it is or is about to be.
    fn is_asked_to(&self) -> bool {
        let read = |file: &str| fs::read_to_string(self.group.join(file)).unwrap_or_default();
        if self.unified {
            read("cgroup.freeze").trim() == "1"
        } else {
            matches!(read("freezer.state").trim(), "FROZEN" | "FREEZING")
        }
    }
}

/// Whether the groups are frozen, by whatever there is that freezes.
pub(crate) fn is_frozen(groups: &GroupTree) -> bool {
    let legacy = groups.legacy("freezer").map(|group| Freezer { group, unified: false });
    freezer(groups).into_iter().chain(legacy).any(|freezer| freezer.is_asked_to())
}

/// Freezes the groups and waits until all stands still, or thaws them.
pub(crate) fn set(groups: &GroupTree, frozen: bool) -> Result<()> {
    let freezer = freezer(groups).context("this host has nothing that freezes control groups")?;
    let doing = if frozen { "freezing" } else { "thawing" };
    freezer.say(frozen).with_context(|| format!("{doing} {}", freezer.group.display()))?;
    let begun = Instant::now();
    while freezer.is_frozen() != frozen {
        if begun.elapsed() > PATIENCE {
            let _ = freezer.say(false);
            bail!(
                "{doing} {}: it took too long; a process waits for something that does not come",
                freezer.group.display()
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
