//! The master of a terminal that was made inside a guest.

use anyhow::{Context, bail, ensure};
use rustix::fs::{FileType, OFlags, fcntl_setfl, fstat, major};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Majors of terminals' masters: 5 is /dev/ptmx, the others are Unix98 masters by number.
const MASTER_MAJORS: [std::ops::RangeInclusive<u32>; 2] = [5..=5, 128..=135];

/// Takes the master that arrived on `socket`; none if the socket was closed instead.
///
/// It comes out of a guest, so it is looked at before anything is read from or written to it: bytes typed by the user
/// must go to a terminal's master and to nothing else.
pub(crate) fn take(socket: &impl AsFd) -> anyhow::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .context("cannot receive the guest's terminal")?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut arrived = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    let Some(master) = arrived.next() else { bail!("the guest gave no terminal: nothing was sent") };
    verify(&master)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    fcntl_setfl(&master, flags).context("cannot use the guest's terminal")?;
    Ok(Some(master))
}

fn verify(descriptor: &OwnedFd) -> anyhow::Result<()> {
    let status = fstat(descriptor).context("cannot look at what the guest gave as its terminal")?;
    let device = FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice
        && MASTER_MAJORS.iter().any(|majors| majors.contains(&major(status.st_rdev)));
    // TIOCGPTN; only a master has the number of a slave.
    ensure!(
        device && rustix::pty::ptsname(descriptor, Vec::new()).is_ok(),
        "what the guest gave as its terminal is not the master of one; it was not used"
    );
    Ok(())
}

/// The size of the caller's terminal, or the size that a terminal has by custom.
pub(crate) fn callers_size() -> Winsize {
    let sizes = [rustix::stdio::stdout(), rustix::stdio::stdin(), rustix::stdio::stderr()];
    let known = sizes.iter().filter_map(|descriptor| tcgetwinsize(descriptor).ok());
    let custom = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    known.into_iter().find(|size| size.ws_row > 0 && size.ws_col > 0).unwrap_or(custom)
}

/// Gives the guest's terminal the size of the caller's.
pub(crate) fn resize(master: &impl AsFd) {
    // A terminal that hangs up at this moment has no use for a size.
    let _ = tcsetwinsize(master, callers_size());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::io::IoSlice;
    use std::os::unix::net::UnixStream;

    fn sent(descriptor: Option<&OwnedFd>) -> anyhow::Result<Option<OwnedFd>> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.iter().map(|descriptor| descriptor.as_fd()).collect();
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        sendmsg(&theirs, &[IoSlice::new(b"t")], &mut control, SendFlags::empty()).unwrap();
        take(&ours)
    }

    fn terminal() -> (OwnedFd, OwnedFd) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty()).unwrap();
        (master, slave)
    }

    #[test]
    fn a_master_is_taken() {
        let (master, _slave) = terminal();
        let taken = sent(Some(&master)).unwrap().unwrap();
        resize(&taken);
        assert_eq!(tcgetwinsize(&taken).unwrap().ws_row, callers_size().ws_row);
    }

    #[test]
    fn nothing_else_is_taken() {
        let (_master, slave) = terminal();
        let null = std::fs::File::open("/dev/null").unwrap().into();
        let file = tempfile::tempfile().unwrap().into();
        for other in [Some(&slave), Some(&null), Some(&file), None] {
            let error = sent(other).unwrap_err().to_string();
            assert!(error.starts_with("what the guest gave") || error.starts_with("the guest gave no"), "{error}");
        }
        let (ours, _) = UnixStream::pair().unwrap();
        assert!(take(&ours).unwrap().is_none(), "a closed socket is no terminal, and no mistake either");
    }
}
