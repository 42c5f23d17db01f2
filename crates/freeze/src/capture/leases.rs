//! Captures leases of open files (fcntl(2)).

use crate::image::{Descriptor, Image, Lease, Process};
use crate::inspect::credentials::IdMaps;
use crate::inspect::descriptors::{Found, lease};
use crate::inspect::open_files::Place;
use crate::inspect::socket_table;
use pando_kernel::{CallError, Context, file};

/// Those that a process takes: of files that no process before it has.
pub(crate) fn capture(
    outer: i32,
    (found, descriptors): (&[Found], &[Descriptor]),
    image: &Image,
    maps: &IdMaps,
) -> Result<Vec<Lease>, CallError> {
    let mut leases: Vec<Lease> = Vec::new();
    for (one, descriptor) in found.iter().zip(descriptors) {
        let Some((_, kind)) = lease(&one.info) else { continue };
        let has = |process: &Process| process.descriptors.iter().any(|other| other.file == descriptor.file);
        let known = |lease: &&Lease| {
            descriptors.iter().any(|other| other.number == lease.descriptor && other.file == descriptor.file)
        };
        if image.processes.iter().any(has) || leases.iter().find(known).is_some() {
            continue;
        }
        let (device, inode) = (one.stat.st_dev, one.stat.st_ino);
        let file = socket_table::borrow(Place { outer, number: one.number, device, inode })?;
        let signal = file::signal::get(&file).context(|| "asking for a file's signal".into())?;
        leases.push(Lease { descriptor: one.number, kind, signal, owner: maps.user(one.stat.st_uid)? });
    }
    Ok(leases)
}
