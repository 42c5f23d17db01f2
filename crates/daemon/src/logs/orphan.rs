//! What a guest prints whose shim was killed: such a guest goes on, and would stand still once its pipe is full.

use crate::logs::{LogFiles, Logs, Printed, times};
use crate::runtime::process_end::wait_for;
use crate::runtime::readable::readable;
use crate::state::guest::Running;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use tokio::io::unix::AsyncFd;

/// How much is carried at a time, and how much is left at most when the guest has ended.
const MOST: usize = 64 << 10;
const MOST_LEFT: usize = 64 << 20;

/// Carries it into the log, until the guest's first process has ended.
pub(crate) async fn carry_until_end((logs, log): (&Logs, PathBuf), processes: &[i32], running: &Running) {
    let Some(first) = running.first.descriptor() else { return };
    let carried = async {
        let Some(printed) = Printed::orphaned(processes) else { return Ok(()) };
        let mut orphan = Orphan::of(logs, log.clone(), &printed)?;
        tokio::select! {
            carried = orphan.carry() => return carried,
            () = wait_for(&first) => {}
        }
        orphan.carry_rest()
    };
    if let Err(error) = carried.await {
        tracing::warn!(%error, log = %log.display(), "what it prints is not in its log any more");
    }
    wait_for(&first).await;
}

struct Orphan<'a> {
    logs: &'a Logs,
    source: AsyncFd<OwnedFd>,
    path: PathBuf,
    log: LogFiles,
    bytes: Vec<u8>,
}

impl<'a> Orphan<'a> {
    fn of(logs: &'a Logs, path: PathBuf, printed: &Printed) -> io::Result<Self> {
        let source = readable(printed.source()?)?;
        Ok(Self { logs, source, log: Logs::open(&path)?, path, bytes: vec![0; MOST] })
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
        self.log.append(&self.bytes[..length]);
        let bound = self.logs.bound.get();
        bound.of_times().keep(&times(&self.path))?;
        bound.keep(&self.path).map(drop)
    }
}
