//! A thread that answers those who wait at a gate of permission events: this process's own accesses at once, all others
//! once the gate opens.
//!
//! It must never wait for the thread that applies a commit, whose own openings wait for it. So it opens nothing, takes
//! no lock, and touches no file that is not read to memory already; and should it fail, the whole process ends, upon
//! which the kernel lets everybody go, and a recovery finishes what was committed.

use super::waiting::{Waits, since_boot};
use pando_kernel::file::access_gate::{Access, AccessGate};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Descriptors that are left to the rest of the process: each of those who wait takes one.
const SPARE: u64 = 256;

/// What the thread is told, other than nothing.
const HOLD: u8 = 1;
const END: u8 = 2;

#[derive(Debug, Default)]
struct State {
    order: AtomicU8,
    lapsed: AtomicBool,
}

impl State {
    /// Whether whoever has waited was let go, or is about to be.
    fn lets_go(&self) -> bool {
        self.lapsed.load(Ordering::SeqCst) || self.order.load(Ordering::SeqCst) == END
    }
}

/// The thread, and what it is told by.
#[derive(Debug)]
pub(super) struct Answering {
    state: Arc<State>,
    word: OwnedFd,
    thread: Option<JoinHandle<()>>,
    /// Those whom it has had wait, for whoever asks.
    told: Option<Receiver<Held>>,
}

/// One who waits: his pid, the descriptor of what he waits for, since when.
type Held = (i32, i32, Duration);

impl Drop for Answering {
    fn drop(&mut self) {
        self.end();
    }
}

impl Answering {
    /// Begins to let everybody through. Once [told to hold](Self::hold) them it does so for `longest`.
    pub(super) fn begin(gate: Arc<AccessGate>, longest: Duration) -> io::Result<Self> {
        let (heard, word) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let state = Arc::new(State::default());
        let (heard_of, tell) = (Arc::clone(&state), channel());
        let name = std::thread::Builder::new().name("gate".into());
        let thread = name.spawn(move || {
            let _guard = EndsTogether;
            let (state, held, most) = (&*heard_of, Vec::new(), most_held());
            Answers { gate: &gate, state, heard, held, tell: tell.0, most, longest, until: None }.run();
        })?;
        Ok(Self { state, word, thread: Some(thread), told: Some(tell.1) })
    }

    /// Has all others wait from now on.
    pub(super) fn hold(&self) {
        self.tell(HOLD);
    }

    /// What looks who has waited for long. There is one.
    pub(super) fn look(&mut self) -> Option<impl FnMut() -> Vec<Waits> + Send + use<>> {
        let (told, state) = (self.told.take()?, Arc::clone(&self.state));
        let (mut coming, mut long) = (Vec::new(), Vec::new());
        Some(move || {
            coming.extend(told.try_iter());
            for (pid, object, since) in coming.extract_if(.., |(.., since): &mut Held| Waits::is_long(*since)) {
                let object = std::fs::read_link(format!("/proc/self/fd/{object}"));
                let object = object.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
                long.push(Waits { pid, since, object });
            }
            // Once they are let go, their descriptors may be of anything.
            if state.lets_go() {
                (coming, long) = (Vec::new(), Vec::new());
            }
            long.clone()
        })
    }

    /// Lets everybody go, and ends: whether it had let them go before.
    pub(super) fn end(&mut self) -> bool {
        if let Some(thread) = self.thread.take() {
            self.tell(END);
            let _ = thread.join();
        }
        self.has_lapsed()
    }

    /// Whether it let everybody go unasked, since they had waited for too long, or were too many.
    pub(super) fn has_lapsed(&self) -> bool {
        self.state.lapsed.load(Ordering::SeqCst)
    }

    fn tell(&self, order: u8) {
        self.state.order.store(order, Ordering::SeqCst);
        // A pipe that is full wakes it as well.
        let _ = rustix::io::write(&self.word, &[0]);
    }
}

/// How many may wait, by how many descriptors this process may have.
fn most_held() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 16);
    usize::try_from(limit.saturating_sub(SPARE).max(limit / 4)).unwrap_or(usize::MAX)
}

/// Ends the process together with a thread that panics.
struct EndsTogether;

impl Drop for EndsTogether {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// What the thread does.
struct Answers<'a> {
    gate: &'a AccessGate,
    state: &'a State,
    heard: OwnedFd,
    held: Vec<Access<'a>>,
    /// Where it is told who waits. That waits for nobody.
    tell: Sender<Held>,
    most: usize,
    longest: Duration,
    /// Until when it holds them, from when it was told to.
    until: Option<Instant>,
}

impl Answers<'_> {
    fn run(&mut self) {
        let me = std::process::id().cast_signed();
        loop {
            let left =
                self.until.filter(|_| !self.has_lapsed()).map(|until| until.saturating_duration_since(Instant::now()));
            let waited = self.gate.wait(&self.heard, left);
            let _ = rustix::io::read(&self.heard, &mut [0; 8]);
            match self.state.order.load(Ordering::SeqCst) {
                END => break,
                HOLD if self.until.is_none() => self.until = Some(Instant::now() + self.longest),
                _ => {}
            }
            let holds = self.until.is_some() && !self.has_lapsed();
            let taken = waited.and_then(|()| self.gate.waiting(self.most - self.held.len()));
            let failed = taken.is_err();
            for access in taken.unwrap_or_default().into_iter().filter(|access| holds && access.pid != me) {
                let _ = self.tell.send((access.pid, access.object().as_raw_fd(), since_boot()));
                self.held.push(access);
            }
            let is_over = self.until.is_some_and(|until| Instant::now() >= until);
            if holds && (is_over || failed || self.held.len() >= self.most) {
                self.lapse();
            }
        }
        let _ = self.gate.hold_no_more();
        self.held.clear();
        // Those who came across a mark that has gone since.
        while self.gate.waiting(self.most).is_ok_and(|late| !late.is_empty()) {}
    }

    fn has_lapsed(&self) -> bool {
        self.state.lapsed.load(Ordering::SeqCst)
    }

    fn lapse(&mut self) {
        self.state.lapsed.store(true, Ordering::SeqCst);
        let _ = self.gate.hold_no_more();
        self.held.clear();
    }
}
