//! Files by handle: what a file system itself calls an inode and its generation, whatever its names are
//! (name_to_handle_at(2), since Linux 2.6.39).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The most bytes that a handle may have (MAX_HANDLE_SZ).
pub const MAX_BYTES: usize = 128;

/// A handle. It stays valid over reboots, until its inode is freed; a later inode with the same number has another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle {
    /// How the file system wants the bytes read.
    pub kind: i32,
    /// The handle's bytes, at most [`MAX_BYTES`].
    pub bytes: Vec<u8>,
}

/// `struct file_handle` with room for the longest.
#[repr(C)]
struct Raw {
    length: u32,
    kind: i32,
    bytes: [u8; MAX_BYTES],
}

impl FileHandle {
    /// The handle of an open file, O_PATH descriptors included.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where the file system has none.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Self::ask(file.as_fd(), c"", 0).map(|(handle, _)| handle)
    }

    /// What the kernel tells a file apart by in a directory, as /proc/PID/fdinfo shows it for what inotify watches: it
    /// may be no handle to open a file with. An empty name is the open file itself, a link is not followed. With it,
    /// the number of the mount that the file was found on (AT_HANDLE_FID, since Linux 6.5; before that, a handle as
    /// [`Self::of`] gives it).
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where the file system has none; ENOENT where there is nothing of that name.
    pub fn identifier(directory: impl AsFd, name: &str) -> io::Result<(Self, i32)> {
        const AT_HANDLE_FID: i32 = 0x200;
        let name = CString::new(name)?;
        match Self::ask(directory.as_fd(), &name, AT_HANDLE_FID) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Self::ask(directory.as_fd(), &name, 0),
            told => told,
        }
    }

    fn ask(directory: BorrowedFd<'_>, name: &CStr, flags: i32) -> io::Result<(Self, i32)> {
        let mut raw = Raw { length: MAX_BYTES as u32, kind: 0, bytes: [0; MAX_BYTES] };
        let mut mount = 0_i32;
        // SAFETY: the path is a C string; `raw` has as much room as its length says, and `mount` is an int, as the call
        // wants.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                directory.as_raw_fd(),
                name.as_ptr(),
                &raw mut raw,
                &raw mut mount,
                libc::AT_EMPTY_PATH | flags,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let length = (raw.length as usize).min(MAX_BYTES);
        Ok((Self { kind: raw.kind, bytes: raw.bytes[..length].to_vec() }, mount))
    }

    /// Opens the file that the handle stands for, as a mere place (O_PATH), by any open file on its mount. Needs
    /// CAP_DAC_READ_SEARCH.
    ///
    /// # Errors
    ///
    /// ESTALE if the inode is gone.
    pub fn open(&self, mount: impl AsFd) -> io::Result<OwnedFd> {
        if self.bytes.len() > MAX_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut raw = Raw { length: self.bytes.len() as u32, kind: self.kind, bytes: [0; MAX_BYTES] };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `raw` is a file handle of the length that it states.
        let fd =
            unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_fd().as_raw_fd(), &raw const raw, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_leads_back_to_its_file_and_not_to_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let Ok(handle) = FileHandle::of(std::fs::File::open(&path).unwrap()) else {
            eprintln!("skipped: this file system has no handles");
            return;
        };
        let mount = std::fs::File::open(directory.path()).unwrap();
        let opened = match handle.open(&mount) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("skipped: opening by handle needs root");
                return;
            }
            opened => opened.unwrap(),
        };
        let inode = |stat: rustix::fs::Stat| stat.st_ino;
        assert_eq!(inode(rustix::fs::fstat(&opened).unwrap()), inode(rustix::fs::stat(&path).unwrap()));
        drop(opened);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(handle.open(&mount).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }
}
