//! The entries of a tar archive, one after the other, from any stream.
//!
//! `tar-core` understands the headers: ustar, GNU and pax, long names, every kind of sparse file, each within limits,
//! so that a header cannot make this process take memory or time without bound. The stream is read here.

use crate::entry::{Entry, Impossible, Kind, check_attribute, owner};
use std::io::{self, Read};
use tar_core::parse::{Limits, ParseError, ParseEvent, ParsedEntry, Parser};
use tar_core::{EntryType, Header, PaxExtensions};

const BLOCK: usize = 512;

/// All headers of one entry together: long names and extended attributes are in them, and the map of a sparse file.
const MAX_HEADERS: usize = 4 << 20;

const READ_STEP: usize = 64 << 10;

const DRAIN_STEP: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TarError {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("{0}")]
    Header(ParseError),
    #[error("its headers are larger than 4 MiB")]
    HeadersTooLarge,
    #[error("the archive ends in the middle of it")]
    Truncated,
    #[error("the archive ends without the mark that closes one: it was cut short")]
    NoEnd,
    #[error("{0}")]
    Impossible(#[from] Impossible),
}

pub(crate) struct TarReader<R> {
    source: R,
    parser: Parser,
    buffer: Vec<u8>,
    /// Where the unread part of the buffer begins.
    start: usize,
    /// The place of `start` in the stream.
    offset: u64,
    /// Bytes of the current entry that nobody read yet.
    content: u64,
    padding: u64,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(source: R) -> Self {
        let limits = Limits { max_metadata_size: 2 << 20, max_sparse_entries: 200_000, ..Limits::default() };
        let mut parser = Parser::new(limits);
        // Numbers in pax headers that are not plain (times before 1970) are not an attack; what matters is read again
        // below.
        parser.set_ignore_pax_errors(true);
        Self { source, parser, buffer: Vec::new(), start: 0, offset: 0, content: 0, padding: 0 }
    }

    /// Where the reader stands, in the unpacked archive.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next entry. What was not read of the one before is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        io::copy(&mut self.content(), &mut io::sink())?;
        self.content = std::mem::take(&mut self.padding);
        io::copy(&mut self.content(), &mut io::sink())?;
        let mut globals = 0;
        loop {
            let before = self.offset;
            check_extensions(&self.buffer[self.start..])?;
            let wanted = match self.parser.parse(&self.buffer[self.start..]).map_err(TarError::Header)? {
                ParseEvent::NeedData { min_bytes } => min_bytes,
                ParseEvent::GlobalExtensions { consumed, .. } => {
                    self.consume(consumed);
                    globals += consumed;
                    // They follow each other without end in what a decompressor can make of a kilobyte.
                    if globals > MAX_HEADERS {
                        return Err(TarError::HeadersTooLarge);
                    }
                    continue;
                }
                ParseEvent::End { consumed } => {
                    self.consume(consumed);
                    return Ok(None);
                }
                ParseEvent::Entry { consumed, entry } => {
                    let kind = kind_of(&entry);
                    let entry = owned(&entry, kind, before)?;
                    return self.begin(entry, consumed).map(Some);
                }
                ParseEvent::SparseEntry { consumed, entry, sparse_map, real_size } => {
                    let map: Vec<_> = sparse_map.iter().map(|run| (run.offset, run.length)).collect();
                    let kind = match kind_of(&entry) {
                        Kind::File => Kind::Sparse(map, real_size),
                        other => other,
                    };
                    let entry = owned(&entry, kind, before)?;
                    return self.begin(entry, consumed).map(Some);
                }
            };
            if !self.fill(wanted)? {
                return Ok(None);
            }
        }
    }

    /// The content of the current entry.
    pub(crate) fn content(&mut self) -> Content<'_, R> {
        Content { reader: self }
    }

    /// Reads on after the end of the archive, some megabytes. False: that was the end of the stream.
    pub(crate) fn drain(&mut self) -> io::Result<bool> {
        self.consume(self.buffer.len() - self.start);
        Ok(io::copy(&mut self.source.by_ref().take(DRAIN_STEP), &mut io::sink())? > 0)
    }

    fn begin(&mut self, mut entry: Entry, consumed: usize) -> Result<Entry, TarError> {
        self.consume(consumed);
        // Links, directories and the like have no content, whatever some archivers write in their size.
        if !matches!(entry.kind, Kind::File | Kind::Sparse(..) | Kind::Unknown) {
            entry.size = 0;
        }
        self.content = entry.size;
        self.padding = entry.size.wrapping_neg() % BLOCK as u64;
        entry.content_offset = self.offset;
        entry.check()?;
        Ok(entry)
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        self.offset += count as u64;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
    }

    /// Reads on until there are `wanted` bytes of headers, and at least some more than before. False: a clean end.
    fn fill(&mut self, wanted: usize) -> Result<bool, TarError> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let wanted = wanted.max(self.buffer.len() + 1).next_multiple_of(BLOCK);
        if wanted > MAX_HEADERS {
            return Err(TarError::HeadersTooLarge);
        }
        while self.buffer.len() < wanted {
            let had = self.buffer.len();
            let step = (wanted - had).max(READ_STEP) as u64;
            // `take` keeps the decompressor from handing over all it has.
            if self.source.by_ref().take(step).read_to_end(&mut self.buffer)? > 0 {
                continue;
            }
            return match had {
                0 => Err(TarError::NoEnd),
                // One block of zeros in place of two: tar itself accepts that.
                BLOCK if self.buffer.iter().all(|byte| *byte == 0) => Ok(false),
                _ => Err(TarError::Truncated),
            };
        }
        Ok(true)
    }
}

/// Reads the rest of one entry's content. Its end before the entry's end is an error.
pub(crate) struct Content<'a, R> {
    reader: &'a mut TarReader<R>,
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let reader = &mut *self.reader;
        let most = into.len().min(usize::try_from(reader.content).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let buffered = &reader.buffer[reader.start..];
        let count = if buffered.is_empty() {
            let count = reader.source.read(&mut into[..most])?;
            reader.offset += count as u64;
            count
        } else {
            let count = most.min(buffered.len());
            into[..count].copy_from_slice(&buffered[..count]);
            reader.consume(count);
            count
        };
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, TarError::Truncated));
        }
        reader.content -= count as u64;
        Ok(count)
    }
}

/// Refuses headers that claim to be followed by more text than a header may have. `tar-core` has such a limit too, but
/// adds up the sizes before it compares them: two that together pass 2^64 would be a panic where overflow is checked.
fn check_extensions(mut rest: &[u8]) -> Result<(), TarError> {
    while let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
        let header = Header::from_bytes(block);
        let extension = matches!(
            header.entry_type(),
            EntryType::GnuLongName | EntryType::GnuLongLink | EntryType::XHeader | EntryType::XGlobalHeader
        );
        if !extension {
            break;
        }
        // A size that is no number is the parser's to refuse.
        let size = usize::try_from(header.entry_size().unwrap_or(0)).unwrap_or(usize::MAX);
        if size > MAX_HEADERS {
            return Err(TarError::HeadersTooLarge);
        }
        rest = after.get(size.next_multiple_of(BLOCK)..).unwrap_or_default();
    }
    Ok(())
}

fn kind_of(entry: &ParsedEntry<'_>) -> Kind {
    let target = || entry.link_target.as_deref().unwrap_or_default().to_vec();
    match entry.entry_type {
        // Archivers before POSIX mark a directory by the slash alone.
        EntryType::Regular | EntryType::Continuous if entry.path.ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GnuSparse => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink(target()),
        EntryType::Link => Kind::HardLink(target()),
        EntryType::Fifo => Kind::Fifo,
        EntryType::Char | EntryType::Block => Kind::Device,
        _ => Kind::Unknown,
    }
}

fn owned(entry: &ParsedEntry<'_>, kind: Kind, offset: u64) -> Result<Entry, TarError> {
    let mut modified = (i64::try_from(entry.mtime).unwrap_or(0), 0);
    let mut accessed = None;
    let (mut xattrs, mut dropped, mut attributes) = (Vec::new(), 0, 0);
    for record in PaxExtensions::new(entry.pax.unwrap_or_default()).flatten() {
        let (key, value) = (record.key_bytes(), record.value_bytes());
        match key {
            b"mtime" => modified = moment(value).unwrap_or(modified),
            b"atime" => accessed = moment(value),
            _ if key.starts_with(b"SCHILY.acl.") => dropped += 1,
            _ => {}
        }
        let Some(name) = key.strip_prefix(b"SCHILY.xattr.") else { continue };
        check_attribute(name, value, &mut attributes)?;
        xattrs.push((name.to_vec(), value.to_vec()));
    }
    Ok(Entry {
        path: entry.path.to_vec(),
        kind,
        uid: owner(entry.uid)?,
        gid: owner(entry.gid)?,
        mode: entry.mode & 0o7777,
        accessed: accessed.unwrap_or(modified),
        modified,
        xattrs,
        size: entry.size,
        offset,
        content_offset: 0,
        dropped,
    })
}

/// A time as pax writes it: seconds since 1970 with a fraction, negative before.
pub(crate) fn moment(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    match (whole.starts_with('-'), nanoseconds) {
        (_, 0) => Some((seconds, 0)),
        (false, _) => Some((seconds, nanoseconds)),
        (true, _) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_fractions_and_may_lie_before_1970() {
        assert_eq!(moment(b"12"), Some((12, 0)));
        assert_eq!(moment(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(moment(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(moment(b"1.0000000019"), Some((1, 1)));
        for wrong in ["", ".", "x", "1.x", "99999999999999999999"] {
            assert_eq!(moment(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn the_end_must_be_marked() {
        assert!(matches!(TarReader::new(&b""[..]).next(), Err(TarError::NoEnd)));
        assert!(matches!(TarReader::new(&[0; 512][..]).next(), Ok(None)));
        assert!(matches!(TarReader::new(&[0; 1024][..]).next(), Ok(None)));
        assert!(matches!(TarReader::new(&[7; 100][..]).next(), Err(TarError::Truncated)));
    }

    #[test]
    fn a_header_that_claims_gigabytes_of_name_is_refused_at_once() {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(8 << 30);
        header.set_cksum();
        let endless = io::Read::chain(&header.as_bytes()[..], io::repeat(b'a'));
        assert!(matches!(TarReader::new(endless).next(), Err(TarError::HeadersTooLarge)));
    }

    #[test]
    fn sizes_of_two_headers_that_overflow_when_added_are_refused() {
        let extension = |kind, size: u64| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_cksum();
            header.as_bytes().to_vec()
        };
        let mut archive = extension(tar::EntryType::GNULongName, 1_024);
        archive.extend([b'a'; 1_024]);
        archive.extend(extension(tar::EntryType::XHeader, u64::MAX - 511));
        archive.extend([0; 2_048]);
        assert!(matches!(TarReader::new(&archive[..]).next(), Err(TarError::HeadersTooLarge)));
    }
}
