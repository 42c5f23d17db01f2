//! The content of one file: shared where the file system can, else read and written, holes kept.
//!
//! It is read and written in large pieces and not copied inside the kernel: the page cache keeps a file in pieces as
//! large as it was written in.

use super::TreeCopyError;
use crate::file::confined::open_again;
use rustix::fs::{OFlags, SeekFrom, fstat, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PIECE: usize = 1 << 20;

/// Bytes of a block, as file systems count them.
const BLOCK: i64 = 512;

#[derive(Debug)]
pub(super) enum ContentError {
    Read(io::Error),
    Write(io::Error),
}

impl ContentError {
    pub(super) fn at(self, path: &Path) -> TreeCopyError {
        match self {
            Self::Read(error) => TreeCopyError::read(path, error),
            Self::Write(error) => TreeCopyError::write("write", path, error),
        }
    }
}

impl From<ContentError> for io::Error {
    fn from(error: ContentError) -> Self {
        let (ContentError::Read(error) | ContentError::Write(error)) = error;
        error
    }
}

/// Makes `to`, an empty file, what `object` is, a mere place of a regular file.
pub(super) fn copy(object: BorrowedFd<'_>, to: BorrowedFd<'_>, share_from: u64) -> Result<(), ContentError> {
    copy_open(&open(object).map_err(|errno| ContentError::Read(errno.into()))?, to, share_from)
}

/// The same of a regular file that is open for reading.
pub(super) fn copy_open(from: &File, to: BorrowedFd<'_>, share_from: u64) -> Result<(), ContentError> {
    let read = |errno: Errno| ContentError::Read(errno.into());
    let about = fstat(from).map_err(read)?;
    let size = about.st_size.cast_unsigned();
    if size >= share_from && size > 0 && ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let to = File::from(to.try_clone_to_owned().map_err(ContentError::Write)?);
    // No more than it has now: one that grows for ever would be copied for ever.
    let mut buffer = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
    if about.st_blocks * BLOCK >= about.st_size {
        copy_range(from, &to, (0, size), &mut buffer)?;
        return Ok(());
    }
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size)? {
        at = copy_range(from, &to, (start, end), &mut buffer)?;
        if at < end {
            // It was cut short meanwhile.
            break;
        }
    }
    let size = fstat(from).map_err(read)?.st_size.cast_unsigned().min(size);
    ftruncate(&to, size.max(at)).map_err(|errno| ContentError::Write(errno.into()))
}

/// Opens for reading what an object is a mere place of, without leaving a trace in its access time.
fn open(object: BorrowedFd<'_>) -> Result<File, Errno> {
    match open_again(object, OFlags::RDONLY | OFlags::NOATIME) {
        Err(Errno::PERM) => open_again(object, OFlags::RDONLY),
        opened => opened,
    }
    .map(File::from)
}

/// The next run of data at or after `at`.
fn next_data(from: &File, at: u64, size: u64) -> Result<Option<(u64, u64)>, ContentError> {
    if at >= size {
        return Ok(None);
    }
    let failed = |errno: Errno| Err(ContentError::Read(errno.into()));
    let start = match seek(from, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not tell: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return failed(errno),
    };
    match seek(from, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end))),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => failed(errno),
    }
}

/// Copies the bytes from `start` to `end`; gives how far it came, which is less if the file ends earlier.
fn copy_range(from: &File, to: &File, (start, end): (u64, u64), buffer: &mut [u8]) -> Result<u64, ContentError> {
    let mut at = start;
    while at < end {
        let step = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        match from.read_at(&mut buffer[..step], at) {
            Ok(0) => break,
            Ok(count) => {
                to.write_all_at(&buffer[..count], at).map_err(ContentError::Write)?;
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ContentError::Read(error)),
        }
    }
    Ok(at)
}
