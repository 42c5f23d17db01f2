//! What a reader says, and how: frames on a pipe.
//!
//! ```text
//!   frame:  kind, 1 byte │ bytes of the input that were read so far, 8 │ length, 4 │ so many bytes
//!           (numbers little-endian)
//!   kind 0: a message (postcard)      kind 1: content of what the last message was about
//! ```

use crate::copy_stream::{CopyEntry, CopyKind};
use crate::document::Document;
use crate::entry::Entry;
use crate::failure::Failure;
use crate::job::Job;
use crate::serve::End;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// The longest message: a sparse file's map and all headers of an entry together are below 4 MiB, a document of an
/// image as well.
const LONGEST_MESSAGE: usize = 12 << 20;

/// The most content of a frame.
pub(crate) const LONGEST_CONTENT: usize = 1 << 20;

const HEAD: usize = 13;
const MESSAGE: u8 = 0;
const CONTENT: u8 = 1;

/// A message from a reader to its caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// It has given up its powers, and begins to read.
    Begun,
    /// An entry of an archive. Its content follows, where that is wanted and it has any.
    Entry(Box<Entry>),
    /// An entry of what is copied out of a guest. Its content follows, if it is a file.
    Copied(CopyEntry),
    /// The input is expanded: content follows, up to the next message.
    Expanded,
    /// A document, as a whole.
    Document(Document),
    /// A part of an export by its number. Its content follows, up to the next message.
    Part(u8),
    /// The input was read to its end.
    End(End),
    /// The input could not be read.
    Failed(Failure),
}

impl Message {
    /// How much content may follow it, in what a job gives.
    pub(crate) fn content(&self, job: &Job) -> u64 {
        match self {
            Self::Entry(entry) if entry.has_content() && matches!(job, Job::Archive { content: true, .. }) => {
                entry.size
            }
            Self::Copied(entry) if entry.kind == CopyKind::File => entry.size,
            // How much there is of these nobody knows before.
            Self::Expanded | Self::Part(_) => u64::MAX,
            _ => 0,
        }
    }
}

/// The writing side.
pub(crate) struct Teller<W: Write> {
    out: io::BufWriter<W>,
}

impl<W: Write> Teller<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out: io::BufWriter::with_capacity(256 << 10, out) }
    }

    pub(crate) fn say(&mut self, position: u64, message: &Message) -> io::Result<()> {
        let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
        self.frame(MESSAGE, position, &bytes)
    }

    /// Content, in as many frames as it takes.
    pub(crate) fn content(&mut self, position: u64, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(LONGEST_CONTENT).try_for_each(|chunk| self.frame(CONTENT, position, chunk))
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn frame(&mut self, kind: u8, position: u64, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.out.write_all(&[kind])?;
        self.out.write_all(&position.to_le_bytes())?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(bytes)
    }
}

/// Why what was said is nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Nonsense {
    #[error("{0}")]
    Read(#[from] io::Error),
    /// The other side is gone.
    #[error("it said no more")]
    Gone,
    #[error("it said what no reader says")]
    Unknown,
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A message of so many bytes.
    Message(usize),
    /// Content of so many bytes.
    Content(usize),
}

/// Reads a frame's head, and where the reader stands in its input.
pub(crate) fn head(source: &mut impl Read) -> Result<(Head, u64), Nonsense> {
    let mut bytes = [0; HEAD];
    source.read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Nonsense::Gone,
        _ => error.into(),
    })?;
    let [kind, position @ .., a, b, c, d] = bytes;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let head = match kind {
        MESSAGE if length <= LONGEST_MESSAGE => Head::Message(length),
        CONTENT if (1..=LONGEST_CONTENT).contains(&length) => Head::Content(length),
        _ => return Err(Nonsense::Unknown),
    };
    Ok((head, u64::from_le_bytes(position)))
}

/// Reads a message of a length. Memory is taken as it comes in.
pub(crate) fn message(source: &mut impl Read, length: usize) -> Result<Message, Nonsense> {
    let mut bytes = Vec::new();
    if source.take(length as u64).read_to_end(&mut bytes)? < length {
        return Err(Nonsense::Gone);
    }
    let (message, rest) = postcard::take_from_bytes::<Message>(&bytes).map_err(|_| Nonsense::Unknown)?;
    if !rest.is_empty() {
        return Err(Nonsense::Unknown);
    }
    match message {
        Message::Entry(entry) if entry.check().is_err() => Err(Nonsense::Unknown),
        Message::Copied(entry) if !entry.is_possible() => Err(Nonsense::Unknown),
        Message::Failed(failure) => Ok(Message::Failed(failure.printable())),
        message => Ok(message),
    }
}
