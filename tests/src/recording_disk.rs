//! A disk that remembers in which order it was written to, and when it was told to keep what it has: a file on a file
//! system of a process of its own ([`disk_server`](crate::disk_server)), under a loop device. From what it remembers
//! every disk can be made that a loss of power could have left.
//!
//! Its content and what happened to it lie in memory that both processes have open.

use crate::dice::Dice;
use crate::disk_server::{self, FLUSHED};
use crate::patience::comes_true;
use pando_kernel::filesystem::loop_device::LoopDevice;
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};

/// What happened to the disk.
#[derive(Clone, Debug)]
enum Event {
    Written {
        at: usize,
        bytes: Vec<u8>,
    },
    /// All that was written before lasts.
    Flushed,
}

/// The disk.
#[derive(Debug)]
pub(crate) struct RecordingDisk {
    content: File,
    log: File,
}

/// The disk as a device; it is gone with this value.
#[derive(Debug)]
pub(crate) struct Attached {
    // In this order: the device lets go of the file before nobody serves that any more.
    pub(crate) device: LoopDevice,
    _server: Server,
}

#[derive(Debug)]
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Who waits for the disk nevertheless, such as a file system that somebody still uses, gets an error.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What happened from some moment on.
#[derive(Debug)]
pub(crate) struct Recording {
    start: Vec<u8>,
    events: Vec<Event>,
}

impl RecordingDisk {
    pub(crate) fn new(bytes: &[u8]) -> io::Result<Self> {
        let memory = |name: &str| io::Result::Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?));
        let (content, log) = (memory("disk")?, memory("disk-log")?);
        content.write_all_at(bytes, 0)?;
        // Begun anew, the log goes on from its beginning.
        fcntl_setfl(&log, OFlags::APPEND)?;
        Ok(Self { content, log })
    }

    /// Makes a device of it, by way of a file system that is mounted at `at`, for its server alone: to a transaction it
    /// would be one more mount to make changes on. And the server must not see what is mounted from the device: as the
    /// last who does it would have to wait for that disk, which it serves.
    pub(crate) fn attach(&self, at: &Path) -> io::Result<Attached> {
        let mut command = Command::new("unshare");
        command
            .arg("-m")
            .arg(std::env::current_exe()?)
            .arg(disk_server::WORD)
            .arg(at)
            .arg(std::process::id().to_string());
        let mut server = Server(command.stdin(self.content.try_clone()?).stdout(self.log.try_clone()?).spawn()?);
        let (mut file, path) = (None, at.join(disk_server::NAME));
        let path = format!("/proc/{}/root{}", server.0.id(), path.display());
        comes_true(|| {
            file = File::options().read(true).write(true).open(&path).ok();
            file.is_some() || matches!(server.0.try_wait(), Ok(Some(_)))
        });
        let file = file.ok_or_else(|| io::Error::other("no disk was served through /dev/fuse"))?;
        let device = LoopDevice::over(&file).map_err(|error| error.source)?;
        Ok(Attached { device, _server: server })
    }

    /// Forgets what happened so far.
    pub(crate) fn start(&self) -> io::Result<()> {
        self.log.set_len(0)
    }

    /// How much has happened since.
    pub(crate) fn position(&self) -> io::Result<usize> {
        Ok(self.events()?.len())
    }

    fn events(&self) -> io::Result<Vec<Event>> {
        let log = whole(&self.log)?;
        let (mut rest, mut events) = (&log[..], Vec::new());
        while let Some((head, behind)) = rest.split_at_checked(16) {
            let number = |from: usize| head[from..from + 8].try_into().map_or(0, u64::from_ne_bytes);
            let (at, length) = (number(0) as usize, number(8));
            rest = behind;
            if length == FLUSHED {
                events.push(Event::Flushed);
                continue;
            }
            let (bytes, behind) = rest.split_at_checked(length as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
            events.push(Event::Written { at, bytes: bytes.to_vec() });
            rest = behind;
        }
        Ok(events)
    }

    /// What it holds.
    pub(crate) fn bytes(&self) -> io::Result<Vec<u8>> {
        whole(&self.content)
    }

    /// What happened to a disk that held `start` then.
    pub(crate) fn recording(&self, start: Vec<u8>) -> io::Result<Recording> {
        Ok(Recording { start, events: self.events()? })
    }
}

fn whole(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

impl Recording {
    /// How many moments there are at which the power can go.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// What the disk holds after a loss of power before event number `moment`: everything up to the last time that it
    /// was told to keep it, and of what was written since, whatever the dice say.
    pub(crate) fn cut(&self, moment: usize, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.start.clone();
        let events = &self.events[..moment];
        let kept = events.iter().rposition(|event| matches!(event, Event::Flushed)).map_or(0, |last| last + 1);
        // Also a disk that happens to keep all, or nothing.
        let odds = dice.throw(5);
        for (number, event) in events.iter().enumerate() {
            let lasts = number < kept || dice.throw(4) < odds;
            if let (Event::Written { at, bytes: new }, true) = (event, lasts) {
                bytes[*at..*at + new.len()].copy_from_slice(new);
            }
        }
        bytes
    }
}
