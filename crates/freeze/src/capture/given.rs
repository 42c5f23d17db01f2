//! Finds which mounts a guest had from its start, as each clone has: what else is mounted the processes have mounted
//! themselves.
//!
//! ```text
//!   mounts of the first process ──▶ Given: as it was at the start ──▶ Difference
//!     ──▶ what the maker changes in a clone, or a refusal
//! ```

use crate::inspect::mount_tree::{Mount, MountTree};
use crate::subject::Given;
use pando_kernel::file::confined::{Links, Root};
use rustix::fs::{AtFlags, StatxFlags};
use std::collections::{HashMap, HashSet};

/// What the first process had mounted at its start, as far as it has it still; of what it has not, a place is kept.
/// `devices` are those of the host's file systems.
///
/// What is of the outside is told by its device: whatever a guest mounts of that itself it has out of a directory of
/// the host that it was given.
pub(crate) fn at_the_start(init: i32, tree: &MountTree, given: &[Given], devices: &[String]) -> MountTree {
    let mut start = Start {
        tree,
        given,
        devices,
        kept: vec![None; tree.all().len()],
        outside: HashMap::new(),
        sources: HashSet::new(),
    };
    start.kept[tree.root()] = Some(given.iter().find(|one| one.path == "/").and_then(|one| one.attributes));
    start.find_outside(init);
    start.find_below();
    start.walk();
    start.finish()
}

struct Start<'a> {
    tree: &'a MountTree,
    given: &'a [Given],
    devices: &'a [String],
    /// The attributes that each mount had, if it was there and they are known.
    kept: Vec<Option<Option<u64>>>,
    /// What of the outside the paths of some of `given` lead to.
    outside: HashMap<usize, usize>,
    /// Those, and what of the outside came with them, as it was mounted below.
    sources: HashSet<usize>,
}

impl Start<'_> {
    fn is_outside(&self, mount: usize) -> bool {
        self.devices.contains(&self.tree.get(mount).device)
    }

    /// Finds what is at the paths of what is of the outside.
    fn find_outside(&mut self, init: i32) {
        for (number, one) in self.given.iter().enumerate().filter(|(_, one)| one.is_of_the_outside()) {
            let literal = self.tree.all().iter().position(|mount| mount.path == one.path);
            // Only a guest that has made links has it elsewhere.
            let linked = || {
                let id = one.always.then(|| mount_at(init, &one.path)).flatten()?;
                self.tree.all().iter().position(|mount| mount.id == id)
            };
            // What the guest has mounted over it lies above.
            let Some(place) = literal.or_else(linked).map(|at| self.tree.get(at).path.clone()) else { continue };
            let is_it = |mount: &usize| self.tree.get(*mount).path == place && self.is_outside(*mount);
            self.outside.extend((0..self.kept.len()).find(is_it).map(|mount| (number, mount)));
        }
    }

    /// Finds what was mounted below them on the host: nobody here can have it from elsewhere.
    fn find_below(&mut self) {
        self.sources = self.outside.values().copied().collect();
        let is_below = |number: usize| {
            let path = &self.tree.get(number).path;
            let above = |found: &usize| {
                path.strip_prefix(&self.tree.get(*found).path).is_some_and(|rest| rest.starts_with('/'))
            };
            self.is_outside(number) && self.outside.values().any(above) && !self.can_be_had(number)
        };
        let below: Vec<usize> = (0..self.kept.len()).filter(|number| is_below(*number)).collect();
        self.sources.extend(below);
    }

    fn walk(&mut self) {
        let mut next = vec![self.tree.root()];
        while let Some(parent) = next.pop() {
            for (path, mount) in self.tree.on(parent) {
                // What lies on another mount of the same path was mounted over it, unless it is one of two that each
                // guest has there.
                if (*path != self.tree.get(parent).path || self.is_given_over(parent, *mount))
                    && let Some(attributes) = self.given(*mount)
                {
                    self.kept[*mount] = Some(attributes);
                    next.push(*mount);
                }
            }
        }
    }

    /// Whether each guest has two mounts in a place, and these are they: control groups of version 2, and over them a
    /// file system with the hierarchies of version 1.
    fn is_given_over(&self, lower: usize, upper: usize) -> bool {
        let (lower, upper) = (self.tree.get(lower), self.tree.get(upper));
        let is_given = |mount: &Mount| self.given.iter().any(|one| one.path == mount.path && one.kind == mount.kind);
        lower.kind != upper.kind && is_given(lower) && is_given(upper)
    }

    /// The attributes that a mount had from the start, if it was there.
    fn given(&self, number: usize) -> Option<Option<u64>> {
        let mount = self.tree.get(number);
        let attributes = |one: &Given| one.attributes;
        if self.is_outside(number) {
            let said = self.given.iter().find(|one| one.path == mount.path).map(attributes);
            let had = self.sources.contains(&number) || !self.can_be_had(number);
            return had.then(|| said.flatten());
        }
        self.given.iter().find(|one| one.path == mount.path && one.kind == mount.kind).map(attributes)
    }

    /// Whether a guest can have mounted it out of what it was given.
    fn can_be_had(&self, number: usize) -> bool {
        let mount = self.tree.get(number);
        self.sources.iter().map(|given| self.tree.get(*given)).any(|given| {
            let below = mount.root.strip_prefix(given.root.trim_end_matches('/'));
            given.device == mount.device && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    fn finish(self) -> MountTree {
        let mut mounts: Vec<Mount> = Vec::new();
        for (mount, kept) in self.tree.all().iter().zip(&self.kept) {
            let Some(attributes) = kept else { continue };
            mounts.push(Mount { attributes: attributes.unwrap_or(mount.attributes), ..mount.clone() });
        }
        let is_there = |number: usize, path: &str| {
            self.outside.contains_key(&number) || mounts.iter().any(|mount| mount.path == path)
        };
        let lost = self.given.iter().enumerate().filter(|(_, one)| one.always && one.path != "/");
        let mut lost: Vec<_> = lost.filter(|(number, one)| !is_there(*number, &one.path)).map(|(_, one)| one).collect();
        lost.sort_by_key(|one| one.path.len());
        for one in lost {
            MountTree::add(&mut mounts, &one.path);
        }
        MountTree::build(mounts).unwrap_or_default()
    }
}

/// The number of the mount that a path leads to.
fn mount_at(init: i32, path: &str) -> Option<u64> {
    let found = Root::of_process(init).ok()?.place(path, Links::Followed).ok()?;
    let about = rustix::fs::statx(&found, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    Some(about.stx_mnt_id)
}
