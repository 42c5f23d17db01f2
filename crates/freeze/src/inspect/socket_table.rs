//! Sockets of other processes: the table of unix sockets, and descriptors borrowed from their processes.

use crate::image::namespace_kind::NETWORK;
use crate::inspect::namespaces::Beside;
use crate::inspect::open_files::Place;
use crate::inspect::proc_file::malformed;
use pando_kernel::socket::unix_diag::{self, UnixEntry};
use pando_kernel::{CallError, Context, process::pidfd, trace::foreign_memory};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

/// The unix sockets of the network namespace of a process, and of those beside it.
pub(crate) fn table(init: i32, nets: &Beside) -> Result<Vec<UnixEntry>, CallError> {
    let what = || "listing unix sockets".to_owned();
    let home = NETWORK.at(init);
    let own = NETWORK.is_ours(&home)?;
    let namespace = (!own).then(|| File::open(&home)).transpose().context(what)?;
    let mut table = unix_diag::list(namespace.as_ref().map(AsFd::as_fd)).context(what)?;
    for space in nets.all() {
        let list = || unix_diag::list(Some(File::open(&space.at)?.as_fd()));
        match list() {
            Ok(more) => table.extend(more),
            // One whose processes have ended meanwhile has none.
            Err(_) if space.is_gone() => {}
            Err(error) => return Err(error).context(what),
        }
    }
    Ok(table)
}

/// A descriptor of another process, whatever it is.
pub(crate) fn take(outer: i32, number: i32) -> Result<OwnedFd, CallError> {
    let what = || format!("taking descriptor {number} of process {outer}");
    let process = pidfd::open(outer).context(what)?;
    foreign_memory::descriptor(&process, number).context(what)
}

/// The same of one that was found. A program that runs may have closed that, and opened something else by the same
/// number.
pub(crate) fn borrow(place: Place) -> Result<OwnedFd, CallError> {
    let what = || format!("taking descriptor {} of process {}", place.number, place.outer);
    let borrowed = take(place.outer, place.number)?;
    let stat = rustix::fs::fstat(&borrowed).context(what)?;
    if (stat.st_dev, stat.st_ino) == (place.device, place.inode) { Ok(borrowed) } else { Err(malformed(what())) }
}
