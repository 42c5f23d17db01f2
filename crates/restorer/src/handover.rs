//! Open files on their way from the maker to a first process, each to the number that it had.
//!
//! A message says where its descriptors begin; they follow one another. One without any is the last.

use crate::bare::{self, Errno, number, plain};
use crate::packet::{self, MAX_FDS};
use core::ops::Range;
use rustix::fd::BorrowedFd;

const EINVAL: Errno = 22;
const EPIPE: Errno = 32;

/// Sends what is open of a range, or nothing if that is empty.
pub(crate) fn give(socket: u64, range: Range<u64>) -> Result<(), Errno> {
    if range.is_empty() {
        return packet::send(borrow(socket), 0, &[]);
    }
    let mut next = range.start;
    while next < range.end {
        let is_open = |fd: &u64| *fd < range.end && *fd != socket && bare::is_open(*fd);
        let mut fds = [borrow(socket); MAX_FDS];
        let mut count = 0;
        while count < MAX_FDS && is_open(&(next + count as u64)) {
            fds[count] = borrow(next + count as u64);
            count += 1;
        }
        if count > 0 {
            packet::send(borrow(socket), next as u32, &fds[..count])?;
        }
        next += count.max(1) as u64;
    }
    Ok(())
}

/// Takes all that is sent.
pub(crate) fn take(socket: u64) -> Result<(), Errno> {
    loop {
        let message = match packet::receive(borrow(socket)) {
            Ok(Some(message)) => message,
            Ok(None) => return Err(EPIPE),
            Err(bare::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        if message.count == 0 {
            return plain(number::CLOSE, [socket, 0, 0]).map(drop);
        }
        let first = u64::from(message.words[0]);
        for (onto, fd) in (first..).zip(&message.fds[..message.count]) {
            if *fd >= first {
                return Err(EINVAL);
            }
            bare::move_descriptor(*fd, onto)?;
        }
    }
}

fn borrow(fd: u64) -> BorrowedFd<'static> {
    bare::borrowed(fd)
}
