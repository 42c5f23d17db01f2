//! Open files of the program, which lead where the program is: into the view inside a transaction, outside otherwise.
//!
//! ```text
//!   begin    number ─▶ file outside        kept aside, offset and all
//!            number ─▶ the same path, opened in the view, with the same flags and the same offset
//!   commit   number ─▶ the file outside again, where the work inside has left the offset
//!            what was opened inside ─▶ the same path, opened outside
//!   abort    number ─▶ the file outside again, as it was; what was opened inside is closed
//! ```
//!
//! Descriptors that share an open file share one inside. Standard output and error lead where they led, files or not,
//! as those of a command in a transaction do: others write to the same, and what is said is to be seen. So do sockets,
//! pipes and terminals: what goes through them is not the transaction's.

use crate::calls;
use crate::failure::Failure;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, FdFlags};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// From which number on this library has its own descriptors, where that many are allowed.
pub(crate) const OWN: RawFd = 200;

/// What the kernel adds to the path of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

/// Flags that say how a file comes to be, and not how it is used.
const ONCE: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::TRUNC).union(OFlags::NOCTTY);

/// A file or directory that the program has open.
#[derive(Clone, Debug)]
struct Open {
    number: RawFd,
    path: PathBuf,
    /// Whether it has no name any more.
    deleted: bool,
    kind: FileType,
    identity: (u64, u64),
    flags: OFlags,
    close_on_exec: bool,
    /// Where it is read or written next; nothing where it has no such place.
    offset: Option<u64>,
}

impl Open {
    /// What a number leads to, if that is a file or a directory with a path.
    fn at(number: RawFd) -> Option<Self> {
        let fd = calls::numbered(number);
        let about = rustix::fs::fstat(fd).ok()?;
        let kind = FileType::from_raw_mode(about.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory) {
            return None;
        }
        let link = rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new()).ok()?;
        let link = link.as_bytes();
        // Namespaces and what the kernel makes for itself are files too.
        if link.first() != Some(&b'/') {
            return None;
        }
        let deleted = link.ends_with(DELETED) && about.st_nlink == 0;
        let path = if deleted { &link[..link.len() - DELETED.len()] } else { link };
        let flags = rustix::fs::fcntl_getfl(fd).ok()?.difference(ONCE);
        let offset = if flags.contains(OFlags::PATH) { None } else { rustix::fs::seek(fd, SeekFrom::Current(0)).ok() };
        Some(Self {
            number,
            path: PathBuf::from(OsStr::from_bytes(path)),
            deleted,
            kind,
            identity: (about.st_dev, about.st_ino),
            flags,
            close_on_exec: rustix::io::fcntl_getfd(fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC)),
            offset,
        })
    }

    fn is_written(&self) -> bool {
        !self.flags.contains(OFlags::PATH) && self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    fn is_standard(&self) -> bool {
        (libc::STDIN_FILENO..=libc::STDERR_FILENO).contains(&self.number)
    }

    fn failed(&self, doing: &str, errno: Errno) -> Failure {
        let doing = format!("descriptor {} leads to {}, and {doing}", self.number, self.shown());
        Failure::of_call(self.shown(), &doing, errno)
    }

    fn shown(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Opens the same path where the program is now, with the same flags and the same place.
    fn again(&self) -> Result<OwnedFd, Errno> {
        let opened = rustix::fs::open(&self.path, self.flags | OFlags::CLOEXEC, Mode::empty())?;
        if let Some(offset) = self.offset.filter(|offset| *offset > 0) {
            // The place in a directory is a word of its file system's, which another need not know.
            let sought = rustix::fs::seek(&opened, SeekFrom::Start(offset));
            if self.kind == FileType::RegularFile {
                sought?;
            }
        }
        Ok(opened)
    }
}

/// The numbers of all that the program has open, but for this library's own.
fn numbers(own: &BTreeSet<RawFd>) -> Result<Vec<RawFd>, Failure> {
    let failed = |error: std::io::Error| Failure::of_call("/proc/self/fd", "listing what is open", error);
    let entries = std::fs::read_dir("/proc/self/fd").map_err(failed)?;
    let all = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<RawFd> = all.filter(|number| !own.contains(number)).collect();
    // The one by which they were listed is closed by now.
    let is_open = |number: &RawFd| rustix::io::fcntl_getfd(calls::numbered(*number)).is_ok();
    Ok(all.into_iter().filter(is_open).collect())
}

/// One that leads into the view, and what it led to before.
#[derive(Debug)]
struct Led {
    before: Open,
    outside: OwnedFd,
    /// What it leads to inside, by device and inode.
    inside: (u64, u64),
    /// Whether that is what it led to before.
    passes: bool,
}

/// Those that were open when the transaction began.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    led: Vec<Led>,
    /// Those that lead to what the view shows as it is, to be put back to where they were.
    left: Vec<Open>,
    /// All numbers that were open.
    before: BTreeSet<RawFd>,
    own: BTreeSet<RawFd>,
}

/// What was open when a transaction ended, with its paths in the view.
#[derive(Debug)]
pub(crate) struct AtEnd(Vec<Open>);

impl Descriptors {
    /// Looks at what is open, before the view is entered; but for this library's own, and the view's descriptor, whose
    /// number the program may soon have for something else.
    pub(crate) fn look(own: BTreeSet<RawFd>, view: RawFd) -> Result<Looked, Failure> {
        let mut numbers = numbers(&own)?;
        numbers.retain(|number| *number != view);
        let open = numbers.iter().filter_map(|number| Open::at(*number)).collect();
        Ok(Looked { own, before: numbers.into_iter().collect(), open })
    }

    /// What is open now, before the view is left.
    pub(crate) fn at_end(&self) -> Result<AtEnd, Failure> {
        Ok(AtEnd(self.numbers_now()?.into_iter().filter_map(Open::at).collect()))
    }

    fn numbers_now(&self) -> Result<Vec<RawFd>, Failure> {
        let mut own = self.own.clone();
        own.extend(self.led.iter().map(|led| led.outside.as_raw_fd()));
        numbers(&own)
    }

    /// Has everything lead outside once the transaction is committed, and the view left.
    pub(crate) fn commit(self, end: AtEnd) -> Result<(), Failure> {
        let mut failed = Ok(());
        for open in end.0 {
            let led = self.led.iter().find(|led| led.before.number == open.number && led.inside == open.identity);
            let done = match led {
                Some(led) if led.passes => Ok(()),
                Some(led) => lead_back(led, &open),
                None => self.follow(&open),
            };
            if let Err(errno) = done {
                failed = Err(Failure::of_call(open.shown(), "opening it outside again", errno));
            }
        }
        failed
    }

    /// Has one that was opened inside lead to the same file outside. One without a name stays as it is.
    fn follow(&self, open: &Open) -> Result<(), Errno> {
        let is_left = self.left.iter().any(|left| left.number == open.number && left.identity == open.identity);
        if open.deleted || is_left {
            return Ok(());
        }
        calls::lead(open.number, &open.again()?, open.close_on_exec)
    }

    /// Has everything lead where it led when the transaction began, and closes what was opened since.
    pub(crate) fn abort(self) -> Result<(), Failure> {
        let now = self.numbers_now()?;
        let mut failed = Ok(());
        for led in &self.led {
            if let Err(errno) = calls::lead(led.before.number, &led.outside, led.before.close_on_exec) {
                failed = Err(Failure::of_call(led.before.shown(), "having its descriptor back", errno));
            }
            // What was read of the input is to be read again; what was said stays said.
            if led.passes
                && led.before.number == libc::STDIN_FILENO
                && let Some(offset) = led.before.offset
            {
                let _ = rustix::fs::seek(&led.outside, SeekFrom::Start(offset));
            }
        }
        for open in &self.left {
            if let Some(offset) = open.offset {
                // It may have been closed inside.
                let _ = rustix::fs::seek(calls::numbered(open.number), SeekFrom::Start(offset));
            }
        }
        for number in now {
            if !self.before.contains(&number) && Open::at(number).is_some() {
                calls::close(number);
            }
        }
        failed
    }
}

/// A descriptor leads to the file outside again, where the work inside has left it.
fn lead_back(led: &Led, open: &Open) -> Result<(), Errno> {
    calls::lead(open.number, &led.outside, open.close_on_exec)?;
    if open.flags != led.before.flags {
        rustix::fs::fcntl_setfl(&led.outside, open.flags)?;
    }
    if let Some(offset) = open.offset.filter(|offset| led.before.offset != Some(*offset)) {
        rustix::fs::seek(&led.outside, SeekFrom::Start(offset))?;
    }
    Ok(())
}

/// What was open before a view was entered.
#[derive(Debug)]
pub(crate) struct Looked {
    own: BTreeSet<RawFd>,
    before: BTreeSet<RawFd>,
    open: Vec<Open>,
}

impl Looked {
    /// Fails where one of them cannot be had in a view as it is outside.
    pub(crate) fn can_be_led(&self) -> Result<(), Failure> {
        let led = || self.open.iter().filter(|open| !open.is_standard());
        if let Some(open) = led().find(|open| open.deleted && open.is_written()) {
            let reason = format!(
                "descriptor {} leads to {}, which was removed: there is no such file in a transaction, so that an abort could not undo what is written to it; close it first",
                open.number,
                open.shown()
            );
            return Err(Failure::about(open.shown(), reason));
        }
        if let Some(open) = led().find(|open| open.kind == FileType::RegularFile && is_locked(open)) {
            let reason = format!(
                "descriptor {} leads to {}, on which this program holds a lock (fcntl(2)): the kernel gives that up when the descriptor leads into a transaction; release it first, or hold it by flock(2)",
                open.number,
                open.shown()
            );
            return Err(Failure::about(open.shown(), reason));
        }
        Ok(())
    }

    /// Has them lead into the view that was entered. Where one cannot, none does.
    pub(crate) fn lead(self, pass_over: bool) -> Result<Descriptors, Box<(Failure, Descriptors)>> {
        let mut descriptors = Descriptors { own: self.own, before: self.before, ..Descriptors::default() };
        let mut shared: Vec<(Open, RawFd)> = Vec::new();
        for open in self.open {
            if open.deleted {
                descriptors.left.push(open);
                continue;
            }
            if open.is_standard() {
                match aside(&open) {
                    Ok(outside) => {
                        descriptors.led.push(Led { inside: open.identity, before: open, outside, passes: true })
                    }
                    Err(errno) => return Err(Box::new((open.failed("keeping it aside", errno), descriptors))),
                }
                continue;
            }
            // Looked at before it leads elsewhere: those that share one file outside share one inside.
            let twin = shared.iter().find(|(other, number)| {
                other.identity == open.identity && calls::share(open.number, *number) == Ok(true)
            });
            match lead_in(&open, twin.map(|(other, _)| other.number)) {
                Ok(Some(led)) => {
                    shared.push((open, led.outside.as_raw_fd()));
                    descriptors.led.push(led);
                }
                Ok(None) => descriptors.left.push(open),
                Err(_) if pass_over => descriptors.left.push(open),
                Err(failure) => return Err(Box::new((failure, descriptors))),
            }
        }
        Ok(descriptors)
    }
}

/// Has a descriptor lead into the view; nothing where the view shows the same object.
fn lead_in(open: &Open, twin: Option<RawFd>) -> Result<Option<Led>, Failure> {
    let failed = |doing: &str, errno: Errno| open.failed(doing, errno);
    let inside = match twin {
        Some(twin) => rustix::io::fcntl_dupfd_cloexec(calls::numbered(twin), 0),
        None => open.again(),
    };
    let inside = inside.map_err(|errno| failed("opening that in the transaction", errno))?;
    let about = rustix::fs::fstat(&inside).map_err(|errno| failed("looking at that in the transaction", errno))?;
    let identity = (about.st_dev, about.st_ino);
    if identity == open.identity {
        return Ok(None);
    }
    // An overlay gives files the numbers that they have outside.
    let is_other = FileType::from_raw_mode(about.st_mode) != open.kind
        || open.kind == FileType::RegularFile && identity.1 != open.identity.1;
    if is_other {
        let reason = format!(
            "descriptor {} leads to {}, in whose place something else is by now; close it first",
            open.number,
            open.shown()
        );
        return Err(Failure::about(open.shown(), reason));
    }
    let outside = aside(open).map_err(|errno| failed("keeping it aside", errno))?;
    calls::lead(open.number, &inside, open.close_on_exec).map_err(|errno| failed("having it lead there", errno))?;
    Ok(Some(Led { before: open.clone(), outside, inside: identity, passes: false }))
}

/// Another descriptor of what one leads to, for this library.
fn aside(open: &Open) -> Result<OwnedFd, Errno> {
    let number = calls::numbered(open.number);
    rustix::io::fcntl_dupfd_cloexec(number, OWN).or_else(|_| rustix::io::fcntl_dupfd_cloexec(number, 0))
}

/// Whether this process holds a lock on a file that goes when any of its descriptors of that is closed.
fn is_locked(open: &Open) -> bool {
    let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(open.number.to_string()));
    info.is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:") && line.contains(" POSIX ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    fn own() -> BTreeSet<RawFd> {
        BTreeSet::new()
    }

    #[test]
    fn what_has_no_name_any_more_cannot_be_led_where_it_is_written() {
        let path = std::env::temp_dir().join(format!("pando-capi-{}", std::process::id()));
        let mut file = std::fs::File::create_new(&path).unwrap();
        file.write_all(b"x").unwrap();
        std::fs::remove_file(&path).unwrap();
        let looked = Open::at(file.as_raw_fd()).unwrap();
        assert!(looked.deleted && looked.is_written() && looked.path == path && looked.offset == Some(1));
        let looked = Looked { own: own(), before: BTreeSet::new(), open: vec![looked] };
        assert!(looked.can_be_led().unwrap_err().reason.contains("was removed"));
    }

    #[test]
    fn pipes_and_namespaces_are_left_alone() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(Open::at(reader.as_raw_fd()).is_none());
        let namespace = std::fs::File::open("/proc/self/ns/mnt").unwrap();
        assert!(Open::at(namespace.as_raw_fd()).is_none());
        assert!(Open::at(100_000).is_none(), "nothing is open at that number");
    }

    #[test]
    fn a_file_is_opened_again_with_its_flags_at_its_place() {
        let path = std::env::temp_dir().join(format!("pando-capi-again-{}", std::process::id()));
        std::fs::write(&path, "0123456789").unwrap();
        let mut file = std::fs::File::options().read(true).append(true).open(&path).unwrap();
        file.seek(std::io::SeekFrom::Start(4)).unwrap();
        let open = Open::at(file.as_raw_fd()).unwrap();
        let mut again = std::fs::File::from(open.again().unwrap());
        let mut rest = String::new();
        again.read_to_string(&mut rest).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(rest, "456789");
        assert!(open.flags.contains(OFlags::APPEND | OFlags::RDWR) && open.close_on_exec);
        assert_eq!(calls::share(file.as_raw_fd(), again.as_raw_fd()), Ok(false));
    }
}
