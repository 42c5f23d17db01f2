//! Control groups (version 2, cgroups(7)) that an init has made below its guest's own: a clone has the same, with the same processes in them.
//!
//! The maker makes them, and each process enters its own. What a group gives to those below can be set only when nobody is in it any more, the maker neither:
//! so the first process does that, when it has nothing else to do.

use crate::credentials::IdMaps;
use crate::freeze::Subject;
use crate::image::control_group::{DEEPEST_GROUP, MOST_GROUPS, SETTINGS};
use crate::image::{ControlGroup, ControlGroups, FileKind, Image, Process};
use crate::inotify;
use crate::mount_tree::MountTree;
use crate::objects::Slots;
use crate::proc_file;
use crate::script::{Call, Chapter, Writer};
use crate::staging::AT_FDCWD;
use pando_kernel::{CallError, Context};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

/// What is delegated with a group.
const DELEGATED: [&str; 4] = ["", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"];

/// Where the groups of a guest are.
#[derive(Debug)]
pub(crate) struct Tree {
    init: i32,
    /// Where the guest has them mounted.
    mounted: String,
    /// The guest's own, as we see it.
    outer: String,
}

impl Tree {
    /// Those of a guest with an init of its own, which alone makes any; none where it has not mounted them.
    pub(crate) fn of(subject: &Subject<'_>) -> Result<Option<Self>, CallError> {
        if !subject.whole {
            return Ok(None);
        }
        let tree = MountTree::parse(&proc_file::text(subject.init, "mountinfo")?).unwrap_or_default();
        let is_one = |path: &str| {
            let mount = tree.get(tree.leads_to(path, &std::collections::HashSet::new()));
            (mount.kind == "cgroup2" && mount.path == path).then(|| mount.root.clone())
        };
        let mut mounts = tree.all().iter().filter_map(|mount| Some((mount.path.clone(), is_one(&mount.path)?)));
        Ok(mounts.next().map(|(mounted, outer)| Self { init: subject.init, mounted, outer }))
    }

    fn open(&self, path: &str, flags: OFlags) -> Option<OwnedFd> {
        let root = File::open(format!("/proc/{}/root", self.init)).ok()?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let path = format!("{}{path}", self.mounted);
        rustix::fs::openat2(&root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve).ok()
    }

    /// What is in a file of a group.
    fn read(&self, path: &str, name: &str) -> Option<String> {
        const LONGEST: u64 = 4096;
        let mut text = String::new();
        // By now the guest may have something else there, which is not to be waited for.
        let file = File::from(self.open(&format!("{path}/{name}"), OFlags::RDONLY | OFlags::NONBLOCK)?);
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text.trim_end().to_owned())
    }

    fn given(&self, path: &str) -> Vec<String> {
        let text = self.read(path, "cgroup.subtree_control").unwrap_or_default();
        text.split_ascii_whitespace().map(str::to_owned).collect()
    }

    /// The paths of all groups below the guest's own, each before those inside.
    fn paths(&self) -> Vec<String> {
        let (mut paths, mut next) = (Vec::new(), vec![String::new()]);
        while let Some(above) = next.pop() {
            let Some(directory) = self.open(&above, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            let Ok(entries) = rustix::fs::Dir::read_from(&directory) else { continue };
            for entry in entries.flatten().filter(|entry| entry.file_type().is_dir()) {
                let Ok(name) = entry.file_name().to_str() else { continue };
                if name != "." && name != ".." && paths.len() <= MOST_GROUPS {
                    paths.push(format!("{above}/{name}"));
                    next.push(format!("{above}/{name}"));
                }
            }
        }
        paths.sort_by_key(|path| path.matches('/').count());
        paths
    }

    /// What stands in the way.
    pub(crate) fn objections(&self) -> Vec<(String, &'static str)> {
        let paths = self.paths();
        let mut objections = Vec::new();
        if paths.len() > MOST_GROUPS || paths.iter().any(|path| path.matches('/').count() > DEEPEST_GROUP) {
            objections.push((format!("more than {MOST_GROUPS} control groups, or too deep ones"), "remove some"));
        }
        for path in paths.iter().take(MOST_GROUPS) {
            let kind = self.read(path, "cgroup.type").unwrap_or_default();
            if !matches!(kind.as_str(), "" | "domain") {
                objections.push((format!("a control group of threads ({}{path})", self.mounted), "remove it"));
            }
            if self.read(path, "cgroup.freeze").is_some_and(|text| text == "1") {
                objections.push((format!("a control group that is frozen ({}{path})", self.mounted), "thaw it"));
            }
        }
        objections
    }

    /// Reads all of them.
    pub(crate) fn capture(&self, maps: &IdMaps) -> Result<ControlGroups, CallError> {
        let one = |path: String| {
            let what = || format!("looking at the control group {path}");
            let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
            let directory = self.open(&path, OFlags::PATH).ok_or_else(gone).context(what)?;
            let about = rustix::fs::fstat(&directory).context(what)?;
            let differs = |(name, new): &(&str, &str)| {
                let now = self.read(&path, name)?;
                (now != *new).then(|| ((*name).to_owned(), now))
            };
            Ok(ControlGroup {
                owner: (maps.user(about.st_uid).unwrap_or(0), maps.group(about.st_gid).unwrap_or(0)),
                given: self.given(&path),
                settings: SETTINGS.iter().filter_map(differs).collect(),
                path,
            })
        };
        let groups = self.paths().into_iter().map(one).collect::<Result<Vec<_>, CallError>>()?;
        let root = if groups.is_empty() { String::new() } else { self.mounted.clone() };
        Ok(ControlGroups { root, given: self.given(""), groups })
    }

    /// The path of a process's group below the guest's own.
    pub(crate) fn of_process(&self, outer: i32) -> Result<String, CallError> {
        let text = proc_file::text(outer, "cgroup")?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        Ok(path.strip_prefix(self.outer.trim_end_matches('/')).unwrap_or_default().to_owned())
    }
}

/// Writes the maker's steps.
pub(crate) fn make(writer: &mut Writer, image: &Image) {
    let chapter = Writer::MAKING;
    let all = &image.control_groups;
    for (number, group) in all.groups.iter().enumerate() {
        let path = all.at(Some(number));
        let at = writer.string(&path);
        writer.call(chapter, format!("making the control group {path}"), libc::SYS_mkdir, &[at, 0o755]);
        let (user, owners) = group.owner;
        for name in DELEGATED.iter().filter(|_| group.owner != (0, 0)) {
            let at = writer.string(&format!("{path}{name}"));
            writer.attempt(chapter, "setting an owner", libc::SYS_lchown, &[at, user.into(), owners.into()]);
        }
    }
}

/// Writes a process's entering of its own, whosever it has been forked with.
pub(crate) fn enter(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    let all = &image.control_groups;
    // One that has ended is in none.
    if all.groups.is_empty() || process.ended.is_some() {
        return;
    }
    let path = format!("{}/cgroup.procs", all.at(process.control_group));
    put(writer, chapter, &path, "0", (slots.spare(), Manner::Sure));
}

/// How something is written to a group's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Sure,
    /// Others have to leave the group first.
    Patient,
    /// It may not be had here.
    Perhaps,
}

fn put(writer: &mut Writer, chapter: Chapter, path: &str, text: &str, (slot, manner): (u64, Manner)) {
    let (at, bytes) = (writer.string(path), writer.data(text.as_bytes(), 1));
    let label = || format!("writing '{text}' to {path}");
    let arguments = [AT_FDCWD, at, (libc::O_WRONLY | libc::O_CLOEXEC) as u64];
    let write = [slot, bytes, text.len() as u64];
    if manner == Manner::Perhaps {
        writer.open(chapter, label(), Call::forgiven(libc::SYS_openat), &arguments, slot);
        writer.attempt(chapter, label(), libc::SYS_write, &write);
        writer.attempt(chapter, "closing a control group", libc::SYS_close, &[slot]);
        return;
    }
    writer.open(chapter, label(), libc::SYS_openat, &arguments, slot);
    match manner {
        Manner::Patient => writer.await_call(chapter, label(), libc::SYS_write, &write),
        _ => writer.call(chapter, label(), libc::SYS_write, &write),
    }
    writer.call(chapter, "closing a control group", libc::SYS_close, &[slot]);
}

/// Writes the first process's steps that set what groups have, when all who were in the guest's own have left it.
pub(crate) fn set(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    let all = &image.control_groups;
    if process.pid != image.init || all.groups.is_empty() {
        return;
    }
    let slot = slots.spare();
    let give = |writer: &mut Writer, group: Option<usize>, given: &[String]| {
        let text = given.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
        if !text.is_empty() {
            let path = format!("{}/cgroup.subtree_control", all.at(group));
            put(writer, chapter, &path, &text, (slot, Manner::Patient));
        }
    };
    give(writer, None, &all.given);
    for (number, group) in all.groups.iter().enumerate() {
        for (name, value) in &group.settings {
            let path = format!("{}/{name}", all.at(Some(number)));
            put(writer, chapter, &path, value, (slot, Manner::Perhaps));
        }
        give(writer, Some(number), &group.given);
    }
    // What watches their files had to wait for that.
    for (number, file) in image.files.iter().enumerate() {
        let FileKind::Inotify { watches } = &file.kind else { continue };
        if watches.iter().any(|watch| all.has(&watch.path)) {
            let late = watches.iter().filter(|watch| all.has(&watch.path));
            inotify::add_late(writer, chapter, (watches, late), slots.file(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{FileWatch, OpenFile};

    #[test]
    fn groups_are_made_entered_and_set_in_turn() {
        let group = |path: &str, given: &[&str]| ControlGroup {
            path: path.into(),
            given: given.iter().map(|name| (*name).to_owned()).collect(),
            settings: vec![("pids.max".into(), "9".into())],
            ..ControlGroup::default()
        };
        let mut image =
            Image { processes: vec![Process { pid: 1, ..Process::default() }], init: 1, ..Image::default() };
        image.control_groups = ControlGroups {
            root: "/sys/fs/cgroup".into(),
            given: vec!["pids".into()],
            groups: vec![group("/a", &["pids"]), group("/a/b", &[])],
        };
        image.processes[0].control_group = image.control_groups.place("/a/b");
        let watch = |number, path: &str| FileWatch { number, path: path.into(), events: 2 };
        let watches = vec![watch(1, "/sys/fs/cgroup/a/pids.events"), watch(2, "/sys/fs/cgroupies")];
        let kind = FileKind::Inotify { watches };
        image.files = vec![OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None }];
        let (mut writer, slots, process) = (Writer::new(), Slots::of(&image), &image.processes[0]);
        make(&mut writer, &image);
        enter(&mut writer, Writer::MAKING, &image, process, slots);
        set(&mut writer, Writer::MAKING, &image, process, slots);
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        let place = |label: &str| text.find(label).unwrap_or_else(|| panic!("{label}: {text}"));
        let order = [
            "making the control group /sys/fs/cgroup/a:",
            "making the control group /sys/fs/cgroup/a/b:",
            "writing '0' to /sys/fs/cgroup/a/b/cgroup.procs",
            "writing '+pids' to /sys/fs/cgroup/cgroup.subtree_control",
            "writing '9' to /sys/fs/cgroup/a/pids.max",
            "writing '+pids' to /sys/fs/cgroup/a/cgroup.subtree_control",
            "writing '9' to /sys/fs/cgroup/a/b/pids.max",
            "watching /sys/fs/cgroup/a/pids.events",
        ]
        .map(place);
        assert!(order.is_sorted() && !text.contains("cgroupies"), "{text}");
    }
}
