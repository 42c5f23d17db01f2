//! Bytes carried one way, from one descriptor to another, through a bounded buffer.

use super::detach_keys::DetachKeys;
use super::end::End;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// The most that is held between reading and writing. A pty gives and takes at most 4 KiB at once.
const CAPACITY: usize = 16 * 1024;
/// The most that is written at once: a terminal takes this much after poll(2) said that it takes something.
const PIECE: usize = 4096;
/// What a terminal's line discipline takes for the end of input.
const END_OF_INPUT: u8 = 4;

/// A relay. Done when the source has ended and all of it is written, or when nobody reads it any more.
#[derive(Debug)]
pub(crate) struct Relay {
    source: Option<End>,
    sink: Option<End>,
    buffer: Vec<u8>,
    keys: Option<DetachKeys>,
    /// The sink is a terminal's master, which cannot be half-closed: the end of the source is typed into it.
    types_end: bool,
    /// Reading failed as it does when nobody has the terminal open; it may be opened again.
    resting: bool,
    /// Writing failed: nobody reads what comes out.
    broken: bool,
    /// How many bytes are read at most from now on.
    most: Option<usize>,
    /// The sink takes what processes print that outlive the command.
    lasting: bool,
}

/// What reading brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    Bytes,
    Nothing,
    /// The keys to detach.
    Detach,
}

impl Relay {
    pub(crate) fn new(source: End, sink: End) -> Self {
        let (source, sink) = (Some(source), Some(sink));
        Self {
            source,
            sink,
            buffer: Vec::with_capacity(CAPACITY),
            keys: None,
            types_end: false,
            resting: false,
            broken: false,
            most: None,
            lasting: false,
        }
    }

    /// One that somebody else goes on with when this program ends: see [`leave`](Self::leave).
    pub(crate) fn lasting(source: End, sink: End) -> Self {
        Self { lasting: true, ..Self::new(source, sink) }
    }

    /// From the caller's input to a terminal's master.
    pub(crate) fn typing(source: End, master: End, keys: DetachKeys) -> Self {
        Self { keys: Some(keys), types_end: true, ..Self::new(source, master) }
    }

    /// The descriptor to read from, if there is room for more.
    pub(crate) fn readable(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let room = self.buffer.len() < CAPACITY && !self.resting && self.sink.is_some() && self.most != Some(0);
        self.source.as_ref().filter(|_| room).map(|source| (source.as_fd(), PollFlags::IN))
    }

    /// The descriptor to write to, if there is something to write.
    pub(crate) fn writable(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.sink.as_ref().filter(|_| !self.buffer.is_empty()).map(|sink| (sink.as_fd(), PollFlags::OUT))
    }

    /// Whether nothing will be carried any more.
    pub(crate) fn is_done(&self) -> bool {
        self.sink.is_none() || (self.source.is_none() && self.buffer.is_empty())
    }

    /// Whether nobody reads what comes out.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether somebody else goes on with it when this program ends.
    pub(crate) fn is_lasting(&self) -> bool {
        self.lasting
    }

    /// Reads no more than so many bytes from now on.
    pub(crate) fn bound(&mut self, bytes: usize) {
        self.most = Some(bytes);
    }

    /// Source and sink of one that is not done, with nothing on the way between them, for somebody else to go on with.
    pub(crate) fn leave(self) -> Option<(End, End)> {
        self.buffer.is_empty().then_some(self.source.zip(self.sink)).flatten()
    }

    /// Whether it waits for a terminal to be opened again.
    pub(crate) fn is_resting(&self) -> bool {
        self.resting
    }

    /// Tries a resting source again.
    pub(crate) fn wake(&mut self) {
        self.resting = false;
    }

    /// Whether typed keys are held back.
    pub(crate) fn holds_keys(&self) -> bool {
        self.keys.as_ref().is_some_and(DetachKeys::holds)
    }

    /// Passes on what was held back.
    pub(crate) fn release_keys(&mut self) {
        if let Some(keys) = &mut self.keys {
            keys.release(&mut self.buffer);
        }
    }

    /// Reads once; to be called when the source is readable.
    pub(crate) fn read(&mut self) -> Brought {
        let Some(source) = &self.source else { return Brought::Nothing };
        let mut piece = [0; PIECE];
        let most = self.most.map_or(PIECE, |most| most.min(PIECE));
        match rustix::io::read(source, &mut piece[..most]) {
            Ok(0) => self.end(),
            Ok(length) => {
                self.most = self.most.map(|most| most - length);
                return self.take(&piece[..length]);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A master's way to say that no process has its terminal open.
            Err(Errno::IO) => self.resting = true,
            Err(_) => self.end(),
        }
        Brought::Nothing
    }

    fn take(&mut self, bytes: &[u8]) -> Brought {
        let detach = match &mut self.keys {
            Some(keys) => keys.filter(bytes, &mut self.buffer),
            None => {
                self.buffer.extend_from_slice(bytes);
                false
            }
        };
        if detach { Brought::Detach } else { Brought::Bytes }
    }

    /// Reads no more; what was read is still to be written.
    pub(crate) fn end(&mut self) {
        if self.source.is_none() {
            return;
        }
        self.release_keys();
        self.source = None;
        self.resting = false;
        if self.types_end {
            self.buffer.push(END_OF_INPUT);
        }
        self.close_if_written();
    }

    /// Writes once; to be called when the sink is writable.
    pub(crate) fn write(&mut self) {
        let Some(sink) = &self.sink else { return };
        match rustix::io::write(sink, &self.buffer[..self.buffer.len().min(PIECE)]) {
            Ok(written) => drop(self.buffer.drain(..written)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Nobody reads: as a process that ignores SIGPIPE sees it.
            Err(error) => {
                if !matches!(error, Errno::PIPE | Errno::IO) {
                    eprintln!("pando: cannot write what the command printed: {error}");
                }
                self.broken = true;
                self.sink = None;
                self.source = None;
                self.buffer.clear();
            }
        }
        self.close_if_written();
    }

    /// The end of a pipe is told by closing it.
    fn close_if_written(&mut self) {
        if self.source.is_none() && self.buffer.is_empty() && !self.types_end {
            self.sink = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    fn relay() -> (File, Relay, File) {
        let ((source, feed), (drain, sink)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        (feed.into(), Relay::new(End::Ours(source), End::Ours(sink)), drain.into())
    }

    #[test]
    fn bytes_pass_and_the_end_is_told() {
        let (mut feed, mut relay, mut drain) = relay();
        feed.write_all(b"hello").unwrap();
        drop(feed);
        assert_eq!(relay.read(), Brought::Bytes);
        relay.write();
        assert_eq!(relay.read(), Brought::Nothing);
        assert!(relay.is_done());
        let mut text = String::new();
        drain.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn the_buffer_is_bounded() {
        let (mut feed, mut relay, _drain) = relay();
        feed.write_all(&[7; 2 * CAPACITY]).unwrap();
        let mut rounds = 0;
        while relay.readable().is_some() {
            relay.read();
            rounds += 1;
        }
        assert_eq!(rounds, CAPACITY / PIECE);
        assert!(relay.writable().is_some());
    }

    #[test]
    fn a_sink_without_reader_ends_it() {
        let (mut feed, mut relay, drain) = relay();
        drop(drain);
        feed.write_all(b"x").unwrap();
        relay.read();
        relay.write();
        assert!(relay.is_done() && relay.readable().is_none());
    }

    #[test]
    fn the_end_of_input_is_typed_into_a_terminal() {
        let ((source, feed), (drain, sink)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        let mut relay = Relay::typing(End::Ours(source), End::Ours(sink), "ctrl-p,ctrl-q".parse().unwrap());
        File::from(feed).write_all(b"ls\n\x10").unwrap();
        relay.read();
        relay.read();
        relay.write();
        let mut typed = [0; 16];
        let length = File::from(drain).read(&mut typed).unwrap();
        assert_eq!(&typed[..length], b"ls\n\x10\x04");
    }
}
