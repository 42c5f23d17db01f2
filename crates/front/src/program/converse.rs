//! A call to the daemon, from the line to the exit code.

use super::bare::{self, Strings};
use crate::handover::{hand_over, space};
use crate::line::{self, Line, Rooted};
use crate::notice::{Notice, first_notice};
use crate::passage::{Passage, passage};
use crate::request::Request;
use core::mem::MaybeUninit;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, write};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recv, sendmsg, socket_with, sockopt,
};

/// The most words of a line, and the most bytes of a call: longer ones are `main`'s.
const WORDS: usize = 64;
const LENGTH: usize = 4096;

/// Those that `main` passes on to the process: HUP, INT, QUIT, USR1, USR2, ALRM, TERM.
const SIGNALS: u64 = bits(&[1, 2, 3, 10, 12, 14, 15]);

const SOCKET: &[u8] = b"run/pando/pando.sock";

const fn bits(numbers: &[u32]) -> u64 {
    let (mut set, mut index) = (0, 0);
    while index < numbers.len() {
        set |= 1 << (numbers[index] - 1);
        index += 1;
    }
    set
}

/// Does what a plain line says; `None` if `main` is to do it, or to see it to its end.
pub(super) fn converse(words: Strings, environment: Strings) -> Option<u8> {
    let mut texts = [""; WORDS];
    let Rooted { root, line } = line::read(texts_of(words, &mut texts)?)?;
    let connected = || connected(root, environment);
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    if let Line::Transaction { .. } = line {
        // The answer comes while the program starts.
        let daemon = connected()?;
        call(&daemon, &line, &[])?;
        hand_over(daemon, 0);
        return None;
    }
    let standard = bare::standard();
    if let Line::Clone { name, .. } = line {
        return ask(connected()?, &line, name, standard[1]);
    }
    if standard.iter().any(|descriptor| passage(*descriptor) != Ok(Passage::Pass)) {
        return None;
    }
    let daemon = connected()?;
    let before = bare::block(SIGNALS).ok()?;
    let end = match call(&daemon, &line, &standard) {
        Some(()) => follow(daemon),
        None => End::Unread,
    };
    match end {
        End::Exited(code) => return Some(code),
        End::HandedOver => {}
        End::Unread => bare::block_only(before),
    }
    None
}

/// Asks for something that is done when the daemon answers, and prints the name of what it was done to.
fn ask(daemon: OwnedFd, line: &Line<'_, &str>, name: &str, output: BorrowedFd<'_>) -> Option<u8> {
    call(&daemon, line, &[])?;
    let heard = space();
    let mut length = 0;
    loop {
        match first_notice(&heard[..length]) {
            Some((Notice::Done, _)) if print(name, output).is_some() => return Some(0),
            Some(_) => break,
            None => {}
        }
        match recv(&daemon, &mut heard[length..], RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            // Nobody has read the call: see `follow`.
            Err(Errno::CONNRESET) if length == 0 => return None,
            Err(_) | Ok((0, _)) => break,
            Ok((more, _)) => length += more,
        }
    }
    hand_over(daemon, length);
    None
}

/// Prints a line; `None` if that failed, which is `main`'s to tell.
fn print(text: &str, output: BorrowedFd<'_>) -> Option<()> {
    let mut bytes = [b'\n'; LENGTH];
    bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    let mut rest = bytes.get(..=text.len())?;
    while !rest.is_empty() {
        match write(output, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// How the front's part in a call ends.
enum End {
    /// With the process.
    Exited(u8),
    /// With `main`, which sees to the rest.
    HandedOver,
    /// Nobody has read the call: the daemon was just going. `main` makes it again.
    Unread,
}

/// The words after the program's own name.
fn texts_of<'a>(words: Strings, space: &'a mut [&'static str; WORDS]) -> Option<&'a [&'static str]> {
    let mut count = 0;
    for word in words.skip(1) {
        *space.get_mut(count)? = word.to_str().ok()?;
        count += 1;
    }
    Some(&space[..count])
}

/// A connection to the daemon of the state under a root, or that the environment names, if it is one to trust with the
/// caller's descriptors.
fn connected(root: Option<&&str>, mut environment: Strings) -> Option<OwnedFd> {
    let named = || environment.find_map(|variable| variable.to_bytes().strip_prefix(b"PANDO_ROOT=")).unwrap_or(b"/");
    let root = root.map_or_else(named, |root| root.as_bytes());
    // As `main` has it: a name that is not UTF-8, or empty, is for it to complain about.
    core::str::from_utf8(root).ok().filter(|root| !root.is_empty())?;
    let mut path = [0; 108];
    let slash: &[u8] = if root.ends_with(b"/") { b"" } else { b"/" };
    let mut length = 0;
    for byte in root.iter().chain(slash).chain(SOCKET) {
        *path.get_mut(length)? = *byte;
        length += 1;
    }
    let address = SocketAddrUnix::new(&path[..length]).ok()?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    connect(&socket, &address).ok()?;
    sockopt::socket_peercred(&socket).ok()?.uid.is_root().then_some(socket)
}

/// Sends the call; `None` if nothing of it was heard by anybody.
fn call(daemon: &OwnedFd, line: &Line<'_, &str>, standard: &[BorrowedFd<'_>]) -> Option<()> {
    let mut bytes = [0; LENGTH];
    let mut rest = Request::write(line, &mut bytes).ok()?;
    let mut control = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut control);
    if !standard.is_empty() && !control.push(SendAncillaryMessage::ScmRights(standard)) {
        return None;
    }
    while !rest.is_empty() {
        match sendmsg(daemon, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
            // They travel with the first byte; sending them again would double them.
            Ok(sent) => (rest, control) = (&rest[sent..], SendAncillaryBuffer::default()),
            Err(Errno::INTR) => {}
            // A call that is not whole is no call.
            Err(_) => return None,
        }
    }
    Some(())
}

/// Waits for the end.
fn follow(daemon: OwnedFd) -> End {
    let heard = space();
    let (mut length, mut understood) = (0, 0);
    let signals = bare::signal_descriptor(SIGNALS);
    loop {
        while let Some((notice, bytes)) = first_notice(&heard[understood..length]) {
            match notice {
                Notice::Runs => understood += bytes,
                Notice::Exited(code) => return End::Exited(code),
                Notice::Done | Notice::Other => {
                    hand_over(daemon, length);
                    return End::HandedOver;
                }
            }
        }
        match signals.as_ref().map_err(|errno| *errno).and_then(|signals| hear(&daemon, signals, &mut heard[length..]))
        {
            Ok(more) => length += more,
            // A unix socket is reset, and not merely closed, when its peer goes with words of ours unread (the kernel's
            // unix_release_sock).
            Err(Errno::CONNRESET) if length == 0 => return End::Unread,
            Err(_) => {
                hand_over(daemon, length);
                return End::HandedOver;
            }
        }
    }
}

/// Waits for words of the daemon's; an error when something else has happened: CANCELED for a signal, PIPE for the
/// daemon's end.
fn hear(daemon: &OwnedFd, signals: &OwnedFd, space: &mut [u8]) -> Result<usize, Errno> {
    loop {
        let mut polled = [PollFd::new(daemon, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        match poll(&mut polled, None) {
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
            Ok(_) if !polled[1].revents().is_empty() => return Err(Errno::CANCELED),
            Ok(_) => {}
        }
        return match recv(daemon, &mut *space, RecvFlags::DONTWAIT) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => Err(errno),
            Ok((0, _)) => Err(Errno::PIPE),
            Ok((length, _)) => Ok(length),
        };
    }
}
