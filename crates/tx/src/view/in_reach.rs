//! The mounts of a target that a path leads to, as far as its list of them tells: one that another is mounted over at
//! the very same place is hidden, with all that is mounted on it.

use pando_kernel::mount::MountEntry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Those that are in reach.
pub(super) struct InReach<'a> {
    /// They, in the order of depth.
    pub(super) mounts: Vec<&'a MountEntry>,
    by_number: HashMap<u64, &'a MountEntry>,
}

impl<'a> InReach<'a> {
    /// Those of all that there are.
    pub(super) fn of(all: &'a [MountEntry]) -> Self {
        let by_number: HashMap<u64, &MountEntry> = all.iter().map(|mount| (mount.id, mount)).collect();
        let places: HashSet<(u64, &Path)> = all.iter().map(|mount| (mount.parent, mount.at.as_path())).collect();
        let is_covered = |mount: &MountEntry| places.contains(&(mount.id, mount.at.as_path()));
        let is_in_reach = |mount: &&MountEntry| {
            let mut above = *mount;
            let mut is_open = !is_covered(above);
            while let Some(on) = by_number.get(&above.parent).filter(|on| is_open && on.id != above.id) {
                // What covers it is on it, at its own place.
                is_open = on.at == above.at || !is_covered(on);
                above = on;
            }
            is_open
        };
        let mut mounts: Vec<_> = all.iter().filter(is_in_reach).collect();
        mounts.sort_by_key(|mount| mount.at.components().count());
        Self { mounts, by_number }
    }

    /// The number of the mount that one is on, those apart that it covers.
    pub(super) fn around(&self, mount: &MountEntry) -> u64 {
        let mut around = mount.parent;
        while let Some(on) = self.by_number.get(&around).filter(|on| on.at == mount.at && on.id != on.parent) {
            around = on.parent;
        }
        around
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_covered_is_hidden_with_all_that_is_on_it() {
        let mount = |id, parent, at: &str| MountEntry { id, parent, at: at.into(), ..MountEntry::default() };
        let all = [
            mount(1, 0, "/"),
            mount(2, 1, "/srv"),
            mount(3, 2, "/srv/in"),
            mount(4, 3, "/srv/in/deep"),
            mount(5, 2, "/srv"),
            mount(6, 5, "/srv/in"),
            mount(7, 5, "/srv"),
            mount(8, 7, "/srv/other"),
            mount(9, 1, "/run"),
        ];
        let found = InReach::of(&all);
        let of_each =
            |number: &dyn Fn(&MountEntry) -> u64| found.mounts.iter().map(|one| number(one)).collect::<Vec<_>>();
        assert_eq!(of_each(&|mount| mount.id), [1, 7, 9, 8]);
        assert_eq!(of_each(&|mount| found.around(mount)), [0, 1, 1, 7]);
    }
}
