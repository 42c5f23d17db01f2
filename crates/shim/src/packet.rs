//! Messages that carry descriptors.

use core::mem::MaybeUninit;
use pando_shim::MAX_FDS;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// Receives one message and hands out the descriptors that come with it. The end of the conversation is EPIPE.
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8], take: impl FnMut(OwnedFd)) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut take = take;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            fds.for_each(&mut take);
        }
    }
    if message.bytes == 0 { Err(Errno::PIPE) } else { Ok(message.bytes) }
}
