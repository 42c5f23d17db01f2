//! The work of a reader: from an input to frames.

use crate::compression::Compression;
use crate::copy_stream::{CopyKind, StreamError, for_each};
use crate::digest::{Digester, Digesting, Sum};
use crate::document;
use crate::export;
use crate::failure::{Failure, Place};
use crate::job::{Job, Parsers};
use crate::tar_reader::{TarError, TarReader};
use crate::wire::{Message, Teller};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::rc::Rc;

const BUFFER: usize = 256 << 10;

/// The most that may follow the end of an archive, in steps of [`TarReader::drain`].
const MOST_BEHIND: u32 = 64;

/// No index, manifest or configuration is larger.
const LONGEST_DOCUMENT: u64 = 4 << 20;

/// What came of reading all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Whether the plain content has the digest that was wanted; true if none was.
    pub agrees: bool,
}

/// Why a reader stops.
pub(crate) enum Stop {
    /// The input is wrong.
    Failed(Failure),
    /// Nobody listens any more.
    Unheard(io::Error),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Unheard(error)
    }
}

/// Counts what is read.
pub(crate) struct Counted<R> {
    inner: R,
    position: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.position.set(self.position.get() + count as u64);
        Ok(count)
    }
}

/// Does a job. The error is that nobody listens.
pub(crate) fn serve(job: &Job, parsers: Parsers<'_>, input: impl Read, output: impl Write) -> io::Result<()> {
    let position = Rc::new(Cell::new(0));
    let counted = Counted { inner: input, position: Rc::clone(&position) };
    let mut teller = Teller::new(output);
    teller.say(0, &Message::Begun)?;
    let done = match job {
        Job::Archive { plain, end_is_marked, content } => {
            archive(counted, plain.as_ref(), (*end_is_marked, *content), &position, &mut teller)
        }
        Job::Expand => expand(counted, &position, &mut teller),
        Job::Document(shape) => read_document(counted).and_then(|content| {
            teller.say(position.get(), &Message::Document(document::parse(*shape, &content)?))?;
            Ok(End { agrees: true })
        }),
        Job::Copy => copy(counted, &position, &mut teller),
        Job::Export => export::read(counted, &position, &mut teller),
        Job::Record { parser, length } => record(counted, (parsers, parser, *length), &position, &mut teller),
    };
    let last = match done {
        Ok(end) => Message::End(end),
        Err(Stop::Failed(failure)) => Message::Failed(failure),
        Err(Stop::Unheard(error)) => return Err(error),
    };
    teller.say(position.get(), &last)?;
    teller.flush()
}

impl From<StreamError> for Stop {
    fn from(error: StreamError) -> Self {
        Self::Failed(Failure::Stream(error.to_string()))
    }
}

fn copy<W: Write>(input: impl Read, position: &Cell<u64>, teller: &mut Teller<W>) -> Result<End, Stop> {
    let mut buffer = vec![0; BUFFER];
    for_each(input, |entry, content| {
        teller.say(position.get(), &Message::Copied(entry.clone()))?;
        loop {
            if entry.kind != CopyKind::File {
                break;
            }
            match content.read(&mut buffer).map_err(StreamError::Read)? {
                0 => break,
                count => teller.content(position.get(), &buffer[..count])?,
            }
        }
        Ok::<_, Stop>(())
    })?;
    Ok(End { agrees: true })
}

fn unread(error: &io::Error) -> Failure {
    Failure::Input(error.raw_os_error(), error.to_string())
}

/// The plain content of the input.
fn plain<'a>(packed: impl Read + 'a) -> Result<Box<dyn Read + 'a>, Failure> {
    let mut packed = BufReader::with_capacity(BUFFER, packed);
    let compression = Compression::of(packed.fill_buf().map_err(|error| unread(&error))?);
    if let Compression::Other(format) = compression {
        return Err(Failure::Format(format.to_owned()));
    }
    compression.plain(packed).map_err(|error| unread(&error))
}

fn read_document(input: impl Read) -> Result<Vec<u8>, Stop> {
    let mut content = Vec::new();
    input.take(LONGEST_DOCUMENT).read_to_end(&mut content).map_err(|error| unread(&error))?;
    Ok(content)
}

fn record<W: Write>(
    input: impl Read,
    (parsers, name, length): (Parsers<'_>, &str, u64),
    position: &Cell<u64>,
    teller: &mut Teller<W>,
) -> Result<End, Stop> {
    let known = parsers.iter().find(|(known, _)| *known == name);
    let Some((_, parser)) = known else {
        return Err(Failure::Record(format!("nobody here understands '{name}'")).into());
    };
    let mut content = Vec::new();
    input.take(length).read_to_end(&mut content).map_err(|error| unread(&error))?;
    let anew = parser(&content).map_err(Failure::Record)?;
    teller.say(position.get(), &Message::Expanded)?;
    teller.content(position.get(), &anew)?;
    Ok(End { agrees: true })
}

fn expand<W: Write>(input: impl Read, position: &Cell<u64>, teller: &mut Teller<W>) -> Result<End, Stop> {
    let mut plain = plain(input)?;
    teller.say(position.get(), &Message::Expanded)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = plain.read(&mut buffer).map_err(|error| unread(&error))?;
        if count == 0 {
            return Ok(End { agrees: true });
        }
        teller.content(position.get(), &buffer[..count])?;
    }
}

fn archive<W: Write>(
    input: impl Read,
    wanted: Option<&Sum>,
    (end_is_marked, content): (bool, bool),
    position: &Cell<u64>,
    teller: &mut Teller<W>,
) -> Result<End, Stop> {
    let plain = Digesting::new(plain(input)?, wanted.map(Digester::new));
    let mut reader = TarReader::new(plain.share());
    let mut buffer = vec![0; BUFFER];
    loop {
        // After the padding of the last entry.
        let offset = reader.offset().next_multiple_of(512);
        let entry = match reader.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(TarError::NoEnd) if !end_is_marked => break,
            // Something else altogether fails at its first header.
            Err(TarError::Header(_) | TarError::HeadersTooLarge | TarError::Truncated) if offset == 0 => {
                return Err(Failure::NotAnArchive.into());
            }
            Err(error) => return Err(damaged(Place::NextEntry, offset, &error).into()),
        };
        let (has_content, begin) = (content && entry.has_content(), entry.offset);
        teller.say(position.get(), &Message::Entry(Box::new(entry)))?;
        loop {
            if !has_content {
                break;
            }
            match reader.content().read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => teller.content(position.get(), &buffer[..count])?,
                Err(error) => return Err(damaged(Place::Content, begin, &error).into()),
            }
        }
    }
    let end = reader.offset();
    let mut behind = 0;
    // Decompressors check their sums at the end of the stream, which lies after the end of the archive.
    while reader.drain().map_err(|error| damaged(Place::End, end, &error))? {
        behind += 1;
        // Padding, in practice some kilobytes. A decompressor can have it without end.
        if behind > MOST_BEHIND {
            let reason = "more than a gibibyte follows".to_owned();
            return Err(Failure::Damaged { place: Place::End, offset: end, reason }.into());
        }
    }
    Ok(End { agrees: plain.agrees() })
}

fn damaged(place: Place, offset: u64, reason: &dyn std::error::Error) -> Failure {
    Failure::Damaged { place, offset, reason: reason.to_string() }
}
