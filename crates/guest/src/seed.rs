//! Talking to a seed: the program itself, and the daemon's end of its socket.

use pando_kernel::{CallError, Context, packet};
use pando_seed::{Answer, MAX_MESSAGE, Report, Request};
pub use pando_seed::{FIRST_LOOKED_UP, LONGEST_LOOKED_UP};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

/// The seed, as built for this machine.
pub const PROGRAM: &[u8] = include_bytes!(env!("PANDO_SEED"));

/// A connection to a seed.
#[derive(Debug)]
pub struct SeedLink(OwnedFd);

impl AsFd for SeedLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SeedLink {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl SeedLink {
    /// Connects to the seed that listens at `path`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        packet::connect(path).map(Self)
    }

    /// Takes over a connection to a seed that another process has made.
    pub fn from_connected(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Sends a request. `fds` are the plan and the report's socket, then what the plan names.
    pub fn send(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = [0; MAX_MESSAGE];
        let bytes = postcard::to_slice(&request, &mut bytes).map_err(io::Error::other)?;
        packet::send(&self.0, bytes, fds)
    }

    /// Waits for the next answer, and the pidfd that came with it from seeds of earlier versions; `None` when the seed
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
