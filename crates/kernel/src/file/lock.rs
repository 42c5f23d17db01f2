//! Locks that end with their holder, however it ends.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The permissions of a lock's file.
const OWN: u32 = 0o600;

/// An advisory lock on a file (flock(2)).
#[derive(Debug)]
pub struct FileLock(#[allow(dead_code, reason = "held for its drop")] File);

impl FileLock {
    /// Takes the lock, and waits as long as another process holds it.
    ///
    /// # Errors
    ///
    /// Those of opening the file at `path`, which is made if it is missing.
    pub fn take(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        file.lock()?;
        Ok(Self(file))
    }

    /// Takes the lock; `None` where another process holds it.
    ///
    /// # Errors
    ///
    /// Those of opening the file at `path`, which is made if it is missing.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        Self::try_on(open(path)?)
    }

    /// Takes the lock of an open file; `None` where another process holds it.
    ///
    /// # Errors
    ///
    /// ENOLCK where the file system has no memory for a lock; EBADF.
    pub fn try_on(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

/// A link is no lock's file: ELOOP. Nobody else may open it: whoever can read a file can hold its lock for ever.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(OWN);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    if file.metadata()?.mode() & !OWN & 0o777 != 0 {
        file.set_permissions(Permissions::from_mode(OWN))?;
    }
    Ok(file)
}

impl From<FileLock> for OwnedFd {
    /// For another process: a lock belongs to the open file, and is held as long as anybody holds that.
    fn from(lock: FileLock) -> Self {
        lock.0.into()
    }
}

impl From<OwnedFd> for FileLock {
    /// Of another process that has taken the lock.
    fn from(file: OwnedFd) -> Self {
        Self(file.into())
    }
}

/// A name that one socket of a network namespace can hold at a time (unix(7), abstract names). Nothing listens on it.
///
/// The name lives as long as any copy of the descriptor, in whatever process.
///
/// # Errors
///
/// Those of socket(2), and ENAMETOOLONG for a name of more than 107 bytes.
pub fn claim(name: &str) -> io::Result<Option<OwnedFd>> {
    let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_can_hold_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        for path in [path, directory.path().join("new")] {
            let held = FileLock::try_take(&path).unwrap();
            assert!(held.is_some() && FileLock::try_take(&path).unwrap().is_none());
            assert_eq!(path.metadata().unwrap().mode() & 0o777, OWN);
        }
    }
}
