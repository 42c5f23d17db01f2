//! Where a path leads that a process of a transaction names: found as the kernel finds it for that process, by its
//! root, its working directory and its descriptors, and never by this one's.
//!
//! ```text
//!   no link on the way ───▶ one openat2(2) below the process's root or directory
//!   links, or `..` ───────▶ name by name:  a link's text        goes on in the process's root
//!                                          /proc/self           is the process's own
//!                                          /proc/N/cwd, fd, …   leads where that process is, if it is one inside
//! ```
//!
//! What lies beyond a process outside, and what cannot be looked at, counts as outside. The command may have arranged
//! every name, and mounts over /proc as well: so files of /proc are known by their inodes and by who owns them.

use pando_kernel::process;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, fstatfs, openat, openat2,
    readlinkat, statx,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The kernel follows no more links in a path (MAXSYMLINKS).
const MOST_LINKS: u32 = 40;

/// The inode of a procfs's root (PROC_ROOT_INO).
const PROC_ROOT: u64 = 1;

/// `FUSE_SUPER_MAGIC`. Whoever serves such a file system may tell this process another link than the caller.
const FUSE: i64 = 0x6573_5546;

/// More of a file of /proc/PID than is needed.
const LONGEST: u64 = 64 << 10;

/// Why a path leads to nothing that could be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// There is nothing, and the kernel says so to the caller as well.
    Absent,
    /// It leads through a process outside, or where it cannot be known what the caller would find.
    Elsewhere,
    /// This process cannot look.
    Unseen(Errno),
}

impl From<Errno> for Missed {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::SRCH => Self::Absent,
            other => Self::Unseen(other),
        }
    }
}

/// Where a path begins, unless that is with a `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    WorkingDirectory,
    Descriptor(i32),
}

impl Start {
    /// By the descriptor of a call, which may be AT_FDCWD.
    pub(super) fn of(directory: i32) -> Self {
        if directory == libc::AT_FDCWD { Self::WorkingDirectory } else { Self::Descriptor(directory) }
    }
}

/// What becomes of a link that a path ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastLink {
    /// It is followed.
    Followed,
    /// It is what the path leads to.
    Kept,
}

/// The process that names a path. It waits for its call meanwhile.
pub(super) struct Namer<'a> {
    /// Its thread.
    pub(super) pid: i32,
    /// Whether a process is inside, by its control groups (/proc/PID/cgroup).
    pub(super) is_inside: &'a dyn Fn(&str) -> bool,
}

impl Namer<'_> {
    /// What is at a path, by a descriptor that does nothing to it (O_PATH).
    pub(super) fn find(&self, from: Start, path: &[u8], last: LastLink) -> Result<OwnedFd, Missed> {
        let start = match (path.first(), from) {
            (Some(b'/'), _) => self.own("root")?,
            (_, Start::WorkingDirectory) => self.own("cwd")?,
            (_, Start::Descriptor(number)) => self.own(&format!("fd/{number}"))?,
        };
        if path.is_empty() {
            return Ok(start);
        }
        match without_links(&start, path, last) {
            Err(Errno::LOOP | Errno::XDEV | Errno::AGAIN) => {}
            found => return Ok(found?),
        }
        let root = if path.first() == Some(&b'/') { start.try_clone().map_err(unseen)? } else { self.own("root")? };
        let walk = Walk { namer: self, root, at: start, left: Vec::new(), links: 0, is_in_our_proc: false };
        walk.to(path, last)
    }

    /// What a link below /proc/PID leads to.
    fn own(&self, link: &str) -> Result<OwnedFd, Missed> {
        Ok(rustix::fs::open(format!("/proc/{}/{link}", self.pid), PLACE, Mode::empty())?)
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn unseen(error: std::io::Error) -> Missed {
    Missed::Unseen(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// What a path leads to on whose way no link is: those of /proc would lead this process elsewhere than the caller.
fn without_links(start: &OwnedFd, path: &[u8], last: LastLink) -> Result<OwnedFd, Errno> {
    let within = if path.first() == Some(&b'/') { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
    let flags = if last == LastLink::Kept { PLACE | OFlags::NOFOLLOW } else { PLACE };
    openat2(start, path, flags, Mode::empty(), within | ResolveFlags::NO_SYMLINKS)
}

/// A way, name by name.
struct Walk<'a> {
    namer: &'a Namer<'a>,
    root: OwnedFd,
    at: OwnedFd,
    /// The names that are left, the next one last.
    left: Vec<Vec<u8>>,
    links: u32,
    /// The way went through `self`, whose directory is that of the /proc of this process: by `..` it would come to this
    /// process's files.
    is_in_our_proc: bool,
}

impl Walk<'_> {
    fn to(mut self, path: &[u8], last: LastLink) -> Result<OwnedFd, Missed> {
        self.push(path);
        while let Some(name) = self.left.pop() {
            match name.as_slice() {
                b"" | b"." => {}
                b".." => self.up()?,
                name => self.enter(name, last)?,
            }
        }
        Ok(self.at)
    }

    fn push(&mut self, path: &[u8]) {
        self.left.extend(path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
    }

    fn up(&mut self) -> Result<(), Missed> {
        if self.is_in_our_proc {
            return Err(Missed::Elsewhere);
        }
        let place = |fd: &OwnedFd| about(fd).map(|it| (it.stx_mnt_id, it.stx_ino, it.stx_dev_major, it.stx_dev_minor));
        if place(&self.at)? != place(&self.root)? {
            self.at = openat(&self.at, "..", PLACE | OFlags::DIRECTORY, Mode::empty())?;
        }
        Ok(())
    }

    fn enter(&mut self, name: &[u8], last: LastLink) -> Result<(), Missed> {
        let found = openat(&self.at, name, PLACE | OFlags::NOFOLLOW, Mode::empty())?;
        let seen = about(&found)?;
        let is_link = FileType::from_raw_mode(seen.stx_mode.into()) == FileType::Symlink;
        // After a closing `/` an empty name is left, and the kernel follows the link.
        if !is_link || self.left.is_empty() && last == LastLink::Kept {
            self.at = found;
            return Ok(());
        }
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Missed::Absent);
        }
        match fstatfs(&found)?.f_type {
            libc::PROC_SUPER_MAGIC => self.follow_in_proc(name, &found, &seen),
            FUSE => Err(Missed::Elsewhere),
            _ => self.follow(&found),
        }
    }

    /// Goes on where the text of a link leads.
    fn follow(&mut self, link: &OwnedFd) -> Result<(), Missed> {
        let text = readlinkat(link, "", Vec::new())?.into_bytes();
        if text.first() == Some(&b'/') {
            self.at = self.root.try_clone().map_err(unseen)?;
            self.is_in_our_proc = false;
        }
        self.push(&text);
        Ok(())
    }

    /// Links of /proc lead where the kernel says, whatever their texts are.
    fn follow_in_proc(&mut self, name: &[u8], link: &OwnedFd, seen: &Statx) -> Result<(), Missed> {
        // Somebody has mounted it there: whose it is cannot be seen from its place.
        if seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Err(Missed::Elsewhere);
        }
        let ours = |link: &str| {
            let found = statx(rustix::fs::CWD, link, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO);
            found.map(|found| found.stx_ino == seen.stx_ino)
        };
        // Their numbers are the same in every procfs.
        if ours("/proc/self")? {
            return self.enter_our_proc(&format!("/proc/{}", self.leader()?));
        }
        if ours("/proc/thread-self")? {
            return self.enter_our_proc(&format!("/proc/{}/task/{}", self.leader()?, self.namer.pid));
        }
        match owner(self.at.as_fd())? {
            Some(groups) if (self.namer.is_inside)(&groups) => {
                self.at = openat(&self.at, name, PLACE, Mode::empty())?;
                self.is_in_our_proc = false;
                Ok(())
            }
            None if about(&self.at)?.stx_ino == PROC_ROOT => self.follow(link),
            _ => Err(Missed::Elsewhere),
        }
    }

    fn enter_our_proc(&mut self, path: &str) -> Result<(), Missed> {
        self.at = rustix::fs::open(path, PLACE | OFlags::DIRECTORY, Mode::empty())?;
        self.is_in_our_proc = true;
        Ok(())
    }

    /// The process whose thread the caller is.
    fn leader(&self) -> Result<i32, Missed> {
        let status = process::read(self.namer.pid, "status").map_err(unseen)?;
        let number = status.lines().find_map(|line| line.strip_prefix("Tgid:")).and_then(|pid| pid.trim().parse().ok());
        number.ok_or(Missed::Elsewhere)
    }
}

fn about(place: &OwnedFd) -> Result<Statx, Errno> {
    statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID)
}

/// The control groups of the process whose directory of /proc this is, or whose directory this is one of (`fd`, `ns`,
/// `map_files`); `None` for any other. What is mounted there is not believed.
fn owner(directory: BorrowedFd<'_>) -> Result<Option<String>, Missed> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    for path in ["cgroup", "../cgroup"] {
        let file = match openat2(directory, path, flags, Mode::empty(), within) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::XDEV) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map_err(unseen)?;
        return Ok(Some(text));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::canonicalize;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::{Path, PathBuf};

    fn me() -> i32 {
        std::process::id().cast_signed()
    }

    /// The inode that a path leads this process to, whose processes are inside or not.
    fn found(from: Start, path: &str, last: LastLink, is_inside: bool) -> Result<u64, Missed> {
        let namer = Namer { pid: me(), is_inside: &|_| is_inside };
        Ok(about(&namer.find(from, path.as_bytes(), last)?)?.stx_ino)
    }

    fn followed(path: &str) -> Result<u64, Missed> {
        found(Start::WorkingDirectory, path, LastLink::Followed, true)
    }

    fn inode(path: impl AsRef<Path>) -> u64 {
        std::fs::metadata(path).unwrap().ino()
    }

    /// A directory with `d/file`, and links to it.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let at = canonicalize(directory.path()).unwrap();
        std::fs::create_dir(at.join("d")).unwrap();
        std::fs::write(at.join("d/file"), "").unwrap();
        symlink("d", at.join("way")).unwrap();
        symlink(at.join("way/file"), at.join("absolute")).unwrap();
        symlink("loop", at.join("loop")).unwrap();
        symlink("/proc/self/fd", at.join("to-proc")).unwrap();
        (directory, at)
    }

    #[test]
    fn links_and_what_is_above_lead_where_the_kernel_says() {
        let (_held, at) = place();
        let directory = File::open(&at).unwrap();
        let start = Start::Descriptor(std::os::fd::AsRawFd::as_raw_fd(&directory));
        let file = Ok(inode(at.join("d/file")));
        for path in ["d/file", "way/file", "absolute", "./d/../way/./file", "d//file"] {
            assert_eq!(followed(&format!("{}/{path}", at.display())), file, "{path}");
            assert_eq!(found(start, path, LastLink::Followed, true), file, "{path}");
        }
        assert_eq!(found(start, "", LastLink::Followed, true), Ok(inode(&at)));
        let up = format!("../{}/absolute", at.file_name().unwrap().display());
        assert_eq!(found(start, &up, LastLink::Followed, true), file);
        let link = at.join("absolute").symlink_metadata().unwrap().ino();
        assert_eq!(found(start, "absolute", LastLink::Kept, true), Ok(link));
        assert_eq!(found(start, "way/", LastLink::Kept, true), Ok(inode(at.join("d"))));
        for path in ["loop", "d/nothing", "d/file/below", "way/nothing", "d/file/../file"] {
            assert_eq!(found(start, path, LastLink::Followed, true), Err(Missed::Absent), "{path}");
        }
    }

    #[test]
    fn links_of_proc_lead_where_their_process_is_if_that_is_inside() {
        let (_held, at) = place();
        let directory = File::open(&at).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&directory);
        let file = Ok(inode(at.join("d/file")));
        let all = [
            format!("/proc/self/fd/{number}/way/file"),
            format!("/proc/thread-self/fd/{number}/d/file"),
            format!("/proc/{}/fd/{number}/d/file", me()),
            format!("/proc/{0}/task/{0}/root{1}/d/file", me(), at.display()),
            format!("/proc/self/root{}/absolute", at.display()),
            format!("{}/to-proc/{number}/d/file", at.display()),
            format!("/proc/self/cwd/../../../../../../../..{}/d/file", at.display()),
        ];
        for path in all {
            assert_eq!(followed(&path), file, "{path}");
            let outside = found(Start::WorkingDirectory, &path, LastLink::Followed, false);
            assert_eq!(outside, Err(Missed::Elsewhere), "{path}");
        }
        assert_eq!(followed("/proc/self/exe"), Ok(inode("/proc/self/exe")));
        assert_eq!(followed("/proc/self/fd/99999"), Err(Missed::Absent));
        // The text of a link whose place does not say whose it is.
        assert!(followed("/proc/mounts").is_ok() && followed("/proc/net/unix").is_ok());
        assert_eq!(followed("/proc/self/../../etc"), Err(Missed::Elsewhere));
    }

    #[test]
    fn what_cannot_be_looked_at_is_not_absent() {
        let errors = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS, Errno::IO];
        assert!(errors.into_iter().all(|errno| Missed::from(errno) == Missed::Unseen(errno)));
        assert_eq!((Missed::from(Errno::NOENT), Missed::from(Errno::NOTDIR)), (Missed::Absent, Missed::Absent));
    }
}
