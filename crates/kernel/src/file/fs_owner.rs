//! The identity by which this thread touches file systems.

use rustix::thread::CapabilitiesSecureBits;
use std::io;
use std::marker::PhantomData;

/// While it lives, files that this thread makes belong to other ids, and its capabilities stay as they were.
///
/// An overlay whose upper directory is id-mapped must be created by one whose own id the map knows; otherwise the
/// kernel mounts it read-only and says nothing. Setting the file-system id normally takes the file capabilities away;
/// `SECBIT_NO_SETUID_FIXUP` prevents that (capabilities(7)).
#[derive(Debug)]
pub struct FsOwner {
    before: CapabilitiesSecureBits,
    /// Identities belong to a thread.
    _here: PhantomData<*const ()>,
}

impl FsOwner {
    /// Takes on `id` as user and group.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SETPCAP, CAP_SETUID and CAP_SETGID.
    pub fn assume(id: u32) -> io::Result<Self> {
        let before = rustix::thread::capabilities_secure_bits()?;
        rustix::thread::set_capabilities_secure_bits(before | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
        let owner = Self { before, _here: PhantomData };
        set(id);
        if current() != (id, id) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        Ok(owner)
    }
}

impl Drop for FsOwner {
    fn drop(&mut self) {
        set(0);
        // Failing would leave a bit set that has no effect on a thread which never changes its ids otherwise.
        let _ = rustix::thread::set_capabilities_secure_bits(self.before);
    }
}

/// By the raw calls: those of a C library would change every thread of the process.
pub(crate) fn set(id: u32) {
    // SAFETY: neither call touches memory; both always succeed or leave things as they were.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, id);
        libc::syscall(libc::SYS_setfsuid, id);
    }
}

pub(crate) fn current() -> (u32, u32) {
    // SAFETY: an impossible id changes nothing and returns the present one.
    unsafe { (libc::syscall(libc::SYS_setfsuid, -1) as u32, libc::syscall(libc::SYS_setfsgid, -1) as u32) }
}
