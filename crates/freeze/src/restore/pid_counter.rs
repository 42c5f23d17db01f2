//! A clone counts its pids on from those of the frozen tree. A new pid namespace would give those again that are free,
//! soon: programs remember pids of what has ended, and would send signals to something else.
//!
//! The counter is a file of /proc/sys that acts on the namespace of whoever writes to it. A guest's own /proc may be
//! read-only, so the holder opens the host's; the maker writes.

use crate::restore::script::{AT_FDCWD, Call, Writer};
use crate::restore::slots::Slots;

/// Writes the holder's step. Where the kernel has no such counter (CONFIG_CHECKPOINT_RESTORE), pids are given as they
/// come.
pub(crate) fn stage(writer: &mut Writer, slots: Slots) {
    let path = writer.string("/proc/sys/kernel/ns_last_pid");
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as u64;
    writer.open(
        Writer::STAGING,
        "opening the pid counter",
        Call::forgiven(libc::SYS_openat),
        &[AT_FDCWD, path, flags],
        slots.pid_counter(),
    );
}

/// Writes the maker's step, whose own pid is above all others.
pub(crate) fn set(writer: &mut Writer, slots: Slots, maker: i32) {
    write(writer, slots, "setting the pid counter", maker);
}

/// Writes the maker's choice of the pid, or tid, that who does not choose gets next.
pub(crate) fn choose(writer: &mut Writer, slots: Slots, pid: i32) {
    write(writer, slots, "choosing the next pid", pid - 1);
}

/// Each maker writes to the holder's open file: where another has written, nothing that is written behind that counts.
fn write(writer: &mut Writer, slots: Slots, label: &str, last: i32) {
    let text = last.to_string();
    let at = writer.data(text.as_bytes(), 1);
    let arguments = [slots.pid_counter(), at, text.len() as u64, 0];
    writer.attempt(Writer::MAKING, label, libc::SYS_pwrite64, &arguments);
}
