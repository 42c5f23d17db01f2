//! Messages between a user and the worker of his transaction, bounded in size and in time.

use super::request::{Answer, LONGEST, Request};
use anyhow::{Context, bail, ensure};
use pando_kernel::socket::packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How a request begins, before its length.
const HELLO: &[u8; 8] = b"PandoTxU";

/// So much comes in one message.
const PIECE: usize = 32 << 10;

/// How long a request may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the other end may take to go after its answer.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The longest line that is answered.
const LONGEST_LINE: usize = 8 << 10;

/// Sends a request with the three standard descriptors.
pub(super) fn ask(connection: impl AsFd, request: &Request, stdio: [BorrowedFd<'_>; 3]) -> anyhow::Result<()> {
    let body = serde_json::to_vec(request).context("cannot write down what is asked for")?;
    ensure!(body.len() <= LONGEST, "the command line and the environment are too long together");
    let mut head = HELLO.to_vec();
    head.extend((body.len() as u32).to_le_bytes());
    let send = |bytes: &[u8], fds: &[BorrowedFd<'_>]| packet::send(connection.as_fd(), bytes, fds);
    send(&head, &stdio).context("cannot ask the server for users' transactions")?;
    for piece in body.chunks(PIECE) {
        send(piece, &[]).context("cannot ask the server for users' transactions")?;
    }
    Ok(())
}

/// Receives one.
pub(super) fn asked(connection: impl AsFd) -> anyhow::Result<(Request, [OwnedFd; 3])> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = [0; 64];
    let (length, fds) = received(connection.as_fd(), &mut head, deadline)?;
    let length = head.get(..length).and_then(|head| head.strip_prefix(HELLO)).and_then(|rest| rest.try_into().ok());
    let Some(length) = length.map(|bytes| u32::from_le_bytes(bytes) as usize) else {
        bail!("what was asked is none of this version's requests; are command and server of one version?");
    };
    ensure!(length <= LONGEST, "the request is too long");
    let stdio: [OwnedFd; 3] = fds.try_into().map_err(|_| anyhow::anyhow!("a request takes three descriptors"))?;
    let mut body = Vec::new();
    let mut piece = vec![0; PIECE];
    while body.len() < length {
        let (count, fds) = received(connection.as_fd(), &mut piece, deadline)?;
        ensure!(count > 0 && fds.is_empty() && body.len() + count <= length, "the request is damaged");
        body.extend_from_slice(&piece[..count]);
    }
    Ok((serde_json::from_slice(&body).context("the request is damaged")?, stdio))
}

fn received(connection: BorrowedFd<'_>, bytes: &mut [u8], deadline: Instant) -> anyhow::Result<(usize, Vec<OwnedFd>)> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    let came = poll(&mut [PollFd::from_borrowed_fd(connection, PollFlags::IN)], Some(&left));
    ensure!(came.context("cannot wait for the request")? > 0, "the request took too long to come");
    packet::receive(connection, bytes).context("cannot receive the request")
}

/// Answers; a user who does not read is not waited for.
pub(super) fn answer(connection: impl AsFd, answer: &Answer) -> anyhow::Result<()> {
    let Answer::End { code, line, again, failed } = answer;
    let end = (0..=line.len().min(LONGEST_LINE)).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
    let short = Answer::End { code: *code, line: line[..end].to_owned(), again: *again, failed: *failed };
    let bytes = serde_json::to_vec(&short).context("cannot write the answer down")?;
    rustix::io::ioctl_fionbio(connection.as_fd(), true).context("cannot answer")?;
    packet::send(connection, &bytes, &[]).context("cannot answer")
}

/// Waits until the other end has gone, a moment at most: whoever asks again at once is to have his turn.
pub(super) fn wait_for_end(connection: impl AsFd) {
    let deadline = Instant::now() + LAST_WORDS;
    while received(connection.as_fd(), &mut [0; 64], deadline).is_ok_and(|(length, _)| length > 0) {}
}

/// Receives an answer; nothing where the other end has gone.
pub(super) fn answered(connection: impl AsFd) -> anyhow::Result<Option<Answer>> {
    let mut bytes = vec![0; 16 * LONGEST_LINE];
    let mut receive = || packet::receive(connection.as_fd(), &mut bytes);
    let received = match receive() {
        // The other end went with words of ours unread, which is said before what it has answered.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => receive(),
        received => received,
    };
    match received {
        Ok((0, _)) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
        received => {
            let (count, _) = received.context("cannot hear from the server for users' transactions")?;
            serde_json::from_slice(&bytes[..count]).map(Some).context("the answer is none of this version's")
        }
    }
}

/// A signal that is meant for the command.
pub(super) fn send_signal(connection: impl AsFd, signal: i32) {
    // One who has gone needs none.
    let _ = packet::send(connection, &signal.to_le_bytes(), &[]);
}

/// What comes while the command runs: a signal, or the end of the user's interest. Anything else is that, too.
pub(super) fn next_signal(connection: impl AsFd) -> Option<i32> {
    let mut bytes = [0; 8];
    match packet::receive(connection, &mut bytes) {
        Ok((4, fds)) if fds.is_empty() => {
            let number = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            (1..=64).contains(&number).then_some(number)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            command: vec![b"sh".to_vec(), vec![0xff; 100_000]],
            environment: vec![b"A=b".to_vec()],
            directory: b"/".to_vec(),
            timeout: Some(7),
            refuses_network: true,
            durable: false,
            retries: 2,
        }
    }

    #[test]
    fn a_request_arrives_whole_and_anything_else_is_refused() {
        let (user, worker) = packet::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let sent = std::thread::spawn(move || {
            ask(&user, &request(), [null.as_fd(); 3]).unwrap();
            user
        });
        assert_eq!(asked(&worker).unwrap().0, request());
        let user = sent.join().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let head = |length: u32| [HELLO.as_slice(), &length.to_le_bytes()].concat();
        for (head, fds) in
            [(b"nonsense".to_vec(), 3), (head(u32::MAX), 3), (head(1), 2), (head(1), 4), (Vec::from(*HELLO), 3)]
        {
            packet::send(&user, &head, &vec![null.as_fd(); fds]).unwrap();
            assert!(asked(&worker).is_err(), "{head:?}");
        }
        packet::send(&user, &head(4), &[null.as_fd(); 3]).unwrap();
        packet::send(&user, b"{}}}}}", &[]).unwrap();
        assert!(asked(&worker).is_err(), "more than was said");
    }

    #[test]
    fn signals_arrive_and_whatever_is_none_ends_it() {
        let (user, worker) = packet::pair().unwrap();
        send_signal(&user, 15);
        assert_eq!(next_signal(&worker), Some(15));
        for wrong in [b"\0\0\0\0".as_slice(), b"\xff\0\0\0", b"x", b"\x0f\0\0\0\0"] {
            packet::send(&user, wrong, &[]).unwrap();
            assert_eq!(next_signal(&worker), None, "{wrong:?}");
        }
        drop(user);
        assert_eq!(next_signal(&worker), None);
    }
}
