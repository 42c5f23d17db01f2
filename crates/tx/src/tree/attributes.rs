//! What a file has beside its name and its content: owner, mode, time of change, extended attributes.

use crate::crash::planted;
use crate::tree::confined::{CallPath, fnv1a};
use crate::tree::xattr::{self, Xattrs};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// A moment as file systems keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Moment {
    /// Whole seconds since the beginning of 1970.
    pub seconds: i64,
    /// Nanoseconds of that second, 0 to 999,999,999.
    pub nanoseconds: u32,
}

impl Moment {
    /// Before anything.
    pub(crate) const EPOCH: Self = Self { seconds: 0, nanoseconds: 0 };

    /// When the content of a file last changed.
    pub(crate) fn modified(stat: &Stat) -> Self {
        Self { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 }
    }

    /// When anything of a file last changed.
    pub(crate) fn changed(stat: &Stat) -> Self {
        Self { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as u32 }
    }

    /// Whether what bears this time may have been changed since another. A whole second may be all that a file system
    /// keeps (ext4 with inodes of 128 bytes, as those that were ext3 have; any that keeps no more), and stands for
    /// every moment in it.
    pub(crate) fn is_since(self, other: Self) -> bool {
        self >= other || self.is_whole_second() && self.seconds == other.seconds
    }

    /// Whether it may be a part of a second less than it was.
    pub(crate) fn is_whole_second(self) -> bool {
        self.nanoseconds == 0
    }

    /// Now, by the clock that file systems take their times from, which moves once a timer tick.
    pub fn now() -> Self {
        Self::by(rustix::time::ClockId::RealtimeCoarse)
    }

    /// So long ago.
    pub(crate) fn ago(span: Duration) -> Self {
        let now = Self::exactly_now();
        let nanoseconds = i128::from(now.seconds) * 1_000_000_000 + i128::from(now.nanoseconds);
        let then = nanoseconds - i128::try_from(span.as_nanos()).unwrap_or(i128::MAX / 2);
        Self { seconds: then.div_euclid(1_000_000_000) as i64, nanoseconds: then.rem_euclid(1_000_000_000) as u32 }
    }

    /// Now, by the clock that the former is a rounded one of.
    pub(crate) fn exactly_now() -> Self {
        Self::by(rustix::time::ClockId::Realtime)
    }

    /// How long it is from this to a later one.
    pub(crate) fn until(self, later: Self) -> Option<Duration> {
        let since_the_epoch =
            |moment: Self| Some(Duration::new(u64::try_from(moment.seconds).ok()?, moment.nanoseconds));
        since_the_epoch(later)?.checked_sub(since_the_epoch(self)?).filter(|rest| !rest.is_zero())
    }

    fn by(clock: rustix::time::ClockId) -> Self {
        let now = rustix::time::clock_gettime(clock);
        Self { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
    }
}

/// The bits of set-user-id and set-group-id programs.
pub(crate) const SET_IDS: u32 = 0o6000;

/// The capabilities that a program has.
pub(crate) const CAPABILITIES: &CStr = c"security.capability";

/// Which attributes are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// All but the time of the last change of content.
    ButTime,
    /// That time alone.
    TimeAlone,
}

/// Everything of a file but name and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attributes {
    /// With the kind.
    mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Moment,
    pub(crate) xattrs: Xattrs,
}

impl Attributes {
    pub(crate) fn new(stat: &Stat, xattrs: Xattrs) -> Self {
        Self { mode: stat.st_mode, uid: stat.st_uid, gid: stat.st_gid, modified: Moment::modified(stat), xattrs }
    }

    /// Those of what is at a path.
    pub(crate) fn of(path: &CallPath) -> io::Result<Self> {
        Ok(Self::new(&rustix::fs::stat(path.text.as_c_str())?, xattr::read(path)?.own))
    }

    /// The bits of the mode, without the kind.
    pub(crate) fn mode(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Whether they are a regular file's.
    pub(crate) fn are_of_file(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::RegularFile
    }

    /// Whether they are a directory's.
    pub(crate) fn are_of_directory(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Directory
    }

    /// Whether they are those of another but for the time.
    pub(crate) fn is_same_but_for_time(&self, other: &Self) -> bool {
        let all = |one: &Self| (one.mode, one.uid, one.gid);
        all(self) == all(other) && self.xattrs == other.xattrs
    }

    /// Whether a file that has them runs with its owner's or its group's rights, or with capabilities.
    pub(crate) fn are_privileges(&self) -> bool {
        self.mode & SET_IDS != 0 || self.xattrs.contains_key(CAPABILITIES)
    }

    /// The same without that.
    pub(crate) fn without_privileges(&self) -> Self {
        let mut plain = Self { mode: self.mode & !SET_IDS, ..self.clone() };
        plain.xattrs.remove(CAPABILITIES);
        plain
    }

    /// A number that any other attributes have another of.
    pub(crate) fn digest(&self) -> io::Result<u64> {
        Ok(fnv1a(&postcard::to_stdvec(self).map_err(io::Error::other)?))
    }

    /// Gives them to an open object. Times come last, since everything else changes them, and the mode after owner and
    /// access lists, since a new owner takes setuid away and an access list sets the group's bits. `between` is called
    /// where it is half done.
    pub(crate) fn give(&self, object: &CallPath, which: Which, between: fn()) -> io::Result<()> {
        assert!(object.follow, "only the kernel's own links lead to one object for sure");
        let path = object.text.as_c_str();
        if which != Which::TimeAlone {
            let now = rustix::fs::stat(path)?;
            if (now.st_uid, now.st_gid) != (self.uid, self.gid) {
                let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
                rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::empty())?;
            }
            between();
            if !planted("lost-attribute") {
                self.give_xattrs(object, &now)?;
            }
            if FileType::from_raw_mode(self.mode) != FileType::Symlink && !planted("lost-mode") {
                rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(self.mode & 0o7777), AtFlags::empty())?;
            }
            between();
        }
        if which != Which::ButTime && !planted("lost-time") {
            let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let modified = Timespec { tv_sec: self.modified.seconds, tv_nsec: self.modified.nanoseconds.into() };
            let times = Timestamps { last_access: omit, last_modification: modified };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Gives an open object the time of the last change of its content, and nothing else.
    pub(crate) fn give_time(object: impl AsFd, modified: Moment) -> io::Result<()> {
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let last_modification = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
        let times = Timestamps { last_access: omit, last_modification };
        Ok(rustix::fs::utimensat(object, "", &times, AtFlags::EMPTY_PATH)?)
    }

    /// Takes away from an open object all that these attributes do not allow; what they allow besides comes later. One
    /// that gets another owner is root's meanwhile, and with another access list its owner's. With `content` it is
    /// about to have another content, and runs with nobody's rights.
    pub(crate) fn restrict(&self, object: &CallPath, content: bool) -> io::Result<()> {
        const LIST: &CStr = c"system.posix_acl_access";
        let path = object.text.as_c_str();
        let now = rustix::fs::stat(path)?;
        let mut mode = now.st_mode & self.mode & 0o7777;
        if content {
            mode &= 0o1777;
        }
        if now.st_gid != self.gid {
            mode &= 0o1707;
        }
        if now.st_uid != self.uid || xattr::read(object)?.own.get(LIST) != self.xattrs.get(LIST) {
            mode &= 0o1700;
        }
        if now.st_uid != self.uid {
            rustix::fs::chownat(CWD, path, Some(Uid::ROOT), None, AtFlags::empty())?;
        }
        if mode != now.st_mode & 0o7777 && FileType::from_raw_mode(now.st_mode) != FileType::Symlink {
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        Ok(())
    }

    /// An overlay refuses an access list for an object of a layer below that it has not copied yet: the mode that it
    /// has anyway is set then, which copies it.
    fn give_xattrs(&self, object: &CallPath, now: &Stat) -> io::Result<()> {
        let given = xattr::write(object, &self.xattrs);
        let is_refused =
            given.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()));
        if !is_refused || FileType::from_raw_mode(now.st_mode) == FileType::Symlink {
            return given;
        }
        let mode = Mode::from_raw_mode(now.st_mode & 0o7777);
        rustix::fs::chmodat(CWD, object.text.as_c_str(), mode, AtFlags::empty())?;
        xattr::write(object, &self.xattrs)
    }
}
