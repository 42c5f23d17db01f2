//! Tar archives: read from any stream, unpacked so that nothing they say reaches beyond the destination.

mod allowance;
mod compression;
mod entry_path;
mod tar_reader;
mod unpack;

pub(crate) use compression::Compression;
pub(crate) use entry_path::entry_path;
pub(crate) use tar_reader::{Entry, Kind, TarError, TarReader};
pub(crate) use unpack::{UnpackError, Unpacker};

use super::Summary;
use super::meter::{Cancelled, Meter};
use super::write_error::WriteError;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It cannot be opened or read.
    #[error("cannot read the archive '{file}': {source}; check its path and permissions")]
    Open {
        /// The archive.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is a directory, or something stranger.
    #[error(
        "'{file}' is not a file but {what}; to copy a directory whose name ends like an archive's write a slash after it"
    )]
    NotAFile {
        /// What was named.
        file: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It holds nothing.
    #[error("the archive '{0}' holds no files; it was perhaps made from the wrong directory, or its download failed")]
    Empty(PathBuf),
    /// It is something else.
    #[error("'{0}' is not a tar archive, plain or compressed with gzip, zstd or xz; `file {0}` may tell what it is")]
    NotAnArchive(PathBuf),
    /// It is compressed in a way that is not handled.
    #[error(
        "'{file}' is packed as {format}, which Pando does not unpack; pack it again as .tar, .tar.gz, .tar.zst or .tar.xz"
    )]
    Format {
        /// The archive.
        file: PathBuf,
        /// What it is.
        format: &'static str,
    },
    /// It is damaged, or cut short.
    #[error(
        "the archive '{file}' is damaged: {entry} at byte {offset} of its unpacked content: {reason}; fetch or make it again"
    )]
    Damaged {
        /// The archive.
        file: PathBuf,
        /// Which entry: its path, or that it comes after another.
        entry: String,
        /// Where its header begins.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// An entry asks for something that no root file system needs.
    #[error(
        "the archive '{file}' was refused: {entry} at byte {offset} of its unpacked content {reason}; an archive of a root file \
         system holds no such entry, so make it again from one, and be careful with where it came from"
    )]
    Refused {
        /// The archive.
        file: PathBuf,
        /// Which entry.
        entry: String,
        /// Where its header begins.
        offset: u64,
        /// What it asks for.
        reason: String,
    },
    /// The destination takes no more.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The user stopped the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// The most that may follow the end of an archive, in steps of [`TarReader::drain`].
const MOST_BEHIND: u32 = 64;

/// A regular file opened for reading, with its size.
pub(crate) fn open_archive(file: &Path) -> Result<(File, u64), ArchiveError> {
    let failed = |source: io::Error| ArchiveError::Open { file: file.to_owned(), source };
    // A look first: opening a fifo would wait for its writer.
    let kind = std::fs::metadata(file).map_err(failed)?.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() { "a directory" } else { "a device, fifo or socket" };
        return Err(ArchiveError::NotAFile { file: file.to_owned(), what });
    }
    let opened = File::open(file).map_err(failed)?;
    let size = opened.metadata().map_err(failed)?.len();
    if size == 0 {
        return Err(ArchiveError::Empty(file.to_owned()));
    }
    Ok((opened, size))
}

/// The plain content of a file or blob; `position` counts the packed bytes read.
pub(crate) fn unpacked<'a>(
    packed: impl Read + 'a,
    file: &Path,
    position: Rc<Cell<u64>>,
) -> Result<(Compression, Box<dyn Read + 'a>), ArchiveError> {
    let failed = |source: io::Error| ArchiveError::Open { file: file.to_owned(), source };
    let mut packed = BufReader::with_capacity(256 << 10, Counted { inner: packed, position });
    let compression = Compression::of(packed.fill_buf().map_err(failed)?);
    if let Compression::Other(format) = compression {
        return Err(ArchiveError::Format { file: file.to_owned(), format });
    }
    Ok((compression, compression.reader(packed).map_err(failed)?))
}

struct Counted<R> {
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

/// What sees each entry of an archive in turn, and may read its content.
pub(crate) trait Receiver<R> {
    fn receive(
        &mut self,
        entry: &Entry,
        reader: &mut TarReader<R>,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError>;

    /// Whether an archive without a mark at its end was cut short.
    fn end_is_marked(&self) -> bool {
        true
    }
}

/// Hands every entry of `plain`, the content of `file`, to `receiver`, to the very end of the stream. Returns their number.
pub(crate) fn each_entry<R: Read>(
    plain: R,
    file: &Path,
    position: &Cell<u64>,
    meter: &mut Meter<'_>,
    receiver: &mut dyn Receiver<R>,
) -> Result<u64, ArchiveError> {
    let mut reader = TarReader::new(plain);
    let (mut count, mut last) = (0_u64, String::from("its beginning"));
    loop {
        meter.reach(position.get())?;
        // Behind the padding of the last entry.
        let offset = reader.offset().next_multiple_of(512);
        let entry = match reader.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(TarError::NoEnd) if !receiver.end_is_marked() => break,
            // Something else altogether fails at its first header.
            Err(TarError::Header(_) | TarError::HeadersTooLarge | TarError::Truncated) if offset == 0 => {
                return Err(ArchiveError::NotAnArchive(file.to_owned()));
            }
            Err(error) => return Err(damaged(file, format!("the entry after {last}"), offset, &error)),
        };
        count += 1;
        last = format!("'{}'", String::from_utf8_lossy(&entry.path).escape_debug());
        let mut step = || meter.reach(position.get());
        receiver.receive(&entry, &mut reader, &mut step).map_err(|error| match error {
            UnpackError::Refused(reason) => {
                ArchiveError::Refused { file: file.to_owned(), entry: last.clone(), offset: entry.offset, reason }
            }
            UnpackError::Read(error) => damaged(file, last.clone(), entry.offset, &error),
            UnpackError::Write(error) => error.into(),
            UnpackError::Cancelled(cancelled) => cancelled.into(),
        })?;
    }
    let end = reader.offset();
    let mut behind = 0;
    // Decompressors check their sums at the end of the stream, which lies after the end of the archive.
    while reader.drain().map_err(|error| damaged(file, "its end".to_owned(), end, &error))? {
        meter.reach(position.get())?;
        behind += 1;
        // Padding, in practice some kilobytes. A decompressor can have it without end.
        if behind > MOST_BEHIND {
            let error = io::Error::other("more than a gibibyte follows");
            return Err(damaged(file, "its end".to_owned(), end, &error));
        }
    }
    Ok(count)
}

fn damaged(file: &Path, entry: String, offset: u64, reason: &dyn std::error::Error) -> ArchiveError {
    ArchiveError::Damaged { file: file.to_owned(), entry, offset, reason: reason.to_string() }
}

/// Unpacks each entry.
impl<R: Read> Receiver<R> for Unpacker<'_> {
    fn receive(
        &mut self,
        entry: &Entry,
        reader: &mut TarReader<R>,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError> {
        let path = entry_path(&entry.path).map_err(UnpackError::Refused)?;
        self.place(&path, entry, &mut reader.content(), step)
    }
}

/// Unpacks a plain tar stream into `into`.
pub(crate) fn unpack_stream(
    plain: impl Read,
    file: &Path,
    into: &Path,
    position: &Cell<u64>,
    meter: &mut Meter<'_>,
) -> Result<Summary, ArchiveError> {
    let mut unpacker = Unpacker::new(into)?;
    if each_entry(plain, file, position, meter, &mut unpacker)? == 0 {
        return Err(ArchiveError::Empty(file.to_owned()));
    }
    Ok(unpacker.finish()?)
}
