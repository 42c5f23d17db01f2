//! The console of a guest that brings its own init: what is printed on it goes into the guest's log.
//!
//! The shim keeps it, since it lives for as long as the guest does: a terminal whose master is closed hangs up, and one
//! whose master nobody reads fills up and holds its writers.

use crate::log::Log;
use crate::packet;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::pty::OpenptFlags;

/// How much is carried at a time: what a terminal holds (`N_TTY_BUF_SIZE`, linux/tty.h).
const MOST: usize = 4096;

/// How often that is done at most for a guest that has ended: a terminal holds less, and no process is left that would
/// print more.
const LAST_TIMES: usize = 64;

/// A console.
pub(crate) struct Console {
    /// The socket on which the master comes, and then the master.
    watched: OwnedFd,
    /// The other end, kept open once there is a master: a terminal that nobody else has open just now, as between two
    /// processes of an init, hangs up.
    end: Option<OwnedFd>,
}

impl Console {
    /// One whose master will come on a socket.
    pub(crate) fn awaited(socket: OwnedFd) -> Self {
        Self { watched: socket, end: None }
    }

    /// What has something to be read when there is something to do.
    pub(crate) fn watched(&self) -> &OwnedFd {
        &self.watched
    }

    /// Does it. None where there is no console to be kept any more.
    #[inline(never)]
    pub(crate) fn serve(self, log: &mut Log) -> Option<Self> {
        match self.end {
            None => self.take_master().ok(),
            Some(_) => self.carry(log),
        }
    }

    /// Does all that is left to do, when its guest has ended.
    #[inline(never)]
    pub(crate) fn serve_rest(self, log: &mut Log) -> Option<Self> {
        let mut console = Some(self);
        for _ in 0..LAST_TIMES {
            console = match console {
                Some(console) if console.has_something() => console.serve(log),
                rest => return rest,
            };
        }
        console
    }

    fn has_something(&self) -> bool {
        let mut fds = [PollFd::new(&self.watched, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    fn take_master(self) -> Result<Self, Errno> {
        let mut arrived = None;
        packet::receive(&self.watched, &mut [0], |fd| arrived = Some(fd))?;
        Self { watched: arrived.ok_or(Errno::BADF)?, ..self }.hold_open()
    }

    fn hold_open(self) -> Result<Self, Errno> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let end = rustix::pty::ioctl_tiocgptpeer(&self.watched, flags)?;
        Ok(Self { end: Some(end), ..self })
    }

    fn carry(self, log: &mut Log) -> Option<Self> {
        let mut bytes = [0; MOST];
        match rustix::io::read(&self.watched, &mut bytes) {
            Ok(0) => return None,
            Ok(length) => log.append(&bytes[..length]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Hung up by the guest (vhangup(2)), as a getty does that wants a terminal for itself alone.
            Err(Errno::IO) => return self.hold_open().ok(),
            Err(_) => return None,
        }
        Some(self)
    }
}
