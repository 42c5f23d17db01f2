//! Memory as a file that nobody can change any more.

use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

/// A sealed file that holds `content` (memfd_create(2) with seals, since Linux 3.17). With `executable` it can be
/// executed.
///
/// # Errors
///
/// EMFILE and ENFILE where there are as many descriptors as there may be; ENOMEM where memory is full.
pub fn sealed(name: &str, content: &[u8], executable: bool) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let kind = if executable { MemfdFlags::EXEC } else { MemfdFlags::NOEXEC_SEAL };
    // The kinds exist since Linux 6.3; before, every memory file can be executed.
    let fd = match rustix::fs::memfd_create(name, flags | kind) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        made => made?,
    };
    let mut file = File::from(fd);
    file.write_all(content)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}
