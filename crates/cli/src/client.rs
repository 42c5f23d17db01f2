//! Calls to the daemon, and its answers.

use crate::wire::Wire;
use anyhow::Context;
use pando_api::{Fault, FaultKind, Method};
use rustix::net::sockopt::socket_peercred;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use zlink_core::{Call, Connection};

/// A connection to the daemon. It carries one call at a time.
pub(crate) struct Client {
    wire: Wire,
    connection: Connection<Wire>,
    /// How to reach the next daemon, should this one be just going.
    next: Option<Box<dyn Fn() -> anyhow::Result<Client>>>,
}

/// How often a call is made again that a daemon left unread. One that was killed may take new connections until the
/// last of it has gone.
const AGAIN: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// One reply.
#[derive(Debug)]
pub(crate) struct Answer<R> {
    pub(crate) reply: R,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Whether another one follows.
    pub(crate) continues: bool,
}

/// The daemon broke the conversation off; a `run` or `exec` that loses it has not lost its process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the daemon closed the connection before it had answered")]
    Closed,
    /// It was just going: a unix socket is reset, and not merely closed, when its peer goes with words of ours unread.
    #[error("the daemon went away before it had read the request; try again")]
    Unread,
    #[error("the daemon's answer is not understood ({0}): is it of another version? Compare with `pando version`")]
    Garbled(String),
    #[error("the daemon does not know this request ({0}): is it of another version? Compare with `pando version`")]
    Unknown(String),
}

impl Client {
    /// Connects to a daemon that listens on `socket`.
    ///
    /// What follows are our descriptors, so the peer must be our own: under a `--root` that others can write to,
    /// anybody could listen there.
    pub(crate) fn connect(socket: &Path) -> std::io::Result<Self> {
        Self::over(UnixStream::connect(socket)?)
    }

    /// Speaks over a connected socket.
    pub(crate) fn over(stream: UnixStream) -> std::io::Result<Self> {
        Self::after(stream, &[])
    }

    /// Speaks over a connected socket on which a call was made, and `heard` was read, before.
    pub(crate) fn after(stream: UnixStream, heard: &'static [u8]) -> std::io::Result<Self> {
        let (peer, own) = (socket_peercred(&stream)?.uid, rustix::process::geteuid());
        if peer != own && !peer.is_root() {
            let why = format!("its socket belongs to user {peer}, who may not be trusted with your input and output");
            return Err(std::io::Error::other(why));
        }
        let wire = Wire::after(stream, heard);
        Ok(Self { connection: Connection::new(wire.clone()), wire, next: None })
    }

    /// The same, and a call that was not read is made again over what `next` connects to.
    pub(crate) fn or_next(self, next: impl Fn() -> anyhow::Result<Self> + 'static) -> Self {
        Self { next: Some(Box::new(next)), ..self }
    }

    /// Sends a call; `more` asks for several replies. The descriptors are closed here once they are sent.
    pub(crate) fn send(&mut self, method: Method, more: bool, descriptors: Vec<OwnedFd>) -> anyhow::Result<()> {
        let call = Call::new(method).set_more(more);
        self.wire
            .wait(self.connection.send_call(&call, descriptors))
            .and_then(|sent| sent)
            .map_err(understood)
            .context("cannot send the request to the daemon")
    }

    /// The next reply, whenever it comes.
    pub(crate) fn receive<R: DeserializeOwned + Debug>(&mut self) -> anyhow::Result<Answer<R>> {
        let reply = self.connection.receive_reply::<R, WireFault>();
        answer(self.wire.wait(reply).and_then(|received| received))
    }

    /// The next reply if it is here.
    pub(crate) fn receive_now<R: DeserializeOwned + Debug>(&mut self) -> anyhow::Result<Option<Answer<R>>> {
        Wire::now(self.connection.receive_reply::<R, WireFault>()).map(answer).transpose()
    }

    /// A call with one reply and no descriptors.
    pub(crate) fn call<R: DeserializeOwned + Debug>(&mut self, method: Method) -> anyhow::Result<R> {
        for _ in 0..AGAIN {
            match self.call_once(method.clone()) {
                Err(error) if matches!(error.downcast_ref(), Some(Broken::Unread)) => {}
                outcome => return outcome,
            }
            let Some(next) = &self.next else { break };
            std::thread::sleep(PAUSE);
            let again = next()?;
            (self.wire, self.connection) = (again.wire, again.connection);
        }
        self.call_once(method)
    }

    fn call_once<R: DeserializeOwned + Debug>(&mut self, method: Method) -> anyhow::Result<R> {
        self.send(method, false, Vec::new())?;
        Ok(self.receive()?.reply)
    }
}

impl AsFd for Client {
    /// Readable when a reply is there (or the daemon gone).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

type Received<R> = zlink_core::Result<(zlink_core::reply::Result<R, WireFault>, Vec<OwnedFd>)>;

fn answer<R: DeserializeOwned>(received: Received<R>) -> anyhow::Result<Answer<R>> {
    let (reply, descriptors) = received.map_err(understood)?;
    let reply = reply.map_err(|WireFault(fault)| fault)?;
    let continues = reply.continues().unwrap_or(false);
    let reply = match reply.into_parameters() {
        Some(parameters) => parameters,
        // Varlink lets a service leave empty parameters out.
        None => serde_json::from_str("{}").map_err(|error| Broken::Garbled(error.to_string()))?,
    };
    Ok(Answer { reply, descriptors, continues })
}

fn understood(error: zlink_core::Error) -> anyhow::Error {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    match error {
        zlink_core::Error::UnexpectedEof => Broken::Closed.into(),
        zlink_core::Error::Io(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => Broken::Unread.into(),
        zlink_core::Error::Io(error) => error.into(),
        zlink_core::Error::UnknownErrorReply(name) => Broken::Unknown(name).into(),
        zlink_core::Error::VarlinkService(error) => Broken::Unknown(error.to_string()).into(),
        other => Broken::Garbled(other.to_string()).into(),
    }
}

/// A fault as it comes off the wire: the name of a varlink error, and its parameters.
#[derive(Debug, Deserialize)]
#[serde(try_from = "RawFault")]
struct WireFault(Fault);

#[derive(Deserialize)]
struct RawFault {
    error: String,
    parameters: RawParameters,
}

#[derive(Deserialize)]
struct RawParameters {
    object: String,
    message: String,
}

impl TryFrom<RawFault> for WireFault {
    type Error = serde_json::Error;

    fn try_from(raw: RawFault) -> Result<Self, serde_json::Error> {
        let kind = raw.error.strip_prefix(pando_api::INTERFACE).and_then(|rest| rest.strip_prefix('.')).unwrap_or("");
        let kind: FaultKind = serde_json::from_value(kind.into())?;
        Ok(Self(Fault::new(kind, raw.parameters.object, raw.parameters.message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replies::{Done, Guests, Noticed, Progressed};
    use pando_api::{Process, Spec};
    use std::io::{Read, Write};

    /// A client, and the daemon's end of its socket.
    fn pair() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Client::over(ours).unwrap(), theirs)
    }

    fn said(daemon: &mut UnixStream) -> serde_json::Value {
        let mut text = vec![0; 64 * 1024];
        let length = daemon.read(&mut text).unwrap();
        assert_eq!(text[length - 1], 0, "a message ends with NUL");
        serde_json::from_slice(&text[..length - 1]).unwrap()
    }

    #[test]
    fn a_call_arrives_as_varlink_and_reads_back_as_the_method() {
        let (mut client, mut daemon) = pair();
        let mut spec = Spec { command: vec!["ünï\"\n".into(); 100], ..Spec::default() };
        spec.env.insert("A".into(), "\u{1}b".into());
        let process = Process { rows: 24, ..Process::default() };
        let method = Method::Run { name: None, source: Some("host".into()), spec, process };
        client.send(method.clone(), true, Vec::new()).unwrap();
        let message = said(&mut daemon);
        assert_eq!(message["more"], true);
        let call: pando_api::MethodCall = serde_json::from_value(message).unwrap();
        assert_eq!(call.typed().unwrap(), method);
    }

    #[test]
    fn replies_come_one_by_one_however_they_are_cut() {
        let (mut client, mut daemon) = pair();
        assert!(client.receive_now::<Noticed>().unwrap().is_none());
        let first = br#"{"parameters":{"notice":{"guest":"g","pid":7,"exited":false}},"continues":true}"#;
        let second = br#"{"parameters":{"notice":{"guest":"g","pid":7,"exited":true,"exit_code":3}}}"#;
        let both = [&first[..], b"\0", &second[..], b"\0"].concat();
        daemon.write_all(&both[..100]).unwrap();
        let answer = client.receive_now::<Noticed>().unwrap().unwrap();
        assert!(answer.continues && !answer.reply.notice.exited && answer.reply.notice.pid == 7);
        assert!(client.receive_now::<Noticed>().unwrap().is_none());
        daemon.write_all(&both[100..]).unwrap();
        let answer = client.receive::<Noticed>().unwrap();
        assert!(!answer.continues);
        assert_eq!(answer.reply.notice.exit_code, Some(3));
    }

    #[test]
    fn empty_and_missing_parameters_are_the_same() {
        for reply in [&b"{}\0"[..], b"{\"parameters\":{}}\0"] {
            let (mut client, mut daemon) = pair();
            daemon.write_all(&reply.repeat(2)).unwrap();
            client.receive::<Done>().unwrap();
            assert!(client.receive::<Progressed>().unwrap().reply.progress.is_none());
        }
    }

    #[test]
    fn a_fault_keeps_its_kind_and_its_sentence() {
        let (mut client, mut daemon) = pair();
        let text = r#"{"error":"org.pando.Guests.CommandNotFound","parameters":{"object":"x","message":"No x."}}"#;
        daemon.write_all(text.as_bytes()).unwrap();
        daemon.write_all(b"\0").unwrap();
        let error = client.receive::<Guests>().unwrap_err();
        let fault = error.downcast_ref::<Fault>().unwrap();
        assert_eq!((fault.kind, fault.exit_code()), (FaultKind::CommandNotFound, 127));
        assert_eq!(fault.message, "No x.");
    }

    #[test]
    fn an_unknown_error_a_wrong_answer_and_silence_are_told_apart() {
        let cases = [
            ("{\"error\":\"org.pando.Guests.Surprise\",\"parameters\":{}}\0", "Surprise"),
            ("{\"parameters\":{\"guests\":7}}\0", "not understood"),
            ("{\"error\":\"org.varlink.service.MethodNotFound\",\"parameters\":{\"method\":\"m\"}}\0", "does not know"),
            ("", "closed the connection"),
        ];
        for (text, expected) in cases {
            let (mut client, mut daemon) = pair();
            daemon.write_all(text.as_bytes()).unwrap();
            drop(daemon);
            let error = client.receive::<Guests>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_descriptor_arrives_with_its_reply_and_closes_on_exec() {
        let (mut client, daemon) = pair();
        let file = tempfile::tempfile().unwrap();
        super::Wire::after(daemon, &[]).wait(async {}).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let wire = Wire::after(theirs, &[]);
        let mut server = Connection::new(wire.clone());
        let reply = zlink_core::Reply::new(Some(serde_json::json!({})));
        wire.wait(server.send_reply(&reply, vec![file.into()])).unwrap().unwrap();
        client = {
            drop(client);
            Client::over(ours).unwrap()
        };
        let answer = client.receive::<Done>().unwrap();
        assert_eq!(answer.descriptors.len(), 1);
        let flags = rustix::io::fcntl_getfd(&answer.descriptors[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
