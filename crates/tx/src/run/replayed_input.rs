//! The command's input, for the runs after the first: what came through a pipe is kept, and comes again.
//!
//! ```text
//!   first run:   our input ─▶ thread ─▶ pipe ─▶ command
//!                               └─▶ kept (a file in memory)
//!   run again:   kept, then our input ─▶ thread ─▶ pipe ─▶ command
//! ```
//!
//! Out of a pipe nothing is taken that the command has not read: others may read the same pipe, such as the loop of a
//! shell. What comes is copied into a pipe that holds one piece (tee(2)), and is taken from ours once that one is
//! empty.
//!
//! A file is read again from where it was; a terminal asks its user again.

use pando_kernel::{CallError, Context};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, MemfdFlags, SeekFrom};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// How much is passed on at a time.
const BUFFER: usize = 64 << 10;

/// How much is kept at most. Whoever writes into the pipe would fill the machine's memory otherwise.
const MOST_KEPT: u64 = 256 << 20;

/// The least that a pipe can hold: the kernel makes a page of it, the room of one piece.
const PIECE: usize = 4096;

/// The standard input of this process, and what it takes to have it again.
#[derive(Debug)]
pub enum ReplayedInput {
    /// Nothing need be done to have it again.
    Plain,
    /// A file that was at this offset.
    File(u64),
    /// A pipe: what came through it is kept.
    Kept(Kept),
}

/// What came through a pipe, in memory. Of more than [`MOST_KEPT`] nothing is kept any more.
#[derive(Clone, Debug)]
pub struct Kept {
    file: Arc<File>,
    most: u64,
    outgrown: Arc<AtomicBool>,
}

impl Kept {
    fn new(file: File, most: u64) -> Self {
        Self { file: Arc::new(file), most, outgrown: Arc::default() }
    }

    fn keep(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.has_outgrown() {
            return Ok(());
        }
        if at + bytes.len() as u64 > self.most {
            self.outgrown.store(true, Ordering::Relaxed);
            return self.file.set_len(0);
        }
        self.file.write_all_at(bytes, at)
    }

    fn has_outgrown(&self) -> bool {
        self.outgrown.load(Ordering::Relaxed)
    }
}

/// The thread that passes input on. It ends with this value.
#[derive(Debug)]
pub struct Feeding {
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
    /// Looks at the standard input of this process. With `once` it is never needed again.
    ///
    /// # Errors
    ///
    /// What looking at it says, or making a file in memory.
    pub fn of_this_process(once: bool) -> Result<Self, CallError> {
        let input = rustix::stdio::stdin();
        // One that is closed is none.
        let Ok(stat) = rustix::fs::fstat(input) else { return Ok(Self::Plain) };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            _ if once => Self::Plain,
            FileType::RegularFile => {
                Self::File(rustix::fs::tell(input).context(|| "looking where the input is".into())?)
            }
            FileType::Fifo => {
                let kept = rustix::fs::memfd_create("pando-tx-input", MemfdFlags::CLOEXEC);
                Self::Kept(Kept::new(kept.context(|| "keeping the input".into())?.into(), MOST_KEPT))
            }
            _ => Self::Plain,
        })
    }

    /// The input of an attempt, where that is not this process's own, and what feeds it.
    ///
    /// # Errors
    ///
    /// What making a pipe or a thread says, or going back in a file.
    pub fn again(&self) -> Result<(Option<File>, Option<Feeding>), CallError> {
        match self {
            Self::Plain => Ok((None, None)),
            Self::File(offset) => {
                rustix::fs::seek(rustix::stdio::stdin(), SeekFrom::Start(*offset))
                    .context(|| "reading the input again".into())?;
                Ok((None, None))
            }
            Self::Kept(kept) if kept.has_outgrown() => {
                let words = format!(
                    "the command has read more than {} MiB of a pipe, which is not kept for a run again; give it a file, which is",
                    MOST_KEPT >> 20
                );
                Err(io::Error::other(words)).context(|| "reading the input again".into())
            }
            Self::Kept(kept) => {
                let (reader, writer) =
                    pipe_with(PipeFlags::CLOEXEC).context(|| "making a pipe for the input".into())?;
                // With room for one piece the kernel says that there is room when the last one was read.
                let room = rustix::pipe::fcntl_setpipe_size(&writer, PIECE);
                room.context(|| "making a pipe small".into())?;
                let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).context(|| "making a pipe for the input".into())?;
                let kept = kept.clone();
                let input = rustix::stdio::stdin().try_clone_to_owned().context(|| "keeping the input".into())?;
                let feed = move || feed(&kept, &File::from(input), &File::from(writer), &stopped);
                let thread = std::thread::Builder::new().name("pando-input".into()).spawn(feed);
                let thread = Some(thread.context(|| "starting a thread for the input".into())?);
                Ok((Some(reader.into()), Some(Feeding { stop: Some(stop), thread })))
            }
        }
    }
}

/// First what is kept, then what comes, which is kept. Ends when nobody reads any more, with the input's end, or when
/// it is stopped.
fn feed(kept: &Kept, input: &File, writer: &File, stopped: &OwnedFd) {
    let mut buffer = vec![0; BUFFER];
    let mut at = 0;
    loop {
        let Ok(count) = kept.file.read_at(&mut buffer, at) else { return };
        if count == 0 {
            break;
        }
        at += count as u64;
        if !put(writer, &buffer[..count], stopped) {
            return;
        }
    }
    lend(kept, at, input, writer, stopped);
}

/// Passes on what comes out of a pipe and keeps it, from `at` on. Only what the command has read is taken.
fn lend(kept: &Kept, mut at: u64, mut input: &File, writer: &File, stopped: &OwnedFd) {
    let mut buffer = vec![0; BUFFER];
    loop {
        // All of the piece before has been read when there is room for the next.
        if !ready(writer.as_fd(), PollFlags::OUT, stopped) || !ready(input.as_fd(), PollFlags::IN, stopped) {
            return;
        }
        let Ok(lent @ 1..) = rustix::pipe::tee(input, writer, BUFFER, SpliceFlags::empty()) else { return };
        let goes_on = ready(writer.as_fd(), PollFlags::OUT, stopped);
        let unread = rustix::io::ioctl_fionread(writer).unwrap_or(0);
        let taken = lent.saturating_sub(usize::try_from(unread).unwrap_or(lent));
        // Without room to keep it in, a run again would see less: better it sees the input's end now.
        if input.read_exact(&mut buffer[..taken]).is_err() || kept.keep(&buffer[..taken], at).is_err() {
            return;
        }
        at += taken as u64;
        if !goes_on {
            return;
        }
    }
}

fn put(mut writer: &File, mut bytes: &[u8], stopped: &OwnedFd) -> bool {
    while !bytes.is_empty() {
        // No more than what a pipe takes at once where it takes anything, so that this never waits for a reader that is
        // stopped.
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

    fn keeping(most: u64) -> Kept {
        Kept::new(tempfile::tempfile().unwrap(), most)
    }

    fn feeding(kept: &Kept, input: OwnedFd) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, PIECE).unwrap();
        let (stopped, _stop) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        // Nothing more is passed on before what was is read.
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        feed(kept, &input.into(), &File::from(OwnedFd::from(writer)), &stopped);
        reading.join().unwrap()
    }

    #[test]
    fn what_the_command_does_not_read_stays_where_it_was() {
        let kept = keeping(MOST_KEPT);
        let (mut input, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one two").unwrap();
        drop(writer);
        let (mut reader, pipe) = pipe_with(PipeFlags::CLOEXEC).map(|(a, b)| (File::from(a), File::from(b))).unwrap();
        rustix::pipe::fcntl_setpipe_size(&pipe, PIECE).unwrap();
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (keeper, lent) = (kept.clone(), File::from(OwnedFd::from(input.try_clone().unwrap())));
        let thread = std::thread::spawn(move || feed(&keeper, &lent, &pipe, &stopped));
        let mut word = [0; 4];
        reader.read_exact(&mut word).unwrap();
        drop(stop);
        thread.join().unwrap();
        let mut rest = String::new();
        input.read_to_string(&mut rest).unwrap();
        assert_eq!((&word, rest.as_str()), (b"one ", "two"));
    }

    #[test]
    fn what_came_comes_again_and_then_the_rest() {
        let kept = keeping(MOST_KEPT);
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one ").unwrap();
        drop(writer);
        assert_eq!(feeding(&kept, reader.into()), "one ");
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"two").unwrap();
        drop(writer);
        assert_eq!(feeding(&kept, reader.into()), "one two");
    }

    #[test]
    fn of_more_than_is_kept_nothing_is() {
        let kept = keeping(6);
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one two").unwrap();
        drop(writer);
        assert_eq!(feeding(&kept, reader.into()), "one two");
        assert_eq!(kept.file.metadata().unwrap().len(), 0);
        let error = ReplayedInput::Kept(kept).again().unwrap_err();
        assert!(format!("{error:?}").contains("256 MiB"), "{error:?}");
    }
}
