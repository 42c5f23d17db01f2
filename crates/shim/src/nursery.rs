//! The nursery: the process that shims are forked from, on the spawner's word.
//!
//! A fork of this small program is quicker than starting it anew, and only a fork can be *born* in a cgroup of
//! version 2. Into the groups of version 1 the newborn walks by itself, one thread writing "0" to `tasks`: the one way
//! for which the kernel does not stop every fork and exit of the machine and wait for a grace period, ten milliseconds
//! and more.

use crate::bare::{self, Forked, signals};
use crate::{grow, packet};
use pando_shim::DIRECT;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// The descriptors of an order come in this order, followed by the `tasks` files of version 1.
const HANDSHAKE: usize = 0;
const LISTENER: usize = 1;
const LOCK: usize = 2;
const GROUP: usize = 3;

/// The most descriptors of an order: those above and one for each hierarchy of version 1.
const MOST: usize = 16;

/// What a newborn shim holds.
pub(crate) struct Newborn {
    pub(crate) handshake: OwnedFd,
    pub(crate) listener: OwnedFd,
}

/// Forks a shim for each order on standard input, until that closes. Returns in the shims only, which need nothing of
/// its frame.
#[inline(never)]
pub(crate) fn tend() -> Newborn {
    signals::forget_children();
    loop {
        let mut order = Order::default();
        let mut version_2 = [0];
        match packet::receive(bare::standard_input(), &mut version_2, |fd| order.add(fd)) {
            Ok(_) if version_2 == [DIRECT] => {
                signals::all_default();
                grow::directly(bare::standard_input())
            }
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => bare::exit(0),
        }
        match order.fill(version_2 != [0]) {
            Ok(Some(newborn)) => return newborn,
            Ok(None) => {}
            Err(errno) => order.refuse(errno),
        }
    }
}

/// The descriptors of an order.
#[derive(Default)]
struct Order {
    fds: [Option<OwnedFd>; MOST],
    count: usize,
}

impl Order {
    /// Takes the next one. More than there is room for are closed.
    fn add(&mut self, fd: OwnedFd) {
        if let Some(place) = self.fds.get_mut(self.count) {
            *place = Some(fd);
            self.count += 1;
        }
    }

    fn fd(&self, number: usize) -> Result<BorrowedFd<'_>, Errno> {
        self.fds[number].as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    /// Forks; what it takes besides is done in the shim, and its failure ends the shim.
    fn fill(&mut self, version_2: bool) -> Result<Option<Newborn>, Errno> {
        let (group, tasks) = if version_2 { (Some(self.fd(GROUP)?), GROUP + 1) } else { (None, GROUP) };
        match bare::fork(group)? {
            Forked::Parent { .. } => Ok(None),
            Forked::Child => match self.settle(tasks) {
                Ok(newborn) => Ok(Some(newborn)),
                Err(errno) => {
                    self.refuse(errno);
                    bare::exit(2)
                }
            },
        }
    }

    /// Walks into the groups of version 1, and lets the lock hold the places of a guest's standard descriptors for
    /// life.
    fn settle(&mut self, tasks: usize) -> Result<Newborn, Errno> {
        // A guest's first process has to learn how its children ended.
        signals::all_default();
        for tasks in self.fds[tasks..].iter().flatten() {
            rustix::io::write(tasks, b"0")?;
        }
        for place in 0..3 {
            bare::duplicate(self.fd(LOCK)?, place)?;
        }
        let (handshake, listener) = (self.fds[HANDSHAKE].take(), self.fds[LISTENER].take());
        Ok(Newborn { handshake: handshake.ok_or(Errno::BADF)?, listener: listener.ok_or(Errno::BADF)? })
    }

    /// Says on the handshake why there is no shim.
    fn refuse(&self, errno: Errno) {
        if let Ok(handshake) = self.fd(HANDSHAKE) {
            let _ = rustix::io::write(handshake, &(-errno.raw_os_error()).to_le_bytes());
        }
    }
}
