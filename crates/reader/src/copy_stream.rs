//! The entries of a tar stream of `pando cp`, read without trust. Such a stream is narrower than an archive: what two
//! readers could read differently is refused.
//!
//! The tar crate reads long names and pax headers into memory whatever size they claim, so it gives the entries raw
//! here, and the extensions are put together under a bound.

use crate::tar_reader::moment;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use tar::{Archive, Entry as Raw, EntryType, Header};
// The tar crate's ends a value at its first newline, and attributes are any bytes.
use tar_core::PaxExtensions;

/// The largest extension header: a pax header holds a path, a link, a few numbers and extended attributes.
pub const LARGEST_EXTENSION: u64 = 64 * 1024;
/// What an extended attribute is called in a pax header, before its own name.
pub const ATTRIBUTE: &str = "SCHILY.xattr.";
/// The longest name of an extended attribute (XATTR_NAME_MAX).
const LONGEST_ATTRIBUTE_NAME: usize = 255;
/// The longest path, as the kernel has it.
const LONGEST_PATH: usize = 4096;
/// How many extension headers may stand before one entry: long name, long link, pax, and a global one.
const MOST_EXTENSIONS: usize = 4;

/// What kind of file an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Another name of a file.
    Hardlink,
    /// A device or a FIFO.
    Special,
}

/// An entry's header, extensions applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyEntry {
    /// As the stream has it: it may lead anywhere.
    pub path: Vec<u8>,
    /// The target of a link.
    pub link: Vec<u8>,
    /// The kind of file that the entry is.
    pub kind: CopyKind,
    /// Permission bits and the three above them.
    pub mode: u32,
    /// The id of the owner, as the archive has it.
    pub uid: u32,
    /// The id of the group, as the archive has it.
    pub gid: u32,
    /// When the content changed, in seconds since the epoch.
    pub modified: i64,
    /// The nanoseconds of that second.
    pub nanoseconds: u32,
    /// Extended attributes: names, whatever they are, and values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The size of the content, in bytes.
    pub size: u64,
}

impl CopyEntry {
    /// Whether it can be an entry at all. Its paths are looked at by the code that resolves them.
    pub(crate) fn is_possible(&self) -> bool {
        let sizes = self.attributes.iter().map(|(name, value)| (name.len() + value.len()) as u64);
        let named = |(name, _): &(Vec<u8>, Vec<u8>)| is_attribute_name(name);
        self.path.len() < LONGEST_PATH
            && self.link.len() < LONGEST_PATH
            && self.mode & !0o7777 == 0
            && self.nanoseconds < 1_000_000_000
            && self.attributes.iter().all(named)
            && sizes.sum::<u64>() <= LARGEST_EXTENSION * MOST_EXTENSIONS as u64
    }
}

fn is_attribute_name(name: &[u8]) -> bool {
    (1..=LONGEST_ATTRIBUTE_NAME).contains(&name.len()) && !name.contains(&0)
}

/// Why a stream is not read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It cannot be read, or is no tar stream.
    #[error("cannot read the tar stream: {0}")]
    Read(io::Error),
    /// The stream has what is refused.
    #[error("the tar stream has {0}")]
    Has(String),
}

/// Calls `each` for every entry, with its content.
pub fn for_each<R: Read, E: From<StreamError>>(
    stream: R,
    mut each: impl FnMut(&CopyEntry, &mut dyn Read) -> Result<(), E>,
) -> Result<(), E> {
    let mut archive = Archive::new(stream);
    let mut extensions = Extensions::default();
    for raw in archive.entries().map_err(StreamError::Read)?.raw(true) {
        let mut raw = raw.map_err(StreamError::Read)?;
        if extensions.take(&mut raw)? {
            continue;
        }
        let entry = std::mem::take(&mut extensions).applied(raw.header())?;
        each(&entry, &mut raw)?;
    }
    Ok(())
}

/// A file of which the stream has the map of its holes.
const SPARSE: &str =
    "a sparse file, which is not supported; write it without --sparse: zeros become holes where they are unpacked";

fn refuse<T>(what: impl Into<String>) -> Result<T, StreamError> {
    Err(StreamError::Has(what.into()))
}

/// A number of a header that cannot be read.
fn wrong<E>(_: E) -> StreamError {
    StreamError::Has("a wrong header".to_owned())
}

/// What the headers before an entry say of it.
#[derive(Default)]
struct Extensions {
    count: usize,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    modified: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Extensions {
    /// Takes a raw entry if it is an extension header.
    fn take<R: Read>(&mut self, raw: &mut Raw<'_, R>) -> Result<bool, StreamError> {
        let kind = raw.header().entry_type();
        if !(kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions())
        {
            return Ok(false);
        }
        self.count += 1;
        if self.count > MOST_EXTENSIONS {
            return refuse("too many extension headers in a row");
        }
        let size = raw.header().entry_size().map_err(wrong)?;
        if size > LARGEST_EXTENSION {
            return refuse(format!("an extension header of {size} bytes"));
        }
        let mut content = Vec::new();
        raw.read_to_end(&mut content).map_err(StreamError::Read)?;
        match kind {
            EntryType::GNULongName => self.path = Some(before_nul(content)),
            EntryType::GNULongLink => self.link = Some(before_nul(content)),
            EntryType::XHeader => self.pax(&content)?,
            // A global header holds a comment (git's commit) in practice, and nothing that this side wants to believe.
            _ => {}
        }
        Ok(true)
    }

    fn pax(&mut self, content: &[u8]) -> Result<(), StreamError> {
        for extension in PaxExtensions::new(content) {
            let extension = extension.map_err(|_| StreamError::Has("a wrong pax header".to_owned()))?;
            let value = extension.value_bytes();
            match extension.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"mtime" => self.modified = moment(value),
                // Where the next header begins would depend on it; two readers that differ there see two archives.
                b"size" => {
                    return refuse("a size in a pax header, which is not supported; write it with --format=gnu");
                }
                key if key.starts_with(b"GNU.sparse") => return refuse(SPARSE),
                key => self.attribute(key, value)?,
            }
        }
        Ok(())
    }

    fn attribute(&mut self, key: &[u8], value: &[u8]) -> Result<(), StreamError> {
        let Some(name) = key.strip_prefix(ATTRIBUTE.as_bytes()) else { return Ok(()) };
        if !is_attribute_name(name) {
            return refuse("an extended attribute whose name no file system keeps");
        }
        self.attributes.push((name.to_vec(), value.to_vec()));
        Ok(())
    }

    fn applied(self, header: &Header) -> Result<CopyEntry, StreamError> {
        let path = self.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = self.link.or_else(|| header.link_name_bytes().map(|link| link.into_owned())).unwrap_or_default();
        if path.len() >= LONGEST_PATH || link.len() >= LONGEST_PATH {
            return refuse("a path of more than 4,095 bytes");
        }
        let kind = match header.entry_type() {
            // Before ustar a directory was a file whose name ends in a slash.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => CopyKind::Directory,
            EntryType::Regular | EntryType::Continuous => CopyKind::File,
            EntryType::Directory => CopyKind::Directory,
            EntryType::Symlink => CopyKind::Symlink,
            EntryType::Link => CopyKind::Hardlink,
            EntryType::Char | EntryType::Block | EntryType::Fifo => CopyKind::Special,
            EntryType::GNUSparse => return refuse(SPARSE),
            other => {
                return refuse(format!("an entry of the unknown kind {:?}", char::from(other.as_byte())));
            }
        };
        let (modified, nanoseconds) = match self.modified {
            Some(modified) => modified,
            None => (i64::try_from(header.mtime().map_err(wrong)?).map_err(wrong)?, 0),
        };
        Ok(CopyEntry {
            path,
            link,
            kind,
            mode: header.mode().map_err(wrong)? & 0o7777,
            uid: u32::try_from(header.uid().map_err(wrong)?).map_err(wrong)?,
            gid: u32::try_from(header.gid().map_err(wrong)?).map_err(wrong)?,
            modified,
            nanoseconds,
            attributes: self.attributes,
            size: header.entry_size().map_err(wrong)?,
        })
    }
}

fn before_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u8, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::new(kind));
        header.set_size(size);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(5);
        header
    }

    fn block(mut header: Header, name: &[u8], content: &[u8]) -> Vec<u8> {
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn read(stream: &[u8]) -> Result<Vec<CopyEntry>, StreamError> {
        let mut entries = Vec::new();
        for_each(stream, |entry, _| {
            entries.push(entry.clone());
            Ok::<_, StreamError>(())
        })?;
        Ok(entries)
    }

    fn pax(key: &str, value: &str) -> Vec<u8> {
        let rest = format!(" {key}={value}\n");
        let length = rest.len() + 2;
        let line = format!("{}{rest}", if length > 99 { length + 1 } else { length });
        block(header(b'x', line.len() as u64), b"pax", line.as_bytes())
    }

    #[test]
    fn attributes_are_any_bytes_and_times_have_fractions() {
        let file = || block(header(b'0', 0), b"f", b"");
        let value = "two\nlines=0\n";
        let entries =
            read(&[pax("SCHILY.xattr.user.x", value), pax("mtime", "7.25"), file(), file()].concat()).unwrap();
        assert_eq!(entries[0].attributes, [(b"user.x".to_vec(), value.as_bytes().to_vec())]);
        assert_eq!((entries[0].modified, entries[0].nanoseconds), (7, 250_000_000));
        assert_eq!((entries[1].attributes.len(), entries[1].modified, entries[1].nanoseconds), (0, 5, 0));
        assert!(read(&[pax("SCHILY.xattr.", "x"), file()].concat()).unwrap_err().to_string().contains("attribute"));
        let impossible = CopyEntry { nanoseconds: 1_000_000_000, ..entries[0].clone() };
        assert!(entries[0].is_possible() && !impossible.is_possible());
    }

    #[test]
    fn long_names_are_put_together() {
        let long = "d/".repeat(200) + "f";
        let stream = [
            block(header(b'L', long.len() as u64), b"././@LongLink", long.as_bytes()),
            block(header(b'0', 2), b"f", b"hi"),
        ];
        let entries = read(&stream.concat()).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].path.as_slice(), entries[0].size, entries[0].modified), (long.as_bytes(), 2, 5));
        let stream = [pax("path", "a/b"), block(header(b'0', 0), b"f", b""), block(header(b'0', 0), b"g", b"")];
        let entries = read(&stream.concat()).unwrap();
        assert_eq!(
            (&entries[0].path[..], &entries[1].path[..]),
            (&b"a/b"[..], &b"g"[..]),
            "an extension is for one entry"
        );
    }

    #[test]
    fn extensions_are_bounded() {
        let huge = block(header(b'L', 1 << 40), b"x", b"");
        assert!(read(&huge).unwrap_err().to_string().contains("extension header of"));
        let many = block(header(b'L', 1), b"x", b"a").repeat(9);
        assert!(read(&many).unwrap_err().to_string().contains("too many"));
        let long = vec![b'a'; 5000];
        let stream = [block(header(b'L', 5000), b"x", &long), block(header(b'0', 0), b"f", b"")].concat();
        assert!(read(&stream).unwrap_err().to_string().contains("4,095"));
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        let stream = [pax("size", "0"), block(header(b'0', 512), b"f", &[0; 512])].concat();
        assert!(read(&stream).unwrap_err().to_string().contains("pax"));
        assert!(read(&block(header(b'S', 0), b"f", b"")).unwrap_err().to_string().contains("sparse"));
        assert!(read(&block(header(b'?', 0), b"f", b"")).unwrap_err().to_string().contains("unknown kind"));
    }

    #[test]
    fn noise_is_an_error_and_nothing_is_nothing() {
        assert!(read(&[0x5a; 2048]).is_err());
        assert!(read(&[]).unwrap().is_empty());
        assert!(read(&[0; 1024]).unwrap().is_empty());
    }
}
