//! Namespaces that the maker makes beside those of the first process: a descriptor keeps each, by which processes enter it and the maker comes back.

use crate::proc_file;
use crate::script::{Chapter, Writer};
use crate::staging::AT_FDCWD;
use pando_kernel::CallError;

/// A kind of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// What it is called.
    name: &'static str,
    /// Its link below a process's directory in /proc.
    link: &'static str,
    /// `CLONE_NEW*`.
    flag: i32,
}

pub(crate) const HOST_NAMES: Kind =
    Kind { name: "a namespace of host names", link: "ns/uts", flag: libc::CLONE_NEWUTS };
pub(crate) const IPC: Kind = Kind { name: "an ipc namespace", link: "ns/ipc", flag: libc::CLONE_NEWIPC };
pub(crate) const MOUNTS: Kind = Kind { name: "a mount namespace", link: "ns/mnt", flag: libc::CLONE_NEWNS };

impl Kind {
    /// Which one a process is in, as /proc tells them apart.
    pub(crate) fn of(self, outer: i32) -> Result<String, CallError> {
        proc_file::link(outer, self.link)
    }

    /// Whether a process is in the same as we are.
    pub(crate) fn is_ours(self, outer: i32) -> Result<bool, CallError> {
        Ok(self.of(outer)? == self.of(std::process::id() as i32)?)
    }

    /// Which one a thread of a process is in.
    pub(crate) fn of_thread(self, outer: i32, tid: i32) -> Result<String, CallError> {
        proc_file::link(outer, &format!("task/{tid}/{}", self.link))
    }

    /// Writes the maker's leaving what it is in for a new one.
    pub(crate) fn make(self, writer: &mut Writer) {
        writer.call(Writer::MAKING, format!("making {}", self.name), libc::SYS_unshare, &[self.flag as u64]);
    }

    /// Writes the keeping of the one that the maker is in.
    pub(crate) fn keep(self, writer: &mut Writer, slot: u64) {
        let path = writer.string(&format!("/proc/self/{}", self.link));
        let arguments = [AT_FDCWD, path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64];
        writer.open(Writer::MAKING, format!("keeping {}", self.name), libc::SYS_openat, &arguments, slot);
    }

    /// Writes the entering of one that is kept.
    pub(crate) fn enter(self, writer: &mut Writer, chapter: Chapter, slot: u64) {
        writer.call(chapter, format!("entering {}", self.name), libc::SYS_setns, &[slot, self.flag as u64]);
    }
}
