//! The mounts that each guest has from its start, and each clone, too: what else is mounted the processes have mounted themselves.
//!
//! ```text
//!   mounts of the first process ──▶ Given: as it was at the start ──▶ Difference ──▶ what the maker changes in a clone, or a refusal
//! ```

use crate::mount_tree::{Mount, MountTree};
use pando_kernel::confined::{Links, Root};
use rustix::fs::{AtFlags, StatxFlags};
use std::collections::{HashMap, HashSet};

/// A place where each guest of a kind has something mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its path, as it was asked for: links may be on it.
    pub path: String,
    /// The kind of file system; none for what is of the outside: directories and files of the host.
    pub kind: String,
    /// `MOUNT_ATTR_*` that it is given, where they are known.
    pub attributes: Option<u64>,
    /// Whether every guest has it. A kernel may lack the file that another is there to hide.
    pub always: bool,
}

impl Given {
    fn is_of_the_outside(&self) -> bool {
        self.kind.is_empty()
    }
}

/// What the first process had mounted at its start, as far as it has it still; of what it has not, a place is kept. `devices` are those of the host's file systems.
///
/// What is of the outside is told by its device: whatever a guest mounts of that itself it has out of a directory of the host that it was given.
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
                // What lies on another mount of the same path was mounted over it, unless it is one of two that each guest has there.
                if (*path != self.tree.get(parent).path || self.is_given_over(parent, *mount))
                    && let Some(attributes) = self.given(*mount)
                {
                    self.kept[*mount] = Some(attributes);
                    next.push(*mount);
                }
            }
        }
    }

    /// Whether each guest has two mounts in a place, and these are they: control groups of version 2, and over them a file system with the hierarchies of version 1.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::MountChange;
    use crate::image::mount::path;
    use crate::mount_difference::Difference;

    const TEXT: &str = "\
58 46 0:47 / / rw,nodev,relatime - overlay deb rw
60 58 0:50 / /dev rw,nosuid,noexec,relatime - tmpfs none rw
61 60 0:51 / /dev/pts rw,nosuid,noexec,relatime - devpts none rw
62 58 0:44 / /proc rw,nosuid,nodev,noexec,relatime - proc none rw
63 62 0:50 /null /proc/keys ro,relatime - tmpfs none rw
64 62 8:1 /views/uptime /proc/uptime ro,relatime - ext4 x rw
65 58 8:2 /srv /data rw,nodev,relatime - ext4 x rw
66 65 8:3 / /data/deep rw,nodev,relatime - ext4 x rw
";

    fn given() -> Vec<Given> {
        let one = |path: &str, kind: &str, attributes, always| Given {
            path: path.into(),
            kind: kind.into(),
            attributes,
            always,
        };
        vec![
            one("/", "overlay", Some(4), true),
            one("/dev", "tmpfs", Some(2 | 8), true),
            one("/dev/pts", "devpts", Some(2 | 8), true),
            one("/proc", "proc", Some(2 | 4 | 8), true),
            one("/proc/keys", "tmpfs", None, false),
            one("/proc/uptime", "", None, false),
            one("/data", "", None, true),
        ]
    }

    fn changed(text: &str) -> Vec<String> {
        let tree = MountTree::parse(text).unwrap();
        let devices = ["8:1", "8:2", "8:3"].map(str::to_owned);
        let start = at_the_start(i32::MAX, &tree, &given(), &devices);
        let found = Difference::since(&start, &tree);
        let word = |change: &MountChange| format!("{change:?}").split(' ').next().unwrap_or_default().to_owned();
        let changes = found.changes.iter().map(|one| format!("{} {}", word(one), path(one)));
        changes.chain(found.objections.into_iter().map(|(kind, _)| kind)).collect()
    }

    #[test]
    fn a_guest_that_has_changed_nothing_differs_in_nothing() {
        assert_eq!(changed(TEXT), Vec::<String>::new());
    }

    #[test]
    fn what_it_has_mounted_over_what_it_was_given_is_told_apart() {
        let of = |more: &str| changed(&format!("{TEXT}{more}\n"));
        assert_eq!(of("70 58 0:47 /root /mnt rw,nodev,relatime - overlay deb rw"), ["Bind /mnt"]);
        assert_eq!(of("70 60 0:47 /root /dev/shm rw,relatime - overlay deb rw"), ["Bind /dev/shm"]);
        assert_eq!(of("70 61 0:47 /root /dev/pts rw,relatime - overlay deb rw"), ["Bind /dev/pts"]);
        assert_eq!(of("70 62 0:47 /etc /proc/stat rw,relatime - overlay deb rw"), ["Bind /proc/stat"]);
        assert_eq!(
            of("70 58 8:2 /srv/x /mnt rw,relatime - ext4 x rw"),
            ["Bind /mnt"],
            "out of a directory of the host"
        );
        assert_eq!(of("70 58 8:3 /x /mnt rw,relatime - ext4 x rw"), ["Bind /mnt"], "and out of what came with it");
        assert_eq!(of("70 65 0:90 / /data/x rw,relatime - tmpfs x rw"), ["Memory /data/x"]);
        assert_eq!(of("70 58 0:90 / /mnt rw,relatime - fuse x rw"), ["a file system of its own (fuse on /mnt)"]);
        assert_eq!(of("70 58 0:90 / / rw,relatime - tmpfs x rw").len(), 2);
    }

    #[test]
    fn what_it_has_unmounted_and_remounted_is_told() {
        let without = |path: &str| {
            let lines = TEXT.lines().filter(|line| !line.split(' ').nth(4).is_some_and(|at| at.starts_with(path)));
            changed(&lines.map(|line| format!("{line}\n")).collect::<String>())
        };
        assert_eq!(without("/dev/pts"), ["Gone /dev/pts"]);
        assert_eq!(without("/proc"), ["Gone /proc"], "and with it what lay on it");
        assert_eq!(without("/data"), ["Gone /data"]);
        assert!(without("/proc/").is_empty(), "some kernels have no such file");
        assert_eq!(changed(&TEXT.replace("/ / rw,nodev", "/ / ro,nodev")), ["Set /"]);
        assert_eq!(changed(&TEXT.replace("/dev/pts rw,nosuid", "/dev/pts rw")), ["Set /dev/pts"]);
    }

    #[test]
    fn two_in_a_place_may_both_be_given() {
        let text = "70 58 0:60 / /c rw - cgroup2 x rw\n71 70 0:61 / /c rw - tmpfs x rw\n72 71 0:62 / /c/pids rw - cgroup x rw\n";
        let one =
            |path: &str, kind: &str| Given { path: path.into(), kind: kind.into(), attributes: None, always: false };
        let tree = MountTree::parse(&format!("{TEXT}{text}")).unwrap();
        let among = |more: &[Given]| {
            let all = [given(), more.to_vec()].concat();
            let start = at_the_start(1, &tree, &all, &["8:1".to_owned(), "8:2".to_owned(), "8:3".to_owned()]);
            start.all().iter().filter(|mount| mount.path.starts_with("/c")).count()
        };
        let all = [one("/c", "cgroup2"), one("/c", "tmpfs"), one("/c/pids", "cgroup")];
        assert_eq!((among(&all), among(&all[..1]), among(&[])), (3, 1, 0));
    }

    #[test]
    fn who_hears_of_what_is_mounted_is_told() {
        let shared = |line: &str| line.replace(" - ", &format!(" shared:{} - ", &line[..2]));
        let all: String = TEXT.lines().map(|line| shared(line) + "\n").collect();
        assert!(changed(&all).is_empty(), "of the whole it is said otherwise");
        assert_eq!(changed(&TEXT.replace("relatime - devpts", "relatime shared:7 - devpts")), ["Propagate /dev/pts"]);
        assert_eq!(changed(&all.replace(" shared:61", " unbindable")), ["Propagate /dev/pts"]);
        assert!(
            changed(&all.replace(" shared:61", " shared:60")).is_empty(),
            "as the console's and the terminals' are"
        );
        let joined = format!("{all}70 58 0:50 / /mnt rw,relatime shared:60 - tmpfs none rw\n");
        let said = changed(&joined).into_iter().next_back().unwrap_or_default();
        assert!(said.starts_with("a mount that hears of what is mounted on another"), "{said}");
    }
}
