//! The content of one file: shared if the file system can (reflink), else copied inside the kernel, holes kept.

use crate::source::meter::{Cancelled, Meter};
use pando_kernel::filesystem::spare_room::{Refusal, SpareRoom};
use rustix::fs::{SeekFrom, copy_file_range, fstat, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// One step of a long copy: between two the user may cancel.
const STEP: u64 = 32 << 20;

/// The buffer for file systems between which the kernel cannot copy.
const BUFFER: usize = 256 << 10;

#[derive(Debug)]
pub(super) enum ContentError {
    Read(io::Error),
    Write(io::Error),
    NoRoom(Refusal),
    Cancelled(Cancelled),
}

impl From<Cancelled> for ContentError {
    fn from(cancelled: Cancelled) -> Self {
        Self::Cancelled(cancelled)
    }
}

/// Makes `to`, an empty file, the same as `from`. Returns its size.
pub(super) fn copy_content(
    from: &File,
    to: &File,
    meter: &mut Meter<'_>,
    room: &mut SpareRoom,
) -> Result<u64, ContentError> {
    let size =
        || fstat(from).map(|stat| stat.st_size.cast_unsigned()).map_err(|error| ContentError::Read(error.into()));
    if ioctl_ficlone(to, from).is_ok() {
        let size = size()?;
        meter.add(size)?;
        return Ok(size);
    }
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size()?)? {
        at = copy_range(from, to, (start, end), meter, room)?;
        if at < end {
            // The file was cut short meanwhile.
            break;
        }
    }
    let size = size()?.max(at);
    ftruncate(to, size).map_err(|error| ContentError::Write(error.into()))?;
    Ok(size)
}

/// The next run of data at or after `at`.
fn next_data(from: &File, at: u64, size: u64) -> Result<Option<(u64, u64)>, ContentError> {
    if at >= size {
        return Ok(None);
    }
    let start = match seek(from, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not tell: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(ContentError::Read(error.into())),
    };
    match seek(from, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end))),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(ContentError::Read(error.into())),
    }
}

/// Copies the bytes from `start` to `end`; returns how far it came, which is less if the file ends earlier.
fn copy_range(
    from: &File,
    to: &File,
    (start, end): (u64, u64),
    meter: &mut Meter<'_>,
    room: &mut SpareRoom,
) -> Result<u64, ContentError> {
    let (mut read, mut written) = (start, start);
    while read < end {
        let step = usize::try_from((end - read).min(STEP)).unwrap_or(BUFFER);
        room.ask(step as u64).map_err(ContentError::NoRoom)?;
        match copy_file_range(from, Some(&mut read), to, Some(&mut written), step) {
            // No progress although there should be data: some file systems say so when they mean "not supported".
            Ok(0) => return copy_by_buffer(from, to, (read, end), meter, room),
            Ok(count) => {
                // Asked for above.
                let _ = room.take(count as u64);
                meter.add(count as u64)?;
            }
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(ContentError::Write(error.into())),
            // Across file systems, or an error of which side it is unclear: reading and writing apart will tell.
            Err(_) => return copy_by_buffer(from, to, (read, end), meter, room),
        }
    }
    Ok(read)
}

fn copy_by_buffer(
    from: &File,
    to: &File,
    (start, end): (u64, u64),
    meter: &mut Meter<'_>,
    room: &mut SpareRoom,
) -> Result<u64, ContentError> {
    let mut buffer = vec![0; BUFFER];
    let mut at = start;
    while at < end {
        let step = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
        let count = match from.read_at(&mut buffer[..step], at) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ContentError::Read(error)),
        };
        room.take(count as u64).map_err(ContentError::NoRoom)?;
        to.write_all_at(&buffer[..count], at).map_err(ContentError::Write)?;
        at += count as u64;
        meter.add(count as u64)?;
    }
    Ok(at)
}
