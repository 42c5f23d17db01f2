//! Files inside a root that others write to: found without being led elsewhere, opened without waiting.
//!
//! That every process of a guest stands still says nothing about its files. Whoever has a descriptor of one of their
//! directories, another guest or a user of the host, puts a link or a named pipe into the place of a file that was
//! looked at a moment ago. By its path the file would then be one of the host's, or be waited for without end. So a
//! path leads to a place, which does nothing to what is there; the place is looked at; and that very object is opened.
//!
//! ```text
//!   Root::of_process(pid) ─▶ place(path, links) ─▶ Place ─▶ about()           statx of the object itself
//!   Place::in_directory(directory, name) ─────────▶   │   ─▶ file(), entries()  opened by its descriptor, O_NONBLOCK
//! ```

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `openat2` gives EAGAIN where a rename anywhere on the machine raced with it; the next try nearly always succeeds.
const MOST_TRIES: u32 = 64;

/// What becomes of links that are in a path. None of them leads out of the root, and none of /proc's is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// They are refused (ELOOP). The last name's is the object that the path leads to.
    Refused,
    /// Those on the way are followed. The last name's is the object that the path leads to.
    OnTheWay,
    /// All are followed.
    Followed,
}

/// A directory that no path leads out of.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// The root directory of a process.
    ///
    /// # Errors
    ///
    /// Those of open(2): ENOENT where the process is gone, or has ended and is not waited for.
    pub fn of_process(pid: i32) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty()).map(Self)
    }

    /// Where a path leads to in it; mounts are entered.
    ///
    /// # Errors
    ///
    /// Those of openat2(2): ELOOP for a link that is refused.
    pub fn place(&self, path: impl Arg, links: Links) -> Result<Place, Errno> {
        let (how, resolve) = match links {
            Links::Refused => (OFlags::NOFOLLOW, ResolveFlags::NO_SYMLINKS),
            Links::OnTheWay => (OFlags::NOFOLLOW, ResolveFlags::empty()),
            Links::Followed => (OFlags::empty(), ResolveFlags::empty()),
        };
        path.into_with_c_str(|path| find(self.0.as_fd(), path, how, resolve | ResolveFlags::IN_ROOT))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Root> for OwnedFd {
    fn from(root: Root) -> Self {
        root.0
    }
}

impl From<OwnedFd> for Root {
    fn from(directory: OwnedFd) -> Self {
        Self(directory)
    }
}

/// An object that was found by its path and is not open yet (O_PATH).
#[derive(Debug)]
pub struct Place(OwnedFd);

impl Place {
    /// What has a name in a directory, be it a link, or what is mounted there.
    ///
    /// # Errors
    ///
    /// Those of openat2(2).
    pub fn in_directory(directory: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        find(directory, name, OFlags::NOFOLLOW, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
    }

    /// What there is to know about it.
    ///
    /// # Errors
    ///
    /// Those of fstat(2).
    pub fn about(&self) -> Result<Stat, Errno> {
        fstat(&self.0)
    }

    /// Opens the content of a regular file for reading.
    ///
    /// # Errors
    ///
    /// EINVAL where it is something else, which may do anything when it is opened; those of open(2).
    pub fn file(&self) -> Result<File, Errno> {
        if !FileType::from_raw_mode(self.about()?.st_mode).is_file() {
            return Err(Errno::INVAL);
        }
        self.open(OFlags::RDONLY).map(File::from)
    }

    /// The names in a directory.
    ///
    /// # Errors
    ///
    /// ENOTDIR where it is something else; those of open(2).
    pub fn entries(&self) -> Result<Dir, Errno> {
        Dir::new(self.open(OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// Where a link leads to.
    ///
    /// # Errors
    ///
    /// Those of readlinkat(2): ENOENT where it is no link.
    pub fn target(&self) -> Result<CString, Errno> {
        readlinkat(&self.0, "", Vec::new())
    }

    /// Opens this very object, without waiting, and without making a terminal that of whoever opens it. Callers have
    /// looked at it: to open a device may do something.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_again(self.0.as_fd(), flags)
    }
}

impl From<Place> for OwnedFd {
    fn from(place: Place) -> Self {
        place.0
    }
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn find(top: BorrowedFd<'_>, path: &CStr, how: OFlags, resolve: ResolveFlags) -> Result<Place, Errno> {
    let (how, resolve) = (how | OFlags::PATH | OFlags::CLOEXEC, resolve | ResolveFlags::NO_MAGICLINKS);
    for _ in 1..MOST_TRIES {
        match openat2(top, path, how, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            found => return found.map(Place),
        }
    }
    openat2(top, path, how, Mode::empty(), resolve).map(Place)
}

/// Opens the object that a descriptor is of once more, by the descriptor and not by its path. It waits for nobody.
///
/// # Errors
///
/// Those of open(2).
pub fn open_again(object: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(by_descriptor(object).as_str(), flags, Mode::empty())
}

/// A path for calls that take no descriptor of a mere place. It leads to the object itself, a link too.
pub fn by_descriptor(object: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn root(top: &Path) -> Root {
        Root::from(OwnedFd::from(File::open(top).unwrap()))
    }

    #[test]
    fn a_path_does_not_lead_out_of_the_root() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("root/d")).unwrap();
        std::fs::write(top.path().join("outside"), "the host's").unwrap();
        std::fs::write(top.path().join("root/inside"), "its own").unwrap();
        symlink(top.path().join("outside"), top.path().join("root/d/absolute")).unwrap();
        symlink("../../../outside", top.path().join("root/d/relative")).unwrap();
        symlink("/inside", top.path().join("root/d/own")).unwrap();
        symlink("d", top.path().join("root/way")).unwrap();
        let root = root(&top.path().join("root"));
        let find = |path: &str, links| root.place(path, links).map(drop);
        for path in ["d/absolute", "/d/relative", "/../outside"] {
            assert_eq!(find(path, Links::Followed), Err(Errno::NOENT), "{path}");
        }
        assert_eq!(find("way/own", Links::Refused), Err(Errno::LOOP));
        let link = root.place("way/own", Links::OnTheWay).unwrap();
        assert_eq!(link.target().unwrap().as_c_str(), c"/inside");
        assert_eq!(link.file().unwrap_err(), Errno::INVAL);
        let mut text = String::new();
        root.place("way/own", Links::Followed).unwrap().file().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "its own");
    }

    #[test]
    fn nothing_is_waited_for_and_what_was_looked_at_is_what_is_opened() {
        let top = tempfile::tempdir().unwrap();
        let (file, pipe) = (top.path().join("file"), top.path().join("pipe"));
        std::fs::write(&file, "seen").unwrap();
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let root = root(top.path());
        let (found, waits) = (root.place("file", Links::Refused).unwrap(), root.place("pipe", Links::Refused).unwrap());
        std::fs::rename(&pipe, &file).unwrap();
        let mut text = String::new();
        found.file().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "seen");
        assert_eq!(waits.file().unwrap_err(), Errno::INVAL);
        assert!(waits.open(OFlags::RDONLY).is_ok(), "a writer is not waited for");
        assert_eq!(waits.entries().unwrap_err(), Errno::NOTDIR);
        assert_eq!(waits.target().unwrap_err(), Errno::NOENT);
    }
}
