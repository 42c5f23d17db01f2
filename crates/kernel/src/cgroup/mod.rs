//! Control groups, version 1 and 2, decided hierarchy by hierarchy.
//!
//! A host may have the one unified hierarchy of version 2, the many of version 1, or both (a *hybrid* host: version 2
//! without controllers, for its `cgroup.kill`, `cgroup.freeze` and programs, and version 1 for the controllers). A
//! [`Plot`] is the same place in all of them: one group a hierarchy, made together and removed together.
//!
//! ```text
//!   version 2:  …/pando/SLOT        limits; its cgroup.procs is delegated, so that a shim may put children below
//!               …/pando/SLOT/seed   the seed, where the limits of some controller are handed down;
//!                                   else it is in the group above
//!               …/pando/SLOT/guest  the guest: the root of what it sees
//!   version 1:  …/pando/SLOT        both
//! ```

pub mod born_in_group;
pub mod timed_freeze;
pub mod tree;

use crate::mount::{MountEntry, mounts};
use crate::{CallError, Context};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Controllers of version 1 whose hierarchies a guest is put into.
const WANTED: [&str; 7] = ["cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", DEVICES];

/// So many processes are held at once where all of a group are killed one by one.
const HELD: usize = 256;

/// Those that runtimes of languages read: memory for the size of a heap, processors for the number of threads. Java
/// reads none if one of these is missing.
const READ: [&str; 5] = ["memory", "cpu", "cpuacct", "cpuset", "pids"];

/// All controllers that a hierarchy of version 1 may have.
const CONTROLLERS: [&str; 14] = [
    "cpuset",
    "cpu",
    "cpuacct",
    "blkio",
    "memory",
    "devices",
    "freezer",
    "net_cls",
    "perf_event",
    "net_prio",
    "hugetlb",
    "pids",
    "rdma",
    "misc",
];

/// Version 2 does by a program what this one does, and wherever it is mounted.
const DEVICES: &str = "devices";

/// Controllers of version 2 that are handed down to guests. Each takes memory in every group, whether anybody uses it
/// or not: that of huge pages more than a group has without.
const HANDED_DOWN: [&str; 5] = ["cpu", "cpuset", "io", "memory", "pids"];

/// Files of version 2 that a guest's own init needs to write to manage its part of the tree.
const DELEGATED: [&str; 3] = ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"];

/// The name of a shim's group, which running guests of earlier releases have too.
const SHIM: &str = "seed";

/// Bounds on the groups below a guest's, which it makes itself (cgroup.max.*, since Linux 4.14): each takes memory of
/// the kernel's that is charged to nobody, and what walks the tree of groups walks all of them. A distribution's init
/// makes a hundred, a handful deep.
const BOUNDS: [(&str, usize); 2] = [("cgroup.max.descendants", 1000), ("cgroup.max.depth", 32)];

/// The hierarchies of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Where the unified hierarchy is mounted.
    pub unified: Option<PathBuf>,
    /// Hierarchies of version 1 that hold a controller we use: where mounted, and which controllers.
    pub legacy: Vec<(PathBuf, Vec<String>)>,
}

impl Hierarchies {
    /// Finds the hierarchies that are mounted in this mount namespace.
    ///
    /// # Errors
    ///
    /// Those of reading /proc/self/mountinfo and /proc/self/cgroup.
    pub fn detect() -> Result<Self, CallError> {
        Ok(Self::among(&mounts()?))
    }

    fn among(mounts: &[MountEntry]) -> Self {
        let mut found = Self::default();
        let whole = |mount: &&MountEntry| mount.root == Path::new("/");
        let unified = mounts.iter().filter(whole).any(|mount| mount.kind == "cgroup2");
        for mount in mounts.iter().filter(whole) {
            let options: Vec<_> = mount.options.split(',').collect();
            match mount.kind.as_str() {
                "cgroup2" if found.unified.is_none() => found.unified = Some(mount.at.clone()),
                "cgroup" => {
                    let controllers: Vec<_> = WANTED
                        .iter()
                        .filter(|name| options.contains(name) && !(unified && **name == DEVICES))
                        .map(|name| (*name).to_owned())
                        .collect();
                    let known = found.legacy.iter().any(|(_, others)| *others == controllers);
                    if !controllers.is_empty() && !known {
                        found.legacy.push((mount.at.clone(), controllers));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Those of version 1 that programs read to learn what they may use, each by its controller and by the options that
    /// mount its hierarchy once more: all controllers of it, or the kernel takes it for another hierarchy (EBUSY).
    pub fn readable(mounts: &[MountEntry]) -> Vec<(&'static str, String)> {
        let mut found: Vec<(&str, String)> = Vec::new();
        for mount in mounts.iter().filter(|mount| mount.kind == "cgroup" && mount.root == Path::new("/")) {
            let all: Vec<_> = mount.options.split(',').filter(|word| CONTROLLERS.contains(word)).collect();
            for name in READ.iter().filter(|name| all.contains(name)) {
                if !found.iter().any(|(known, _)| known == name) {
                    found.push((name, all.join(",")));
                }
            }
        }
        found
    }

    /// The controllers that version 2 offers here.
    pub fn unified_controllers(&self) -> Vec<String> {
        let read = |root: &PathBuf| std::fs::read_to_string(root.join("cgroup.controllers")).ok();
        let text = self.unified.as_ref().and_then(read).unwrap_or_default();
        text.split_ascii_whitespace().map(str::to_owned).collect()
    }

    /// Makes the field that plots lie in: a group named `name` in each hierarchy.
    ///
    /// # Errors
    ///
    /// EACCES or EROFS where the hierarchy cannot be written to; ENOSPC where it has as many groups as it may have.
    pub fn field(&self, name: &str) -> Result<Field, CallError> {
        let field = Field { hierarchies: self.clone(), name: name.to_owned() };
        for (root, _) in &self.legacy {
            make(&root.join(name))?;
            bequeath_processors(&root.join(name));
        }
        if let Some(unified) = &self.unified {
            make(&unified.join(name))?;
            hand_down(&unified.join(name));
        }
        Ok(field)
    }
}

/// Where a controller acts on a place: a group, and the version of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Whether its files are those of version 2.
    pub unified: bool,
    /// The path of the control group.
    pub group: PathBuf,
}

impl Seat {
    /// Where the controller of a field acts on one of its plots.
    #[must_use]
    pub fn of_plot(&self, slot: u32) -> Self {
        Self { unified: self.unified, group: self.group.join(slot.to_string()) }
    }
}

/// A group of ours in each hierarchy, which plots lie in.
#[derive(Clone, Debug)]
pub struct Field {
    hierarchies: Hierarchies,
    name: String,
}

impl Field {
    /// The plot of a number: only its paths, whether they exist or not.
    pub fn plot(&self, slot: u32) -> Plot {
        let below = |root: &Path| root.join(&self.name).join(slot.to_string());
        Plot {
            unified: self.hierarchies.unified.as_deref().map(below),
            legacy: self.hierarchies.legacy.iter().map(|(root, _)| below(root)).collect(),
        }
    }

    /// Where a controller acts on the whole field. `controller` is its name in version 2 (`io` is `blkio` in version
    /// 1), or `cpuacct`. `None` where neither version has it here, or where version 2 has it and the root of the
    /// hierarchy does not hand it down.
    pub fn seat(&self, controller: &str) -> Option<Seat> {
        let old = if controller == "io" { "blkio" } else { controller };
        let has = |(_, names): &&(PathBuf, Vec<String>)| names.iter().any(|name| name == old);
        if let Some((root, _)) = self.hierarchies.legacy.iter().find(has) {
            return Some(Seat { unified: false, group: root.join(&self.name) });
        }
        let group = self.hierarchies.unified.as_deref()?.join(&self.name);
        let offered = std::fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
        let handed_down = offered.split_ascii_whitespace().any(|name| name == controller);
        handed_down.then_some(Seat { unified: true, group })
    }

    /// The numbers of all plots that exist, in whatever hierarchy.
    pub fn slots(&self) -> Vec<u32> {
        let roots = self.hierarchies.unified.iter().chain(self.hierarchies.legacy.iter().map(|(root, _)| root));
        let entries = roots.filter_map(|root| std::fs::read_dir(root.join(&self.name)).ok()).flatten().flatten();
        let mut slots: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// A group of version 2 beside the plots, for what is no guest's: only its path, whether it exists or not.
    pub fn beside(&self, name: &str) -> Option<PathBuf> {
        self.hierarchies.unified.as_deref().map(|root| root.join(&self.name).join(name))
    }

    /// Removes the field, if no plot is left in it.
    pub fn remove(&self) {
        let roots = self.hierarchies.unified.iter().chain(self.hierarchies.legacy.iter().map(|(root, _)| root));
        for root in roots {
            // A plot that is still in use keeps it, which is right.
            let _ = std::fs::remove_dir(root.join(&self.name));
        }
    }
}

/// Ways into the groups of a plot.
#[derive(Debug)]
pub struct Entrances {
    /// The group of version 2 for a shim to be born in (clone3(2), CLONE_INTO_CGROUP, since Linux 5.7).
    pub unified: Option<OwnedFd>,
    /// The `tasks` files of version 1, open for writing: a thread that writes "0" moves itself, alone, and waits for
    /// nobody.
    pub tasks: Vec<OwnedFd>,
}

/// The groups of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    unified: Option<PathBuf>,
    legacy: Vec<PathBuf>,
}

impl Plot {
    /// Makes the groups. Ones left by a crash are used again.
    ///
    /// # Errors
    ///
    /// EAGAIN or ENOSPC where the field has as many groups as it may have.
    pub fn make(&self) -> Result<(), CallError> {
        for group in &self.legacy {
            make(group)?;
        }
        if let Some(group) = &self.unified {
            make(group)?;
            bound(group)?;
            if hand_down(group) {
                make(&group.join(SHIM))?;
            }
            make(&group.join("guest"))?;
        }
        Ok(())
    }

    /// What a shim needs to get into all of them without a process ever being moved by another: for that the kernel
    /// stops every fork and exit of the machine and waits for a grace period, ten milliseconds after a moment of
    /// idleness.
    ///
    /// # Errors
    ///
    /// ENOENT where one of the groups has gone.
    pub fn entrances(&self) -> Result<Entrances, CallError> {
        let open = |path: PathBuf, options: &std::fs::OpenOptions| {
            options.open(&path).map(OwnedFd::from).context(|| format!("opening {}", path.display()))
        };
        let (read, write) = (std::fs::File::options().read(true).clone(), std::fs::File::options().write(true).clone());
        Ok(Entrances {
            unified: self.shim().map(|group| open(group, &read)).transpose()?,
            tasks: self.legacy.iter().map(|group| open(group.join("tasks"), &write)).collect::<Result<_, _>>()?,
        })
    }

    /// Hands the guest's part of the unified hierarchy to `id`: it may move its processes there and make groups below.
    ///
    /// # Errors
    ///
    /// ENOENT where the group has gone; EPERM without CAP_CHOWN.
    pub fn delegate(&self, id: u32) -> Result<(), CallError> {
        let Some(group) = &self.unified else { return Ok(()) };
        let guest = group.join("guest");
        let files = DELEGATED.iter().map(|file| guest.join(file));
        for path in [group.join("cgroup.procs"), guest.clone()].into_iter().chain(files) {
            std::os::unix::fs::chown(&path, Some(id), Some(id))
                .context(|| format!("handing {} to the guest", path.display()))?;
        }
        Ok(())
    }

    /// The group of the unified hierarchy that the shim is born in.
    fn shim(&self) -> Option<PathBuf> {
        let group = self.unified.as_ref()?;
        let apart = Some(group.join(SHIM)).filter(|apart| apart.exists());
        Some(apart.unwrap_or_else(|| group.clone()))
    }

    /// The group of the unified hierarchy that the guest's processes are born in.
    pub fn guest(&self) -> Option<PathBuf> {
        self.unified.as_ref().map(|group| group.join("guest"))
    }

    /// The paths of all groups of the plot, for messages.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.unified.iter().chain(&self.legacy).cloned().collect()
    }

    /// Kills every process in the groups (cgroup.kill, since Linux 5.14; else one by one, and nobody who has got the
    /// pid of one by then).
    pub fn kill(&self) {
        if let Some(group) = &self.unified
            && std::fs::write(group.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for group in self.paths() {
            let pids = tree::members(&group, "cgroup.procs", tree::Bounds::ALL).ids;
            for process in pids.chunks(HELD).flat_map(|pids| tree::held(&group, pids)) {
                let _ = process.signal(libc::SIGKILL);
            }
        }
    }

    /// Removes the groups, and those that the guest made below.
    ///
    /// # Errors
    ///
    /// EBUSY while a process is in one of them.
    pub fn remove(&self) -> Result<(), CallError> {
        for group in self.paths() {
            tree::remove_groups(&group).context(|| format!("removing cgroup {}", group.display()))?;
        }
        Ok(())
    }

    /// Whether any of the groups exists.
    pub fn exists(&self) -> bool {
        self.paths().iter().any(|group| group.exists())
    }
}

fn make(group: &Path) -> Result<(), CallError> {
    match std::fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).context(|| format!("making cgroup {}", group.display()))
        }
        _ => Ok(()),
    }
}

/// Bounds the groups below one of version 2. Its own files stay out of reach of all processes in the groups below.
fn bound(group: &Path) -> Result<(), CallError> {
    for (file, most) in BOUNDS {
        let path = group.join(file);
        let written = std::fs::File::options().write(true).open(&path).and_then(|mut file| write!(file, "{most}"));
        written.context(|| format!("writing '{most}' to {}", path.display()))?;
    }
    Ok(())
}

/// In version 1 a group without processors and memory nodes takes no process (ENOSPC), and what is made below begins
/// without them unless its parent says otherwise.
fn bequeath_processors(group: &Path) {
    let Some(above) = group.parent() else { return };
    if !group.join("cpuset.cpus").exists() {
        return;
    }
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let all = std::fs::read_to_string(above.join(file)).unwrap_or_default();
        let own = std::fs::read_to_string(group.join(file)).unwrap_or_default();
        if own.trim().is_empty() {
            // A refusal shows when a shim is put there.
            let _ = std::fs::write(group.join(file), all.trim());
        }
    }
    let _ = std::fs::write(group.join("cgroup.clone_children"), "1");
}

/// Offers the controllers that a group of ours has to the groups below it. One that refuses is missing there, which its
/// user will be told. Whether there are any: then the group takes no processes itself.
fn hand_down(group: &Path) -> bool {
    let offered = std::fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    let wanted = || offered.split_ascii_whitespace().filter(|controller| HANDED_DOWN.contains(controller));
    for controller in wanted() {
        let _ = std::fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    wanted().next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, at: &str, options: &str) -> MountEntry {
        MountEntry {
            at: at.into(),
            root: "/".into(),
            kind: kind.into(),
            options: options.into(),
            ..MountEntry::default()
        }
    }

    #[test]
    fn the_devices_controller_stands_in_for_version_2() {
        let both = [mount("cgroup", "/c/devices", "rw,devices"), mount("cgroup2", "/c/unified", "rw")];
        assert!(Hierarchies::among(&both).legacy.is_empty());
        assert_eq!(Hierarchies::among(&both[..1]).legacy[0].1, ["devices"]);
    }

    #[test]
    fn a_hybrid_host_has_both() {
        let found = Hierarchies::among(&[
            mount("cgroup", "/c/cpu", "rw,cpu,cpuacct"),
            mount("cgroup", "/c/memory", "rw,memory"),
            mount("cgroup", "/c/systemd", "rw,name=systemd"),
            mount("cgroup2", "/c/unified", "rw"),
        ]);
        assert_eq!(found.unified, Some("/c/unified".into()));
        assert_eq!(found.legacy.len(), 2);
        assert_eq!(found.legacy[0].1, ["cpu", "cpuacct"]);
    }

    #[test]
    fn a_controller_of_version_1_is_found_by_its_old_name() {
        let hierarchies =
            Hierarchies::among(&[mount("cgroup", "/c/blkio", "rw,blkio"), mount("cgroup2", "/c/u", "rw")]);
        let field = Field { hierarchies, name: "pando".into() };
        let seat = field.seat("io").unwrap();
        assert_eq!(seat.of_plot(7), Seat { unified: false, group: "/c/blkio/pando/7".into() });
        assert_eq!(field.seat("memory"), None);
    }

    #[test]
    fn a_plot_is_one_place_in_all_hierarchies() {
        let hierarchies = Hierarchies::among(&[mount("cgroup", "/c/pids", "rw,pids"), mount("cgroup2", "/c/u", "rw")]);
        let field = Field { hierarchies, name: "pando".into() };
        let plot = field.plot(7);
        assert_eq!(plot.paths(), [PathBuf::from("/c/u/pando/7"), PathBuf::from("/c/pids/pando/7")]);
        assert_eq!(plot.guest(), Some("/c/u/pando/7/guest".into()));
    }
}
