//! The content of one file: shared where the file system can (reflink), else copied inside the kernel; holes stay holes.

use rustix::fs::{SeekFrom, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};

/// Makes `to`, an empty file, contain what `from` contains.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let size = from.metadata()?.len();
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size)? {
        seek(from, SeekFrom::Start(start))?;
        seek(to, SeekFrom::Start(start))?;
        // Between two files the library lets the kernel do it.
        let copied = io::copy(&mut Read::take(from, end - start), &mut &*to)?;
        at = start + copied;
        if at < end {
            // It was cut short meanwhile; whoever compares digests will notice.
            break;
        }
    }
    ftruncate(to, size)?;
    Ok(())
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
    use std::os::unix::fs::{FileExt, MetadataExt};

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
