//! Which pages of a process are its own: written to, present or swapped out (/proc/PID/pagemap).
//!
//! Programs reserve addresses by the terabyte and use a little of that (the engines of browsers do). The kernel is
//! asked for what there is (PAGEMAP_SCAN, since Linux 6.7), which passes over what no page table is for; before that,
//! all entries are read, eight bytes a page.
//!
//! A guard (MADV_GUARD_INSTALL, since Linux 6.13; of C libraries below the stacks of threads) looks as a page does that
//! was swapped out, and nobody can read it. The kernel tells which are since Linux 6.15.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;

const PAGE: u64 = 4096;

/// The pages of a process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    /// The categories of pages that the kernel is asked to tell apart.
    told: u64,
}

/// What pages there are in a range: runs of address and length, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages that are of the process alone, and of no file.
    pub own: Vec<(u64, u64)>,
    /// Guards, whose touching is a segmentation fault.
    pub guards: Vec<(u64, u64)>,
}

/// `struct pm_scan_arg` (linux/fs.h).
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_length: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

/// `struct page_region`: addresses, and what they have in common.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

// PAGE_IS_*
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const GUARD: u64 = 1 << 8;

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::c_ulong = 0xC000_6610 | (size_of::<Scan>() as libc::c_ulong) << 16;

impl Pagemap {
    /// Opens the page map of a process.
    ///
    /// # Errors
    ///
    /// ENOENT where the process has gone; EACCES where it may not be traced.
    pub fn of(pid: i32) -> io::Result<Self> {
        // Pages that are told of have it in common that they are of no file, so that they come in one piece.
        File::open(format!("/proc/{pid}/pagemap")).map(|file| Self { file, told: FILE | GUARD })
    }

    /// Finds the pages between two addresses (PAGEMAP_SCAN, since Linux 6.7; before that, entry by entry).
    ///
    /// # Errors
    ///
    /// EFAULT where the range lies outside of a process's memory; ESRCH where the process has gone.
    pub fn pages(&mut self, start: u64, end: u64) -> io::Result<Pages> {
        let mut scanned = self.scan(start, end);
        if self.told & GUARD != 0 && scanned.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
            self.told = FILE;
            scanned = self.scan(start, end);
        }
        match scanned {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                read_entries(&mut self.file, start, end).map(|own| Pages { own, guards: Vec::new() })
            }
            scanned => scanned,
        }
    }

    /// Whether every page between two addresses is there, and no other process maps it: no fork shares it, and it is
    /// not the page of zeros (bit 56, since Linux 4.2). A kernel that does not count the mappings of a part of a larger
    /// page says no where it is not sure.
    ///
    /// # Errors
    ///
    /// ESRCH where the process has gone.
    pub fn is_exclusive(&mut self, start: u64, end: u64) -> io::Result<bool> {
        const PRESENT_AND_EXCLUSIVE: u64 = 1 << 63 | EXCLUSIVE;
        let has_both = |entry: &u64| entry & PRESENT_AND_EXCLUSIVE == PRESENT_AND_EXCLUSIVE;
        Ok(self.entries(start, end)?.iter().all(has_both))
    }

    /// What tells the page at each address apart from all others, now: the number of its frame, or its place in swap.
    /// Processes that have the same number share the page; a moment later the kernel may have moved it, and another may
    /// have its number. None where there is no page, where nobody else has it, and for those without CAP_SYS_ADMIN.
    ///
    /// # Errors
    ///
    /// ESRCH where the process has gone.
    pub fn identities(&mut self, start: u64, end: u64) -> io::Result<Vec<Option<u64>>> {
        Ok(self.entries(start, end)?.into_iter().map(identity).collect())
    }

    /// The addresses of pages between two addresses that are there, of no file, and mapped by nobody else: what was
    /// written to since a fork, and what was new since.
    ///
    /// # Errors
    ///
    /// As [`Self::pages`].
    pub fn unshared(&mut self, start: u64, end: u64) -> io::Result<Vec<u64>> {
        /// So many bytes of memory are asked about at once.
        const PORTION: u64 = 64 << 20;
        let mut found = Vec::new();
        for (at, length) in self.pages(start, end)?.own {
            for portion in (at..at + length).step_by(PORTION as usize) {
                let entries = self.entries(portion, (portion + PORTION).min(at + length))?;
                let addresses = (portion..).step_by(PAGE as usize);
                found
                    .extend(entries.into_iter().zip(addresses).filter(|(entry, _)| is_unshared(*entry)).map(|of| of.1));
            }
        }
        Ok(found)
    }

    fn entries(&mut self, start: u64, end: u64) -> io::Result<Vec<u64>> {
        self.file.seek(SeekFrom::Start(start / PAGE * 8))?;
        let mut entries = vec![0_u8; ((end - start) / PAGE * 8) as usize];
        self.file.read_exact(&mut entries)?;
        Ok(entries.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry)).collect())
    }

    fn scan(&self, start: u64, end: u64) -> io::Result<Pages> {
        const REGIONS: usize = 512;
        let mut regions = [Region::default(); REGIONS];
        let mut pages = Pages::default();
        let mut from = start;
        while from < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: 0,
                start: from,
                end,
                walk_end: 0,
                regions: regions.as_mut_ptr() as u64,
                regions_length: REGIONS as u64,
                max_pages: 0,
                // None of a file, nor of shared memory.
                inverted: FILE,
                all_of: FILE,
                any_of: PRESENT | SWAPPED,
                told: self.told,
            };
            // SAFETY: the kernel writes at most as many regions as there are, and where it ended, to places of ours.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
            for region in &regions[..count.min(REGIONS)] {
                let runs = if region.categories & GUARD == 0 { &mut pages.own } else { &mut pages.guards };
                note(runs, region.start, region.end - region.start);
            }
            if scan.walk_end <= from {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            from = scan.walk_end;
        }
        Ok(pages)
    }
}

/// Nobody else maps the page.
const EXCLUSIVE: u64 = 1 << 56;

/// Of an entry: the lowest 55 bits are the frame, or the type of swap and the place in it; bit 62 says which.
fn identity(entry: u64) -> Option<u64> {
    const NUMBER: u64 = (1 << 55) - 1;
    const IN_SWAP: u64 = 1 << 62;
    let is_told = entry >> 62 != 0 && entry & EXCLUSIVE == 0 && entry & NUMBER != 0;
    is_told.then_some(entry & (NUMBER | IN_SWAP))
}

/// Of an entry: bit 63 is present, 61 a page of a file.
fn is_unshared(entry: u64) -> bool {
    entry >> 63 == 1 && entry >> 61 & 1 == 0 && entry & EXCLUSIVE != 0
}

fn note(runs: &mut Vec<(u64, u64)>, address: u64, more: u64) {
    match runs.last_mut() {
        Some((at, length)) if *at + *length == address => *length += more,
        _ => runs.push((address, more)),
    }
}

fn read_entries(pagemap: &mut (impl Read + Seek), start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
    const ENTRIES: usize = 8192;
    pagemap.seek(SeekFrom::Start(start / PAGE * 8))?;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut buffer = vec![0_u8; ENTRIES * 8];
    let mut address = start;
    while address < end {
        let count = ((end - address) / PAGE).min(ENTRIES as u64) as usize;
        pagemap.read_exact(&mut buffer[..count * 8])?;
        for entry in buffer[..count * 8].chunks_exact(8) {
            if is_own(u64::from_le_bytes(entry.try_into().unwrap_or_default())) {
                note(&mut runs, address, PAGE);
            }
            address += PAGE;
        }
    }
    Ok(runs)
}

/// Of an entry: bit 63 is present, 62 swapped, 61 a page of a file or of shared memory.
fn is_own(entry: u64) -> bool {
    entry >> 62 != 0 && entry >> 61 & 1 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pages_are_those_written_to() {
        let present = 1_u64 << 63;
        let entries = [0, present, 1 << 62, present | 1 << 61, present];
        let bytes: Vec<_> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let runs = read_entries(&mut io::Cursor::new(bytes), 0, 5 * PAGE).unwrap();
        assert_eq!(runs, [(PAGE, 2 * PAGE), (4 * PAGE, PAGE)]);
    }

    /// More runs than are told of at once, of memory of all kinds.
    #[test]
    fn what_is_scanned_is_what_is_read() {
        const PAGES: usize = 3000;
        let map = |flags: i32, fd: i32| {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping, where the kernel likes.
            let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * 4096, protection, flags, fd, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            // SAFETY: it is ours, and never unmapped.
            unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), PAGES * 4096) }
        };
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, (PAGES * 4096) as u64).unwrap();
        let mut pagemap = Pagemap::of(std::process::id() as i32).unwrap();
        for (flags, fd) in [
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
            (libc::MAP_PRIVATE, file.as_raw_fd()),
        ] {
            let memory = map(flags, fd);
            for page in 0..PAGES {
                match page % 5 {
                    0 | 1 => memory[page * 4096] = 1,
                    2 => drop(std::hint::black_box(memory[page * 4096])),
                    _ => {}
                }
            }
            let start = memory.as_ptr() as u64;
            let end = start + memory.len() as u64;
            let read = read_entries(&mut pagemap.file, start, end).unwrap();
            assert!(read.len() > 512 || flags & libc::MAP_SHARED != 0, "{}", read.len());
            match pagemap.scan(start, end) {
                Err(error) => return eprintln!("skipped: this kernel does not scan: {error}"),
                Ok(scanned) => assert_eq!(scanned, Pages { own: read, guards: Vec::new() }),
            }
        }
    }

    #[test]
    fn guards_are_told_from_pages() {
        const GUARD_INSTALL: i32 = 102;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping, where the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), 4 * 4096, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let at = start as u64;
        // SAFETY: one page of that, which nobody touches again.
        let made = unsafe { libc::madvise((at + PAGE) as *mut _, 4096, GUARD_INSTALL) };
        let mut pagemap = Pagemap::of(std::process::id() as i32).unwrap();
        let pages = pagemap.pages(at, at + 4 * PAGE).unwrap();
        if made != 0 || pagemap.told & GUARD == 0 {
            return eprintln!("skipped: this kernel has no guards, or does not tell of them");
        }
        assert_eq!(pages.guards, [(at + PAGE, PAGE)]);
        assert_eq!(pages.own, [(at, PAGE), (at + 2 * PAGE, 2 * PAGE)]);
    }

    #[test]
    fn what_a_fork_shares_is_not_exclusive() {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), 8 * 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let (pages, at) = (start.cast::<u8>(), start as u64);
        for page in 0..4 {
            // SAFETY: it is ours, and as long.
            unsafe { pages.add(page * 4096).write(1) };
        }
        // SAFETY: as before; it is read as a page of zeros.
        std::hint::black_box(unsafe { pages.add(4 * 4096).read_volatile() });
        let mut pagemap = Pagemap::of(std::process::id() as i32).unwrap();
        assert_eq!(pagemap.unshared(at, at + 8 * PAGE).unwrap(), [0, 1, 2, 3].map(|page| at + page * PAGE));
        let mut is_exclusive = |from: u64, to: u64| pagemap.is_exclusive(at + from * PAGE, at + to * PAGE).unwrap();
        assert!(is_exclusive(0, 4));
        assert!(!is_exclusive(0, 5), "it has a page of zeros");
        assert!(!is_exclusive(3, 6), "one of them is not there");
        // SAFETY: the child only waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: it touches no memory.
                unsafe { libc::pause() };
            }
        }
        assert!(!is_exclusive(0, 4));
        let mut theirs = Pagemap::of(child).unwrap();
        let mut same = |page: u64| {
            let (from, to) = (at + page * PAGE, at + (page + 1) * PAGE);
            let own = Pagemap::of(std::process::id() as i32).unwrap().identities(from, to).unwrap();
            let told = own[0].is_some();
            told && own == theirs.identities(from, to).unwrap()
        };
        let is_told = rustix::process::getuid().is_root();
        assert_eq!([same(0), same(1), same(6)], [is_told, is_told, false]);
        // SAFETY: one page of ours, which is a copy from then on.
        unsafe { pages.write_volatile(2) };
        assert!(is_exclusive(0, 1) && !is_exclusive(0, 2));
        let unshared = Pagemap::of(std::process::id() as i32).unwrap().unshared(at, at + 8 * PAGE).unwrap();
        assert_eq!(unshared, [at]);
        assert_eq!([same(0), same(1)], [false, is_told]);
        // SAFETY: the child is ours, and nobody else waits for it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(is_exclusive(0, 4));
    }
}
