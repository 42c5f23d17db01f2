//! Messages that a process sends, each with an address or without: `struct msghdr`, and several of them in a row
//! (sendmsg(2), sendmmsg(2)).

use super::argument::{self, Fails};

/// The kernel takes no more messages in one call (UIO_MAXIOV).
const MOST: u64 = 1024;

/// How messages lie in memory.
struct Layout {
    /// Bytes of an address in memory, and of a length behind it.
    address: usize,
    /// From one of several to the next.
    stride: u64,
}

/// `struct mmsghdr` of this architecture: of 56 bytes and a number, filled up to 64.
const THIS: Layout = Layout { address: 8, stride: 64 };
/// That of 32-bit programs.
const OLDER: Layout = Layout { address: 4, stride: 32 };

/// An address: where it lies, and its length.
pub(super) type At = (u64, u64);

/// The addresses of `count` messages that lie at `at` in a process's memory. Most have none: the socket is connected.
pub(super) fn addresses(pid: i32, at: u64, count: u64, older: bool) -> Result<Vec<At>, Fails> {
    let layout = if older { OLDER } else { THIS };
    let mut found = Vec::new();
    for number in 0..count.min(MOST) {
        let mut bytes = [0; 12];
        let bytes = &mut bytes[..layout.address + 4];
        // The kernel would send those before one that is not there; it may be one that is not for others to read, too.
        argument::read(pid, at.checked_add(number * layout.stride).ok_or(Fails(libc::EFAULT))?, bytes)?;
        found.extend(layout.parsed(bytes));
    }
    Ok(found)
}

impl Layout {
    /// The address of a message, from its first bytes.
    fn parsed(&self, bytes: &[u8]) -> Option<At> {
        let (address, length) = bytes.split_at_checked(self.address)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Some((number(address), number(length))).filter(|(address, _)| *address != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_one_after_another_and_none_where_one_cannot_be() {
        let mut heads = [0; 3 * 64];
        heads[..8].copy_from_slice(&0x1234_u64.to_ne_bytes());
        heads[8..12].copy_from_slice(&110_u32.to_ne_bytes());
        heads[128..136].copy_from_slice(&0x5678_u64.to_ne_bytes());
        let (me, at) = (std::process::id().cast_signed(), heads.as_ptr() as u64);
        assert_eq!(addresses(me, at, 3, false), Ok(vec![(0x1234, 110), (0x5678, 0)]));
        assert_eq!(addresses(me, at, 1, false), Ok(vec![(0x1234, 110)]));
        assert_eq!(addresses(me, at + 64, 1, false), Ok(vec![]));
        let missing = Err(Fails(libc::EFAULT));
        assert_eq!((addresses(me, 8, u64::MAX, false), addresses(me, u64::MAX, 2, true)), (missing.clone(), missing));
        assert_eq!(OLDER.parsed(&[1, 2, 0, 0, 16, 0, 0, 0]), Some((0x201, 16)));
    }
}
