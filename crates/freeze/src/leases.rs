//! Leases of open files (`F_SETLEASE` of fcntl(2)), as file servers take them: the first of the processes that have the file takes it in a clone. Whoever has it from a fork shares it.

use crate::credentials::IdMaps;
use crate::descriptors::Found;
use crate::image::{Descriptor, Image, Lease, Process};
use crate::open_files::Place;
use crate::script::{Chapter, Writer};
use crate::unix_socket;
use pando_kernel::{CallError, Context, file_signal};

/// What /proc says of one: `lock: 1: LEASE  ACTIVE  READ 77 00:2f:1234 0 EOF`.
fn of_file(info: &str) -> Option<(&str, i32)> {
    let line = info.lines().find(|line| line.starts_with("lock:") && line.contains(" LEASE "))?;
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let kind = match *words.get(4)? {
        "READ" => libc::F_RDLCK,
        "WRITE" => libc::F_WRLCK,
        _ => libc::F_UNLCK,
    };
    Some((words[3], kind))
}

/// Why the lease of an open file cannot be had again, if it cannot.
pub(crate) fn objection(info: &str) -> Option<(String, &'static str)> {
    let (state, kind) = of_file(info)?;
    let breaks = state != "ACTIVE" || kind == libc::F_UNLCK;
    breaks.then(|| ("a file whose lease (F_SETLEASE) is being broken".into(), "let the program give it up first"))
}

/// Those that a process takes: of files that no process before it has.
pub(crate) fn capture(
    outer: i32,
    (found, descriptors): (&[Found], &[Descriptor]),
    image: &Image,
    maps: &IdMaps,
) -> Result<Vec<Lease>, CallError> {
    let mut leases: Vec<Lease> = Vec::new();
    for (one, descriptor) in found.iter().zip(descriptors) {
        let Some((_, kind)) = of_file(&one.info) else { continue };
        let has = |process: &Process| process.descriptors.iter().any(|other| other.file == descriptor.file);
        let known = |lease: &&Lease| {
            descriptors.iter().any(|other| other.number == lease.descriptor && other.file == descriptor.file)
        };
        if image.processes.iter().any(has) || leases.iter().find(known).is_some() {
            continue;
        }
        let (device, inode) = (one.stat.st_dev, one.stat.st_ino);
        let file = unix_socket::borrow(Place { outer, number: one.number, device, inode })?;
        let signal = file_signal::get(&file).context(|| "asking for a file's signal".into())?;
        leases.push(Lease { descriptor: one.number, kind, signal, owner: maps.user(one.stat.st_uid)? });
    }
    Ok(leases)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_told_from_a_lock_and_from_one_that_is_broken() {
        let line = |words: &str| format!("flags:\t02\nlock:\t1: {words} 77 00:2f:1234 0 EOF\n");
        assert_eq!(of_file(&line("LEASE  ACTIVE    READ")), Some(("ACTIVE", libc::F_RDLCK)));
        assert_eq!(of_file(&line("FLOCK  ADVISORY  WRITE")), None);
        assert_eq!(objection(&line("LEASE  ACTIVE    WRITE")), None);
        assert!(objection(&line("LEASE  BREAKING  UNLCK")).is_some());
    }
}
