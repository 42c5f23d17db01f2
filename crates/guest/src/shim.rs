//! Talking to a shim: the program itself, and the daemon's end of its socket.

use pando_kernel::{CallError, Context, socket::packet};
use pando_shim::{Answer, MAX_MESSAGE, Report, Request};
pub use pando_shim::{FIRST_LOOKED_UP, LONGEST_LOOKED_UP};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

/// The shim, as built for this machine.
pub const PROGRAM: &[u8] = include_bytes!(env!("PANDO_SHIM"));

/// A connection to a shim.
#[derive(Debug)]
pub struct ShimLink(OwnedFd);

impl AsFd for ShimLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ShimLink {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl ShimLink {
    /// Connects to the shim that listens at `path`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        packet::connect(path).map(Self)
    }

    /// Takes over a connection to a shim that another process has made.
    pub fn from_connected(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends a request. `fds` are the plan and the report's socket, then what the plan names.
    pub fn send(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = [0; MAX_MESSAGE];
        let bytes = postcard::to_slice(&request, &mut bytes).map_err(io::Error::other)?;
        packet::send(&self.0, bytes, fds)
    }

    /// Waits for the next answer, and the pidfd that came with it from shims of earlier versions; `None` when the shim
    /// has gone.
    pub fn receive(&self) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        let mut bytes = [0; MAX_MESSAGE];
        let (length, fds) = packet::receive(&self.0, &mut bytes)?;
        if length == 0 {
            return Ok(None);
        }
        let answer = postcard::from_bytes(&bytes[..length]).map_err(io::Error::other)?;
        Ok(Some((answer, fds.into_iter().next())))
    }
}

/// Waits for a launched process to have taken its steps: `None` when all were, else the one that failed.
pub fn read_report(report: &OwnedFd) -> Result<Option<Report>, CallError> {
    let mut bytes = [0; MAX_MESSAGE];
    let (length, _) = packet::receive(report, &mut bytes).context(|| "waiting for a guest to start".into())?;
    if length == 0 {
        return Ok(None);
    }
    postcard::from_bytes(&bytes[..length])
        .map(Some)
        .map_err(io::Error::other)
        .context(|| "reading a guest's report".into())
}
