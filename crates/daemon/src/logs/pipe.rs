//! The pipe that a guest prints into, and its shim carries into the log.
//!
//! A guest never has its log, which is a file of the host's: it could empty it, read it, and make it as large as the
//! disk in one call. Of a pipe it can do nothing but print into it, and wait while its words are carried. The shim does
//! that, so they depend on no daemon.

use crate::logs::Logs;
use crate::state::events::now_ms;
use pando_guest::shim::ShimLink;
use pando_kernel::mistake::planted;
use pando_kernel::process::pidfd;
use pando_shim::Request;
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fcntl_setfl, open};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::{DirEntry, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Programs open their standard output by name (/dev/stdout, /proc/self/fd/1), users other than root too. A pipe is its
/// maker's alone otherwise.
const MODE: u32 = 0o622;

/// The flags that a shim's own end has. The last means nothing to a pipe, and so no other that a shim has open, such as
/// an input of somebody's, has it: by that it is found again, whatever the guest has made of the mode.
const SHIMS_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOATIME);

/// Where the times of a log lie: records of sixteen bytes, as the shim writes them (shim/src/log.rs).
pub(crate) fn times(log: &Path) -> PathBuf {
    log.with_extension("times")
}

/// A log, and when what is in it was printed.
#[derive(Debug)]
pub(crate) struct LogFiles {
    pub(crate) text: File,
    pub(crate) times: File,
}

impl LogFiles {
    /// Writes at the end of the log, with the time. What a full disk does not take is lost, as with a shim.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let now = u64::try_from(now_ms()).unwrap_or(0);
        if let Ok(about) = self.text.metadata() {
            let record = [about.len().to_le_bytes(), now.to_le_bytes()].concat();
            let _ = self.times.write_all(&record);
        }
        let _ = self.text.write_all(bytes);
    }
}

impl Logs {
    /// A guest's log and its times, to be written to at their ends.
    pub(crate) fn open(log: &Path) -> io::Result<LogFiles> {
        let open = |path: &Path| File::options().create(true).append(true).open(path);
        Ok(LogFiles { text: open(log)?, times: open(&times(log))? })
    }

    /// Standard input from nowhere, output and errors into a log; and what a shim is to be told of that once the
    /// guest's command runs.
    pub(crate) fn stdio(&self, root: u32, log: &Path) -> io::Result<(Vec<OwnedFd>, Option<Feed>)> {
        let null = File::open("/dev/null")?;
        let (end, feed) = self.feed(Self::open(log)?, root)?;
        Ok((vec![null.into(), end.try_clone()?, end], feed))
    }

    /// Has a shim carry into a log what is printed into what this gives, whose owner is `root`: the id on the host that
    /// is root in the guest.
    pub(crate) fn pipe(&self, shim: &ShimLink, log: LogFiles, root: u32) -> io::Result<OwnedFd> {
        let (end, feed) = self.feed(log, root)?;
        feed.map_or(Ok(()), |feed| feed.begin(shim)).map(|()| end)
    }

    fn feed(&self, log: LogFiles, root: u32) -> io::Result<(OwnedFd, Option<Feed>)> {
        if planted("log-is-a-file") {
            return Ok((log.text.into(), None));
        }
        let (source, own) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        fchown(&source, Some(Uid::from_raw(root)), Some(Gid::from_raw(root)))?;
        fchmod(&source, Mode::from_raw_mode(MODE))?;
        fcntl_setfl(&source, SHIMS_FLAGS)?;
        // The shim reads without waiting, its guest writes with. A guest that can read as well does not get a signal
        // should its shim be killed.
        let end = reopened(&own, OFlags::RDWR)?;
        Ok((end, Some(Feed { source, log, bound: self.bound() })))
    }
}

/// A pipe and the log that it is to be carried into. What was printed until a shim is told so waits in the pipe.
#[derive(Debug)]
pub(crate) struct Feed {
    source: OwnedFd,
    log: LogFiles,
    bound: u64,
}

impl Feed {
    /// Tells the shim to carry what is printed into the log.
    pub(crate) fn begin(self, shim: &ShimLink) -> io::Result<()> {
        shim.send(
            Request::Log { bound: self.bound },
            &[self.source.as_fd(), self.log.text.as_fd(), self.log.times.as_fd()],
        )
    }
}

/// What a guest prints into.
#[derive(Debug)]
pub(crate) struct Printed {
    /// It as a mere place (O_PATH).
    place: OwnedFd,
    /// Its device and its inode.
    pub(crate) identity: (u64, u64),
}

impl Printed {
    /// What a shim carries from, if it does: not that of a guest that was started by an earlier Pando, nor where nobody
    /// in it can print any more.
    pub(crate) fn of(shim: &OwnedFd) -> io::Result<Option<Self>> {
        let pid = pidfd::pid(shim)?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?;
        let own = |one: &DirEntry| flags(pid, &one.file_name().to_string_lossy()) == Some(SHIMS_FLAGS);
        let found = descriptors.flatten().filter(own).find_map(|one| Self::look(&one.path(), None));
        // Of one that has ended by now it may be another's.
        Ok(found.filter(|_| !pidfd::has_ended(shim)))
    }

    /// What processes print into whose shim has gone.
    pub(crate) fn orphaned(processes: &[i32]) -> Option<Self> {
        let descriptors = processes.iter().flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd"))).flatten();
        descriptors.flatten().find_map(|one| Self::look(&one.path(), Some(MODE)))
    }

    /// A descriptor that may be closed, or become another, meanwhile: nothing is opened that is not the pipe.
    fn look(descriptor: &Path, with: Option<u32>) -> Option<Self> {
        let place = open(descriptor, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let about = rustix::fs::fstat(&place).ok()?;
        let (kind, mode) = (FileType::from_raw_mode(about.st_mode), about.st_mode & 0o7777);
        let is_it = kind == FileType::Fifo && with.is_none_or(|with| mode == with);
        is_it.then_some(Self { place, identity: (about.st_dev, about.st_ino) })
    }

    /// An end to print into.
    pub(crate) fn end(&self) -> io::Result<OwnedFd> {
        reopened(&self.place, OFlags::RDWR)
    }

    /// One to read without waiting.
    pub(super) fn source(&self) -> io::Result<OwnedFd> {
        reopened(&self.place, OFlags::RDONLY | OFlags::NONBLOCK)
    }
}

fn reopened(place: &OwnedFd, how: OFlags) -> io::Result<OwnedFd> {
    Ok(open(format!("/proc/self/fd/{}", place.as_raw_fd()), how | OFlags::CLOEXEC, Mode::empty())?)
}

/// The flags of a process's descriptor, without those of its place in the table.
fn flags(pid: i32, descriptor: &str) -> Option<OFlags> {
    let info = pando_kernel::file::proc_file::text(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    let flags = info.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok())?;
    Some(OFlags::from_bits_retain(flags) - OFlags::CLOEXEC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::socket::packet;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn it_is_found_again_with_the_process_that_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (ours, theirs) = packet::pair().unwrap();
        let logs = Logs::new(&pando_guest::settings::Settings::default());
        let own = rustix::process::geteuid().as_raw();
        let end = logs.pipe(&ShimLink::from_connected(ours), Logs::open(&path).unwrap(), own).unwrap();
        let (_, descriptors) = packet::receive(&theirs, &mut [0; 64]).unwrap();
        assert_eq!(descriptors.len(), 3);
        let myself = pidfd::open(std::process::id() as i32).unwrap();
        fchmod(&end, Mode::from_raw_mode(0o777)).unwrap();
        let found = Printed::of(&myself).unwrap().unwrap();
        let about = File::from(end).metadata().unwrap();
        assert_eq!(found.identity, (about.dev(), about.ino()));
        File::from(found.end().unwrap()).write_all(b"word").unwrap();
        let mut heard = [0; 9];
        assert_eq!(rustix::io::read(&descriptors[0], &mut heard).unwrap(), 4);
        drop(descriptors);
        assert!(Printed::of(&myself).unwrap().is_none());
    }
}
