//! The entries of a tar archive, one after the other, from any stream.
//!
//! `tar-core` understands the headers: ustar, GNU and pax, long names, every kind of sparse file, each within limits, so that a
//! header cannot make this process take memory or time without bound. The stream is read here.

use crate::source::copy::{Attributes, is_carried};
use std::ffi::CString;
use std::io::{self, Read};
use tar_core::parse::{Limits, ParseError, ParseEvent, ParsedEntry, Parser};
use tar_core::{EntryType, Header, PaxExtensions};

const BLOCK: usize = 512;

/// All headers of one entry together: long names and extended attributes are in them, and the map of a sparse file.
const MAX_HEADERS: usize = 4 << 20;

const READ_STEP: usize = 64 << 10;

const DRAIN_STEP: u64 = 16 << 20;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    /// Runs of data as (offset, length) and the size of the whole.
    Sparse(Vec<(u64, u64)>, u64),
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Fifo,
    Device,
    /// A type that means nothing to a tree of files: a volume label and the like.
    Unknown,
}

/// One entry, owned.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) attributes: Attributes,
    /// Bytes of content in the archive.
    pub(crate) size: u64,
    /// Where its first header begins, in the unpacked archive.
    pub(crate) offset: u64,
    /// Where its content begins.
    pub(crate) content_offset: u64,
    /// Extended attributes that a guest must not have.
    pub(crate) dropped: u64,
}

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
    #[error("its owner {0} is not a user or group id")]
    Owner(u64),
    #[error("it has an extended attribute whose value is longer than 64 KiB, which no file system keeps")]
    AttributeTooLong,
    #[error("it has an extended attribute whose name is longer than 255 bytes, which no file system keeps")]
    AttributeNameTooLong,
    #[error("it has more than 1 MiB of extended attributes")]
    TooManyAttributes,
    #[error("its map of data runs is not in order, or does not match its size")]
    SparseMap,
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
        // Numbers in pax headers that are not plain (times before 1970) are not an attack; what matters is read again below.
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
                    if !is_sparse_map(&map, real_size, entry.size) {
                        return Err(TarError::SparseMap);
                    }
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

    /// Reads on behind the end of the archive, some megabytes. False: that was the end of the stream.
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

/// Refuses headers that claim to be followed by more text than a header may have. `tar-core` has such a limit too, but adds up
/// the sizes before it compares them: two that together pass 2^64 would be a panic where overflow is checked.
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

/// The longest value and name of an extended attribute (XATTR_SIZE_MAX, XATTR_NAME_MAX), and the most of them that one entry may bring.
const LONGEST_ATTRIBUTE: usize = 64 << 10;
const LONGEST_ATTRIBUTE_NAME: usize = 255;
const MOST_ATTRIBUTES: usize = 1 << 20;

/// What an attribute takes in memory besides its name and value: two pointers with lengths, and what the heap adds to each. Without it a small archive of
/// empty attributes would take many times what is counted.
pub(super) const ATTRIBUTE_EACH: usize = 96;

/// Refuses attributes that an archive may hold and no file system can: they are kept in memory until their file is made.
fn check_attribute(name: &[u8], value: &[u8], so_far: &mut usize) -> Result<(), TarError> {
    if name.len() > LONGEST_ATTRIBUTE_NAME {
        return Err(TarError::AttributeNameTooLong);
    }
    if value.len() > LONGEST_ATTRIBUTE {
        return Err(TarError::AttributeTooLong);
    }
    *so_far += name.len() + value.len() + ATTRIBUTE_EACH;
    if *so_far > MOST_ATTRIBUTES { Err(TarError::TooManyAttributes) } else { Ok(()) }
}

fn owned(entry: &ParsedEntry<'_>, kind: Kind, offset: u64) -> Result<Entry, TarError> {
    // The all-ones id means "leave as it is" to chown.
    let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or(TarError::Owner(id));
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
        // `trusted.` is for the host's root alone.
        match CString::new(name) {
            Ok(name) if is_carried(name.as_bytes()) && !name.as_bytes().starts_with(b"trusted.") => {
                xattrs.push((name, value.to_vec()));
            }
            _ => dropped += 1,
        }
    }
    Ok(Entry {
        path: entry.path.to_vec(),
        kind,
        attributes: Attributes {
            uid: id(entry.uid)?,
            gid: id(entry.gid)?,
            mode: entry.mode & 0o7777,
            accessed: accessed.unwrap_or(modified),
            modified,
            xattrs,
        },
        size: entry.size,
        offset,
        content_offset: 0,
        dropped,
    })
}

/// A time as pax writes it: seconds since 1970 with a fraction, negative before.
fn moment(text: &[u8]) -> Option<(i64, u32)> {
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

/// Whether the runs are in order, lie in the file, and add up to the content.
fn is_sparse_map(map: &[(u64, u64)], real_size: u64, content: u64) -> bool {
    let (mut end, mut sum) = (0_u64, 0_u64);
    for (offset, length) in map {
        let (Some(next), Some(total)) = (offset.checked_add(*length), sum.checked_add(*length)) else { return false };
        if *offset < end {
            return false;
        }
        (end, sum) = (next, total);
    }
    end <= real_size && sum == content && i64::try_from(real_size).is_ok()
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
    fn sparse_maps_are_checked() {
        assert!(is_sparse_map(&[(0, 2), (4, 2), (9, 0)], 9, 4));
        assert!(!is_sparse_map(&[(4, 2), (0, 2)], 9, 4), "out of order");
        assert!(!is_sparse_map(&[(0, 4), (2, 4)], 9, 8), "overlapping");
        assert!(!is_sparse_map(&[(8, 2)], 9, 2), "past the end");
        assert!(!is_sparse_map(&[(u64::MAX, 2)], u64::MAX, 2), "overflowing");
        assert!(!is_sparse_map(&[(0, 1)], u64::MAX, 1), "larger than any file");
    }

    #[test]
    fn attributes_that_no_file_system_keeps_are_refused() {
        let checked = |name: usize, value: usize, so_far: usize| {
            let mut so_far = so_far;
            check_attribute(&vec![b'a'; name], &vec![0; value], &mut so_far)
        };
        assert!(checked(255, 64 << 10, 0).is_ok());
        assert!(matches!(checked(10, (64 << 10) + 1, 0), Err(TarError::AttributeTooLong)));
        assert!(matches!(checked(256, 1, 0), Err(TarError::AttributeNameTooLong)));
        assert!(matches!(checked(10, 1000, 1 << 20), Err(TarError::TooManyAttributes)));
        let mut so_far = 0;
        let empty = (0..90_000).find(|_| check_attribute(b"user.", b"", &mut so_far).is_err());
        assert!(empty.is_some_and(|count| count < 12_000), "empty ones take memory too: {empty:?}");
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
