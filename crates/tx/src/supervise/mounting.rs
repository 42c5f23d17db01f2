//! What a command does to mounts and superblocks that would be seen in the live tree.
//!
//! What a transaction cannot isolate is read-only in its view: single files that are mounts, file systems that no
//! overlay lies over. In a mount namespace of its own a command may make such a mount writable again; and whoever
//! mounts a block device of the machine writes to it at once, be it one of a file system in use, or one over a file of
//! the live tree. Neither could be undone.

use super::object::c_string;
use pando_kernel::filesystem::loop_device;
use pando_kernel::seccomp::notify::Call;
use pando_kernel::trace::foreign_memory;
use rustix::fs::{FileType, StatVfsMountFlags, major, minor, stat, statvfs};
use std::ffi::OsString;
use std::fs::File;
use std::io::Seek;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// `fsconfig` sets a value that is a text, or one that is a path (linux/mount.h).
const SET_STRING: u64 = 1;
const SET_PATH: u64 = 3;

/// The longest path that the kernel takes, with its closing zero; and more of a key of `fsconfig` than matters.
const PATH_MAX: usize = libc::PATH_MAX as usize;
const KEY: usize = 16;

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

    /// Whether a block device is the transaction's own: a loop device over a file that lies in the view. What is
    /// written to any other by a mount of it is written at once: the device may be one of several of a file system in
    /// use, or lie over a file of the live tree.
    fn is_own(&self, device: u64, path: &Path) -> bool {
        const LOOP: u32 = 7;
        major(device) == LOOP && loop_device::file_system_below(path).is_ok_and(|below| self.is_overlay(below))
    }

    /// Whether a device number is that of an overlay that can be written to: of the view's, then, in which any other is
    /// read-only.
    fn is_overlay(&self, device: u64) -> bool {
        let device = format!("{}:{}", major(device), minor(device));
        let is_it = |line: &str| {
            let field = |number| line.split(' ').nth(number).unwrap_or_default();
            let kind = line.split_once(" - ").map_or("", |(_, rest)| rest);
            field(2) == device && field(5).split(',').any(|option| option == "rw") && kind.starts_with("overlay ")
        };
        self.0.as_ref().is_some_and(|text| text.lines().any(is_it))
    }

    /// Whether a call would change or reach what is in the live tree.
    pub(super) fn is_reached_by(&self, call: &Call, name: &str) -> bool {
        let [first, second, third, fourth, ..] = call.arguments;
        match name {
            "mount" => self.is_mounted(call, fourth),
            "mount_setattr" | "open_tree_attr" => {
                let mut cleared = [0; 8];
                let is_cleared = foreign_memory::read(call.pid, fourth.wrapping_add(8), &mut cleared).is_ok()
                    && u64::from_ne_bytes(cleared) & READ_ONLY != 0;
                is_cleared && self.is_kept_from_writing(&place(call.pid, first as i32, second))
            }
            "fspick" => self.is_live(&place(call.pid, first as i32, second)),
            "fsconfig" if [SET_STRING, SET_PATH].contains(&second) => {
                c_string(call.pid, third, KEY).as_deref() == Some(b"source") && self.is_source(call.pid, fourth)
            }
            _ => false,
        }
    }

    fn is_mounted(&self, call: &Call, flags: u64) -> bool {
        let has = |flag: libc::c_ulong| flags & flag != 0;
        let target = || place(call.pid, libc::AT_FDCWD, call.arguments[1]);
        if has(libc::MS_REMOUNT) && has(libc::MS_BIND) {
            return !has(libc::MS_RDONLY) && self.is_kept_from_writing(&target());
        }
        if has(libc::MS_REMOUNT) {
            return self.is_live(&target());
        }
        let others = libc::MS_BIND | libc::MS_MOVE | libc::MS_SHARED | libc::MS_PRIVATE | libc::MS_SLAVE;
        !has(others | libc::MS_UNBINDABLE) && self.is_source(call.pid, call.arguments[0])
    }

    /// Whether a path that a process names is a block device that is not the transaction's own.
    fn is_source(&self, pid: i32, at: u64) -> bool {
        let path = place(pid, libc::AT_FDCWD, at);
        stat(&path).is_ok_and(|found| {
            FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice && !self.is_own(found.st_rdev, &path)
        })
    }

    fn is_live(&self, place: &Path) -> bool {
        stat(place).is_ok_and(|found| self.has((major(found.st_dev), minor(found.st_dev))))
    }

    /// Whether a file system of the live tree is read-only there.
    fn is_kept_from_writing(&self, place: &Path) -> bool {
        let is_read_only = statvfs(place).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
        is_read_only && self.is_live(place)
    }
}

/// Where a path leads that a process names, by a directory it has open or its own, for whoever looks from outside.
fn place(pid: i32, directory: i32, at: u64) -> PathBuf {
    let named = PathBuf::from(OsString::from_vec(c_string(pid, at, PATH_MAX).unwrap_or_default()));
    if let Ok(below) = named.strip_prefix("/") {
        return PathBuf::from(format!("/proc/{pid}/root")).join(below);
    }
    let from = match directory {
        libc::AT_FDCWD => format!("/proc/{pid}/cwd"),
        open => format!("/proc/{pid}/fd/{open}"),
    };
    if named.as_os_str().is_empty() { PathBuf::from(from) } else { Path::new(&from).join(named) }
}
