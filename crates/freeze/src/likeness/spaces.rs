//! Which namespaces a process is in, told by whom it shares them with, and what is mounted there; and its control
//! group.

use crate::image::namespace_kind::{HOST_NAMES, IPC, Kind, MOUNTS, NETWORK, USERS};
use crate::image::{Image, MountChange, Process, mount};
use crate::inspect::mount_tree::MountTree;
use crate::inspect::proc_file;
use crate::likeness::Said;
use pando_kernel::CallError;
use std::collections::{HashMap, HashSet};

/// Those of a clone, as far as they were seen.
pub(super) struct Spaces<'a> {
    image: &'a Image,
    init: i32,
    /// How /proc tells of each of a kind: those of the image by their place, the first process's by none.
    seen: HashMap<(i32, Option<usize>), String>,
    /// The mount namespaces that were looked through.
    looked_through: HashSet<Option<usize>>,
}

const KINDS: [Kind; 5] = [HOST_NAMES, MOUNTS, IPC, NETWORK, USERS];

impl<'a> Spaces<'a> {
    pub(super) fn of(image: &'a Image, init: i32) -> Result<Self, CallError> {
        let home = |kind: Kind| Ok(((kind.flag, None), kind.of(init)?));
        let seen = KINDS.into_iter().map(home).collect::<Result<_, CallError>>()?;
        Ok(Self { image, init, seen, looked_through: HashSet::new() })
    }

    /// What differs of one process.
    pub(super) fn compare(&mut self, process: &Process, outer: i32) -> Result<Said, CallError> {
        let mut said = Said::new();
        // Who has a root of its own does not see what is mounted outside that.
        let sees_all = process.mount_space.is_none() || process.root.is_none();
        let places =
            [process.host_names, process.mount_space, process.ipc_space, process.net_space, process.user_space];
        for (kind, place) in KINDS.into_iter().zip(places) {
            let is = kind.of(outer)?;
            let taken =
                self.seen.iter().any(|((flag, other), link)| *flag == kind.flag && *other != place && *link == is);
            let was = self.seen.entry((kind.flag, place)).or_insert_with(|| is.clone());
            if *was != is || taken {
                said.push(format!("{} of its is another than it was in", kind.name));
            } else if kind == MOUNTS && sees_all && self.looked_through.insert(place) {
                said.extend(self.mounts(place, outer)?);
            }
        }
        if let Some(group) = process.control_group.and_then(|group| self.image.control_groups.groups.get(group)) {
            let text = proc_file::text(outer, "cgroup")?;
            let is = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
            said.extend(
                (!is.ends_with(&group.path))
                    .then(|| format!("it is in the control group {is} instead of {}", group.path)),
            );
        }
        Ok(said)
    }

    /// What is not mounted in a namespace that a process is in.
    fn mounts(&self, place: Option<usize>, outer: i32) -> Result<Said, CallError> {
        // A first process has a root of its own.
        let pid = if place.is_none() { self.init } else { outer };
        let own = MountTree::parse(&proc_file::text(pid, "mountinfo")?).unwrap_or_default();
        let is_there = |path: &str| own.all().iter().any(|mount| mount.path == path);
        let mut said = Said::new();
        let space = place.and_then(|place| self.image.mount_spaces.get(place));
        let changes = space.map_or(&self.image.mounts, |space| &space.changes);
        for (number, change) in changes.iter().enumerate() {
            let path = mount::path(change);
            // What a later change does to the same place, or to what it lies below, counts.
            let later = changes[number + 1..].iter().map(mount::path);
            let is_last = later.into_iter().all(|other| !path.starts_with(other));
            let gone = matches!(change, MountChange::Gone { .. });
            if is_last && !gone && !is_there(path) {
                let whose = if space.is_some() { " of its mnt namespace" } else { "" };
                said.push(format!("nothing is mounted on {path}{whose} any more"));
            }
        }
        Ok(said)
    }
}
