//! Writes the taking of leases (`F_SETLEASE` of fcntl(2)), as file servers take them: the first of the processes that
//! have the file takes it in a clone. A process that has it from a fork shares it.

use crate::image::{Lease, Process};
use crate::restore::script::{Chapter, Writer};

/// Writes the taking of a process's. Only a file's owner may take one.
pub(crate) fn take(writer: &mut Writer, chapter: Chapter, process: &Process) {
    for Lease { descriptor, kind, signal, owner } in process.leases.iter().copied() {
        let number = descriptor as u64;
        let label = || format!("taking the lease of descriptor {descriptor}");
        writer.attempt(chapter, "becoming a file's owner", libc::SYS_setfsuid, &[u64::from(owner)]);
        if signal != 0 {
            writer.call(chapter, label(), libc::SYS_fcntl, &[number, F_SETSIG, signal as u64]);
        }
        writer.call(chapter, label(), libc::SYS_fcntl, &[number, libc::F_SETLEASE as u64, kind as u64]);
        writer.attempt(chapter, "becoming root again", libc::SYS_setfsuid, &[0]);
    }
}

const F_SETSIG: u64 = 10;
