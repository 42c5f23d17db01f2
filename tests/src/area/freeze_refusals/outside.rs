//! Somebody outside of a space, to whom those inside connect: by unix sockets, and by what he gives them.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::io::{IoSlice, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

/// He, and what he holds on to for as long as he is there.
#[derive(Debug)]
pub(super) struct Outside {
    stage: PathBuf,
    connected: std::cell::RefCell<Vec<UnixStream>>,
    _accepted: Receiver<(UnixStream, Option<PipeWriter>)>,
}

impl Outside {
    /// Listens at `outside` on a stage, and gives who connects what the file `wanted` names, if there is one.
    pub(super) fn at(stage: &Path) -> Self {
        let listener = UnixListener::bind(stage.join("outside")).expect("a socket");
        let (keep, accepted) = channel();
        let wanted = stage.join("wanted");
        std::thread::spawn(move || {
            // One is all that comes; who waits in vain goes with the tests.
            if let Ok((stream, _)) = listener.accept() {
                let held = std::fs::read_to_string(wanted).ok().and_then(|what| give(&stream, &what));
                let _ = keep.send((stream, held));
            }
        });
        Self { stage: stage.to_owned(), connected: std::cell::RefCell::default(), _accepted: accepted }
    }

    /// Connects to who listens at `inside`, if somebody does.
    pub(super) fn connect_where_wanted(&self) {
        self.connected.borrow_mut().extend(UnixStream::connect(self.stage.join("inside")));
    }
}

fn give(stream: &UnixStream, what: &str) -> Option<PipeWriter> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let own = std::fs::File::open("/proc/self/ns/uts").expect("a namespace");
    let gift: OwnedFd = match what {
        "pipe" => reader.into(),
        "process" => pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process"),
        _ => own.into(),
    };
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut room);
    let fds = [gift.as_fd()];
    assert!(message.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(stream, &[IoSlice::new(b"x")], &mut message, SendFlags::empty()).expect("it is sent");
    Some(writer)
}
