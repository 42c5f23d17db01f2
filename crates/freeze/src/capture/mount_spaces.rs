//! Mount namespaces of a process's own (mount_namespaces(7)), as services have that are kept from most of their system:
//! which there are beside the first process's, and which of them a file is had from. What they consist of is said by
//! [`crate::capture::mount_difference`], how a clone gets it by [`crate::restore::mounts`].

use crate::capture::given;
use crate::capture::mount_difference::Difference;
use crate::image::namespace::MOST_MOUNT_SPACES;
use crate::image::namespace_kind::MOUNTS;
use crate::image::{Area, AreaKind, MountChange, MountSpace, Process, mount};
use crate::inspect::areas::map_file;
use crate::inspect::descriptors::{self, Found, Outside};
use crate::inspect::mount_tree::{MountTree, below};
use crate::inspect::open_namespaces;
use crate::inspect::proc_file::{self, DELETED};
use crate::inspect::process_tree::{self, Member};
use crate::refusal::Refusal;
use crate::subject::Subject;
use pando_kernel::file::confined::{Links, Place, Root};
use pando_kernel::{CallError, Context};
use rustix::fs::FileType;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;

/// One, and a process that is in it.
#[derive(Debug)]
struct Space {
    link: String,
    outer: i32,
    pid: i32,
    name: String,
    tree: MountTree,
    difference: Difference,
}

/// The mount namespaces beside the first process's.
#[derive(Debug)]
pub(crate) struct Spaces {
    init: i32,
    home: String,
    first: MountTree,
    /// What the first process had mounted at its start, and how that differs from what it has now. Nothing where nobody
    /// says what each guest is given.
    start: Option<(MountTree, Difference)>,
    all: Vec<Space>,
    /// Which one a process is in.
    of: HashMap<i32, usize>,
    /// Which one a mount is in, by its number.
    mounts: HashMap<u64, Option<usize>>,
}

/// A device and an inode.
type Identity = (u64, u64);

impl Spaces {
    /// Those of some processes below a first one. One that has gone meanwhile is in none.
    pub(crate) fn of(subject: &Subject<'_>, members: &[Member]) -> Result<Self, CallError> {
        let init = subject.init;
        let unread = || proc_file::malformed("reading what is mounted: there is too much of it");
        let first = MountTree::parse(&proc_file::text(init, "mountinfo")?).ok_or_else(unread)?;
        let mounts = first.all().iter().map(|mount| (mount.id, None)).collect();
        let start = (!subject.given.is_empty()).then(|| since_the_start(subject, &first));
        let home = MOUNTS.of(init)?;
        let elsewhere = |member: &&Member| MOUNTS.of(member.outer).is_ok_and(|link| link != home);
        let mut others: Vec<_> = members.iter().filter(|member| member.state != 'Z').filter(elsewhere).collect();
        // Who has a root of its own does not see what is mounted outside that.
        others.sort_by_cached_key(|member| has_own_root(member.outer));
        let mut spaces = Self { init, home, first, start, all: Vec::new(), of: HashMap::new(), mounts };
        for member in others {
            let Ok(link) = MOUNTS.of(member.outer) else { continue };
            if link != spaces.home {
                spaces.note(member, link)?;
            }
        }
        Ok(spaces)
    }

    fn note(&mut self, member: &Member, link: String) -> Result<(), CallError> {
        if let Some(known) = self.all.iter().position(|space| space.link == link) {
            self.of.insert(member.outer, known);
            return Ok(());
        }
        let Ok(text) = proc_file::text(member.outer, "mountinfo") else { return Ok(()) };
        let tree = MountTree::parse(&text).filter(|_| !has_own_root(member.outer));
        // One that has just ended has nothing mounted.
        if tree.is_none() && (process_tree::is_gone(member.outer) || process_tree::has_ended(member.outer)) {
            return Ok(());
        }
        let number = self.all.len();
        let earlier: Vec<&MountTree> = self.all.iter().map(|space| &space.tree).collect();
        let difference = match &tree {
            Some(tree) if number < MOST_MOUNT_SPACES => Difference::between(&self.first, tree, &earlier),
            Some(_) => refused(format!("more than {MOST_MOUNT_SPACES} mnt namespaces")),
            // Everybody in it has a root of his own, as after chroot(2); or there is too much of it.
            None => refused("a mnt namespace of its own whose mounts cannot be told".into()),
        };
        let tree = tree.unwrap_or_default();
        self.mounts.extend(tree.all().iter().map(|mount| (mount.id, Some(number))));
        let (outer, pid, name) = (member.outer, member.pid, member.name.clone());
        self.all.push(Space { link, outer, pid, name, tree, difference });
        self.of.insert(member.outer, number);
        Ok(())
    }

    /// Which one a process is in, an index into [`mount_spaces`](crate::image::Image::mount_spaces); none if it is in
    /// the first process's.
    pub(crate) fn of_process(&self, outer: i32) -> Option<usize> {
        self.of.get(&outer).copied()
    }

    /// The same by how /proc tells of it. `None` if no process is in it.
    pub(crate) fn place(&self, link: &str) -> Option<Option<usize>> {
        let known = || self.all.iter().position(|space| space.link == link);
        if link == self.home { Some(None) } else { known().map(Some) }
    }

    /// Each of them, and a process that is in it: its pid here, and in its namespace.
    pub(crate) fn each(&self) -> impl Iterator<Item = (MountSpace, i32, i32)> {
        self.all.iter().map(|space| {
            let Difference { link, shared, changes, .. } = &space.difference;
            (MountSpace { link: *link, shared: *shared, changes: changes.clone() }, space.outer, space.pid)
        })
    }

    /// What the processes have changed of the first process's mounts since its start, and whether others can hear of
    /// what is mounted there.
    pub(crate) fn first(&self) -> (Vec<MountChange>, bool) {
        let changed = self.start.as_ref().map(|(_, difference)| (difference.changes.clone(), difference.shared));
        changed.unwrap_or_default()
    }

    /// Whether something is mounted in the first process's namespace that was not there at its start, at a path.
    pub(crate) fn is_changed_at(&self, at: &str) -> bool {
        let (Some((_, difference)), is_at) = (&self.start, |one: &MountChange| mount::path(one) == at) else {
            return false;
        };
        difference.changes.iter().any(|one| mount::is_made(one) && is_at(one))
    }

    /// A process that is in each, and what is said where it may not be.
    pub(crate) fn refusals(&self, kind: &str, advice: &'static str) -> impl Iterator<Item = (i32, Refusal)> {
        self.all.iter().map(move |space| {
            let (pid, name, kind) = (space.pid, space.name.clone(), kind.to_owned());
            (space.outer, Refusal { pid, name, descriptor: None, kind, advice })
        })
    }

    /// Which one an open file is of: where its path leads to it.
    pub(crate) fn of_file(&self, outer: i32, found: &Found) -> Option<usize> {
        self.place_of_file(outer, found).unwrap_or(None)
    }

    /// The same; an error where its path leads to it nowhere.
    fn place_of_file(&self, outer: i32, found: &Found) -> Result<Option<usize>, ()> {
        let named =
            found.target.starts_with('/') && found.stat.st_nlink > 0 && !descriptors::is(found, FileType::Socket);
        if !named || open_namespaces::is_one(found) || is_of_the_kernels(found) {
            return Ok(None);
        }
        let identity = Some((found.stat.st_dev, found.stat.st_ino));
        let leads = |space: Option<usize>| self.identity(space, &found.target) == identity;
        match self.mount_of(found) {
            Some(None) => Ok(None),
            Some(space) => leads(*space).then_some(*space).ok_or(()),
            // A mount of nobody's: of a program of the outside, or one that is not mounted any more.
            None if leads(None) || descriptors::is(found, FileType::CharacterDevice) => Ok(None),
            None => self.of_process(outer).filter(|space| leads(Some(*space))).map(Some).ok_or(()),
        }
    }

    /// Which namespace the mount of an open file is in; none of a mount that is nowhere, or elsewhere.
    fn mount_of(&self, found: &Found) -> Option<&Option<usize>> {
        found.lines.number("mnt_id", 10).ok().and_then(|mount| self.mounts.get(&mount))
    }

    /// What a path without links leads to in a namespace.
    fn identity(&self, space: Option<usize>, path: &str) -> Option<Identity> {
        self.identity_by(space, path, Links::Refused)
    }

    fn identity_by(&self, space: Option<usize>, path: &str, links: Links) -> Option<Identity> {
        let outer = space.map_or(self.init, |space| self.all[space].outer);
        let stat = open(outer, path, links)?.about().ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    /// The path of a file of a process in the first process's namespace. `None` if it has none there.
    pub(crate) fn home_path(&self, outer: i32, path: &str, file: &str) -> Option<String> {
        let Some(space) = self.of_process(outer) else { return Some(path.to_owned()) };
        let (device, place) = self.all[space].tree.place(path);
        if self.first.place(path) == (device, place.clone()) {
            return Some(path.to_owned());
        }
        let about = std::fs::metadata(format!("/proc/{outer}/{file}")).ok()?;
        let identity = Some((about.dev(), about.ino()));
        let paths = self.first.paths_to(device, &place).chain([path.to_owned()]);
        paths.into_iter().find(|path| self.identity(None, path) == identity)
    }

    /// The path that a file of a process has in the file system that the first process's root is of, by whatever mount
    /// the process came to it. `None` if it is of another one.
    ///
    /// # Errors
    ///
    /// Where the path that is told of it leads to something else: the mount is gone, or covered.
    pub(crate) fn path_in_root(&self, outer: i32, path: &str, file: &str) -> Result<Option<String>, CallError> {
        let what = || format!("finding the file {path} that process {outer} maps");
        let space = self.of_process(outer);
        let about = std::fs::metadata(format!("/proc/{outer}/{file}")).context(what)?;
        if self.identity(space, path) != Some((about.dev(), about.ino())) {
            return Err(proc_file::malformed(what()));
        }
        let (device, place) = space.map_or(&self.first, |space| &self.all[space].tree).place(path);
        if device.is_empty() {
            return Err(proc_file::malformed(what()));
        }
        let (home, top) = self.first.place("/");
        Ok(if device == home { below(&place, &top).map(str::to_owned) } else { None })
    }

    /// Gives a process's program and private mappings the paths that their files have in the first process's namespace:
    /// a holder knows no other. A file that all see is mapped by the process itself.
    pub(crate) fn translate(&self, outer: i32, process: &mut Process) {
        if self.of_process(outer).is_none() {
            return;
        }
        if let Some(home) = self.home_path(outer, &process.executable, "exe") {
            process.executable = home;
        }
        for area in &mut process.areas {
            let file = map_file(area);
            if let AreaKind::Private { path, .. } = &mut area.kind
                && is_file(path)
                && let Some(home) = self.home_path(outer, path, &file)
            {
                *path = home;
            }
        }
    }

    /// Whether devices are mounted of another network than the first process's.
    pub(crate) fn have_devices(&self) -> bool {
        let are_devices = |change: &MountChange| matches!(change, MountChange::Devices { .. });
        self.all.iter().any(|space| space.difference.changes.iter().any(are_devices))
    }

    /// What stands in the way. `is_nested` tells whether what is on a device is of a namespace beside the first
    /// process's.
    pub(crate) fn objections(&self, members: &[Member], is_nested: impl Fn(&str) -> bool) -> Vec<Refusal> {
        let mut refusals = self.first_objections(members);
        for (number, space) in self.all.iter().enumerate() {
            let lost = |change| self.lost(number, change).or_else(|| stray(change, &is_nested));
            let lost = space.difference.changes.iter().filter_map(lost);
            for (kind, advice) in space.difference.objections.iter().cloned().chain(lost) {
                refusals.push(Refusal { pid: space.pid, name: space.name.clone(), descriptor: None, kind, advice });
            }
        }
        refusals
    }

    /// The same of the first process's own, said of one that is in it.
    fn first_objections(&self, members: &[Member]) -> Vec<Refusal> {
        let Some((start, difference)) = &self.start else { return Vec::new() };
        let is_here = |member: &&Member| member.state != 'Z' && self.of_process(member.outer).is_none();
        let Some(member) = members.iter().find(is_here) else { return Vec::new() };
        let lost = |change: &MountChange| self.first_lost(start, change).or_else(|| stray(change, |_| false));
        let lost = difference.changes.iter().filter_map(lost);
        let refusal = |(kind, advice)| {
            let (pid, name) = (member.pid, member.name.clone());
            Refusal { pid, name, descriptor: None, kind, advice }
        };
        difference.objections.iter().cloned().chain(lost).map(refusal).collect()
    }

    /// Whether what the guest has mounted once more is not what its path led to at the start. What is covered by now
    /// cannot be looked at.
    fn first_lost(&self, start: &MountTree, change: &MountChange) -> Option<Objection> {
        let MountChange::Bind { path, from, .. } = change else { return None };
        let (device, place) = if from.space.is_none() { start.place(&from.path) } else { self.first.place(&from.path) };
        let is_seen =
            self.first.place(&from.path) == (device, place.clone()) && self.first.place(path) == (device, place);
        let differs = is_seen && self.identity(None, path) != self.identity(None, &from.path);
        let kind = || format!("a mount of files of the guest's own that have no path any more (on {path})");
        differs.then(|| (kind(), "unmount it"))
    }

    /// Whether a path led somewhere else when the first process began: whoever holds an image finds the files of
    /// programs as they were then.
    fn is_moved(&self, path: &str) -> bool {
        let Some((start, difference)) = &self.start else { return false };
        !difference.changes.is_empty() && start.place(path) != self.first.place(path)
    }

    /// Whether what is mounted once more is not what its path leads to. What another mount covers cannot be looked at.
    fn lost(&self, number: usize, change: &MountChange) -> Option<Objection> {
        let MountChange::Bind { path, from, .. } = change else { return None };
        let tree = |space: Option<usize>| space.map_or(&self.first, |space| &self.all[space].tree);
        let is_seen = tree(Some(number)).place(path) == tree(from.space).place(&from.path);
        let differs = is_seen && self.identity(Some(number), path) != self.identity(from.space, &from.path);
        let kind = || format!("a mount of files of its mnt namespace that have no path any more (on {path})");
        differs.then(|| (kind(), "unmount it there, or stop what made it"))
    }

    /// What stands in the way of a process: its root, its directory, its program, its memory.
    pub(crate) fn member_objections(&self, member: &Member, areas: &[Area]) -> Vec<Objection> {
        const ONLY: &str = "start it from files that the guest's first process sees, too";
        let is_changed = self.start.as_ref().is_some_and(|(_, difference)| !difference.changes.is_empty());
        let mut objections: Vec<_> = self.root_objection(member).into_iter().collect();
        if self.all.is_empty() && !is_changed {
            return objections;
        }
        objections.extend(self.directory_objection(member));
        if self.of_process(member.outer).is_none() {
            objections.extend(self.moved_objections(member, areas));
            return objections;
        }
        let program = proc_file::link(member.outer, "exe").unwrap_or_default();
        if is_file(&program) && self.home_path(member.outer, &program, "exe").is_none() {
            objections.push((format!("a program that only its mnt namespace has ({program})"), ONLY));
        }
        for area in areas {
            let file = map_file(area);
            let kind = match &area.kind {
                AreaKind::Private { path, .. } if is_file(path) && *path != program => {
                    let lost = self.home_path(member.outer, path, &file).is_none();
                    lost.then(|| format!("memory of a file that only its mnt namespace has ({path})"))
                }
                AreaKind::Shared { path, writable: false, .. } if path.ends_with(DELETED) => {
                    let lacks = !self.sees_processes(member.outer);
                    lacks.then(|| {
                        format!("memory of a file without a name, which it cannot write to, without /proc ({path})")
                    })
                }
                AreaKind::Shared { path, .. } if is_file(path) => {
                    let lost = !self.leads_back(member.outer, path, &file);
                    lost.then(|| format!("memory of a file that its mnt namespace does not have ({path})"))
                }
                _ => None,
            };
            objections.extend(kind.map(|kind| (kind, ONLY)));
        }
        objections.dedup();
        objections
    }

    /// Whether /proc is where a process looks for it. By that it opens once more what it has open.
    fn sees_processes(&self, outer: i32) -> bool {
        let tree = self.of_process(outer).map_or(&self.first, |space| &self.all[space].tree);
        tree.get(tree.leads_to("/proc", &HashSet::new())).kind == "proc"
    }

    /// Programs and memory of files that a holder would not find where they are.
    fn moved_objections(&self, member: &Member, areas: &[Area]) -> Vec<Objection> {
        const MOVED: &str = "start it from where the guest's files were before";
        let program = proc_file::link(member.outer, "exe").unwrap_or_default();
        let mapped = areas.iter().filter_map(|area| match &area.kind {
            AreaKind::Private { path, .. } => Some(path.as_str()),
            _ => None,
        });
        let moved = [program.as_str()].into_iter().chain(mapped).find(|path| is_file(path) && self.is_moved(path));
        let kind = |path: &str| format!("a program or library of what the guest has mounted itself ({path})");
        moved.map(|path| (kind(path), MOVED)).into_iter().collect()
    }

    /// A clone enters a root by its path. The first process is there before any is looked for.
    fn root_objection(&self, member: &Member) -> Option<Objection> {
        let root = proc_file::root(member.outer).ok()??;
        let leads = member.outer != self.init && is_file(&root) && self.leads_back(member.outer, &root, "root");
        let kind = || format!("it has a root directory of its own that no path leads to ({root})");
        (!leads).then(|| (kind(), "start the program without chroot, or in a directory that stays"))
    }

    fn directory_objection(&self, member: &Member) -> Option<Objection> {
        let directory = proc_file::link(member.outer, "cwd").ok()?;
        let lost = is_file(&directory) && !self.leads_back(member.outer, &directory, "cwd");
        let kind = || format!("its working directory is not of its own mnt namespace ({directory})");
        lost.then(|| (kind(), "start it in another directory"))
    }

    /// Whether a path leads a process to what one of its files in /proc is; of one that is gone meanwhile nobody knows.
    fn leads_back(&self, outer: i32, path: &str, file: &str) -> bool {
        let Ok(about) = std::fs::metadata(format!("/proc/{outer}/{file}")) else { return true };
        self.identity(self.of_process(outer), path) == Some((about.dev(), about.ino()))
    }

    /// Why an open file cannot be had again, if it cannot.
    pub(crate) fn file_objection(&self, outer: i32, found: &Found, outside: &[Outside]) -> Option<Objection> {
        if descriptors::supplied(found, outside).is_some() {
            return None;
        }
        self.place_of_file(outer, found).err()?;
        // Who came in from outside has what whoever sent it has opened: a path of the host's means something else to
        // the guest, or nothing.
        Some(match self.mount_of(found) {
            None => (
                format!("a file of the outside, or of what is not mounted any more ({})", found.target),
                "end the program, or have it open files of the guest's",
            ),
            Some(_) => {
                (format!("a file that its mnt namespace has elsewhere or not any more ({})", found.target), "close it")
            }
        })
    }

    /// Whether what has a path in a process's own namespace is something else, or nothing, in the first process's.
    pub(crate) fn is_elsewhere(&self, outer: i32, path: &str) -> bool {
        self.of_process(outer).is_some_and(|space| {
            // Links are those of the namespace that one looks in.
            let identity = |space| self.identity_by(space, path, Links::OnTheWay);
            let there = identity(Some(space));
            there.is_some() && there != identity(None)
        })
    }
}

type Objection = (String, &'static str);

/// Whether message queues or devices are mounted that are of no namespace of a process's own.
fn stray(change: &MountChange, is_nested: impl Fn(&str) -> bool) -> Option<Objection> {
    let (kind, path, device) = match change {
        MountChange::Queues { path, device, .. } => ("mqueue", path, device),
        MountChange::Devices { path, device, .. } => ("sysfs", path, device),
        _ => return None,
    };
    let kind = || format!("a file system that only its mnt namespace has ({kind} on {path})");
    (!is_nested(device)).then(|| (kind(), "unmount it there, or stop what made it"))
}

/// What the first process had mounted at its start, and what has changed since.
fn since_the_start(subject: &Subject<'_>, first: &MountTree) -> (MountTree, Difference) {
    let start = given::at_the_start(subject.init, first, subject.given, subject.host_devices);
    let mut difference = Difference::since(&start, first);
    let root = first.get(first.root());
    if subject.given.iter().any(|one| one.path == "/" && one.kind != root.kind) {
        difference.objections.push(("another root than it was given (pivot_root)".into(), "start it without"));
    }
    (start, difference)
}

fn refused(kind: String) -> Difference {
    Difference { objections: vec![(kind, "stop what made it")], ..Difference::default() }
}

/// Whether an open file is of a file system that the kernel has mounted for itself, as it has the message queues of an
/// ipc namespace.
fn is_of_the_kernels(found: &Found) -> bool {
    const MESSAGE_QUEUES: i64 = 0x1980_0202;
    rustix::fs::statfs(&found.path).is_ok_and(|about| about.f_type == MESSAGE_QUEUES)
}

/// Whether a process has another root than its mount namespace.
fn has_own_root(outer: i32) -> bool {
    proc_file::root(outer).is_ok_and(|root| root.is_some())
}

/// Whether a name of /proc is one of a file that has it.
fn is_file(path: &str) -> bool {
    path.starts_with('/') && !path.ends_with(DELETED)
}

/// What a path leads to, as a process sees it: guests write what is on it.
fn open(outer: i32, path: &str, links: Links) -> Option<Place> {
    Root::of_process(outer).ok()?.place(path, links).ok()
}
