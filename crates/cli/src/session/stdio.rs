//! What a guest gets as its standard descriptors: the caller's, or something in their place.

use super::end::End;
use super::relay::Relay;
use anyhow::{Context, bail};
use pando_front::{Passage, passage};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};

/// What the guest gets as descriptors 0, 1 and 2, and the bytes that this program carries for it.
pub(crate) struct Stdio {
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) inward: Vec<Relay>,
    pub(crate) outward: Vec<Relay>,
}

impl Stdio {
    /// From the caller's, but for those that are given. One that was closed is /dev/null by now: the standard library
    /// sees to it before `main`.
    pub(crate) fn of_caller_but(given: &[Option<File>; 3]) -> anyhow::Result<Self> {
        let mut stdio = Self { descriptors: Vec::with_capacity(3), inward: Vec::new(), outward: Vec::new() };
        let mut carried = Vec::new();
        let own = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
        for ((given, own), name) in given.iter().zip(own).zip(["input", "output", "error"]) {
            match given {
                Some(file) => {
                    let copy = fcntl_dupfd_cloexec(file, 3);
                    stdio.descriptors.push(copy.with_context(|| format!("cannot pass standard {name} on"))?);
                }
                None => stdio.add(own, name, &mut carried)?,
            }
        }
        assert_eq!(stdio.descriptors.len(), 3, "a process has three standard descriptors");
        Ok(stdio)
    }

    fn add(
        &mut self,
        descriptor: BorrowedFd<'static>,
        name: &str,
        carried: &mut Vec<(Identity, usize)>,
    ) -> anyhow::Result<()> {
        match passage(descriptor).with_context(|| format!("cannot look at standard {name}"))? {
            Passage::Pass => {
                let copy = fcntl_dupfd_cloexec(descriptor, 3);
                self.descriptors.push(copy.with_context(|| format!("cannot pass standard {name} on"))?);
            }
            Passage::Carry if name == "input" => self.carry_in(descriptor).context("cannot make a pipe")?,
            Passage::Carry => self.carry_out(descriptor, carried).context("cannot make a pipe")?,
            Passage::Refuse(what) => bail!(
                "standard {name} is {what}, through which a guest could reach out to the host. Redirect it, for example {} /dev/null",
                if name == "input" { "<" } else { ">" }
            ),
        }
        Ok(())
    }

    fn carry_in(&mut self, descriptor: BorrowedFd<'static>) -> Result<(), Errno> {
        let (guests, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        wait_never(&ours)?;
        self.descriptors.push(guests);
        self.inward.push(Relay::new(End::Callers(descriptor), End::Ours(ours)));
        Ok(())
    }

    /// What goes to the same place goes through the same pipe, and stays in the order in which it was printed.
    fn carry_out(
        &mut self,
        descriptor: BorrowedFd<'static>,
        carried: &mut Vec<(Identity, usize)>,
    ) -> Result<(), Errno> {
        let about = fstat(descriptor)?;
        let identity = (about.st_dev, about.st_ino);
        if let Some((_, index)) = carried.iter().find(|(known, _)| *known == identity) {
            let again = fcntl_dupfd_cloexec(&self.descriptors[*index], 3)?;
            self.descriptors.push(again);
            return Ok(());
        }
        let (ours, guests) = pipe_with(PipeFlags::CLOEXEC)?;
        wait_never(&ours)?;
        carried.push((identity, self.descriptors.len()));
        self.descriptors.push(guests);
        self.outward.push(match FileType::from_raw_mode(about.st_mode) {
            FileType::CharacterDevice => Relay::new(End::Ours(ours), End::Callers(descriptor)),
            _ => Relay::lasting(End::Ours(ours), End::Callers(descriptor)),
        });
        Ok(())
    }
}

/// Device and inode.
type Identity = (u64, u64);

/// Our end only; the guest's has a file description of its own and blocks, as programs expect.
fn wait_never(ours: &OwnedFd) -> Result<(), Errno> {
    fcntl_setfl(ours, fcntl_getfl(ours)? | OFlags::NONBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn passage(descriptor: impl AsFd) -> Passage {
        super::passage(descriptor.as_fd()).unwrap()
    }

    #[test]
    fn a_file_is_carried() {
        let place = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(passage(File::create(place.path()).unwrap()), Passage::Carry);
        assert_eq!(passage(File::open(place.path()).unwrap()), Passage::Carry);
        assert_eq!(passage(tempfile::tempfile().unwrap()), Passage::Carry);
    }

    #[test]
    fn pipes_and_null_pass() {
        assert_eq!(passage(rustix::pipe::pipe().unwrap().1), Passage::Pass);
        assert_eq!(passage(File::open("/dev/null").unwrap()), Passage::Pass);
        assert_eq!(passage(rustix::pipe::pipe().unwrap().0), Passage::Pass);
    }

    #[test]
    fn a_socket_is_carried() {
        assert_eq!(passage(std::os::unix::net::UnixStream::pair().unwrap().0), Passage::Carry);
        assert_eq!(passage(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()), Passage::Carry);
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
