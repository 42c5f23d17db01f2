//! The content of one file: shared where the file system can (reflink), else copied; holes stay holes.

use rustix::fs::{SeekFrom, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// How much is written at once, in bytes. The page cache keeps a file in pieces as big as it was written in, and guests
/// read it faster the bigger they are: copied inside the kernel, by 64 KiB, it would be read a tenth slower for as long
/// as it stays in memory.
const PIECE: u64 = 1 << 20;

/// Makes `to`, an empty file, contain what `from` contains.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let size = from.metadata()?.len();
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size)? {
        at = copy_run(from, to, start, end)?;
        if at < end {
            // The file was cut short meanwhile; the caller that compares digests will notice.
            break;
        }
    }
    if at < size {
        ftruncate(to, size)?;
    }
    Ok(())
}

/// Copies a run of data, and tells where it ended.
fn copy_run(from: &File, to: &File, start: u64, end: u64) -> io::Result<u64> {
    let mut buffer = vec![0; usize::try_from(PIECE.min(end - start)).unwrap_or(0)];
    let mut at = start;
    while at < end {
        let wanted = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        match from.read_at(&mut buffer[..wanted], at) {
            Ok(0) => break,
            Ok(read) => {
                to.write_all_at(&buffer[..read], at)?;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

/// The next run of data at or after `at`.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not tell: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(error.into()),
    };
    Ok(Some((start, seek(file, SeekFrom::Hole(start))?.min(size))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn holes_stay_holes() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(b"middle", 5 << 20).unwrap();
        from.set_len(9 << 20).unwrap();
        copy(&from, &to).unwrap();
        let read = |file: &File| {
            let mut bytes = vec![1; 10 << 20];
            let length = file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(length);
            bytes
        };
        assert!(read(&from) == read(&to));
        assert_eq!(to.metadata().unwrap().len(), 9 << 20);
        assert!(to.metadata().unwrap().blocks() <= from.metadata().unwrap().blocks());
    }
}
