//! What a guest prints whose seed was killed: such a guest goes on, and would stand still once its pipe is full.

use crate::lifecycle::end::wait_for;
use crate::logs::{Logs, Printed};
use crate::runtime::readable::readable;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::state::processes;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use tokio::io::unix::AsyncFd;

/// How much is carried at a time, and how much is left at most when the guest has ended.
const MOST: usize = 64 << 10;
const MOST_LEFT: usize = 64 << 20;

/// Carries it into the log, until the guest's first process has ended.
pub(crate) async fn carry_until_end(daemon: &Daemon, guest: &Guest, running: &Running) {
    let carried = async {
        let Some(printed) = Printed::orphaned(&processes::pids(daemon, running.slot)) else { return Ok(()) };
        let mut orphan = Orphan::of(daemon, guest, &printed)?;
        tokio::select! {
            carried = orphan.carry() => return carried,
            () = wait_for(&running.trunk) => {}
        }
        orphan.carry_rest()
    };
    if let Err(error) = carried.await {
        tracing::warn!(%error, guest = %guest.name, "what it prints is not in its log any more");
    }
    wait_for(&running.trunk).await;
}

struct Orphan<'a> {
    daemon: &'a Daemon,
    source: AsyncFd<OwnedFd>,
    path: PathBuf,
    log: File,
    bytes: Vec<u8>,
}

impl<'a> Orphan<'a> {
    fn of(daemon: &'a Daemon, guest: &Guest, printed: &Printed) -> io::Result<Self> {
        let (source, path) = (readable(printed.source()?)?, guest.log(&daemon.places));
        Ok(Self { daemon, source, log: Logs::open(&path)?, path, bytes: vec![0; MOST] })
    }

    /// Until nobody is left who could print.
    async fn carry(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.source.readable().await?;
            match ready.try_io(|source| Ok(rustix::io::read(source.get_ref(), &mut self.bytes)?)) {
                Ok(Ok(0)) => return Ok(()),
                Ok(read) => self.write(read?)?,
                Err(_would_block) => {}
            }
            // Others have their turn.
            tokio::task::yield_now().await;
        }
    }

    fn carry_rest(&mut self) -> io::Result<()> {
        let mut carried = 0;
        while carried < MOST_LEFT {
            match rustix::io::read(self.source.get_ref(), &mut self.bytes) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
                read => {
                    let length = read?;
                    self.write(length)?;
                    carried += length;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, length: usize) -> io::Result<()> {
        // What a full disk does not take is lost, as with a seed.
        let _ = self.log.write_all(&self.bytes[..length]);
        self.daemon.logs.bound.get().keep(&self.path).map(drop)
    }
}
