//! One thing that is not a directory: a file, another name of a file, a symbolic link, a fifo, a device.

use super::content::{ContentError, copy_content};
use super::{Attributes, Copier, CopyError, Verdict};
use crate::source::root::{new_file, object};
use crate::source::write_error::WriteError;
use pando_kernel::file::directory_chain::{identity, look_at};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, ftruncate, linkat, makedev, mknodat, readlinkat, symlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

impl Copier<'_> {
    /// Copies `name`, which is `source` and is not a directory, into the directory `target`.
    pub(super) fn node(
        &mut self,
        target: BorrowedFd<'_>,
        path: &Path,
        name: &OsStr,
        source: &OwnedFd,
        stat: &Statx,
        verdict: Verdict,
    ) -> Result<(), CopyError> {
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        if verdict != Verdict::Skeleton {
            self.take_name(path)?;
        }
        match (kind, verdict) {
            (_, Verdict::Skeleton) => return Ok(()),
            (FileType::RegularFile, Verdict::Hollow) => {
                new_file(target, name).map_err(|error| self.unwritten("make", path, error))?;
            }
            (FileType::RegularFile, _) => {
                if self.link(target, path, name, stat)? {
                    return Ok(());
                }
                if !self.file(target, path, name, source)? {
                    return Ok(());
                }
            }
            (FileType::Symlink, _) => {
                let to = readlinkat(source, "", Vec::new()).map_err(|error| self.unread(path, error))?;
                symlinkat(to, target, name).map_err(|error| self.unwritten("make the symbolic link", path, error))?;
            }
            (FileType::Socket, _) => {
                self.summary.left.sockets += 1;
                return Ok(());
            }
            (FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice, _) => {
                if !self.special(target, path, name, kind, stat)? {
                    return Ok(());
                }
            }
            (FileType::Directory | FileType::Unknown, _) => {
                return Err(self.unread(path, Errno::INVAL));
            }
        }
        let (attributes, dropped) = Attributes::read(source.as_fd(), stat).map_err(|error| self.unread(path, error))?;
        let made = object(target, name).map_err(|error| self.unwritten("open", path, error))?;
        let applied =
            attributes.apply(made.as_fd(), kind).map_err(|(action, error)| self.unwritten(action, path, error))?;
        self.summary.left.attributes += dropped + applied;
        self.summary.files += 1;
        if kind == FileType::RegularFile && stat.stx_nlink > 1 && verdict == Verdict::Copy {
            self.links.insert(identity(stat), path.to_owned());
        }
        Ok(())
    }

    /// Gives a file that is already in the copy its second name. False: it has to be copied.
    fn link(&mut self, target: BorrowedFd<'_>, path: &Path, name: &OsStr, stat: &Statx) -> Result<bool, CopyError> {
        let Some(first) = self.links.get(&identity(stat)).filter(|_| stat.stx_nlink > 1) else { return Ok(false) };
        let (parent, old) = (first.parent().unwrap_or(Path::new("")), first.file_name().unwrap_or(OsStr::new("")));
        let linked =
            self.root.strict_directory(parent).and_then(|parent| linkat(&parent, old, target, name, AtFlags::empty()));
        match linked {
            Ok(()) => {
                self.summary.files += 1;
                Ok(true)
            }
            // This file system allows fewer names a file than the source's: begin a second copy.
            Err(Errno::MLINK) => Ok(false),
            Err(error) => Err(self.unwritten("link", path, error)),
        }
    }

    /// Copies the content. A file written to meanwhile is copied once more, so that a log that grew is whole; a file
    /// that is written to all the time is as good as it gets. False: it was gone before it could be opened.
    fn file(&mut self, target: BorrowedFd<'_>, path: &Path, name: &OsStr, source: &OwnedFd) -> Result<bool, CopyError> {
        let from = match open_content(source) {
            Ok(from) => from,
            // Deleted on a network or stacked file system, where a handle does not keep a file alive.
            Err(Errno::STALE | Errno::NOENT) => {
                self.summary.left.vanished += 1;
                return Ok(false);
            }
            Err(error) => return Err(self.unread(path, error)),
        };
        let to = new_file(target, name).map_err(|error| self.unwritten("make", path, error))?;
        for last in [false, true] {
            let before = look_at(from.as_fd()).map_err(|error| self.unread(path, error))?;
            let size = copy_content(&from, &to, &mut self.meter, &mut self.room).map_err(|error| match error {
                ContentError::Read(error) => self.unread(path, error),
                ContentError::Write(error) => self.unwritten("write", path, error),
                ContentError::NoRoom(refusal) => WriteError::refused(path, self.into, refusal).into(),
                ContentError::Cancelled(cancelled) => cancelled.into(),
            })?;
            let after = look_at(from.as_fd()).map_err(|error| self.unread(path, error))?;
            let same = |stat: &Statx| (stat.stx_size, stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
            if same(&before) == same(&after) || last {
                self.summary.left.changed += u64::from(same(&before) != same(&after));
                self.summary.bytes += size;
                break;
            }
            ftruncate(&to, 0).map_err(|error| self.unwritten("write", path, error))?;
        }
        Ok(true)
    }

    /// Makes a fifo or a device node. False: it was left out.
    fn special(
        &mut self,
        target: BorrowedFd<'_>,
        path: &Path,
        name: &OsStr,
        kind: FileType,
        stat: &Statx,
    ) -> Result<bool, CopyError> {
        let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
        // As a layer of an overlay the copy would hide what lies below.
        if kind == FileType::CharacterDevice && (major, minor) == (0, 0) {
            self.summary.left.devices += 1;
            return Ok(false);
        }
        match mknodat(target, name, kind, Mode::from_raw_mode(0o600), makedev(major, minor)) {
            Ok(()) => Ok(true),
            // Not root, or a container that may not.
            Err(Errno::PERM) if kind != FileType::Fifo => {
                self.summary.left.devices += 1;
                Ok(false)
            }
            Err(error) => Err(self.unwritten("make", path, error)),
        }
    }
}

/// Opens for reading what `object` is a handle to, without leaving a trace in its access time where that is allowed.
fn open_content(object: &OwnedFd) -> Result<File, Errno> {
    let path = super::attributes::by_descriptor(object.as_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = match rustix::fs::open(path.as_str(), flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::open(path.as_str(), flags, Mode::empty()),
        opened => opened,
    };
    opened.map(File::from)
}
