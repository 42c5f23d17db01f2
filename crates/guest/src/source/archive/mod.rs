//! Tar archives: read by a process without powers, unpacked so that nothing they say reaches beyond the destination.

mod allowance;
mod entry;
mod entry_path;
mod unpack;

pub(crate) use entry::Entry;
pub(crate) use entry_path::entry_path;
pub(crate) use pando_reader::Kind;
pub(crate) use unpack::{UnpackError, Unpacker};

use super::Summary;
use super::meter::{Cancelled, Meter};
use super::write_error::WriteError;
use pando_reader::{End, Failure, Job, Message, Place, Reader, ReaderError};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The archive cannot be opened or read.
    #[error("cannot read the archive '{file}': {source}; check its path and permissions")]
    Open {
        /// The archive's file.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is a directory, or something stranger.
    #[error(
        "'{file}' is not a file but {what}; to copy a directory whose name ends like an archive's write a slash after it"
    )]
    NotAFile {
        /// The file that was named as an archive.
        file: PathBuf,
        /// What the file is.
        what: &'static str,
    },
    /// The archive holds nothing.
    #[error("the archive '{0}' holds no files; it was perhaps made from the wrong directory, or its download failed")]
    Empty(PathBuf),
    /// The file is something else than an archive.
    #[error("'{0}' is not a tar archive, plain or compressed with gzip, zstd or xz; `file {0}` may tell what it is")]
    NotAnArchive(PathBuf),
    /// It is compressed in a way that is not handled.
    #[error(
        "'{file}' is packed as {format}, which Pando does not unpack; pack it again as .tar, .tar.gz, .tar.zst or .tar.xz"
    )]
    Format {
        /// The archive's file.
        file: PathBuf,
        /// The format that the file has.
        format: String,
    },
    /// The archive is damaged, or cut short.
    #[error(
        "the archive '{file}' is damaged: {entry} at byte {offset} of its unpacked content: {reason}; fetch or make it again"
    )]
    Damaged {
        /// The archive's file.
        file: PathBuf,
        /// Which entry: its path, or that it comes after another.
        entry: String,
        /// Where its header begins.
        offset: u64,
        /// What is wrong with that header.
        reason: String,
    },
    /// An entry asks for something that no root file system needs.
    #[error(
        "the archive '{file}' was refused: {entry} at byte {offset} of its unpacked content {reason}; an archive of a root file \
         system holds no such entry, so make it again from one, and be careful with where it came from"
    )]
    Refused {
        /// The archive's file.
        file: PathBuf,
        /// The path of the entry.
        entry: String,
        /// Where its header begins.
        offset: u64,
        /// What the entry asks for.
        reason: String,
    },
    /// What reads it has ended.
    #[error("'{file}' was not read: {source}; nothing of it was kept. Be careful with where it came from")]
    Reader {
        /// The archive's file.
        file: PathBuf,
        /// How the reader ended.
        source: ReaderError,
    },
    /// The destination takes no more.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The user stopped the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

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

/// Starts a reader. Unit tests have no program that could become one.
pub(crate) fn start_reader(job: &Job, input: impl Into<OwnedFd>) -> Result<Reader, ReaderError> {
    if cfg!(test) { Reader::start_unconfined(job, input) } else { Reader::start(job, input) }
}

/// What sees each entry of an archive in turn, and may read its content.
pub(crate) trait Receiver {
    fn receive(
        &mut self,
        entry: &Entry,
        content: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError>;
}

/// Hands every entry of the archive `file` to `receiver`, to the very end of the stream. Returns their number, and what
/// the reader says of all.
pub(crate) fn each_entry(
    job: &Job,
    input: impl Into<OwnedFd>,
    file: &Path,
    meter: &mut Meter<'_>,
    receiver: &mut dyn Receiver,
) -> Result<(u64, End), ArchiveError> {
    let (mut count, mut last) = (0_u64, String::from("its beginning"));
    let mut reader = start_reader(job, input).map_err(|error| unread(file, &last, error))?;
    let position = reader.position();
    loop {
        meter.reach(position.get())?;
        let entry = match reader.next().map_err(|error| unread(file, &last, error))? {
            Message::Entry(entry) => Entry::from(*entry),
            Message::End(end) => return Ok((count, end)),
            _ => return Err(unread(file, &last, pando_reader::Died::Nonsense.into())),
        };
        count += 1;
        last = format!("'{}'", String::from_utf8_lossy(&entry.path).escape_debug());
        let mut step = || meter.reach(position.get());
        let received = receiver.receive(&entry, &mut reader, &mut step);
        received.map_err(|error| match error {
            UnpackError::Refused(reason) => {
                ArchiveError::Refused { file: file.to_owned(), entry: last.clone(), offset: entry.offset, reason }
            }
            UnpackError::Read(error) => unread(file, &last, reader.lost(&error)),
            UnpackError::Write(error) => error.into(),
            UnpackError::Cancelled(cancelled) => cancelled.into(),
        })?;
    }
}

/// The sentence for what a reader could not read. `last` is the last entry that it told of.
pub(crate) fn unread(file: &Path, last: &str, error: ReaderError) -> ArchiveError {
    let file = file.to_owned();
    match error {
        ReaderError::Failed(Failure::Input(number, words)) => {
            let source = number.map_or_else(|| io::Error::other(words), io::Error::from_raw_os_error);
            ArchiveError::Open { file, source }
        }
        ReaderError::Failed(Failure::Format(format)) => ArchiveError::Format { file, format },
        ReaderError::Failed(Failure::NotAnArchive) => ArchiveError::NotAnArchive(file),
        ReaderError::Failed(Failure::Damaged { place, offset, reason }) => {
            let entry = match place {
                Place::NextEntry => format!("the entry after {last}"),
                Place::Content => last.to_owned(),
                Place::End => "its end".to_owned(),
            };
            ArchiveError::Damaged { file, entry, offset, reason }
        }
        source => ArchiveError::Reader { file, source },
    }
}

/// Unpacks each entry.
impl Receiver for Unpacker<'_> {
    fn receive(
        &mut self,
        entry: &Entry,
        content: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError> {
        let path = entry_path(&entry.path).map_err(UnpackError::Refused)?;
        self.place(&path, entry, content, step)
    }
}

/// Unpacks a tar archive, plain or compressed, into `into`.
pub(crate) fn unpack_archive(
    archive: File,
    file: &Path,
    into: &Path,
    meter: &mut Meter<'_>,
) -> Result<Summary, ArchiveError> {
    let job = Job::Archive { plain: None, end_is_marked: true, content: true };
    let mut unpacker = Unpacker::new(into)?;
    let (count, _) = each_entry(&job, archive, file, meter, &mut unpacker)?;
    if count == 0 {
        return Err(ArchiveError::Empty(file.to_owned()));
    }
    Ok(unpacker.finish()?)
}
