//! The command's input, for the runs after the first: what came through a pipe is kept, and comes again.
//!
//! ```text
//!   first run:   our input ─▶ thread ─▶ pipe ─▶ command
//!                               └─▶ kept (a file in memory)
//!   run again:   kept, then our input ─▶ thread ─▶ pipe ─▶ command
//! ```
//!
//! A file is read again from where it was; a terminal asks its user again.

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, MemfdFlags, SeekFrom};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;

/// How much is passed on at a time.
const BUFFER: usize = 64 << 10;

/// What the input is, and what it takes to have it again.
pub(super) enum ReplayedInput {
    /// Nothing need be done.
    Plain,
    /// A file that was at this offset.
    File(u64),
    /// A pipe or a socket: what came through it is kept.
    Kept(File),
}

/// The thread that passes input on. It ends with this value.
pub(super) struct Feeding {
    /// Closed to end the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Feeding {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}

impl ReplayedInput {
    /// Looks at the input; with `once` it is never needed again.
    pub(super) fn of_this_process(once: bool) -> anyhow::Result<Self> {
        let input = rustix::stdio::stdin();
        // One that is closed is none.
        let Ok(stat) = rustix::fs::fstat(input) else { return Ok(Self::Plain) };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            _ if once => Self::Plain,
            FileType::RegularFile => Self::File(rustix::fs::tell(input).context("cannot tell where the input is")?),
            FileType::Fifo | FileType::Socket => {
                let kept = rustix::fs::memfd_create("pando-tx-input", MemfdFlags::CLOEXEC);
                Self::Kept(kept.context("cannot keep the input")?.into())
            }
            _ => Self::Plain,
        })
    }

    /// The input of a run, where that is not this process's own, and what feeds it.
    pub(super) fn again(&self) -> anyhow::Result<(Option<File>, Option<Feeding>)> {
        match self {
            Self::Plain => Ok((None, None)),
            Self::File(offset) => {
                rustix::fs::seek(rustix::stdio::stdin(), SeekFrom::Start(*offset))
                    .context("cannot read the input again")?;
                Ok((None, None))
            }
            Self::Kept(kept) => {
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
                let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
                let kept = kept.try_clone().context("cannot keep the input")?;
                let input = rustix::stdio::stdin().try_clone_to_owned().context("cannot keep the input")?;
                let feed = move || feed(&kept, File::from(input), File::from(writer), &stopped);
                let thread = std::thread::Builder::new().name("pando-input".into()).spawn(feed);
                let thread = Some(thread.context("cannot start a thread for the input")?);
                Ok((Some(reader.into()), Some(Feeding { stop: Some(stop), thread })))
            }
        }
    }
}

/// First what is kept, then what comes, which is kept. Ends when nobody reads any more, with the input's end, or when it is stopped.
fn feed(kept: &File, mut input: File, writer: File, stopped: &OwnedFd) {
    let mut buffer = vec![0; BUFFER];
    let mut at = 0;
    loop {
        let Ok(count) = kept.read_at(&mut buffer, at) else { return };
        if count == 0 {
            break;
        }
        at += count as u64;
        if !put(&writer, &buffer[..count], stopped) {
            return;
        }
    }
    loop {
        if !ready(input.as_fd(), PollFlags::IN, stopped) {
            return;
        }
        let count = match input.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        // Without room to keep it in, a run again would see less: better it sees the input's end now.
        if kept.write_all_at(&buffer[..count], at).is_err() {
            return;
        }
        at += count as u64;
        if !put(&writer, &buffer[..count], stopped) {
            return;
        }
    }
}

fn put(mut writer: &File, mut bytes: &[u8], stopped: &OwnedFd) -> bool {
    while !bytes.is_empty() {
        // No more than what a pipe takes at once where it takes anything, so that this never waits for a reader that is stopped.
        let now = bytes.len().min(4096);
        if !ready(writer.as_fd(), PollFlags::OUT, stopped) || writer.write_all(&bytes[..now]).is_err() {
            return false;
        }
        bytes = &bytes[now..];
    }
    true
}

/// Waits for a descriptor; false once it is stopped.
fn ready(fd: std::os::fd::BorrowedFd<'_>, wanted: PollFlags, stopped: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, wanted), PollFd::new(stopped, PollFlags::IN)];
    loop {
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return fds[1].revents().is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feeding(kept: &File, input: OwnedFd) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (stopped, _stop) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        feed(kept, input.into(), File::from(OwnedFd::from(writer)), &stopped);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn what_came_comes_again_and_then_the_rest() {
        let kept = tempfile::tempfile().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one ").unwrap();
        drop(writer);
        assert_eq!(feeding(&kept, reader.into()), "one ");
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"two").unwrap();
        drop(writer);
        assert_eq!(feeding(&kept, reader.into()), "one two");
    }
}
