//! The connection to Pando's daemon: varlink, as `org.pando.Guests.varlink` describes it.

use crate::calls;
use crate::failure::Failure;
use pando_api::Method;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// What a reply that carries nothing says.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Done {}

/// How a call went wrong.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// The daemon has answered with a failure.
    Refused(Failure),
    /// It is not known what has become of the call.
    Lost(Failure),
}

impl From<CallFailure> for Failure {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Refused(failure) | CallFailure::Lost(failure) => failure,
        }
    }
}

/// A connection on which this program's transactions are kept.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    /// Whether the daemon knows yet which program it talks to.
    introduced: bool,
    /// What was read behind the last reply.
    rest: Vec<u8>,
}

#[derive(Deserialize)]
struct Message {
    error: Option<String>,
    parameters: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Refusal {
    object: String,
    message: String,
}

/// Where the daemon of this program's Pando listens. A set-user-id program's is the machine's, whatever its caller
/// says.
fn socket() -> PathBuf {
    let said = if calls::is_above_its_caller() { None } else { std::env::var_os("PANDO_ROOT") };
    said.map_or_else(|| PathBuf::from("/"), PathBuf::from).join("run/pando/pando.sock")
}

/// Refuses whoever listens there and is not root: what it answers becomes the files that the program sees.
fn is_roots(stream: &UnixStream, shown: &str) -> Result<(), Failure> {
    let peer = socket_peercred(stream).map_err(|errno| Failure::of_call(shown, "asking who listens", errno))?;
    if peer.uid.is_root() {
        return Ok(());
    }
    let reason = format!(
        "user {} listens at {shown}, and no daemon of Pando, which is root's: look at what PANDO_ROOT says",
        peer.uid.as_raw()
    );
    Err(Failure::about(shown, reason))
}

impl Connection {
    /// Connects to the daemon.
    pub(crate) fn open() -> Result<Self, Failure> {
        let socket = socket();
        let stream = UnixStream::connect(&socket).map_err(|error| {
            let shown = socket.display().to_string();
            let reason = match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => format!(
                    "no daemon of Pando listens at {shown}: start it with `pando daemon`, or `systemctl start pando`"
                ),
                ErrorKind::PermissionDenied => format!("only root may begin transactions: {shown} is closed to others"),
                _ => format!("connecting to Pando's daemon at {shown} failed: {error}"),
            };
            Failure::about(shown, reason)
        })?;
        is_roots(&stream, &socket.display().to_string())?;
        let stream = match rustix::io::fcntl_dupfd_cloexec(&stream, crate::descriptors::OWN) {
            Ok(high) => high.into(),
            // Few descriptors are allowed.
            Err(_) => stream,
        };
        Ok(Self { stream, introduced: false, rest: Vec::new() })
    }

    /// Whether the daemon has gone, as far as is known by now.
    pub(crate) fn is_broken(&self) -> bool {
        let mut byte = [0; 1];
        let peeked = rustix::net::recv(&self.stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        // Nothing is said unasked, but by its end.
        !matches!(peeked, Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR))
    }

    /// Asks for the view of a new transaction.
    pub(crate) fn begin(&mut self) -> Result<OwnedFd, Failure> {
        let me = if self.introduced { None } else { Some(pidfd_open(getpid(), PidfdFlags::empty())) };
        let me = me.transpose().map_err(|errno| Failure::of_call("pidfd", "opening this process", errno))?;
        let (Done {}, view) = self.call(&Method::BeginTransaction {}, me.as_ref().map(AsFd::as_fd))?;
        self.introduced = true;
        view.ok_or_else(|| Failure::about("view", "the daemon has sent no view: is it of another version?"))
    }

    /// Makes a call, which may carry a descriptor; the reply may carry another.
    pub(crate) fn call<R: DeserializeOwned>(
        &mut self,
        method: &Method,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(R, Option<OwnedFd>), CallFailure> {
        let garbled = |error: &dyn std::fmt::Display| {
            let reason = format!("the daemon's answer is not understood ({error}): is it of another version?");
            CallFailure::Lost(Failure::about("daemon", reason))
        };
        let mut text = serde_json::to_vec(method).map_err(|error| garbled(&error))?;
        text.push(0);
        self.send(&text, descriptor)?;
        let (reply, descriptor) = self.receive()?;
        let message: Message = serde_json::from_slice(&reply).map_err(|error| garbled(&error))?;
        let parameters = message.parameters.unwrap_or_else(|| serde_json::json!({}));
        if let Some(error) = message.error {
            let refusal = serde_json::from_value(parameters);
            let Refusal { object, message } = refusal.unwrap_or_else(|_| Refusal {
                object: "daemon".into(),
                message: format!("the daemon does not know this call ({error}): is it of another version?"),
            });
            return Err(CallFailure::Refused(Failure::about(object, message)));
        }
        Ok((serde_json::from_value(parameters).map_err(|error| garbled(&error))?, descriptor))
    }

    fn send(&self, mut bytes: &[u8], mut descriptor: Option<BorrowedFd<'_>>) -> Result<(), CallFailure> {
        while !bytes.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let rights: Vec<_> = descriptor.into_iter().collect();
            if !rights.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&rights));
            }
            match sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    bytes = &bytes[sent..];
                    descriptor = None;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(lost(&errno)),
            }
        }
        Ok(())
    }

    /// The next message, without the zero at its end.
    fn receive(&mut self) -> Result<(Vec<u8>, Option<OwnedFd>), CallFailure> {
        let (mut message, mut descriptor) = (std::mem::take(&mut self.rest), None);
        let mut buffer = [0; 4096];
        loop {
            if let Some(end) = message.iter().position(|byte| *byte == 0) {
                self.rest = message.split_off(end + 1);
                message.pop();
                return Ok((message, descriptor));
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.stream, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags);
            let bytes = match received {
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(lost(&errno)),
                Ok(received) => received.bytes,
            };
            for one in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = one {
                    descriptor = descriptor.or(rights.last());
                }
            }
            if bytes == 0 {
                return Err(lost(&"it has closed the connection"));
            }
            message.extend_from_slice(&buffer[..bytes]);
        }
    }
}

fn lost(why: &dyn std::fmt::Display) -> CallFailure {
    CallFailure::Lost(Failure::about("daemon", format!("Pando's daemon has gone away ({why})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn pair() -> (Connection, UnixStream) {
        let (stream, daemon) = UnixStream::pair().unwrap();
        (Connection { stream, introduced: true, rest: Vec::new() }, daemon)
    }

    #[test]
    fn a_call_is_sent_as_varlink_and_its_answer_is_read_however_it_is_cut() {
        let (mut connection, mut daemon) = pair();
        let answering = std::thread::spawn(move || {
            let mut text = [0; 256];
            let length = daemon.read(&mut text).unwrap();
            daemon.write_all(b"{\"parameters\":{\"outcome\":{\"commit").unwrap();
            std::thread::yield_now();
            daemon.write_all(b"ted\":true,\"paths\":3}}}\0").unwrap();
            String::from_utf8_lossy(&text[..length]).into_owned()
        });
        let method = Method::CommitTransaction { durable: true };
        let (reply, descriptor) = connection.call::<serde_json::Value>(&method, None).unwrap();
        assert_eq!(reply, serde_json::json!({ "outcome": { "committed": true, "paths": 3 } }));
        assert!(descriptor.is_none());
        let sent = answering.join().unwrap();
        assert_eq!(sent, "{\"method\":\"org.pando.Guests.CommitTransaction\",\"parameters\":{\"durable\":true}}\0");
    }

    #[test]
    fn a_refusal_keeps_its_words_and_silence_is_a_loss() {
        let (mut connection, mut daemon) = pair();
        daemon
            .write_all(
                b"{\"error\":\"org.pando.Guests.Unavailable\",\"parameters\":{\"object\":\"o\",\"message\":\"No.\"}}\0",
            )
            .unwrap();
        let refused = connection.call::<Done>(&Method::AbortTransaction {}, None).unwrap_err();
        assert!(matches!(&refused, CallFailure::Refused(failure) if failure.object == "o" && failure.reason == "No."));
        assert!(!connection.is_broken());
        drop(daemon);
        assert!(connection.is_broken());
        let lost = connection.call::<Done>(&Method::AbortTransaction {}, None).unwrap_err();
        assert!(matches!(lost, CallFailure::Lost(_)));
    }
}
