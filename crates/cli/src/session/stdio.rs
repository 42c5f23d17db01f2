//! Which of the caller's descriptors a guest may have, and what it gets in place of the others.

use super::end::End;
use super::relay::Relay;
use anyhow::{Context, bail};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat, fstatfs};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::isatty;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The file system of namespace handles, which look like plain files.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// What is done with one of the caller's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    /// The guest gets it.
    Pass,
    /// The guest gets a pipe, and this program carries the bytes.
    Carry,
    /// It is not passed, for this reason.
    Refuse(&'static str),
}

/// What a descriptor is, as far as that decides.
struct Nature {
    kind: FileType,
    flags: OFlags,
    terminal: bool,
    file_system: u64,
}

impl Nature {
    fn of(descriptor: BorrowedFd<'_>) -> Result<Self, rustix::io::Errno> {
        let kind = FileType::from_raw_mode(fstat(descriptor)?.st_mode);
        let flags = fcntl_getfl(descriptor)?;
        // Sockets and pipes have no file system to ask; only plain files can be a namespace in disguise.
        let file_system = match kind {
            FileType::RegularFile => u64::try_from(fstatfs(descriptor)?.f_type).unwrap_or(0),
            _ => 0,
        };
        Ok(Self { kind, flags, terminal: isatty(descriptor), file_system })
    }

    fn passage(&self) -> Passage {
        if self.flags.contains(OFlags::PATH) {
            return Passage::Refuse("an open path (O_PATH)");
        }
        match self.kind {
            // fchdir(2) through it would lead out of the guest's root.
            FileType::Directory => Passage::Refuse("a directory"),
            FileType::RegularFile if self.file_system == NSFS_MAGIC => Passage::Refuse("a namespace"),
            FileType::CharacterDevice if self.terminal => Passage::Carry,
            FileType::RegularFile
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket => Passage::Pass,
            // Anonymous inodes: a pidfd, a BPF object, a mount. Each is a handle on the host.
            _ => Passage::Refuse("a handle of the kernel's"),
        }
    }
}

/// What the guest gets as descriptors 0, 1 and 2, and the bytes that this program carries for it.
pub(crate) struct Stdio {
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) inward: Vec<Relay>,
    pub(crate) outward: Vec<Relay>,
}

impl Stdio {
    /// From the caller's. One that was closed is /dev/null by now: the standard library sees to it before `main`.
    pub(crate) fn of_caller() -> anyhow::Result<Self> {
        let mut stdio = Self { descriptors: Vec::with_capacity(3), inward: Vec::new(), outward: Vec::new() };
        stdio.add(rustix::stdio::stdin(), "input")?;
        stdio.add(rustix::stdio::stdout(), "output")?;
        stdio.add(rustix::stdio::stderr(), "error")?;
        assert_eq!(stdio.descriptors.len(), 3, "a process has three standard descriptors");
        Ok(stdio)
    }

    fn add(&mut self, descriptor: BorrowedFd<'static>, name: &str) -> anyhow::Result<()> {
        let nature = Nature::of(descriptor).with_context(|| format!("cannot look at standard {name}"))?;
        match nature.passage() {
            Passage::Pass => {
                let copy = fcntl_dupfd_cloexec(descriptor, 3);
                self.descriptors.push(copy.with_context(|| format!("cannot pass standard {name} on"))?);
            }
            Passage::Carry => self.carry(descriptor, name == "input").context("cannot make a pipe")?,
            Passage::Refuse(what) => bail!(
                "standard {name} is {what}, through which a guest could reach out to the host. Redirect it, for example {} /dev/null",
                if name == "input" { "<" } else { ">" }
            ),
        }
        Ok(())
    }

    fn carry(&mut self, descriptor: BorrowedFd<'static>, inward: bool) -> Result<(), rustix::io::Errno> {
        let (reads, writes) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ours, guests) = if inward { (writes, reads) } else { (reads, writes) };
        // Our end only; the guest's has a file description of its own and blocks, as programs expect.
        let flags = fcntl_getfl(ours.as_fd())?;
        fcntl_setfl(&ours, flags | OFlags::NONBLOCK)?;
        self.descriptors.push(guests);
        match inward {
            true => self.inward.push(Relay::new(End::Callers(descriptor), End::Ours(ours))),
            false => self.outward.push(Relay::new(End::Ours(ours), End::Callers(descriptor))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn passage(descriptor: impl AsFd) -> Passage {
        Nature::of(descriptor.as_fd()).unwrap().passage()
    }

    #[test]
    fn files_pipes_sockets_and_null_pass() {
        assert_eq!(passage(tempfile::tempfile().unwrap()), Passage::Pass);
        assert_eq!(passage(File::open("/dev/null").unwrap()), Passage::Pass);
        assert_eq!(passage(rustix::pipe::pipe().unwrap().0), Passage::Pass);
        assert_eq!(passage(std::os::unix::net::UnixStream::pair().unwrap().0), Passage::Pass);
    }

    #[test]
    fn a_terminal_is_carried() {
        let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
        assert_eq!(passage(&master), Passage::Carry);
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let slave = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(passage(slave), Passage::Carry);
    }

    #[test]
    fn ways_out_of_a_guest_are_refused() {
        let refused = |descriptor: OwnedFd| matches!(passage(descriptor), Passage::Refuse(_));
        assert!(refused(File::open("/").unwrap().into()));
        assert!(refused(rustix::fs::open("/etc/passwd", OFlags::PATH, rustix::fs::Mode::empty()).unwrap()));
        assert!(refused(File::open("/proc/self/ns/mnt").unwrap().into()));
        assert!(refused(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()));
        let own = rustix::process::getpid();
        assert!(refused(rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap()));
    }
}
