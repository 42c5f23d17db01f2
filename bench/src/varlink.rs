//! A varlink client: one JSON text ended by NUL each way, over a plain blocking socket. It is written out here so that
//! nothing but the daemon is measured: an async client's own wake-ups would be a tenth of a start.

use anyhow::{Context, bail};
use pando_api::Method;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::Value;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long the daemon may take for one answer before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Client(UnixStream);

impl Client {
    pub(crate) fn connect(socket: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Calls a method and waits for its one answer: the parameters.
    pub(crate) fn call(&mut self, method: &Method) -> anyhow::Result<Value> {
        self.call_with(method, &[])
    }

    /// The same, with descriptors beside the call.
    pub(crate) fn call_with(&mut self, method: &Method, descriptors: &[BorrowedFd<'_>]) -> anyhow::Result<Value> {
        let mut message = serde_json::to_vec(method)?;
        message.push(0);
        let sent = self.send(&message, descriptors).context("cannot reach the daemon")?;
        self.0.write_all(&message[sent..])?;
        self.answer()
    }

    fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        Ok(sendmsg(&self.0, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?)
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut text = Vec::new();
        let mut chunk = [0; 16 * 1024];
        while text.last() != Some(&0) {
            let length = self.0.read(&mut chunk).context("the daemon does not answer")?;
            if length == 0 {
                bail!("the daemon closed the connection before it had answered");
            }
            text.extend_from_slice(&chunk[..length]);
        }
        text.pop();
        let mut answer: Value = serde_json::from_slice(&text).context("the daemon's answer is no JSON")?;
        if let Some(error) = answer.get("error") {
            bail!("{error}: {}", answer["parameters"]["message"]);
        }
        Ok(answer["parameters"].take())
    }
}
