//! The daemon's end of the spawner.

use crate::runtime::readable::readable;
use pando_guest::Places;
use pando_guest::spawner::{Answer, MAX_MESSAGE, MadeShim, ShimKind};
use pando_kernel::{process::inheritance, seccomp::unfiltered, socket::packet};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A shim and its user namespace, if it has one; or why there is none.
type Made = Result<(MadeShim, Option<OwnedFd>), String>;

/// Who waits for an answer: they come in the order of the questions.
type Waiting = Rc<RefCell<VecDeque<oneshot::Sender<Made>>>>;

/// A running spawner. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Spawner {
    socket: Rc<AsyncFd<OwnedFd>>,
    waiting: Waiting,
    reader: JoinHandle<()>,
    child: Child,
}

impl Spawner {
    /// Starts one: this program again, told to be a spawner, so that it begins with a single thread and a small memory.
    pub(crate) fn start(places: &Places) -> io::Result<Self> {
        let (ours, theirs) = packet::pair()?;
        // Clients' descriptors that are just arriving are not marked yet: the spawner would hold them open, and every
        // guest of its shims too.
        inheritance::close_range_on_exec(3)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("--root").arg(places.root()).arg("spawner").stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // What guests are made of has none of the daemon's own filter.
        let child = unfiltered::run(move || command.spawn())??;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let (socket, waiting) = (Rc::new(readable(ours)?), Waiting::default());
        let reader = tokio::task::spawn_local(read(Rc::clone(&socket), Rc::clone(&waiting)));
        Ok(Self { socket, waiting, reader, child })
    }

    /// The pid of the spawner.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks for a shim, and waits for it. Another may be asked for meanwhile. An error means that the spawner has gone.
    pub(crate) async fn ask(&self, kind: ShimKind) -> io::Result<Made> {
        let bytes = postcard::to_stdvec(&kind).map_err(io::Error::other)?;
        if self.reader.is_finished() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        packet::send(self.socket.get_ref(), &bytes, &[])?;
        let (sender, made) = oneshot::channel();
        self.waiting.borrow_mut().push_back(sender);
        made.await.map_err(|_| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.reader.abort();
        // Its socket closes with this value, which ends it; a stuck one is ended by force.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Hands every answer to who waits for it. With the spawner's end nobody waits any more.
async fn read(socket: Rc<AsyncFd<OwnedFd>>, waiting: Waiting) {
    while let Ok(answer) = answer(&socket).await {
        if let Some(sender) = waiting.borrow_mut().pop_front() {
            // Who asked may have stopped waiting: the shim then goes with the spawner.
            let _ = sender.send(answer);
        }
    }
    waiting.borrow_mut().clear();
}

async fn answer(socket: &AsyncFd<OwnedFd>) -> io::Result<Made> {
    let mut bytes = [0; MAX_MESSAGE];
    loop {
        let mut ready = socket.readable().await?;
        if let Ok(received) = ready.try_io(|socket| packet::receive(socket.get_ref(), &mut bytes)) {
            let (length, fds) = received?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let answer: Answer = postcard::from_bytes(&bytes[..length]).map_err(io::Error::other)?;
            return Ok(answer.map(|shim| (shim, fds.into_iter().next())));
        }
    }
}
