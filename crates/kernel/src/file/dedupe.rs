//! Two files that share the blocks of what both contain (ioctl_fideduperange(2)).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// FIDEDUPERANGE (linux/fs.h): `_IOWR(0x94, 54, struct file_dedupe_range)`.
const REQUEST: libc::c_ulong = 0xC018_9436;
/// FILE_DEDUPE_RANGE_DIFFERS
const DIFFERS: i32 = 1;

/// struct file_dedupe_range with one struct file_dedupe_range_info after it (linux/fs.h).
#[repr(C)]
struct Range {
    source_offset: u64,
    length: u64,
    destinations: u16,
    reserved: [u16; 3],
    destination: i64,
    destination_offset: u64,
    done: u64,
    status: i32,
    reserved_too: u32,
}

/// The most that every file system does in one call, in bytes: btrfs has this limit, the others a higher one.
const MOST: u64 = 16 << 20;

/// Has `to` share the blocks of `from`, for as long as both contain the same (FIDEDUPERANGE, since Linux 4.5 for all
/// file systems that can). The kernel compares them itself with both files locked, so nothing that anybody can observe
/// of `to` changes, be it open, mapped or written to. Answers how many bytes are shared now: all of them unless the
/// files differ.
///
/// # Errors
///
/// EOPNOTSUPP, EINVAL or ENOTTY where the file system cannot; EXDEV for two file systems; ETXTBSY for a file of swap
/// space.
pub fn share_blocks(from: &File, to: &File, length: u64) -> io::Result<u64> {
    let mut shared = 0;
    while shared < length {
        let mut range = Range {
            source_offset: shared,
            length: (length - shared).min(MOST),
            destinations: 1,
            reserved: [0; 3],
            destination: to.as_raw_fd().into(),
            destination_offset: shared,
            done: 0,
            status: 0,
            reserved_too: 0,
        };
        // SAFETY: the kernel reads and writes the structure, which has its layout and room for the one destination that
        // it announces.
        if unsafe { libc::ioctl(from.as_raw_fd(), REQUEST, &raw mut range) } != 0 {
            return Err(io::Error::last_os_error());
        }
        match range.status {
            0 if range.done > 0 => shared += range.done,
            0 | DIFFERS => break,
            error => return Err(io::Error::from_raw_os_error(-error)),
        }
    }
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_structure_has_the_kernels_size() {
        assert_eq!(size_of::<Range>(), 24 + 32);
    }

    #[test]
    fn a_file_system_that_cannot_says_so_and_one_that_can_compares() {
        let file = |byte: u8| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[byte; 8192]).unwrap();
            file
        };
        match (share_blocks(&file(1), &file(1), 8192), share_blocks(&file(1), &file(2), 8192)) {
            (Ok(same), Ok(different)) => assert_eq!((same, different), (8192, 0)),
            (Err(error), _) => {
                assert!(matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY)), "{error}")
            }
            (same, different) => panic!("{same:?} {different:?}"),
        }
    }
}
