//! What the arguments of a call point to, in the memory of the process that makes it.
//!
//! The kernel reads memory that nobody else can: that of memfd_secret(2), since Linux 5.14. So what cannot be read here
//! may say anything, and the call fails, as it would for memory that is not there.

use pando_kernel::trace::foreign_memory;

/// The longest address of a socket: `struct sockaddr_storage`.
const LONGEST_ADDRESS: usize = 128;

/// Memory is there or not by the page.
const PAGE: u64 = 4096;

/// A call that fails with this error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fails(pub(super) i32);

/// The longest path that the kernel takes, with its closing zero.
pub(super) const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Fills `bytes` from a process's memory, or has the call fail.
pub(super) fn read(pid: i32, at: u64, bytes: &mut [u8]) -> Result<(), Fails> {
    if bytes.is_empty() {
        return Ok(());
    }
    foreign_memory::read(pid, at, bytes).map_err(|_| Fails(libc::EFAULT))
}

/// A text up to its closing zero. One that is longer than `most` bytes ends there, without one.
pub(super) fn text(pid: i32, at: u64, most: usize) -> Result<Vec<u8>, Fails> {
    let mut found = Vec::new();
    while found.len() < most {
        let from = at.checked_add(found.len() as u64).ok_or(Fails(libc::EFAULT))?;
        let mut more = vec![0; (PAGE - from % PAGE).min((most - found.len()) as u64) as usize];
        read(pid, from, &mut more)?;
        if let Some(end) = more.iter().position(|byte| *byte == 0) {
            found.extend_from_slice(&more[..end]);
            return Ok(found);
        }
        found.extend(more);
    }
    Ok(found)
}

/// A path; an empty one where there is none (a null pointer).
pub(super) fn path(pid: i32, at: u64) -> Result<Vec<u8>, Fails> {
    let found = if at == 0 { Vec::new() } else { text(pid, at, PATH_MAX)? };
    if found.len() == PATH_MAX { Err(Fails(libc::ENAMETOOLONG)) } else { Ok(found) }
}

/// The address of a socket. The kernel takes the length as an `int`, and no more than it has room for.
pub(super) fn address(pid: i32, at: u64, length: u64) -> Result<Vec<u8>, Fails> {
    let length = usize::try_from(length as i32).map_err(|_| Fails(libc::EINVAL))?;
    let mut bytes = vec![0; length.min(LONGEST_ADDRESS)];
    read(pid, at, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn a_text_ends_at_its_zero_and_a_path_has_to() {
        let long = [b'x'; PATH_MAX + 1];
        let read = |bytes: &[u8], most| text(me(), bytes.as_ptr() as u64, most);
        assert_eq!((read(b"ext4\0more", 16), read(b"longer than that", 6)), (Ok(b"ext4".into()), Ok(b"longer".into())));
        assert_eq!(path(me(), long.as_ptr() as u64), Err(Fails(libc::ENAMETOOLONG)));
        assert_eq!((path(me(), 0), path(me(), 16)), (Ok(Vec::new()), Err(Fails(libc::EFAULT))));
    }

    #[test]
    fn an_address_is_as_long_as_the_kernel_takes_it() {
        let bytes = [7; 2 * LONGEST_ADDRESS];
        let read = |at, length| address(me(), at, length).map(|found| found.len());
        let at = bytes.as_ptr() as u64;
        assert_eq!((read(at, 5), read(at, 200), read(at, 1 << 32 | 16)), (Ok(5), Ok(LONGEST_ADDRESS), Ok(16)));
        assert_eq!((read(at, u64::from(u32::MAX)), read(16, 5)), (Err(Fails(libc::EINVAL)), Err(Fails(libc::EFAULT))));
        assert_eq!(read(16, 0), Ok(0));
    }
}
