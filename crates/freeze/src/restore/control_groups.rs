//! Control groups (version 2, cgroups(7)) that an init has made below its guest's own: a clone has the same, with the
//! same processes in them.
//!
//! The maker makes them, and each process enters its own. What a group gives to those below can be set only when nobody
//! is in it any more, the maker neither: so the first process does that, when it has nothing else to do.

use crate::image::{FileKind, Image, Process};
use crate::restore::inotify;
use crate::restore::script::{AT_FDCWD, Call, Chapter, Writer};
use crate::restore::slots::Slots;

/// What is delegated with a group.
const DELEGATED: [&str; 4] = ["", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"];

/// Writes the maker's making of all control groups.
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
    use crate::image::{ControlGroup, ControlGroups, FileWatch, OpenFile};

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
