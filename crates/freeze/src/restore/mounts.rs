//! How a clone's mount namespaces are made: copies of the first process's, by the maker, which comes back from each.
//! What is mounted is taken as a detached mount (open_tree(2), fsmount(2), since Linux 5.2) before anything is changed,
//! for what is mounted over a place hides it.
//!
//! Everything is a path inside the clone's own root, and no link is followed: the kernel told the paths of mounts,
//! which have none.

use crate::image::made_mounts::made;
use crate::image::namespace_kind::{IPC, MOUNTS};
use crate::image::{Image, Link, MountChange};
use crate::restore::script::{AT_FDCWD, Chapter, Writer};
use crate::restore::slots::Slots;
use crate::restore::{contents, networks};

const MAKING: Chapter = Writer::MAKING;

/// Writes the maker's steps that change the first process's own. `inside` writes what is made once all is mounted, and
/// before nobody may write to what nobody could write to.
pub(crate) fn make_first(
    writer: &mut Writer,
    image: &Image,
    (slots, helper): (Slots, i32),
    inside: impl FnOnce(&mut Writer),
) {
    // A clone with an init of its own shares what is mounted, as its source did at its start: what is changed is
    // changed in one place alone, and shared again where it was.
    if image.first().is_some() || !image.mounts.is_empty() {
        let arguments = [0, writer.string("/"), 0, libc::MS_PRIVATE | libc::MS_REC, 0];
        writer.call(MAKING, "setting what is mounted apart", libc::SYS_mount, &arguments);
    }
    // What is had of what it made itself is said to be of number 0.
    let making = Making { image, slots, helper, number: 0, link: Link::Follows, changes: &image.mounts };
    making.take(writer);
    contents::fill_given(writer, image, (slots, helper));
    making.change(writer);
    inside(writer);
    making.protect(writer);
}

/// Writes the maker's steps: a namespace for each, and one to go back to. `inside` writes what is opened in one,
/// and `helper` is a pid that is free.
pub(crate) fn make(
    writer: &mut Writer,
    image: &Image,
    (slots, helper): (Slots, i32),
    mut inside: impl FnMut(&mut Writer, usize),
) {
    let top = writer.string("/");
    if image.shared_mounts {
        let arguments = [0, top, 0, libc::MS_SHARED | libc::MS_REC, 0];
        writer.call(MAKING, "sharing what is mounted", libc::SYS_mount, &arguments);
    }
    propagate(writer, slots, &image.mounts);
    if image.mount_spaces.is_empty() {
        return;
    }
    MOUNTS.keep(writer, slots.mount_space(None));
    for (number, space) in image.mount_spaces.iter().enumerate() {
        MOUNTS.make(writer);
        MOUNTS.keep(writer, slots.mount_space(Some(number)));
        let link = match space.link {
            Link::Peers => None,
            Link::Follows => Some(libc::MS_SLAVE),
            Link::Alone => Some(libc::MS_PRIVATE),
        };
        if let Some(link) = link {
            let arguments = [0, top, 0, link | libc::MS_REC, 0];
            writer.call(MAKING, "setting a mount namespace apart", libc::SYS_mount, &arguments);
        }
        let making = Making { image, slots, helper, number, link: space.link, changes: &space.changes };
        making.take(writer);
        making.change(writer);
        making.protect(writer);
        if space.shared {
            let arguments = [0, top, 0, libc::MS_SHARED | libc::MS_REC, 0];
            writer.call(MAKING, "sharing what is mounted", libc::SYS_mount, &arguments);
        }
        propagate(writer, slots, &space.changes);
        inside(writer, number);
        MOUNTS.enter(writer, MAKING, slots.mount_space(None));
    }
}

/// One of them, while the maker is in it.
struct Making<'a> {
    image: &'a Image,
    slots: Slots,
    helper: i32,
    number: usize,
    link: Link,
    changes: &'a [MountChange],
}

/// Writes who hears of what is mounted on some, where that is not as it is with most.
fn propagate(writer: &mut Writer, slots: Slots, changes: &[MountChange]) {
    for change in changes {
        if let MountChange::Propagate { path, kind } = change {
            find(writer, slots, path);
            attribute(writer, path, slots.spare(), [0, 0, *kind]);
        }
    }
}

/// Opens a place, as the spare descriptor.
fn find(writer: &mut Writer, slots: Slots, path: &str) {
    let at = writer.string(path);
    let how = writer.words(&[(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64, 0, libc::RESOLVE_NO_SYMLINKS]);
    writer.open(MAKING, format!("finding {path}"), libc::SYS_openat2, &[AT_FDCWD, at, how, 24], slots.spare());
}

impl Making<'_> {
    /// What is made, and where its mount waits.
    fn made(&self) -> impl Iterator<Item = (&MountChange, u64)> {
        made(self.changes).enumerate().map(|(number, change)| (change, self.slots.mounting(number)))
    }

    /// Takes all that is mounted and there already. The kernel lets a file system of processes be made only where one
    /// is to be seen.
    fn take(&self, writer: &mut Writer) {
        for (change, slot) in self.made() {
            match change {
                MountChange::Proc { path, options, .. } => self.create(writer, "proc", path, options, slot),
                MountChange::Queues { path, space, .. } => {
                    IPC.enter(writer, MAKING, self.slots.ipc_space(Some(*space)));
                    self.create(writer, "mqueue", path, "", slot);
                    IPC.enter(writer, MAKING, self.slots.ipc_space(None));
                }
                MountChange::Devices { path, space, .. } => {
                    networks::inside(writer, self.slots, Some(*space), |writer| {
                        self.create(writer, "sysfs", path, "", slot);
                    });
                }
                MountChange::Bind { from, .. } if from.space.is_none() => self.clone_of(writer, &from.path, slot),
                MountChange::Bind { from, .. } if from.space != Some(self.number) => {
                    MOUNTS.enter(writer, MAKING, self.slots.mount_space(from.space));
                    self.clone_of(writer, &from.path, slot);
                    let link = if self.link == Link::Alone { libc::MS_PRIVATE } else { libc::MS_SLAVE };
                    attribute(writer, &from.path, slot, [0, 0, link]);
                    MOUNTS.enter(writer, MAKING, self.slots.mount_space(Some(self.number)));
                }
                _ => {}
            }
        }
    }

    fn clone_of(&self, writer: &mut Writer, path: &str, slot: u64) {
        find(writer, self.slots, path);
        let empty = writer.string("");
        let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u64 | libc::AT_EMPTY_PATH as u64;
        writer.open(MAKING, format!("taking {path}"), libc::SYS_open_tree, &[self.slots.spare(), empty, flags], slot);
    }

    /// Makes every change.
    fn change(&self, writer: &mut Writer) {
        let mut waiting = self.made().map(|(_, slot)| slot);
        for change in self.changes {
            match change {
                MountChange::Gone { path } => gone(writer, path),
                MountChange::Set { path, attributes } => {
                    find(writer, self.slots, path);
                    attribute(writer, path, self.slots.spare(), [*attributes, ALL, 0]);
                }
                MountChange::Bind { path, from, .. } => {
                    let Some(slot) = waiting.next() else { return };
                    if from.space == Some(self.number) {
                        self.clone_of(writer, &from.path, slot);
                    }
                    self.attach(writer, path, slot);
                }
                MountChange::Proc { path, .. }
                | MountChange::Queues { path, .. }
                | MountChange::Devices { path, .. } => {
                    let Some(slot) = waiting.next() else { return };
                    self.attach(writer, path, slot);
                }
                MountChange::Propagate { .. } => {}
                MountChange::Memory { path, options, contents, .. } => {
                    let Some(slot) = waiting.next() else { return };
                    self.create(writer, "tmpfs", path, options, slot);
                    self.attach(writer, path, slot);
                    contents::make_some(writer, self.image, (self.slots, self.helper), contents.0..contents.1);
                }
            }
        }
    }

    /// Makes a file system.
    fn create(&self, writer: &mut Writer, kind: &str, path: &str, options: &str, slot: u64) {
        let spare = self.slots.spare();
        let kind = writer.string(kind);
        let label = || format!("making a file system for {path}");
        writer.open(MAKING, label(), libc::SYS_fsopen, &[kind, FSOPEN_CLOEXEC], spare);
        for (key, value) in options.split(',').filter_map(|option| option.split_once('=')) {
            let arguments = [spare, FSCONFIG_SET_STRING, writer.string(key), writer.string(value), 0];
            writer.call(MAKING, label(), libc::SYS_fsconfig, &arguments);
        }
        writer.call(MAKING, label(), libc::SYS_fsconfig, &[spare, FSCONFIG_CMD_CREATE, 0, 0, 0]);
        writer.open(MAKING, label(), libc::SYS_fsmount, &[spare, FSMOUNT_CLOEXEC, 0], slot);
    }

    fn attach(&self, writer: &mut Writer, path: &str, slot: u64) {
        find(writer, self.slots, path);
        let empty = writer.string("");
        let arguments = [slot, empty, self.slots.spare(), empty, MOVE_MOUNT_EMPTY_PATHS];
        writer.call(MAKING, format!("mounting {path}"), libc::SYS_move_mount, &arguments);
        if path == "/" {
            become_root(writer, slot);
        }
    }

    /// Gives what was mounted its attributes, once everything is in it.
    fn protect(&self, writer: &mut Writer) {
        for (change, slot) in self.made() {
            if let MountChange::Bind { path, attributes, .. }
            | MountChange::Memory { path, attributes, .. }
            | MountChange::Proc { path, attributes, .. }
            | MountChange::Queues { path, attributes, .. }
            | MountChange::Devices { path, attributes, .. } = change
            {
                attribute(writer, path, slot, [*attributes, ALL, 0]);
                writer.call(MAKING, "closing what is mounted", libc::SYS_close, &[slot]);
            }
        }
        writer.attempt(MAKING, "closing a place", libc::SYS_close, &[self.slots.spare()]);
    }
}

/// Writes the putting of what was mounted over the root into its place, and the going of all that was there: what
/// pivot_root(2) says of a place that is both the new root and where the old one goes.
fn become_root(writer: &mut Writer, slot: u64) {
    let here = writer.string(".");
    writer.call(MAKING, "going to another root", libc::SYS_fchdir, &[slot]);
    writer.call(MAKING, "making it the root", libc::SYS_pivot_root, &[here, here]);
    writer.call(MAKING, "unmounting the root that was", libc::SYS_umount2, &[here, libc::MNT_DETACH as u64]);
    let top = writer.string("/");
    writer.call(MAKING, "being there", libc::SYS_chdir, &[top]);
}

/// What is below /proc and /sys is the clone's own, and need not be there.
fn gone(writer: &mut Writer, path: &str) {
    let at = writer.string(path);
    let arguments = [at, (libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) as u64];
    let label = format!("unmounting {path}");
    if path.starts_with("/proc/") || path.starts_with("/sys/") {
        writer.attempt(MAKING, label, libc::SYS_umount2, &arguments);
    } else {
        writer.call(MAKING, label, libc::SYS_umount2, &arguments);
    }
}

/// mount_setattr(2), since Linux 5.12: what to set, what to clear before, propagation.
fn attribute(writer: &mut Writer, path: &str, slot: u64, [set, clear, propagation]: [u64; 3]) {
    let empty = writer.string("");
    let attributes = writer.words(&[set & ALL, clear, propagation, 0]);
    let arguments = [slot, empty, libc::AT_EMPTY_PATH as u64, attributes, 32];
    writer.call(MAKING, format!("setting the attributes of {path}"), libc::SYS_mount_setattr, &arguments);
}

/// Everything that `MOUNT_ATTR_*` says and a guest may change: read-only, set-ids, devices, programs, times, times of
/// directories, links.
const ALL: u64 = 0x1 | 0x2 | 0x4 | 0x8 | 0x70 | 0x80 | 0x20_0000;

const OPEN_TREE_CLONE: u64 = 1;
const FSOPEN_CLOEXEC: u64 = 1;
const FSCONFIG_SET_STRING: u64 = 1;
const FSCONFIG_CMD_CREATE: u64 = 6;
const FSMOUNT_CLOEXEC: u64 = 1;

/// `MOVE_MOUNT_F_EMPTY_PATH`, `MOVE_MOUNT_T_EMPTY_PATH`.
const MOVE_MOUNT_EMPTY_PATHS: u64 = 0x4 | 0x40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{MountSource, MountSpace, Process};

    fn lines(image: &Image) -> Vec<String> {
        let mut writer = Writer::new();
        let slots = Slots::of(image);
        make(&mut writer, image, (slots, 9), |writer, _| writer.call(MAKING, "inside", 0, &[]));
        crate::restore::namespaces::enter(&mut writer, MAKING, image, &image.processes[0], slots);
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        let label = |line: &str| Some(line.split_once(' ')?.1.split_once(": 0x")?.0.to_owned());
        text.lines().filter_map(label).collect()
    }

    #[test]
    fn what_is_mounted_once_more_is_taken_first_and_protected_last() {
        let process = Process { pid: 2, ..Process::default() };
        let mut image = Image { processes: vec![process], init: 1, ..Image::default() };
        assert!(lines(&image).is_empty());
        let from = MountSource { space: None, path: "/from".into() };
        image.mount_spaces.push(MountSpace {
            changes: vec![
                MountChange::Gone { path: "/old".into() },
                MountChange::Memory { path: "/x".into(), options: "size=5k".into(), attributes: 1, contents: (0, 0) },
                MountChange::Bind { path: "/x/to".into(), from, attributes: 1 },
            ],
            ..MountSpace::default()
        });
        let lines = lines(&image);
        let place = |label: &str| lines.iter().position(|line| line == label).unwrap_or_else(|| panic!("{lines:?}"));
        let order = [
            "making a mnt namespace",
            "setting a mount namespace apart",
            "taking /from",
            "unmounting /old",
            "mounting /x",
            "mounting /x/to",
            "setting the attributes of /x",
            "inside",
        ]
        .map(place);
        assert!(order.is_sorted(), "{lines:?}");
        assert_eq!(lines.iter().filter(|line| *line == "entering a mnt namespace").count(), 2, "back, and the process");
    }
}
