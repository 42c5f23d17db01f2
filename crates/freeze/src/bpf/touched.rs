//! Which entries of directories were touched since an instant, as a BPF program of ours (`bpf/touched.bpf.c`) finds it
//! in the kernel's cache of names: ten thousand of them in the time of some hundred system calls.
//!
//! It knows what the cache knows. So of each directory it is told how many entries were *not* touched as well: with
//! those that were, there have to be as many as the directory has, or some were forgotten, and have to be asked for one
//! by one.
//!
//! Iterators over one process's files: since Linux 6.1; the cache as it is looked for here: since 6.11. Where it is
//! another, all entries are asked for.

use crate::bpf::object;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use pando_kernel::bpf;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::Duration;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/touched.bpf.o"));

/// Bytes of the program's `struct told`.
const TOLD: usize = 16;

/// Descriptors from this on the program is not asked about.
const DESCRIPTORS: usize = 1 << 16;

/// By how much times of files may be behind: more than a tick of the kernel's clock for them, and than what a clock is
/// set right by unnoticed.
const BEHIND: Duration = Duration::from_millis(20);

/// By how much the clock may have been set meanwhile.
const SET: Duration = Duration::from_millis(5);

const SECOND: i128 = 1_000_000_000;

/// An instant by the clock that files have their times from.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// What is touched from now on has no time before this.
    earliest: i128,
    /// By how much that clock is ahead of one that nobody sets.
    ahead: i128,
}

fn nanoseconds(clock: ClockId) -> i128 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    i128::from(tv_sec) * SECOND + i128::from(tv_nsec)
}

fn ahead() -> i128 {
    nanoseconds(ClockId::Realtime) - nanoseconds(ClockId::Boottime)
}

impl Since {
    /// The instant at which this is called.
    pub fn now() -> Self {
        Self { earliest: nanoseconds(ClockId::Realtime) - BEHIND.as_nanos() as i128, ahead: ahead() }
    }

    /// Whether times of files tell what has happened since: not where somebody has set the clock.
    fn can_be_told(self) -> bool {
        (ahead() - self.ahead).unsigned_abs() < SET.as_nanos()
    }
}

/// What was told of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// How many were not touched.
    pub untouched: usize,
    /// Inode numbers of the others, as often as they have names, in ascending order.
    pub touched: Vec<u64>,
}

/// The program, loaded: once is enough for as many looks as there will be.
#[derive(Debug)]
pub struct Touched {
    program: OwnedFd,
    /// One asks at a time.
    request: Mutex<MapHandle>,
}

impl Touched {
    /// Loads it, which takes some tens of milliseconds: it is fitted to the running kernel.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_BPF and CAP_PERFMON; others where the kernel has no such iterators or other structures.
    pub fn load() -> io::Result<Self> {
        let (object, program) = object::load(OBJECT)?;
        let map = object.maps().next().ok_or(io::ErrorKind::NotFound)?;
        let request = MapHandle::try_from(&map).map_err(io::Error::other)?;
        Ok(Self { program, request: Mutex::new(request) })
    }

    /// What there is to tell of the entries of directories that this process has open, by descriptor. Whoever is not in
    /// it could not be told of.
    ///
    /// # Errors
    ///
    /// InvalidData where the clock was set since, so that times tell nothing; others where the kernel has no room.
    pub fn among(&self, directories: &[BorrowedFd<'_>], since: Since) -> io::Result<HashMap<RawFd, Entries>> {
        if !since.can_be_told() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let numbers = directories.iter().map(AsRawFd::as_raw_fd);
        let request = self.request.lock().map_err(|_| io::ErrorKind::ResourceBusy)?;
        request.update(&[0; 4], &asked(numbers, since), MapFlags::ANY).map_err(io::Error::other)?;
        let link = bpf::iterator::over_process(self.program.as_fd(), std::process::id())?;
        let mut bytes = Vec::with_capacity(16 << 10);
        bpf::iterator::run(link.as_fd())?.read_to_end(&mut bytes)?;
        drop(request);
        // Asked once more: it may have been set while it was told.
        if since.can_be_told() { told(&bytes) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

/// The program's `struct request`.
fn asked(descriptors: impl Iterator<Item = RawFd>, since: Since) -> Vec<u8> {
    let mut wanted = vec![0_u64; DESCRIPTORS / 64];
    for number in descriptors.filter_map(|number| usize::try_from(number).ok()) {
        if let Some(word) = wanted.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }
    let (seconds, nanoseconds) = (since.earliest.div_euclid(SECOND) as i64, since.earliest.rem_euclid(SECOND) as u64);
    let mut bytes = seconds.to_ne_bytes().to_vec();
    bytes.extend(nanoseconds.to_ne_bytes());
    bytes.extend(wanted.iter().flat_map(|word| word.to_ne_bytes()));
    bytes
}

/// Takes apart what the program wrote. What it could not tell of to the end is left out.
fn told(bytes: &[u8]) -> io::Result<HashMap<RawFd, Entries>> {
    let (records, []) = bytes.as_chunks::<TOLD>() else { return Err(io::ErrorKind::InvalidData.into()) };
    let (mut all, mut touched) = (HashMap::new(), HashMap::<RawFd, Vec<u64>>::new());
    for record in records {
        let (words, _) = record.as_chunks::<4>();
        let [fd, untouched, ..] = [0, 1, 2, 3].map(|at| u32::from_ne_bytes(words[at]));
        let inode = u64::from_ne_bytes(record.as_chunks().0[1]);
        let fd = RawFd::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
        if inode != 0 {
            touched.entry(fd).or_default().push(inode);
        } else {
            let mut touched = touched.remove(&fd).unwrap_or_default();
            touched.sort_unstable();
            all.insert(fd, Entries { untouched: untouched as usize, touched });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn records_are_taken_apart_and_what_is_not_whole_is_left_out() {
        let record = |fd: u32, untouched: u32, inode: u64| {
            [fd.to_ne_bytes().to_vec(), untouched.to_ne_bytes().to_vec(), inode.to_ne_bytes().to_vec()].concat()
        };
        let bytes = [record(7, 0, 42), record(7, 0, 43), record(7, 5, 0), record(9, 0, 44)].concat();
        let all = told(&bytes).unwrap();
        assert_eq!(all, HashMap::from([(7, Entries { untouched: 5, touched: vec![42, 43] })]));
        assert!(told(&bytes[1..]).is_err());
    }

    #[test]
    fn what_is_asked_has_the_programs_layout() {
        let since = Since { earliest: 3 * SECOND + 7, ahead: 0 };
        let bytes = asked([0, 65, -1, 1 << 20].into_iter(), since);
        assert_eq!(bytes.len(), 16 + DESCRIPTORS / 8);
        assert_eq!((bytes[0], bytes[8], bytes[16], bytes[24]), (3, 7, 1, 2));
        assert!(!since.can_be_told());
    }

    #[test]
    fn entries_that_were_touched_are_told_and_the_others_counted() {
        let loaded = Touched::load().ok().filter(|_| pando_kernel::process::counts_as_the_kernel());
        let Some(program) = loaded else {
            return eprintln!(
                "skipped: this machine does not let BPF programs be loaded, or has another cache of names"
            );
        };
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        for number in 0..1000 {
            std::fs::write(at(&number.to_string()), "old").unwrap();
        }
        std::fs::hard_link(at("1"), at("again")).unwrap();
        std::fs::remove_file(at("999")).unwrap();
        std::thread::sleep(2 * BEHIND);
        let since = Since::now();
        std::fs::write(at("7"), "new").unwrap();
        std::fs::set_permissions(at("1"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let directory = File::open(scratch.path()).unwrap();
        let told = program.among(&[directory.as_fd()], since).unwrap();
        let inode = |name: &str| at(name).metadata().unwrap().ino();
        let mut touched = vec![inode("1"), inode("1"), inode("7")];
        touched.sort_unstable();
        assert_eq!(told[&directory.as_raw_fd()], Entries { untouched: 997, touched });
    }
}
