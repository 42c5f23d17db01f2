//! Control groups of an image, below the guest's own.

use crate::image::mount::joined;
use serde::{Deserialize, Serialize};

/// The groups of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlGroups {
    /// Where they are mounted; empty if nobody has made any.
    pub root: String,
    /// What the guest's own gives to those below.
    pub given: Vec<String>,
    /// Those below, each before those inside.
    pub groups: Vec<ControlGroup>,
}

/// A control group below the guest's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlGroup {
    /// Its path below [`ControlGroups::root`], with a slash before it.
    pub path: String,
    /// Owner and group of its directory, and of what lets them use it.
    pub owner: (u32, u32),
    /// The controllers that it gives to those below.
    pub given: Vec<String>,
    /// What is not as in a new one: names of files and what is in them.
    pub settings: Vec<(String, String)>,
}

/// The most of them, and how deep they may lie.
pub(crate) const MOST_GROUPS: usize = 1024;

pub(crate) const DEEPEST_GROUP: usize = 32;

/// What can be set, and what a new group has there.
pub(crate) const SETTINGS: [(&str, &str); 16] = [
    ("memory.min", "0"),
    ("memory.low", "0"),
    ("memory.high", "max"),
    ("memory.max", "max"),
    ("memory.swap.high", "max"),
    ("memory.swap.max", "max"),
    ("memory.zswap.max", "max"),
    ("memory.oom.group", "0"),
    ("cpu.weight", "100"),
    ("cpu.idle", "0"),
    ("cpu.max", "max 100000"),
    ("pids.max", "max"),
    ("cpuset.cpus", ""),
    ("cpuset.mems", ""),
    ("cgroup.max.depth", "max"),
    ("cgroup.max.descendants", "max"),
];

impl ControlGroups {
    /// Where one is, by a path below the guest's own; none if that is it.
    pub(crate) fn place(&self, path: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.path == path)
    }

    /// Whether a path is one of a group's, or of a file in one. Some of those are there only once the controllers are
    /// given.
    pub(crate) fn has(&self, path: &str) -> bool {
        let below = path.strip_prefix(self.root.as_str());
        !self.root.is_empty() && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    }

    pub(crate) fn at(&self, group: Option<usize>) -> String {
        joined(&self.root, group.map_or("", |group| &self.groups[group].path))
    }
}
