//! One shim's socket, for many tasks: requests are answered in order, and ends are told to whoever waits for them.

use crate::runtime::readable::readable;
use pando_guest::shim::ShimLink;
use pando_kernel::process::pidfd;
use pando_shim::{Answer, Request};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, MutexGuard, oneshot};

/// How long what the daemon lacks is waited for until it is tried again.
const LACK: Duration = Duration::from_millis(100);

/// What came of a launch.
pub(crate) type Birth = io::Result<(i32, OwnedFd)>;

/// What a shim knows of its init.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitStatus {
    /// The shim's own pid.
    pub(crate) shim: i32,
    /// The init's pid; 0 before it is a guest's.
    pub(crate) pid: i32,
    /// How it ended, as waitpid(2) gives it.
    pub(crate) ended: Option<i32>,
}

/// A shim's socket and those who wait for something on it.
#[derive(Debug)]
pub(crate) struct Link {
    socket: AsyncFd<ShimLink>,
    births: RefCell<VecDeque<oneshot::Sender<Birth>>>,
    ends: RefCell<HashMap<i32, oneshot::Sender<i32>>>,
    /// Ends that came before anybody asked.
    early: RefCell<HashMap<i32, i32>>,
    statuses: RefCell<VecDeque<oneshot::Sender<InitStatus>>>,
    turn: Mutex<()>,
    /// The shim has gone: whoever asks from now on is told at once.
    gone: Cell<bool>,
}

impl Link {
    /// Takes over a connection and serves it until the shim goes.
    pub(crate) fn new(shim: ShimLink) -> io::Result<Rc<Self>> {
        rustix::io::ioctl_fionbio(&shim, true)?;
        let link = Rc::new(Self {
            socket: readable(shim)?,
            births: RefCell::default(),
            ends: RefCell::default(),
            early: RefCell::default(),
            statuses: RefCell::default(),
            turn: Mutex::default(),
            gone: Cell::default(),
        });
        tokio::task::spawn_local(Self::keep(Rc::clone(&link)));
        Ok(link)
    }

    async fn keep(link: Rc<Self>) {
        loop {
            match link.next().await {
                Ok(Some((answer, process))) => link.deliver(answer, process),
                // A lack of the daemon's own, and no word of the shim.
                Err(error) if crate::runtime::descriptors::is_lack(&error) => {
                    tracing::warn!(%error, "a shim could not be heard; trying again");
                    tokio::time::sleep(LACK).await;
                }
                Ok(None) | Err(_) => break,
            }
        }
        // Nobody will be answered any more. Dropping the senders tells them so.
        link.gone.set(true);
        link.births.borrow_mut().clear();
        link.ends.borrow_mut().clear();
        link.statuses.borrow_mut().clear();
    }

    async fn next(&self) -> io::Result<Option<(Answer, Option<OwnedFd>)>> {
        loop {
            let mut ready = self.socket.readable().await?;
            if let Ok(answer) = ready.try_io(|socket| socket.get_ref().receive()) {
                return answer;
            }
        }
    }

    fn deliver(&self, answer: Answer, process: Option<OwnedFd>) {
        match (answer, process) {
            // A guest that an earlier version started has a shim that does so.
            (Answer::Forked { pid }, Some(process)) => self.born(Ok((pid, process))),
            (Answer::Forked { pid }, None) => self.born(self.take(pid).map(|process| (pid, process))),
            (Answer::NotForked { errno }, _) => self.born(Err(io::Error::from_raw_os_error(errno))),
            (Answer::Ended { pid, status }, _) => match self.ends.borrow_mut().remove(&pid) {
                Some(waiting) => drop(waiting.send(status)),
                None => drop(self.early.borrow_mut().insert(pid, status)),
            },
            (Answer::Init { shim, pid, ended }, _) => {
                if let Some(waiting) = self.statuses.borrow_mut().pop_front() {
                    let _ = waiting.send(InitStatus { shim, pid, ended });
                }
            }
        }
    }

    /// Takes hold of a process that the shim does not reap before it hears that this was done: its number is its own
    /// until then. One that cannot be had is nobody's, and ends.
    fn take(&self, pid: i32) -> io::Result<OwnedFd> {
        let taken = pidfd::open(pid);
        if taken.is_err()
            && let Some(process) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
        self.shim().send(Request::Taken, &[])?;
        taken
    }

    fn born(&self, birth: Birth) {
        if let Some(waiting) = self.births.borrow_mut().pop_front() {
            drop(waiting.send(birth));
        }
    }

    /// The right to launch something on it.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// The socket, to send a launch on; its answer is awaited by what [`Link::expect_birth`] gave before.
    pub(crate) fn shim(&self) -> &ShimLink {
        self.socket.get_ref()
    }

    /// Where the answer to the next launch will arrive. Launches are sent in the order of these calls.
    pub(crate) fn expect_birth(&self) -> oneshot::Receiver<Birth> {
        let (sender, receiver) = oneshot::channel();
        if !self.gone.get() {
            self.births.borrow_mut().push_back(sender);
        }
        receiver
    }

    /// Whether a launch has not been answered yet.
    pub(crate) fn is_launching(&self) -> bool {
        !self.births.borrow().is_empty()
    }

    /// A launch that was announced was not sent after all.
    pub(crate) fn cancel_birth(&self) {
        self.births.borrow_mut().pop_back();
    }

    /// Waits for a process's end; its status as waitpid(2) gives it, or `None` if the shim went without saying.
    pub(crate) async fn ended(&self, pid: i32) -> Option<i32> {
        if let Some(status) = self.early.borrow_mut().remove(&pid) {
            return Some(status);
        }
        let receiver = {
            let (sender, receiver) = oneshot::channel();
            if !self.gone.get() {
                self.ends.borrow_mut().insert(pid, sender);
            }
            receiver
        };
        receiver.await.ok()
    }

    /// Asks what became of the init; `None` if the shim went without saying.
    pub(crate) async fn status(&self) -> io::Result<Option<InitStatus>> {
        let (sender, receiver) = oneshot::channel();
        self.shim().send(Request::Status, &[])?;
        if !self.gone.get() {
            self.statuses.borrow_mut().push_back(sender);
        }
        Ok(receiver.await.ok())
    }

    /// Tells the shim to end.
    pub(crate) fn quit(&self) {
        // One that has gone already has nothing to end.
        let _ = self.shim().send(Request::Quit, &[]);
    }
}
