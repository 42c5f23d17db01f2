//! How the mounts of a namespace differ from those of the first process. A clone has the first process's again, so that
//! what is equal needs nothing; what differs is said as changes to a copy of them, in the order in which they are made.

use crate::image::mount::{MOST_MOUNT_CHANGES, is_made, joined, path};
use crate::image::{Link, MountChange, MountSource};
use crate::inspect::mount_tree::{Mount, MountTree};
use std::collections::{HashMap, HashSet};

/// All that differs, or what of it cannot be had again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) changes: Vec<MountChange>,
    pub(crate) link: Link,
    /// Whether others can hear of what is mounted in it.
    pub(crate) shared: bool,
    pub(crate) objections: Vec<(String, &'static str)>,
}

const STOP: &str = "stop what made it";

/// Below these each clone has what is its own.
pub(crate) const OWN: [&str; 2] = ["/proc/", "/sys/"];

impl Difference {
    /// Between the mounts that the first process had at its start and those that it has now.
    pub(crate) fn since(start: &MountTree, now: &MountTree) -> Self {
        let root = now.get(now.root());
        let found = Self { link: Link::Alone, shared: root.shared.is_some(), ..Self::default() };
        let mut found = Comparison::new(start, now, &[], found).finish();
        let over_all = |change: &MountChange| path(change) == "/" && is_made(change);
        if root.root != "/" || found.changes.iter().any(over_all) {
            found.objections.push(("something that was mounted over the root of the guest".into(), "unmount it"));
        }
        if found.changes.len() > MOST_MOUNT_CHANGES {
            found
                .objections
                .push((format!("more than {MOST_MOUNT_CHANGES} mounts of the guest's own"), "unmount some"));
        }
        found
    }

    /// Between the mounts of the first process and others. `earlier` are namespaces that are made before. What cannot
    /// be had below /proc and /sys is left out: clones have there what is theirs.
    pub(crate) fn between(first: &MountTree, other: &MountTree, earlier: &[&MountTree]) -> Self {
        let (own, theirs) = (first.get(first.root()), other.get(other.root()));
        if (&own.device, &own.root) != (&theirs.device, &theirs.root) {
            return Self::of_another_root(first, other, earlier);
        }
        let link = match (own.shared, theirs.shared, theirs.master) {
            (Some(group), other, _) if other == Some(group) => Link::Peers,
            (Some(_), _, None) => Link::Alone,
            _ => Link::Follows,
        };
        let found = Self { link, shared: theirs.shared.is_some() && link != Link::Peers, ..Self::default() };
        let mut found = Comparison { home: false, ..Comparison::new(first, other, earlier, found) }.finish();
        if link == Link::Peers && !found.changes.is_empty() {
            found.objections.push((
                "a mnt namespace of its own with mounts that differ and that the guest shares".into(),
                "make them followers first (mount --make-rslave /)",
            ));
        }
        found.bounded()
    }

    /// The same of one with another root (pivot_root(2)): nothing that the first process has mounted is there, and what
    /// is there is mounted again, the root first.
    fn of_another_root(first: &MountTree, other: &MountTree, earlier: &[&MountTree]) -> Self {
        let follows = other.all().iter().any(|mount| mount.master.is_some());
        let link = if follows { Link::Follows } else { Link::Alone };
        let found = Self { link, shared: other.get(other.root()).shared.is_some(), ..Self::default() };
        let comparison = Comparison { home: false, pivoted: true, ..Comparison::new(first, other, earlier, found) };
        comparison.finish().bounded()
    }

    fn bounded(mut self) -> Self {
        if self.changes.len() > MOST_MOUNT_CHANGES {
            self.objections
                .push((format!("a mnt namespace of its own with more than {MOST_MOUNT_CHANGES} mounts"), STOP));
        }
        self
    }
}

/// Whether a kind of file system has its files in memory and nowhere else. One without bounds, never in swap (ramfs,
/// which systemd keeps credentials in), is a tmpfs in a clone.
pub(crate) fn is_in_memory(kind: &str) -> bool {
    matches!(kind, "tmpfs" | "ramfs")
}

/// What bounds a file system in memory, of its options, and what it says that it was mounted from. Whose it is, is that
/// of its topmost directory.
fn bounds(mount: &Mount) -> String {
    const KEPT: [&str; 4] = ["size=", "nr_inodes=", "nr_blocks=", "mode="];
    let kept = |word: &&str| KEPT.iter().any(|kept| word.starts_with(kept));
    let source = Some(mount.source.as_str()).filter(|source| !source.is_empty() && !source.contains([',', '=', '\\']));
    let source = source.map(|source| format!("source={source}"));
    mount.options.split(',').filter(kept).map(str::to_owned).chain(source).collect::<Vec<_>>().join(",")
}

/// What is to be seen in a file system of processes, of its options.
fn seen(options: &str) -> String {
    let kept = |option: &&str| option.starts_with("hidepid=") || option.starts_with("subset=");
    options.split(',').filter(kept).collect::<Vec<_>>().join(",")
}

struct Comparison<'a> {
    first: &'a MountTree,
    other: &'a MountTree,
    earlier: &'a [&'a MountTree],
    /// Whether they are those of one namespace, at its start and now.
    home: bool,
    /// Whether it has another root, and nothing is the same.
    pivoted: bool,
    /// The mounts that are the same, of the other tree and of the first.
    same: HashMap<usize, usize>,
    /// Those of the first that are taken away.
    gone: HashSet<usize>,
    /// The file systems that only the other tree has, as far as they are said.
    own: Vec<usize>,
    found: Difference,
}

impl<'a> Comparison<'a> {
    fn new(first: &'a MountTree, other: &'a MountTree, earlier: &'a [&'a MountTree], found: Difference) -> Self {
        let (same, gone, own) = (HashMap::new(), HashSet::new(), Vec::new());
        Self { first, other, earlier, home: true, pivoted: false, same, gone, own, found }
    }

    fn finish(mut self) -> Difference {
        let (own, theirs) = (self.first.root(), self.other.root());
        if self.pivoted {
            self.make(theirs, theirs);
        } else {
            self.pair(own, theirs);
            self.set(theirs);
        }
        self.walk(theirs);
        self.propagate();
        self.found
    }

    /// Says which mounts differ from most in who hears of what is mounted on them.
    fn propagate(&mut self) {
        if self.found.link == Link::Peers {
            return;
        }
        let shared = self.found.shared;
        for (number, mount) in self.other.all().iter().enumerate() {
            // A namespace that follows another follows it by each mount that this one shares.
            // Where nothing is the same, all is copied as what follows.
            let follows =
                self.pivoted || self.same.get(&number).is_some_and(|own| self.first.get(*own).shared.is_some());
            let alone = self.found.link == Link::Follows && follows && mount.master.is_none();
            let kind = match (mount.unbindable, mount.shared.is_some(), mount.master.is_some()) {
                (true, ..) => libc::MS_UNBINDABLE,
                (_, true, _) if !shared => libc::MS_SHARED,
                (_, false, false) if shared || alone => libc::MS_PRIVATE,
                (_, false, true) if shared => libc::MS_SLAVE,
                _ => continue,
            };
            let known = self.same.contains_key(&number)
                || self.found.changes.iter().any(|one| is_made(one) && path(one) == mount.path);
            if known && self.other.leads_to(&mount.path, &HashSet::new()) == number {
                self.found.changes.push(MountChange::Propagate { path: mount.path.clone(), kind });
            }
        }
        if self.home {
            self.groups();
        }
    }

    /// Mounts of the guest's that hear of each other: in a clone each would be in a group of its own. Those that each
    /// guest has are so again.
    fn groups(&mut self) {
        let is_own = |number: usize| !self.same.contains_key(&number);
        let all = || self.other.all().iter().enumerate();
        let members = |group: u64| all().filter(move |(_, mount)| mount.shared == Some(group));
        let is_joined = |group: u64| members(group).count() > 1 && members(group).any(|(number, _)| is_own(number));
        let joined = all().rfind(|(number, mount)| {
            is_own(*number) && (mount.master.is_some() || mount.shared.is_some_and(is_joined))
        });
        let joined = joined.map(|(_, mount)| mount);
        if let Some(mount) = joined {
            let kind = format!("a mount that hears of what is mounted on another of the guest's (on {})", mount.path);
            self.found.objections.push((kind, "set it apart (mount --make-private)"));
        }
    }

    /// Finds what is the same below two mounts that are, and takes away what is not there.
    fn pair(&mut self, own: usize, theirs: usize) {
        let (first, other) = (self.first, self.other);
        let mut next = vec![(own, theirs)];
        while let Some((own, theirs)) = next.pop() {
            self.same.insert(theirs, own);
            for (path, mount) in first.on(own) {
                let place =
                    |tree: &MountTree, mount: usize| (tree.get(mount).device.clone(), tree.get(mount).root.clone());
                match other.on(theirs).get(path) {
                    Some(theirs) if place(other, *theirs) == place(first, *mount) => next.push((*mount, *theirs)),
                    _ => self.take_away(*mount),
                }
            }
        }
        // One order, whatever they were found in.
        self.found.changes.sort_by(|one, other| path(one).cmp(path(other)));
    }

    /// What another mount hides, nobody sees going: it stays.
    fn take_away(&mut self, mount: usize) {
        let path = &self.first.get(mount).path;
        if self.first.top(mount) == self.first.leads_to(path, &HashSet::new()) {
            let all = self.first.stack(mount).map(|_| MountChange::Gone { path: path.clone() });
            self.found.changes.extend(all);
            self.gone.insert(mount);
        }
    }

    /// Says what differs below a mount: deep paths first, since what is mounted above one hides it.
    fn walk(&mut self, theirs: usize) {
        let below = |tree: &MountTree, on: usize| {
            // What is all of a file system comes before parts of it.
            let key =
                |path: &str, mount: &usize| (path.matches('/').count(), tree.get(*mount).root == "/", path.to_owned());
            let mut all: Vec<_> = tree.on(on).iter().map(|(path, mount)| (key(path, mount), on, *mount)).collect();
            all.sort();
            all
        };
        let mut next = below(self.other, theirs);
        while let Some((_, on, mount)) = next.pop() {
            if self.found.changes.len() > MOST_MOUNT_CHANGES {
                break;
            }
            if self.set(mount) || self.make(on, mount) {
                next.extend(below(self.other, mount));
            }
        }
    }

    /// Whether a mount is one of the first process's, whose attributes are then set if they differ and a path leads to
    /// it.
    fn set(&mut self, mount: usize) -> bool {
        let Some(own) = self.same.get(&mount).copied() else { return false };
        let (path, attributes) = (&self.other.get(mount).path, self.other.get(mount).attributes);
        if attributes != self.first.get(own).attributes && self.first.leads_to(path, &self.gone) == own {
            self.found.changes.push(MountChange::Set { path: path.clone(), attributes });
        }
        true
    }

    /// Whether a mount is all of a file system that is in no namespace before.
    fn is_own(&self, number: usize) -> bool {
        let mount = self.other.get(number);
        let has = |tree: &MountTree| tree.all().iter().any(|one| one.device == mount.device);
        let kind = (is_in_memory(&mount.kind) || matches!(mount.kind.as_str(), "proc" | "mqueue" | "sysfs"))
            && mount.root == "/";
        kind && !self.own.iter().any(|own| self.other.get(*own).device == mount.device)
            && !has(self.first)
            && !self.earlier.iter().any(|tree| has(tree))
    }

    /// Says how a mount is made that the first process does not have. Whether it is.
    fn make(&mut self, on: usize, number: usize) -> bool {
        let mount = self.other.get(number);
        let (path, mut attributes) = (mount.path.clone(), mount.attributes);
        let covered = self.same.get(&on).is_some_and(|own| self.first.leads_to(&path, &self.gone) != *own);
        // Groups are told by their ids outside.
        let sayable = is_in_memory(&mount.kind) || !mount.options.split(',').any(|option| option.starts_with("gid="));
        if self.is_own(number) && sayable {
            let hidden = covered || self.other.leads_to(&path, &HashSet::new()) != number;
            // What covers it is made, and covers what lies there then.
            if hidden && is_in_memory(&mount.kind) && self.is_seen_elsewhere(number) {
                return true;
            }
            if hidden && is_in_memory(&mount.kind) {
                let kind = format!("a file system {} that another covers ({} on {path})", self.whose(), mount.kind);
                self.found.objections.push((kind, "unmount the upper one there, or stop what made it"));
                return false;
            }
            self.own.push(number);
            self.found.changes.push(match mount.kind.as_str() {
                kind if is_in_memory(kind) => {
                    // A file system can be read-only itself, or one mount of it.
                    attributes |= u64::from(mount.options.split(',').any(|word| word == "ro"));
                    let options = bounds(mount);
                    MountChange::Memory { path, options, attributes, contents: (0, 0) }
                }
                "mqueue" => MountChange::Queues { path, space: 0, attributes, device: mount.device.clone() },
                "sysfs" => MountChange::Devices { path, space: 0, attributes, device: mount.device.clone() },
                _ => MountChange::Proc { path, options: seen(&mount.options), attributes },
            });
            return true;
        }
        // Nobody sees it.
        if covered {
            return false;
        }
        let deleted = mount.root.ends_with("//deleted");
        if !deleted && let Some(from) = self.source(&mount.device, &mount.root, &path) {
            self.found.changes.push(MountChange::Bind { path, from, attributes });
            return true;
        }
        if !self.home && OWN.iter().any(|above| path.starts_with(above)) {
            return false;
        }
        let kind = match (deleted, self.home) {
            (true, _) => format!("a mount of files {} that were deleted (on {path})", self.whose()),
            (_, true) => format!("a file system of its own ({} on {path})", mount.kind),
            (_, false) => format!("a file system that only its mnt namespace has ({} on {path})", mount.kind),
        };
        self.found.objections.push((
            kind,
            "unmount it there, or stop what made it; file systems in memory (tmpfs) and files of the guest's own that are mounted once more come along",
        ));
        false
    }

    /// Whether all of a file system is to be seen by another mount of it.
    fn is_seen_elsewhere(&self, number: usize) -> bool {
        let device = &self.other.get(number).device;
        let shows = |other: usize| {
            let mount = self.other.get(other);
            mount.device == *device && mount.root == "/" && self.other.leads_to(&mount.path, &HashSet::new()) == other
        };
        (0..self.other.all().len()).any(|other| other != number && shows(other))
    }

    /// Whose mounts they are that the first tree does not have.
    fn whose(&self) -> &'static str {
        if self.home { "of the guest's own" } else { "of its mnt namespace" }
    }

    fn source(&self, device: &str, root: &str, path: &str) -> Option<MountSource> {
        let of = |tree: &MountTree, space: Option<usize>| {
            let there = tree.place(path) == (device, root.to_owned());
            let path = if there { Some(path.to_owned()) } else { tree.paths_to(device, root).next() };
            path.map(|path| MountSource { space, path })
        };
        let earlier = || self.earlier.iter().enumerate().find_map(|(number, tree)| of(tree, Some(number)));
        let own = || {
            let on_it = self.own.iter().map(|own| self.other.get(*own)).find(|own| own.device == device)?;
            // It is mounted whole.
            Some(MountSource { space: Some(self.earlier.len()), path: joined(&on_it.path, root.trim_end_matches('/')) })
        };
        of(self.first, None).or_else(earlier).or_else(own)
    }
}
