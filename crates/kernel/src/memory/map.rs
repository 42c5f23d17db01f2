//! What files other processes have in their memory so that they write to them (mmap(2) with MAP_SHARED and PROT_WRITE).

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};

/// A file that a process writes to through its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The pid of the process that writes.
    pub pid: i32,
    /// The addresses in its memory: the first, and the one after the last.
    pub range: (u64, u64),
    /// The numbers of the file's device and of its inode, as the kernel prints them.
    pub file: (u64, u64),
}

/// `struct procmap_query` (linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    found: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`, of 104 bytes, since Linux 6.11.
const QUERY: libc::c_ulong = 0xC068_6611;

/// Of files, shared and writable: the next such from an address on.
const WANTED: u64 = 0x02 | 0x08 | 0x20 | 0x10;

/// All that a process writes to. One that ends meanwhile, and a thread of the kernel's, has none.
///
/// # Errors
///
/// EACCES where this process may not look into it.
pub fn written_by(pid: i32) -> io::Result<Vec<Written>> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let mut query = Query { size: size_of::<Query>() as u64, flags: WANTED, address: from, ..Query::default() };
        // SAFETY: the structure is as large as it says, and names no other memory.
        if unsafe { libc::ioctl(maps.as_raw_fd(), QUERY, &raw mut query) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOTTY) => Ok(listed(pid, BufReader::new(maps))),
                // No more of them, or no memory any more.
                Some(libc::ENOENT | libc::ESRCH) => Ok(all),
                _ => Err(error),
            };
        }
        let file = (device(query.major.into(), query.minor.into()), query.inode);
        all.push(Written { pid, range: (query.start, query.end), file });
        from = query.end;
    }
}

fn device(major: u64, minor: u64) -> u64 {
    major << 32 | minor
}

/// The files that a process writes to through its memory, by the text that older kernels have.
pub(crate) fn listed(pid: i32, text: impl BufRead) -> Vec<Written> {
    let one = |line: Vec<u8>| {
        // The name at the end is any bytes.
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let mode = words.next()?.as_bytes();
        let (major, minor) = words.nth(1)?.split_once(':')?;
        let inode: u64 = words.next()?.parse().ok()?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let file = (device(number(major)?, number(minor)?), inode);
        let is_wanted = mode.get(1) == Some(&b'w') && mode.get(3) == Some(&b's') && inode != 0;
        is_wanted.then_some(Written { pid, range: (number(start)?, number(end)?), file })
    };
    text.split(b'\n').map_while(Result::ok).filter_map(one).collect()
}

impl Written {
    /// Opens the file, whatever its path is today, if it is a plain one: to open anything else may do something.
    ///
    /// # Errors
    ///
    /// ENOENT where the mapping has gone; EPERM without CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, statx};
        let path = format!("/proc/{}/map_files/{:x}-{:x}", self.pid, self.range.0, self.range.1);
        // What is known of it will do: its server may have gone.
        let found = statx(CWD, &path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::RegularFile {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Some(rustix::fs::open(&path, flags, Mode::empty())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_name_that_is_no_text_is_listed() {
        let mut text = b"10-20 rw-s 00000000 08:01 12     /\xff\n30-40 rw-p 00000000 08:01 13 /b\n".to_vec();
        text.extend(b"50-60 rw-s 00000000 08:01 14 /c\nno line\n\xfe");
        let found: Vec<_> = listed(7, &text[..]).into_iter().map(|one| (one.range, one.file)).collect();
        assert_eq!(found, [((0x10, 0x20), (8 << 32 | 1, 12)), ((0x50, 0x60), (8 << 32 | 1, 14))]);
    }

    #[test]
    fn a_shared_and_writable_mapping_is_found_and_opened() {
        let file = tempfile::tempfile_in(".").unwrap();
        file.set_len(8192).unwrap();
        let map = |protection, flags| {
            // SAFETY: a new place of the kernel's choosing.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), 8192, protection, flags, file.as_raw_fd(), 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at as u64
        };
        let shared = map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let others = [map(libc::PROT_READ, libc::MAP_SHARED), map(libc::PROT_WRITE, libc::MAP_PRIVATE)];
        let me = std::process::id().cast_signed();
        let text = File::open("/proc/self/maps").map(BufReader::new).unwrap();
        for all in [written_by(me).unwrap(), listed(me, text)] {
            assert!(!all.iter().any(|one| others.contains(&one.range.0)), "{all:?}");
            let found = all.into_iter().find(|one| one.range.0 == shared).expect("it is mapped");
            assert_eq!(found.range, (shared, shared + 8192));
            match found.open() {
                Ok(opened) => {
                    let opened = rustix::fs::fstat(opened.expect("it is a plain file")).unwrap();
                    assert_eq!(opened.st_ino, rustix::fs::fstat(&file).unwrap().st_ino);
                    assert_eq!(found.file.1, opened.st_ino);
                }
                Err(error) => eprintln!("skipped: {error}"),
            }
        }
    }
}
