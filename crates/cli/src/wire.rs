//! zlink's connection over a plain socket, without an async runtime.
//!
//! zlink is async, and its own sockets bring tokio or smol along. A client that waits for one thing at a time in
//! poll(2) needs neither: here a read that finds nothing is `Pending`, and whoever drives the future polls the socket
//! and tries again. Writes block; the calls are small. The socket is our own for a second reason: zlink's receives
//! descriptors without close-on-exec.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::future::{Future, poll_fn};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use zlink_core::connection::PassedCredentials;
use zlink_core::connection::socket::{ReadHalf, ReadResult, Socket, WriteHalf};

/// How many descriptors a message of this interface carries at most; a call has three.
const MAX_DESCRIPTORS: usize = 8;

/// A connected socket, both directions.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    stream: Arc<UnixStream>,
    /// What was read from it before it came here, and is still to be read.
    heard: &'static [u8],
}

impl Wire {
    /// One from which somebody has read already.
    pub(crate) fn after(stream: UnixStream, heard: &'static [u8]) -> Self {
        Self { stream: Arc::new(stream), heard }
    }

    /// Drives `future` to its end, sleeping while the peer has nothing to say.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> zlink_core::Result<T> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return Ok(value);
            }
            match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(std::io::Error::from(errno).into()),
            }
        }
    }

    /// The value of `future` if the peer has already said what it takes.
    pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Socket for Wire {
    type ReadHalf = Self;
    type WriteHalf = Self;

    const CAN_TRANSFER_FDS: bool = true;

    fn split(self) -> (Self, Self) {
        (self.clone(), self)
    }
}

impl ReadHalf for Wire {
    async fn read(&mut self, buffer: &mut [u8]) -> zlink_core::Result<ReadResult> {
        if !self.heard.is_empty() {
            let (now, later) = self.heard.split_at(self.heard.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            self.heard = later;
            return Ok(ReadResult::new(now.len()));
        }
        poll_fn(|_| match receive(&self.stream, buffer) {
            Err(Errno::WOULDBLOCK) => Poll::Pending,
            received => Poll::Ready(received.map_err(|errno| std::io::Error::from(errno).into())),
        })
        .await
    }
}

impl WriteHalf for Wire {
    async fn write(
        &mut self,
        buffer: &[u8],
        descriptors: &[impl AsFd],
        _: Option<&PassedCredentials>,
    ) -> zlink_core::Result<()> {
        let mut descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut rest = buffer;
        while !rest.is_empty() {
            match send(&self.stream, rest, &descriptors) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(std::io::Error::from(errno).into()),
            }
            // They travel with the first byte; sending them again would double them.
            descriptors.clear();
        }
        Ok(())
    }
}

fn receive(stream: &UnixStream, buffer: &mut [u8]) -> Result<ReadResult, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(Errno::INTR) => continue,
            other => break other?,
        }
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(ReadResult::new(received.bytes).set_fds(descriptors))
}

fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}
