//! The content of one file brought into another that keeps its identity: shared if the file system can (reflink), else
//! copied inside the kernel, holes kept.

use crate::crash::{planted, step};
use crate::tree::confined::CallPath;
use rustix::fs::{
    FallocateFlags, Mode, OFlags, SeekFrom, Stat, copy_file_range, fallocate, fstat, ftruncate, ioctl_ficlone, seek,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// How much is compared or copied by hand at a time.
const BUFFER: usize = 128 << 10;

/// The most that one copy_file_range(2) is asked for.
const STEP: u64 = 64 << 20;

/// What tells the content of one file from any other's: SHA-256 of its size and of each block of it that is not zero,
/// with its place. So it is the same wherever the holes of a file are.
pub(crate) type Digest = [u8; 32];

/// How many bytes of data are digested at one occasion at most, such as a commit: others wait meanwhile.
pub(crate) const MOST_DIGESTED: u64 = 1 << 30;

/// The digest of a file's content, which takes as many bytes of the `budget` as there are of data: holes cost nothing,
/// and others may have it grow meanwhile. Nothing where that is used up, or where somebody has a lease on the file, and
/// would have to be waited for. What reads it leaves its time of access alone.
pub(crate) fn digest(file: &CallPath, budget: &mut u64) -> io::Result<Option<Digest>> {
    /// What is hashed or left out as a whole.
    const BLOCK: usize = 4096;
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(file.text.as_c_str(), flags, Mode::empty()) {
        Err(Errno::AGAIN) => return Ok(None),
        opened => File::from(opened?),
    };
    let size = fstat(&file)?.st_size.cast_unsigned();
    let (mut digest, mut buffer, mut at) = (Sha256::new(), vec![0; BUFFER], 0);
    digest.update(size.to_le_bytes());
    while at < size {
        let (start, end) = next_data(&file, at, size)?;
        at = start - start % BLOCK as u64;
        while at < end {
            let wanted =
                usize::try_from(end.next_multiple_of(BLOCK as u64) - at).map_or(BUFFER, |left| left.min(BUFFER));
            let count = read_at_most(&file, &mut buffer[..wanted], at)?;
            let Some(left) = budget.checked_sub(count as u64) else { return Ok(None) };
            *budget = left;
            for (number, block) in (0_u64..).zip(buffer[..count].chunks(BLOCK)) {
                if *block != ZEROS[..block.len()] {
                    digest.update((at + number * BLOCK as u64).to_le_bytes());
                    digest.update(block);
                }
            }
            if count < wanted {
                // Its end, or what has become that meanwhile.
                return Ok(Some(digest.finalize().into()));
            }
            at += wanted as u64;
        }
        at = at.max(end);
    }
    Ok(Some(digest.finalize().into()))
}

/// Reads as much as there is; how much that was.
fn read_at_most(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Whether a file has the content of another of the same size. What reads it leaves its time of access alone, and what
/// is hole in both is not read.
pub(crate) fn same_content(one: &File, other: &CallPath) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOATIME;
    let other = File::from(rustix::fs::open(other.text.as_c_str(), flags, Mode::empty())?);
    let (mut left, mut right) = (vec![0; BUFFER], vec![0; BUFFER]);
    let (size, mut at) = (fstat(one)?.st_size.cast_unsigned(), 0);
    while at < size {
        let ((start, end), (other_start, other_end)) = (next_data(one, at, size)?, next_data(&other, at, size)?);
        let (first, last) = if start <= other_start { (start, end) } else { (other_start, other_end) };
        if first >= size {
            break;
        }
        at = first;
        while at < last {
            let wanted = usize::try_from(last - at).map_or(BUFFER, |left| left.min(BUFFER));
            let count = read_at_most(one, &mut left[..wanted], at)?;
            if read_at_most(&other, &mut right[..wanted], at)? != count || left[..count] != right[..count] {
                return Ok(false);
            }
            if count < wanted {
                return Ok(true);
            }
            at += count as u64;
        }
    }
    Ok(true)
}

/// Makes the content of `to` that of `from`, in place.
pub(crate) fn bring(from: &File, to: &File) -> io::Result<()> {
    bring_data(from, to)?;
    bring_size(from, to)
}

/// The same without what ends a file that was longer.
pub(crate) fn bring_data(from: &File, to: &File) -> io::Result<()> {
    let size = fstat(from)?.st_size.cast_unsigned();
    if ioctl_ficlone(to, from).is_err() {
        let mut at = 0;
        while at < size {
            let (start, end) = next_data(from, at, size)?;
            if start > at {
                punch(to, at, start)?;
            }
            step();
            copy(from, to, start, end)?;
            at = end;
        }
    }
    Ok(())
}

/// Makes the size of `to` that of `from`.
pub(crate) fn bring_size(from: &File, to: &File) -> io::Result<()> {
    let size = fstat(from)?.st_size.cast_unsigned();
    // What was longer; and a clone into a longer file leaves its tail. To set the size that it has would give up what
    // is set aside behind its end.
    if fstat(to)?.st_size.cast_unsigned() != size {
        ftruncate(to, size)?;
    }
    Ok(())
}

/// Fills a file that is new with the content of another, whose `stat` this is. Most files are small, and have no holes:
/// those take a read and a write.
pub(crate) fn fill(from: &File, stat: &Stat, to: &File) -> io::Result<()> {
    /// What the kernel counts blocks in.
    const BLOCK: u64 = 512;
    let (size, held) = (stat.st_size.cast_unsigned(), stat.st_blocks.cast_unsigned() * BLOCK);
    match usize::try_from(size) {
        Ok(0) => Ok(()),
        Ok(small) if small <= BUFFER && held >= size => {
            let mut content = vec![0; small];
            from.read_exact_at(&mut content, 0)?;
            step();
            to.write_all_at(&content, 0)
        }
        _ => bring(from, to),
    }
}

/// The next run of data at or after `at`; an empty one at the end if there is none.
fn next_data(from: &File, at: u64, size: u64) -> io::Result<(u64, u64)> {
    match seek(from, SeekFrom::Data(at)) {
        _ if planted("filled-holes") => Ok((at, size)),
        Ok(start) => {
            let end = seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
            Ok((start.min(size), end.max(start.min(size))))
        }
        Err(Errno::NXIO) => Ok((size, size)),
        // A file system that does not tell: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((at, size)),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes a hole, where there is old data: what is set aside for a file and was never written to reads like a hole, and
/// stays set aside.
fn punch(to: &File, start: u64, end: u64) -> io::Result<()> {
    let end = end.min(fstat(to)?.st_size.cast_unsigned());
    let mut at = start;
    while at < end {
        let (data, data_end) = next_data(to, at, end)?;
        if data < data_end {
            punch_data(to, data, data_end)?;
        }
        at = data_end;
    }
    Ok(())
}

fn punch_data(to: &File, start: u64, end: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(to, flags, start, end - start) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP) => write_zeros(to, start, end),
        Err(errno) => Err(errno.into()),
    }
}

fn write_zeros(to: &File, start: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; BUFFER];
    let mut at = start;
    while at < end {
        let count = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
        to.write_all_at(&zeros[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

/// Copies data. A small hole may have been filled with zeros when the file was first written to inside, and stays one.
fn copy(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let old = end.min(fstat(to)?.st_size.cast_unsigned());
    let mut at = start;
    while at < old {
        let (data, data_end) = next_data(to, at, old)?;
        copy_into_hole(from, to, at, data)?;
        copy_over_data(from, to, data, data_end)?;
        at = data_end;
    }
    copy_over_data(from, to, at, end)
}

/// Copies what is not zero.
fn copy_into_hole(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    /// No file system has smaller holes that matter.
    const BLOCK: usize = 4096;
    let mut buffer = vec![0; if start < end { BUFFER } else { 0 }];
    let mut at = start;
    while at < end {
        let count = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
        from.read_exact_at(&mut buffer[..count], at)?;
        step();
        for (number, block) in buffer[..count].chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                to.write_all_at(block, at + (number * BLOCK) as u64)?;
            }
        }
        at += count as u64;
    }
    Ok(())
}

fn copy_over_data(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut read, mut written) = (start, start);
    while read < end {
        let count = usize::try_from((end - read).min(STEP)).unwrap_or(BUFFER);
        match copy_file_range(from, Some(&mut read), to, Some(&mut written), count) {
            // It was cut short meanwhile, which only a broken disk does: nobody writes to it.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => step(),
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL) => return copy_by_hand(from, to, read, end),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut at = start;
    while at < end {
        let count = usize::try_from(end - at).map_or(BUFFER, |left| left.min(BUFFER));
        from.read_exact_at(&mut buffer[..count], at)?;
        to.write_all_at(&buffer[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brought(new: impl Fn(&File), old: &[u8]) -> (Vec<u8>, u64) {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        new(&File::create(&from).unwrap());
        std::fs::write(&to, old).unwrap();
        let inode = |path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        let before = inode(&to);
        bring(&File::open(&from).unwrap(), &File::options().read(true).write(true).open(&to).unwrap()).unwrap();
        assert_eq!(inode(&to), before);
        assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
        (std::fs::read(&to).unwrap(), std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&to).unwrap()))
    }

    #[test]
    fn a_digest_is_of_the_content_and_of_no_holes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let of = |fill: &dyn Fn(&File), most: u64| {
            let file = File::create(&path).unwrap();
            fill(&file);
            let (call, mut budget) = (CallPath::of(file.into()).unwrap(), most);
            digest(&call, &mut budget).unwrap().map(|digest| (digest, most - budget))
        };
        let (size, place) = (1 << 40, 3 * BUFFER as u64 + 5);
        let hollow = |content: &'static [u8], at: u64| {
            move |file: &File| {
                file.set_len(size).unwrap();
                file.write_all_at(content, at).unwrap();
            }
        };
        let (one, read) = of(&hollow(b"content", place), 1 << 20).unwrap();
        assert!(read < 1 << 17, "{read} bytes were read of a file that is all hole");
        let filled = of(&|file| (hollow(b"content", place)(file), write_zeros(file, 0, 1 << 17).unwrap()).1, 1 << 20);
        assert_eq!(filled.unwrap().0, one, "zeros are what a hole is");
        for other in [hollow(b"kontent", place), hollow(b"content", place + 1), hollow(b"content", place + 4096)] {
            assert_ne!(of(&other, 1 << 20).unwrap().0, one);
        }
        assert_ne!(
            of(&|file| (hollow(b"content", place)(file), file.set_len(size - 1).unwrap()).1, 1 << 20).unwrap().0,
            one
        );
        assert!(of(&|file| write_zeros(file, 0, 5000).unwrap(), 4999).is_none(), "that is more than may be read");
    }

    #[test]
    fn contents_are_compared_wherever_their_holes_are() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        let size = 1 << 40;
        let hollow = |path: &std::path::Path, all: &[(&[u8], u64)]| {
            let file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
            file.set_len(size).unwrap();
            all.iter().for_each(|(content, at)| file.write_all_at(content, *at).unwrap());
            file
        };
        let end = size - 3;
        let full = hollow(&one, &[(b"abc", 0), (b"def", 1 << 30), (b"ghi", end)]);
        let is_same =
            |all: &[(&[u8], u64)]| same_content(&full, &CallPath::of(hollow(&other, all).into()).unwrap()).unwrap();
        assert!(is_same(&[(b"abc", 0), (b"def", 1 << 30), (b"ghi", end)]));
        assert!(is_same(&[(b"abc", 0), (&[0; 9999], 1 << 20), (b"def", 1 << 30), (b"ghi", end)]));
        assert!(!is_same(&[(b"abc", 0), (b"def", 1 << 30)]));
        assert!(!is_same(&[(b"def", 1 << 30), (b"ghi", end)]));
        assert!(!is_same(&[(b"abc", 0), (b"x", 1 << 20), (b"def", 1 << 30), (b"ghi", end)]));
        assert!(!is_same(&[(b"abc", 0), (b"def", 1 << 30), (b"ghx", end)]));
    }

    #[test]
    fn longer_shorter_and_empty() {
        assert_eq!(brought(|file| file.write_all_at(b"longer", 0).unwrap(), b"old").0, b"longer");
        assert_eq!(brought(|file| file.write_all_at(b"s", 0).unwrap(), b"much longer").0, b"s");
        assert_eq!(brought(|_| (), b"old").0, b"");
    }

    #[test]
    fn a_new_file_is_filled_whatever_its_size() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        for size in [0, 1, 5000, BUFFER, BUFFER + 1] {
            let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            std::fs::write(&from, &content).unwrap();
            let old = File::open(&from).unwrap();
            fill(&old, &fstat(&old).unwrap(), &File::create(&to).unwrap()).unwrap();
            assert_eq!(std::fs::read(&to).unwrap(), content);
        }
        let hollow = File::create(&from).unwrap();
        hollow.set_len(100_000).unwrap();
        fill(&File::open(&from).unwrap(), &fstat(&hollow).unwrap(), &File::create(&to).unwrap()).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&to).unwrap()), 0);
        assert_eq!(std::fs::metadata(&to).unwrap().len(), 100_000);
    }

    #[test]
    fn holes_that_were_filled_with_zeros_and_what_is_set_aside_stay() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let mut content = vec![0; 256 << 10];
        content[..10].fill(b'a');
        content[128 << 10..][..10].fill(b'b');
        std::fs::write(&from, &content).unwrap();
        let new = File::options().read(true).write(true).create(true).truncate(true).open(&to).unwrap();
        new.write_all_at(b"old", 0).unwrap();
        new.set_len(content.len() as u64).unwrap();
        if fallocate(&new, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).is_err() {
            return eprintln!("skipped: nothing can be set aside on this file system");
        }
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&to).unwrap()) * 512;
        let before = blocks();
        bring(&File::open(&from).unwrap(), &new).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), content);
        assert!(before >= 1 << 20 && blocks() >= before && blocks() <= before + (16 << 10), "{before} {}", blocks());
    }

    #[test]
    fn holes_are_kept_and_hide_what_was_there() {
        let new = |file: &File| {
            file.write_all_at(b"end", 1 << 20).unwrap();
            file.set_len(2 << 20).unwrap();
        };
        let (content, blocks) = brought(new, &vec![b'x'; 3 << 20]);
        assert!(content[..1 << 20].iter().all(|byte| *byte == 0));
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
    }
}
