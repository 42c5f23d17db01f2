//! A tar stream made into files.

use super::{Landing, Owners, attributes};
use anyhow::{Context, bail, ensure};
use pando_kernel::filesystem::spare_room::{Refusal, SpareRoom};
use pando_reader::{CopyEntry as Entry, CopyKind as Kind, Died, Failure, Job, Message, Reader, ReaderError, for_each};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown, fstat,
    futimens, linkat, mkdirat, openat2, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Whose word the archive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// A guest's, unpacked on the host: files are the caller's, and none is setuid or setgid.
    Hostile,
    /// The host's, unpacked by the guest inside itself: owners and all mode bits are kept.
    Own,
}

/// Beneath the destination, through no symbolic link: what an earlier entry made does not lead a later one astray.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Unpacks the host's own stream, inside the guest; the answer says what was left out, a sentence each
/// (devices, FIFOs, attributes).
pub(crate) fn unpack_own(stream: impl Read, landing: Landing) -> anyhow::Result<Vec<String>> {
    let mut unpacker = Unpacker::new(landing, Trust::Own)?;
    for_each(stream, |entry, content| unpacker.named(entry, content))?;
    Ok(unpacker.left_out)
}

/// Unpacks a guest's stream on the host. What understands it is a process without powers.
pub(crate) fn unpack_foreign(stream: impl Into<OwnedFd>, landing: Landing) -> anyhow::Result<Vec<String>> {
    let mut unpacker = Unpacker::new(landing, Trust::Hostile)?;
    // Unit tests have no program that could become a reader.
    let started =
        if cfg!(test) { Reader::start_unconfined(&Job::Copy, stream) } else { Reader::start(&Job::Copy, stream) };
    let mut reader = started.map_err(unread)?;
    loop {
        match reader.next().map_err(unread)? {
            Message::Copied(entry) => unpacker.named(&entry, &mut reader)?,
            Message::End(_) => return Ok(unpacker.left_out),
            _ => return Err(unread(Died::Nonsense.into())),
        }
    }
}

/// The sentence for what a reader could not read.
fn unread(error: ReaderError) -> anyhow::Error {
    match error {
        ReaderError::Failed(Failure::Stream(words)) => anyhow::Error::msg(words),
        other => anyhow::Error::new(other).context("cannot read what the guest sends"),
    }
}

/// How many left-out entries are named; more are only counted.
const MOST_NAMED: usize = 10;

/// Why sockets, devices and FIFOs do not come along.
pub(super) const NO_FILE: &str = "was not copied: it is not a file, a directory or a link";

/// The most entries of a stream: one has an end, whoever writes it.
const MOST_ENTRIES: u64 = 16 << 20;

/// Written at a time: room is taken for so much.
const STEP: usize = 256 << 10;

/// What a file system keeps apart: so many zeros are left out, and are a hole.
const BLOCK: u64 = 4096;

struct Unpacker {
    landing: Landing,
    trust: Trust,
    room: SpareRoom,
    left_out: Vec<String>,
    count: u64,
    /// Bytes of content so far, whatever became of them.
    written: u64,
}

impl Unpacker {
    fn new(landing: Landing, trust: Trust) -> anyhow::Result<Self> {
        let room = SpareRoom::at(&landing.directory).context("cannot tell how much room there is")?;
        Ok(Self { landing, trust, room, left_out: Vec::new(), count: 0, written: 0 })
    }

    /// Unpacks an entry; an error names it.
    fn named(&mut self, entry: &Entry, content: &mut dyn Read) -> anyhow::Result<()> {
        let shown = crate::printable::printable(&String::from_utf8_lossy(&entry.path)).to_string();
        self.entry(entry, content).with_context(|| format!("cannot unpack '{shown}'"))
    }

    fn entry(&mut self, entry: &Entry, content: &mut dyn Read) -> anyhow::Result<()> {
        let path = self.landing.place(&entry.path)?;
        ensure!(
            self.count > 0 || !self.landing.must_be_directory || entry.kind == Kind::Directory,
            "the destination is written as a directory, which does not exist"
        );
        self.count += 1;
        ensure!(self.count <= MOST_ENTRIES, "the tar stream has more than {MOST_ENTRIES} entries; it was refused");
        let Some(name) = path.file_name().map(PathBuf::from) else {
            // The destination itself: it keeps its mode and its owner.
            ensure!(entry.kind == Kind::Directory, "it would replace the destination directory");
            return Ok(());
        };
        if entry.kind == Kind::Special {
            self.leave_out(&entry.path, NO_FILE);
            return Ok(());
        }
        let parent = self.parent(path.parent().unwrap_or(Path::new("")))?;
        granted(self.room.take_files(1))?;
        match entry.kind {
            Kind::File => self.file(&parent, &name, entry, content),
            Kind::Directory => self.directory(&parent, &name, entry),
            Kind::Symlink => self.symlink(&parent, &name, entry),
            Kind::Hardlink => self.hardlink(&parent, &name, entry),
            Kind::Special => unreachable!("left out above"),
        }
    }

    /// The directory that an entry lies in; archives may leave directories out that their files imply.
    fn parent(&mut self, path: &Path) -> anyhow::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if path.as_os_str().is_empty() {
            return Ok(self.landing.directory.try_clone()?);
        }
        match openat2(&self.landing.directory, path, flags, Mode::empty(), BENEATH) {
            Err(Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let mut at = self.landing.directory.try_clone()?;
        for part in path.components() {
            granted(self.room.take_files(1))?;
            match mkdirat(&at, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            at = openat2(&at, part.as_os_str(), flags, Mode::empty(), BENEATH)?;
        }
        Ok(at)
    }

    fn file(&mut self, parent: &OwnedFd, name: &Path, entry: &Entry, content: &mut dyn Read) -> anyhow::Result<()> {
        granted(self.room.ask(entry.size))?;
        // What is written over again and again takes no more room, and time without end.
        self.written = self.written.saturating_add(entry.size);
        ensure!(
            self.written <= self.room.whole(),
            "the tar stream has more content in all than the file system can hold; it was refused"
        );
        clear(parent, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat2(parent, name, flags, Mode::from_raw_mode(0o600), BENEATH)?);
        let filled = self.fill(&mut file, entry, content).and_then(|()| self.finish(&file.into(), entry));
        if filled.is_err() {
            // Half of a file is worse than none.
            let _ = unlinkat(parent, name, AtFlags::empty());
        }
        filled
    }

    fn fill(&mut self, file: &mut File, entry: &Entry, content: &mut dyn Read) -> anyhow::Result<()> {
        let mut buffer = vec![0; usize::try_from(entry.size).map_or(STEP, |size| size.min(STEP))];
        let mut copied = 0;
        while copied < entry.size {
            let length = match content.read(&mut buffer) {
                Ok(0) => bail!("the tar stream ends in the middle of it"),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                let (run, zeros) = leading_run(rest, copied);
                match zeros {
                    // The file is new: what is not written of it is zeros.
                    true => drop(file.seek(SeekFrom::Current(run as i64))?),
                    false => {
                        granted(self.room.take(run as u64))?;
                        file.write_all(&rest[..run])?;
                    }
                }
                copied += run as u64;
                rest = &rest[run..];
            }
        }
        // Where it ends in a hole.
        Ok(file.set_len(entry.size)?)
    }

    fn directory(&mut self, parent: &OwnedFd, name: &Path, entry: &Entry) -> anyhow::Result<()> {
        let made = match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat2(parent, name, flags, Mode::empty(), BENEATH)?;
        // One that was there before keeps what its owner gave it.
        if made { self.finish(&directory, entry) } else { Ok(()) }
    }

    fn symlink(&self, parent: &OwnedFd, name: &Path, entry: &Entry) -> anyhow::Result<()> {
        clear(parent, name)?;
        symlinkat(entry.link.as_slice(), parent, name)?;
        if self.trust == Trust::Own {
            let (uid, gid) = owner(entry);
            chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        utimensat(parent, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// The target is looked up like any name of the archive, below the destination, and has to be a plain file there.
    fn hardlink(&mut self, parent: &OwnedFd, name: &Path, entry: &Entry) -> anyhow::Result<()> {
        let target = self.landing.place(&entry.link).context("it is a link to another entry")?;
        let Some(target_name) = target.file_name() else { bail!("it is a link to the destination itself") };
        let target_parent = self.parent(target.parent().unwrap_or(Path::new("")))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat2(&target_parent, target_name, flags, Mode::empty(), BENEATH)?;
        let kind = FileType::from_raw_mode(fstat(&found)?.st_mode);
        ensure!(kind == FileType::RegularFile, "it is a hard link to something that is not a file");
        clear(parent, name)?;
        linkat(&target_parent, target_name, parent, name, AtFlags::empty())?;
        Ok(())
    }

    /// Owner first: changing it clears the bits that the mode may set.
    fn finish(&mut self, made: &OwnedFd, entry: &Entry) -> anyhow::Result<()> {
        let mode = match self.trust {
            Trust::Hostile => entry.mode & 0o777,
            Trust::Own => {
                let (uid, gid) = owner(entry);
                fchown(made, Some(uid), Some(gid))?;
                entry.mode
            }
        };
        fchmod(made, Mode::from_raw_mode(mode))?;
        self.attributes(made, entry);
        futimens(made, &times(entry))?;
        Ok(())
    }

    /// A file without one of its attributes is better than none.
    fn attributes(&mut self, made: &OwnedFd, entry: &Entry) {
        for (name, value) in &entry.attributes {
            let taken = self.trust == Trust::Own || attributes::is_taken_from_guests(name);
            if !taken || !attributes::is_sent(name, Owners::Kept) {
                continue;
            }
            if let Err(errno) = attributes::set(made, name, value) {
                let name = crate::printable::printable(&String::from_utf8_lossy(name)).to_string();
                self.leave_out(
                    &entry.path,
                    &format!("has not its attribute {name}: {}", crate::errno_words::reason(&errno.into())),
                );
            }
        }
    }

    /// Notes what did not come along; of many the first few.
    fn leave_out(&mut self, path: &[u8], what: &str) {
        if self.left_out.len() < MOST_NAMED {
            self.left_out.push(format!("'{}' {what}", crate::printable::printable(&String::from_utf8_lossy(path))));
        }
    }
}

/// How many bytes at the beginning are blocks of zeros, or blocks that are not, and which of both. `at` is where they
/// lie in the file.
fn leading_run(bytes: &[u8], at: u64) -> (usize, bool) {
    let mut run = 0;
    let mut zeros = None;
    while run < bytes.len() {
        let whole = (BLOCK - (at + run as u64) % BLOCK) as usize;
        let block = &bytes[run..bytes.len().min(run + whole)];
        let is_zero = block.iter().all(|byte| *byte == 0);
        if *zeros.get_or_insert(is_zero) != is_zero {
            break;
        }
        run += block.len();
    }
    (run, zeros.unwrap_or(false))
}

/// The sentence for room that was not granted.
fn granted(answer: Result<(), Refusal>) -> anyhow::Result<()> {
    match answer {
        Ok(()) => Ok(()),
        Err(Refusal::NoRoom(room)) => {
            bail!("no space left for it there: {room}; free some, or copy to another file system")
        }
        Err(Refusal::Look(errno)) => Err(errno.into()),
    }
}

/// Removes what a new file or link replaces. Never a directory.
fn clear(parent: &OwnedFd, name: &Path) -> anyhow::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => bail!("a directory of that name is there already"),
        Err(errno) => Err(errno.into()),
    }
}

fn owner(entry: &Entry) -> (Uid, Gid) {
    (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid))
}

fn times(entry: &Entry) -> Timestamps {
    let time = Timespec { tv_sec: entry.modified, tv_nsec: entry.nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
