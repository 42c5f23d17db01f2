//! What a command does to mounts and superblocks that would be seen in the live tree.
//!
//! What a transaction cannot isolate is read-only in its view: single files that are mounts, file systems that no
//! overlay lies over, control groups. In a mount namespace of its own a command may make such a mount writable again;
//! and whoever mounts a block device of the machine writes to it at once, be it one of a file system in use, or one
//! over a file of the live tree. Neither could be undone.

use super::argument::{self, Fails};
use super::named_path::{LastLink, Missed, Namer, Start};
use pando_kernel::file::confined::by_descriptor;
use pando_kernel::filesystem::loop_device;
use pando_kernel::seccomp::notify::Call;
use rustix::fs::{
    AtFlags, FileType, StatVfsMountFlags, StatxAttributes, StatxFlags, fstat, fstatfs, fstatvfs, major, minor, statx,
};
use std::fs::File;
use std::io::Seek;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// `fsconfig` sets a value that is a text, or one that is a path (linux/mount.h).
const SET_STRING: u64 = 1;
const SET_PATH: u64 = 3;

/// More of a key of `fsconfig`, and of a kind of file systems, than matters.
const KEY: usize = 16;

/// `FSPICK_SYMLINK_NOFOLLOW`; to other calls it is AT_SYMLINK_NOFOLLOW.
const PICK_LINK: u64 = 2;

/// `MOUNT_ATTR_RDONLY`
const READ_ONLY: u64 = 1;

/// Mounts that are seen from a view, as /proc/PID/mountinfo lists them.
pub(super) struct Seen(Option<String>);

impl Seen {
    /// Reads an open mountinfo anew.
    pub(super) fn read(mounts: Option<&File>) -> Self {
        let read =
            |mut mounts: &File| mounts.rewind().and_then(|()| pando_kernel::file::proc_file::text_of(mounts)).ok();
        Self(mounts.and_then(read))
    }

    /// Whether something of a device number, of a mounted file system, is among them. Where that cannot be known it is.
    pub(super) fn has(&self, (major, minor): (u32, u32)) -> bool {
        let device = format!("{major}:{minor}");
        self.0.as_ref().is_none_or(|text| text.lines().any(|line| line.split(' ').nth(2) == Some(device.as_str())))
    }

    /// Whether a place is the transaction's own, so that nobody outside can be reached through it: one in an overlay of
    /// the view's, or on a file system that a process `with_own_mounts` has mounted itself.
    pub(super) fn is_own_place(mounts: Option<&File>, pid: i32, place: &OwnedFd, with_own_mounts: bool) -> bool {
        let Ok(found) = fstatfs(place) else { return false };
        // Through an overlay nobody outside can be reached; those who can be are bound in, each as a mount of its own,
        // also from a target's overlay.
        let in_overlay = found.f_type == libc::OVERLAYFS_SUPER_MAGIC && !is_mount(place);
        if !with_own_mounts {
            // Overlays of others are read-only in the view, and stay so.
            return in_overlay && found.f_flags & libc::ST_RDONLY as i64 == 0;
        }
        let seen = Self::read(mounts);
        match device_of(pid, place) {
            Some(device) => in_overlay && seen.is_overlay(device) || !seen.has(device),
            // What a process in a root of its own is not shown a mount of may be an overlay still.
            None => {
                let device = fstat(place).map(|found| (major(found.st_dev), minor(found.st_dev)));
                in_overlay && device.is_ok_and(|device| seen.is_overlay(device))
            }
        }
    }

    /// Whether a block device is the transaction's own: a loop device over a file that lies in the view. What is
    /// written to any other by a mount of it is written at once: the device may be one of several of a file system in
    /// use, or lie over a file of the live tree.
    fn is_own(&self, device: u64, path: &Path) -> bool {
        const LOOP: u32 = 7;
        let lies_in_view = |below| self.is_overlay((major(below), minor(below)));
        major(device) == LOOP && loop_device::file_system_below(path).is_ok_and(lies_in_view)
    }

    /// Whether a device number is that of an overlay that can be written to: of the view's, then, in which any other is
    /// read-only.
    fn is_overlay(&self, (major, minor): (u32, u32)) -> bool {
        let device = format!("{major}:{minor}");
        let is_it = |line: &str| {
            let field = |number| line.split(' ').nth(number).unwrap_or_default();
            let kind = line.split_once(" - ").map_or("", |(_, rest)| rest);
            field(2) == device && field(5).split(',').any(|option| option == "rw") && kind.starts_with("overlay ")
        };
        self.0.as_ref().is_some_and(|text| text.lines().any(is_it))
    }

    /// Whether a call would change or reach what is in the live tree.
    pub(super) fn is_reached_by(&self, call: &Call, name: &str, namer: &Namer<'_>) -> Result<bool, Fails> {
        let [first, second, third, fourth, ..] = call.arguments;
        let from = Start::of(first as i32);
        match name {
            "mount" => self.is_mounted(call, fourth, namer),
            "open_tree_attr" if fourth == 0 => Ok(false),
            "mount_setattr" | "open_tree_attr" => {
                let mut cleared = [0; 8];
                argument::read(call.pid, fourth.wrapping_add(8), &mut cleared)?;
                if u64::from_ne_bytes(cleared) & READ_ONLY == 0 {
                    return Ok(false);
                }
                // With all that is mounted below it, which is most of what is read-only.
                if third & libc::AT_RECURSIVE as u64 != 0 && self.has_read_only() {
                    return Ok(true);
                }
                let last = last_link(third & libc::AT_SYMLINK_NOFOLLOW as u64 != 0);
                Ok(self.is_kept_from_writing(&place(namer, from, second, last)?))
            }
            "fsopen" => is_machines_own(call.pid, first),
            "fspick" => Ok(self.is_live(&place(namer, from, second, last_link(third & PICK_LINK != 0))?)),
            "fsconfig" if [SET_STRING, SET_PATH].contains(&second) => {
                // The number of a directory is no part of a text.
                let from =
                    if second == SET_PATH { Start::of(call.arguments[4] as i32) } else { Start::WorkingDirectory };
                Ok(argument::text(call.pid, third, KEY)? == b"source" && self.is_source(namer, from, fourth)?)
            }
            _ => Ok(false),
        }
    }

    fn is_mounted(&self, call: &Call, flags: u64, namer: &Namer<'_>) -> Result<bool, Fails> {
        let has = |flag: libc::c_ulong| flags & flag != 0;
        let target = || place(namer, Start::WorkingDirectory, call.arguments[1], LastLink::Followed);
        if has(libc::MS_REMOUNT) && has(libc::MS_BIND) {
            return Ok(!has(libc::MS_RDONLY) && self.is_kept_from_writing(&target()?));
        }
        if has(libc::MS_REMOUNT) {
            return Ok(self.is_live(&target()?));
        }
        let others = libc::MS_BIND | libc::MS_MOVE | libc::MS_SHARED | libc::MS_PRIVATE | libc::MS_SLAVE;
        if has(others | libc::MS_UNBINDABLE) {
            return Ok(false);
        }
        let [source, _, kind, ..] = call.arguments;
        Ok(is_machines_own(call.pid, kind)? || self.is_source(namer, Start::WorkingDirectory, source)?)
    }

    /// Whether a path that a process names is a block device that is not the transaction's own.
    fn is_source(&self, namer: &Namer<'_>, from: Start, at: u64) -> Result<bool, Fails> {
        let is_others = |device: &OwnedFd| {
            let Ok(found) = fstat(device) else { return true };
            FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice
                && !self.is_own(found.st_rdev, Path::new(&by_descriptor(device.as_fd())))
        };
        // Most sources are no paths, but words.
        Ok(if at == 0 { false } else { place(namer, from, at, LastLink::Followed)?.is(is_others) })
    }

    /// Whether any mount of a file system of the live tree is read-only.
    fn has_read_only(&self) -> bool {
        let is_read_only = |line: &str| line.split(' ').nth(5).is_some_and(|all| all.split(',').any(|one| one == "ro"));
        self.0.as_ref().is_none_or(|text| text.lines().any(is_read_only))
    }

    /// Whether what a process has open is on a file system of the live tree, and on none of the view's overlays: a
    /// handle leads to all of it, whatever of it is mounted.
    pub(super) fn is_live_descriptor(&self, pid: i32, descriptor: i32) -> bool {
        let path = match descriptor {
            libc::AT_FDCWD => format!("/proc/{pid}/cwd"),
            open => format!("/proc/{pid}/fd/{open}"),
        };
        match rustix::fs::stat(path) {
            Ok(found) => {
                let device = (major(found.st_dev), minor(found.st_dev));
                self.has(device) && !self.is_overlay(device)
            }
            // The kernel says so, too.
            Err(errno) => errno != rustix::io::Errno::NOENT,
        }
    }

    fn is_live(&self, place: &Place) -> bool {
        place.is(|place| fstat(place).map_or(true, |found| self.has((major(found.st_dev), minor(found.st_dev)))))
    }

    /// Whether a file system of the live tree is read-only there.
    fn is_kept_from_writing(&self, place: &Place) -> bool {
        place.is(|place| fstatvfs(place).map_or(true, |found| found.f_flag.contains(StatVfsMountFlags::RDONLY)))
            && self.is_live(place)
    }
}

/// Kinds of file systems of which the machine has one, whoever mounts it: control groups, and by what the others are
/// written to the kernel is changed for everybody.
const MACHINES_OWN: [&[u8]; 19] = [
    b"cgroup",
    b"cgroup2",
    b"binfmt_misc",
    b"bpf",
    b"configfs",
    b"debugfs",
    b"devtmpfs",
    b"efivarfs",
    b"fusectl",
    b"nfsd",
    b"pstore",
    b"resctrl",
    b"rpc_pipefs",
    b"securityfs",
    b"selinuxfs",
    b"smackfs",
    b"tracefs",
    b"usbfs",
    b"xenfs",
];

/// What a path leads to that a call names.
enum Place {
    /// This, or nothing, of which the kernel says so.
    Found(Option<OwnedFd>),
    /// What cannot be looked at, or lies outside.
    Outside,
}

impl Place {
    /// Whether something holds of what is there. It does of what lies outside, and of nothing that is not there.
    fn is(&self, what: impl FnOnce(&OwnedFd) -> bool) -> bool {
        match self {
            Self::Found(place) => place.as_ref().is_some_and(what),
            Self::Outside => true,
        }
    }
}

fn place(namer: &Namer<'_>, from: Start, at: u64, last: LastLink) -> Result<Place, Fails> {
    let path = argument::path(namer.pid, at)?;
    Ok(match namer.find(from, &path, last) {
        Ok(found) => Place::Found(Some(found)),
        Err(Missed::Absent) => Place::Found(None),
        Err(Missed::Elsewhere | Missed::Unseen(_)) => Place::Outside,
    })
}

fn last_link(is_kept: bool) -> LastLink {
    if is_kept { LastLink::Kept } else { LastLink::Followed }
}

/// Whether a kind of file systems that a process names is one of these: a mount of them could be written to.
fn is_machines_own(pid: i32, at: u64) -> Result<bool, Fails> {
    if at == 0 {
        return Ok(false);
    }
    let kind = argument::text(pid, at, KEY)?;
    Ok(MACHINES_OWN.contains(&kind.as_slice()))
}

/// Whether something is where a mount begins (STATX_ATTR_MOUNT_ROOT, since Linux 5.8).
fn is_mount(place: &OwnedFd) -> bool {
    let found = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    found.map_or(true, |found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The device number of the file system that is mounted where a place is, as a process is shown its mounts. A file of
/// an overlay may itself have the number of what lies below.
fn device_of(pid: i32, place: &OwnedFd) -> Option<(u32, u32)> {
    let mount = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id.to_string();
    let mounts = pando_kernel::file::proc_file::text_of(&File::open(format!("/proc/{pid}/mountinfo")).ok()?).ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&mount))?;
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
