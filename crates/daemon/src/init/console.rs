//! The console of a guest that brings its own init: a terminal of the guest's, which its shim keeps, and whose output
//! is the guest's log.

use crate::failure;
use crate::init::link::Link;
use crate::logs::{LogFiles, Logs};
use pando_api::Fault;
use pando_guest::GuestName;
use pando_guest::shim::ShimLink;
use pando_kernel::socket::packet;
use pando_shim::Request;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Has a shim keep the console that its init is about to open. The init is to send its master over the socket.
pub(crate) fn lay(logs: &Logs, (name, log): (&GuestName, &Path), link: &Link) -> Result<OwnedFd, Fault> {
    let laid = || -> std::io::Result<OwnedFd> {
        let (shims, inits) = packet::pair()?;
        let log = Logs::open(log)?;
        keep(link.shim(), shims.as_fd(), (&log, logs.bound()))?;
        Ok(inits)
    };
    laid().map_err(|error| failure::io("making the guest's console", name.as_ref(), &error))
}

/// Has a shim keep a console whose master comes on a socket, and print it into a log that has a bound.
pub(crate) fn keep(shim: &ShimLink, master: BorrowedFd<'_>, (log, bound): (&LogFiles, u64)) -> std::io::Result<()> {
    shim.send(Request::Console { bound }, &[master, log.text.as_fd(), log.times.as_fd()])
}
