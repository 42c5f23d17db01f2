//! What processes outside hold when a command begins, through which it could reach them, or they it: names that they
//! listen on, named fifos that they have open, and files that they write to through their memory.
//!
//! Whoever opens a fifo later is not known: to those inside it is another one, as any of the live tree's is in a view.

use super::fifos::{Fifos, Holders, Search};
use super::local_socket::Logs;
use super::surroundings::Surroundings;
use super::writes::KernelWrites;
use crate::state::directory::StateDirectory;
use crate::state::record::Record;
use crate::state::target::Target;
use pando_kernel::memory;
use pando_kernel::memory::map::Written;
use pando_kernel::{CallError, memory::page_cache};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstatfs, openat2, readlinkat, statx};
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// No more fifos than this are watched.
const MOST_FIFOS: usize = 256;

/// Bystanders, as they were just before a command.
#[derive(Debug, Default)]
pub struct Bystanders {
    /// Names without a file that somebody listens on, where they are known.
    pub(super) listening: Option<BTreeSet<Vec<u8>>>,
    /// Servers that only listen.
    pub(super) logs: Logs,
    /// Fifos that somebody has open, as soon as they are found: where everybody has to be looked at for that it takes
    /// longer than a short command.
    pub(super) fifos: Option<Fifos>,
    /// What is written to files of the kernel's, where that is told.
    pub(super) writes: Option<KernelWrites>,
}

/// A fifo that somebody has open: its path as the kernel shows it here, its device, its inode.
type OpenFifo = (PathBuf, (u32, u32), u64);

impl Bystanders {
    /// Looks around outside of a transaction about a target, or about the host. What is written to files through memory
    /// from now on is told by their times. `tenants` are the processes outside that have memory, if that is known, but
    /// for those who are known to write to no file.
    pub(crate) fn look(target: Option<&Target>, tenants: Option<BTreeSet<i32>>) -> Self {
        let outside = Surroundings::new(target);
        // Where the kernel does not tell who opens them, they are others inside.
        let fifos = Fifos::new(outside.clone()).ok();
        let mut settled = HashSet::new();
        let searched = || outside.processes().into_iter().filter(|pid| has_memory(*pid)).collect();
        for pid in tenants.map_or_else(searched, Vec::from_iter) {
            // One that has ended has nothing.
            for written in memory::map::written_by(pid).unwrap_or_default() {
                if settled.insert(written.file) {
                    // What cannot be written, such as a file in memory, is what it is.
                    let _ = settle(&written, target.is_some());
                }
            }
        }
        let logs = outside.root().map(|(root, _)| Logs::below(root)).unwrap_or_default();
        Self { listening: outside.names().ok(), logs, fifos, writes: None }
    }

    /// The same for a transaction whose view another process holds.
    pub fn of(record: &Record) -> Self {
        let mut found = Self::look(record.target.as_ref(), None);
        drop(found.search_for_fifos());
        found.beside_view(PathBuf::from(format!("/proc/{}/root", record.holder)), true);
        found
    }

    /// The search for fifos, which begins once it is answered who may have some open, or dropped.
    pub(crate) fn search_for_fifos(&mut self) -> Option<Search> {
        self.fifos.as_mut().and_then(Fifos::search)
    }

    /// The view that is beside them, by a path that leads into it, and whether it is heard of what is written in it to
    /// files of the kernel's.
    pub(crate) fn beside_view(&mut self, view: PathBuf, hears_writes: bool) {
        self.writes = hears_writes.then(|| KernelWrites::in_view(&view).ok()).flatten();
        if let Some(fifos) = &mut self.fifos {
            fifos.watch_in(view);
        }
    }
}

/// Whether a process has memory of its own: threads of the kernel's and those that have ended but are not waited for,
/// of which a machine may have hundreds, have none, and no program either. To ask that takes a third of the time of
/// looking for what they would write to.
fn has_memory(pid: i32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe"));
    !program.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The fifos that somebody outside has open, by their paths there.
pub(super) fn open_fifos(outside: &Surroundings, holders: &Holders) -> BTreeSet<PathBuf> {
    let mut open = Vec::new();
    let processes = match holders {
        Holders::Anybody => outside.processes(),
        Holders::These(pids) => pids.iter().copied().collect(),
    };
    for pid in processes {
        // One that has ended has nothing.
        let _ = find_fifos(pid, &mut open);
    }
    if open.is_empty() { BTreeSet::new() } else { reachable(outside, &open).unwrap_or_default() }
}

/// Notes in a transaction that another process holds that Pando itself looked these paths up in its view.
pub(super) fn note_places(home: &StateDirectory, record: &Record, places: &BTreeSet<PathBuf>) -> Result<(), CallError> {
    let directory = home.of(&record.name);
    if places.is_empty() { Ok(()) } else { Record::read(&directory)?.with_places(places).write(&directory) }
}

/// Has further writes to a file be told by its times. What is an overlay's is some target's: a transaction about the
/// host, whose root is none, need not wait for the disk of those.
fn settle(written: &Written, in_target: bool) -> io::Result<()> {
    let Some(file) = written.open()? else { return Ok(()) };
    match fstatfs(&file)?.f_type == libc::OVERLAYFS_SUPER_MAGIC {
        true if in_target => Ok(rustix::fs::fdatasync(file)?),
        true => Ok(()),
        false => page_cache::write_back(file.as_fd()),
    }
}

/// The named fifos that a process has open.
fn find_fifos(pid: i32, into: &mut Vec<OpenFifo>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptors = rustix::fs::open(format!("/proc/{pid}/fd"), flags, Mode::empty())?;
    for entry in Dir::read_from(&descriptors)? {
        let entry = entry?;
        let name = entry.file_name();
        // What is known of it will do: the server of a file may have gone.
        let found = statx(&descriptors, name, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO);
        let Ok(found) = found else { continue };
        if FileType::from_raw_mode(found.stx_mode.into()) != FileType::Fifo || into.len() >= MOST_FIFOS {
            continue;
        }
        let path = readlinkat(&descriptors, name, Vec::new())?;
        // Those without a name are `pipe:[NUMBER]`.
        if path.to_bytes().first() == Some(&b'/') {
            let device = (found.stx_dev_major, found.stx_dev_minor);
            into.push((PathBuf::from(OsStr::from_bytes(path.to_bytes())), device, found.stx_ino));
        }
    }
    Ok(())
}

/// The paths at which they are found outside: a process elsewhere may call others so.
fn reachable(outside: &Surroundings, open: &[OpenFifo]) -> io::Result<BTreeSet<PathBuf>> {
    let (root, shown) = outside.root()?;
    let path = |(path, device, inode): &OpenFifo| {
        let below = path.strip_prefix(&shown).ok()?;
        let place = place(&root, below).ok()?;
        let found = statx(&place, "", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
        let is_it = (found.stx_dev_major, found.stx_dev_minor) == *device && found.stx_ino == *inode;
        is_it.then(|| Path::new("/").join(below))
    };
    Ok(open.iter().filter_map(path).collect())
}

/// What is at a path from a root.
pub(super) fn place(root: impl AsFd, below: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(root, below, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_has_ended_has_no_memory() {
        let mut ended = std::process::Command::new("true").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = ended.id().cast_signed();
        // Without taking note of its end.
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(rustix::process::Pid::from_raw(pid).unwrap()), options)
            .unwrap();
        assert!(!has_memory(pid) && has_memory(std::process::id().cast_signed()));
        ended.wait().unwrap();
    }

    #[test]
    fn a_fifo_with_a_name_that_somebody_has_open_is_found_and_a_pipe_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().canonicalize().unwrap();
        let make = |name: &str| rustix::fs::mknodat(rustix::fs::CWD, at.join(name), FileType::Fifo, 0o600.into(), 0);
        make("open").and_then(|()| make("closed")).unwrap();
        let _held = File::options().read(true).write(true).open(at.join("open")).unwrap();
        let _pipe = rustix::pipe::pipe().unwrap();
        let mut open = Vec::new();
        find_fifos(std::process::id().cast_signed(), &mut open).unwrap();
        let here: Vec<_> = open.iter().filter(|(path, ..)| path.starts_with(&at)).collect();
        assert_eq!(here.len(), 1, "{open:?}");
        let outside = Surroundings::new(None);
        assert!(reachable(&outside, &open).unwrap().contains(&at.join("open")));
        // Another one has its name.
        std::fs::rename(at.join("closed"), at.join("open")).unwrap();
        assert!(!reachable(&outside, &open).unwrap().contains(&at.join("open")));
    }
}
