//! Descriptors that the daemon keeps spare, so that it can be asked, and can end guests, when it has no others left.

use crate::failure;
use pando_api::Fault;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// How many are kept while the daemon serves: a client's connection, and what it takes to stop or remove a guest.
const SPARE: usize = 16;

/// How many have to be left when guests are taken over: what guests take must not be all that there is.
const LEFT: usize = 64;

/// The soft and hard limit that is asked for: a guest that runs costs the daemon five descriptors.
const WANTED: u64 = 524_288;

/// Whether an error is a lack of the daemon's own, which passes, and says nothing of whom it was asked about.
pub(crate) fn is_lack(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EINTR | libc::ENOSPC)
    )
}

/// Whether it is one of descriptors.
fn is_lack_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Descriptors that are held to be given up when one is lacking.
#[derive(Debug, Default)]
pub(crate) struct SpareDescriptors(RefCell<Vec<File>>);

impl SpareDescriptors {
    /// Takes as many as are missing. Where there are too few, later is another try.
    pub(crate) fn refill(&self) {
        let mut spare = self.0.borrow_mut();
        let missing = SPARE.saturating_sub(spare.len());
        spare.extend(held(missing).unwrap_or_default());
    }

    /// Gives them up for what has to be done now, if that failed for want of a descriptor: whether it is worth another
    /// try.
    pub(crate) fn give_up_for(&self, error: &io::Error) -> bool {
        is_lack_of_descriptors(error) && !std::mem::take(&mut *self.0.borrow_mut()).is_empty()
    }
}

/// Holds what has to be left over while something takes descriptors that can wait. An error means that there is too
/// little already.
pub(crate) fn leave_some() -> io::Result<impl Drop> {
    held(LEFT).map(Held)
}

struct Held(#[expect(dead_code, reason = "they are there to be open")] Vec<File>);

impl Drop for Held {
    fn drop(&mut self) {}
}

fn held(count: usize) -> io::Result<Vec<File>> {
    (0..count).map(|_| File::open("/dev/null")).collect()
}

/// Raises the limit of open files as far as the kernel lets this daemon: the usual one would end at two hundred guests.
pub(crate) fn raise_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum;
    limit.maximum = hard.map(|hard| hard.max(WANTED));
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_err() {
        (limit.current, limit.maximum) = (hard, hard);
        // Whoever runs out of them is told so when it happens.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// A copy of a descriptor.
pub(crate) fn owned(fd: BorrowedFd<'_>) -> Result<OwnedFd, Fault> {
    fd.try_clone_to_owned().map_err(|error| failure::io("copying a descriptor", "daemon", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_ones_are_given_up_once_and_for_want_of_descriptors_alone() {
        let spare = SpareDescriptors::default();
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        assert!(!spare.give_up_for(&full));
        spare.refill();
        assert!(!spare.give_up_for(&io::Error::from_raw_os_error(libc::ENOMEM)));
        assert!(spare.give_up_for(&full));
        assert!(!spare.give_up_for(&full));
    }

    #[test]
    fn a_lack_is_told_from_a_refusal() {
        assert!(is_lack(&io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(!is_lack(&io::Error::from_raw_os_error(libc::ECONNREFUSED)));
    }
}
