//! A terminal for a native system's console: a machine has one, and Debian's init runs its scripts one after another
//! without.

use anyhow::Context;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

/// What is printed on it is read and forgotten, until this value goes.
pub(super) struct Console {
    path: OsString,
    /// A terminal that nobody has open hangs up.
    _end: OwnedFd,
}

impl Console {
    pub(super) fn open() -> anyhow::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let open = || -> rustix::io::Result<_> {
            let master = openpt(flags)?;
            grantpt(&master)?;
            unlockpt(&master)?;
            let path = ptsname(&master, Vec::new())?;
            Ok((ioctl_tiocgptpeer(&master, flags)?, path, master))
        };
        let (end, path, master) = open().context("cannot make a terminal")?;
        std::thread::spawn(move || {
            let (mut master, mut bytes) = (File::from(master), [0; 4096]);
            while master.read(&mut bytes).is_ok_and(|length| length > 0) {}
        });
        Ok(Self { path: OsString::from_vec(path.into_bytes()), _end: end })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &OsStr {
        &self.path
    }
}
