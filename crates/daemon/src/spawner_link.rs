//! The daemon's end of the spawner.

use crate::readable::readable;
use pando_guest::Places;
use pando_guest::spawner::{Answer, MAX_MESSAGE, MadeSeed, SeedKind};
use pando_kernel::{inheritance, packet};
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use tokio::io::unix::AsyncFd;

/// A running spawner. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Spawner {
    socket: AsyncFd<OwnedFd>,
    child: Child,
}

impl Spawner {
    /// Starts one: this program again, told to be a spawner, so that it begins with a single thread and a small memory.
    pub(crate) fn start(places: &Places) -> io::Result<Self> {
        let (ours, theirs) = packet::pair()?;
        // Clients' descriptors that are just arriving are not marked yet: the spawner would hold them open, and every guest of its seeds too.
        inheritance::close_range_on_exec(3)?;
        let child = Command::new("/proc/self/exe")
            .arg("--root")
            .arg(places.root())
            .arg("spawner")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok(Self { socket: readable(ours)?, child })
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks for a seed, and waits for it. An error means that the spawner has gone.
    pub(crate) async fn ask(&mut self, kind: SeedKind) -> io::Result<Result<(MadeSeed, Option<OwnedFd>), String>> {
        let bytes = postcard::to_stdvec(&kind).map_err(io::Error::other)?;
        packet::send(self.socket.get_ref(), &bytes, &[])?;
        let mut bytes = [0; MAX_MESSAGE];
        loop {
            let mut ready = self.socket.readable().await?;
            if let Ok(received) = ready.try_io(|socket| packet::receive(socket.get_ref(), &mut bytes)) {
                let (length, fds) = received?;
                if length == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let answer: Answer = postcard::from_bytes(&bytes[..length]).map_err(io::Error::other)?;
                return Ok(answer.map(|seed| (seed, fds.into_iter().next())));
            }
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        // Its socket closes with this value, which ends it; a stuck one is ended by force.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
