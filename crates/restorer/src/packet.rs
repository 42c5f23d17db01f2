//! Messages that carry descriptors.

use crate::bare::Errno;
use core::mem::MaybeUninit;
use pando_restorer::WORDS;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// The most descriptors of a message.
pub(crate) const MAX_FDS: usize = 64;

/// A message's words and descriptors.
pub(crate) struct Message {
    pub(crate) words: [u32; WORDS],
    pub(crate) fds: [u64; MAX_FDS],
    pub(crate) count: usize,
}

/// Receives one message; `None` at the end of the conversation.
pub(crate) fn receive(socket: impl AsFd) -> Result<Option<Message>, Errno> {
    let mut bytes = [0; WORDS * 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_err(rustix::io::Errno::raw_os_error)?;
    let mut message = Message { words: [0; WORDS], fds: [0; MAX_FDS], count: 0 };
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            for fd in fds {
                message.fds[message.count] = fd.into_raw_fd() as u64;
                message.count += 1;
            }
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    for (word, bytes) in message.words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    Ok(Some(message))
}

/// Sends one message: a word, and descriptors.
pub(crate) fn send(socket: impl AsFd, word: u32, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let bytes = word.to_le_bytes();
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    sent.map(drop).map_err(rustix::io::Errno::raw_os_error)
}
