//! The shim's life: answer the daemon, start processes, tell of their ends.
//!
//! There is one client at a time, the daemon; a new connection takes the place of the old one. A shim whose init is
//! nobody's yet goes away with its client, or with the spawner before there is one. A shim whose init is a guest's
//! stays, also if that has ended unheard: after a crash of the daemon the next one asks it.

use crate::bare::memory::{self, Room};
use crate::bare::{self, Forked};
use crate::console::Console;
use crate::grow::{self, Luggage};
use crate::log::{self, Log};
use crate::packet;
use pando_shim::{Answer, MAX_MESSAGE, Request, Start};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};
use rustix::process::{Pid, Signal, WaitOptions};

/// How many processes of one guest the daemon may have started and not seen end.
const MAX_PROCESSES: usize = 256;

/// Two words, as there is room for many of them on the stack.
struct Process {
    pid: Pid,
    pidfd: OwnedFd,
}

struct Shim<'a> {
    listener: OwnedFd,
    /// Until there is a client. The spawner's end closes with the spawner.
    handshake: Option<OwnedFd>,
    client: Option<OwnedFd>,
    console: Option<Console>,
    /// Where what the guest prints comes out, if not on a console.
    printed: Option<OwnedFd>,
    /// Where either goes.
    log: Option<Log>,
    processes: &'a mut [Option<Process>; MAX_PROCESSES],
    /// The process that the client was told of last, until it says that it has hold of it. Launches come one after
    /// another, so it is one at most.
    untaken: Option<Pid>,
    init: i32,
    init_ended: Option<i32>,
    settled: bool,
}

/// Serves until there is nothing left to do.
pub(crate) fn serve(handshake: OwnedFd, listener: OwnedFd) -> ! {
    // Apart, to be there once: what is moved into its place was made in another.
    let mut processes = [const { None }; MAX_PROCESSES];
    let mut shim = Shim {
        listener,
        handshake: Some(handshake),
        client: None,
        console: None,
        printed: None,
        log: None,
        processes: &mut processes,
        untaken: None,
        init: 0,
        init_ended: None,
        settled: false,
    };
    loop {
        shim.turn();
    }
}

/// What poll(2) watches: the listener, the handshake, the client, the console, what is printed, and the processes from
/// [`PROCESSES`] on.
const LISTENER: u16 = 0;
const HANDSHAKE: u16 = 1;
const CLIENT: u16 = 2;
const CONSOLE: u16 = 3;
const PRINTED: u16 = 4;
const PROCESSES: u16 = 5;

const MOST: usize = MAX_PROCESSES + PROCESSES as usize;

/// As many as an idle guest's shim watches, and some.
const FEW: usize = 16;

/// What it found, a bit each: small, since it stays on the stack for as long as a guest lives.
#[derive(Default)]
struct Happened([u64; MOST.div_ceil(u64::BITS as usize)]);

impl Happened {
    fn note(&mut self, source: u16) {
        self.0[usize::from(source) / 64] |= 1 << (source % 64);
    }

    fn holds(&self, source: u16) -> bool {
        self.0[usize::from(source) / 64] & 1 << (source % 64) != 0
    }
}

/// What is dealt with has frames of its own, which are gone while it waits: inlined, they would be part of that of the
/// loop.
impl Shim<'_> {
    /// Waits for something to happen and deals with it.
    fn turn(&mut self) {
        let mut happened = Happened::default();
        self.wait(&mut happened);
        for source in (0..MOST as u16).filter(|source| happened.holds(*source)) {
            match source {
                LISTENER => self.accept(),
                HANDSHAKE => self.orphaned(),
                CLIENT => self.request(),
                CONSOLE => self.console = self.log.as_mut().and_then(|log| self.console.take()?.serve(log)),
                PRINTED => {
                    self.printed =
                        self.log.as_mut().and_then(|log| self.printed.take().filter(|pipe| log::carry(pipe, log)))
                }
                process => self.ended(usize::from(process - PROCESSES)),
            }
        }
    }

    /// With room for no more than there is as a rule: what a shim has on its stack while it waits stays as long as its
    /// guest, and it is to be a page.
    fn wait(&self, happened: &mut Happened) {
        match self.processes.iter().flatten().count() + usize::from(PROCESSES) {
            0..=FEW => self.wait_for::<FEW>(happened),
            _ => self.wait_for::<MOST>(happened),
        }
    }

    #[inline(never)]
    fn wait_for<const ROOM: usize>(&self, happened: &mut Happened) {
        let mut fds: [PollFd<'_>; ROOM] = core::array::from_fn(|_| PollFd::new(&self.listener, PollFlags::IN));
        let mut sources = [LISTENER; ROOM];
        let others = (self.handshake.iter().map(|fd| (fd, HANDSHAKE)))
            .chain(self.client.iter().map(|fd| (fd, CLIENT)))
            .chain(self.console.iter().map(|console| (console.watched(), CONSOLE)))
            .chain(self.printed.iter().map(|pipe| (pipe, PRINTED)))
            .chain((PROCESSES..).zip(self.processes.iter()).filter_map(|(at, slot)| Some((self.watched(slot)?, at))));
        let mut count = 1;
        for ((fd, source), (place, of)) in others.zip(fds[1..].iter_mut().zip(&mut sources[1..])) {
            (*place, *of) = (PollFd::new(fd, PollFlags::IN), source);
            count += 1;
        }
        memory::give_back_stack();
        if rustix::event::poll(&mut fds[..count], None).is_ok() {
            for index in (0..count).filter(|index| !fds[*index].revents().is_empty()) {
                happened.note(sources[index]);
            }
        }
    }

    /// What tells of a process's end, once that may be reaped: until then its number is its own.
    fn watched<'b>(&self, slot: &'b Option<Process>) -> Option<&'b OwnedFd> {
        let process = slot.as_ref()?;
        (self.untaken != Some(process.pid)).then_some(&process.pidfd)
    }

    #[inline(never)]
    fn accept(&mut self) {
        if let Ok(client) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            self.client = Some(client);
            // It asks for what it wants to know.
            self.untaken = None;
            // From here on it goes with its client, not with the spawner, which need not keep its end any longer.
            self.handshake = None;
        }
    }

    fn orphaned(&mut self) {
        self.handshake = None;
        if self.client.is_none() && !self.settled {
            bare::exit(0);
        }
    }

    #[inline(never)]
    fn request(&mut self) {
        let Some(client) = &self.client else { return };
        let mut bytes = [0; MAX_MESSAGE];
        let mut luggage = Luggage::default();
        let received = packet::receive(client, &mut bytes, |fd| luggage.add(fd));
        match received.map(|length| postcard::from_bytes(&bytes[..length])) {
            Ok(Ok(Request::Launch(start))) => self.launch(start, luggage),
            Ok(Ok(Request::Status)) => self.tell_of_init(),
            Ok(Ok(Request::Settle)) => self.settled = true,
            Ok(Ok(Request::Console { bound })) => self.keep_console(luggage, bound),
            Ok(Ok(Request::Log { bound })) => self.keep_log(luggage, bound),
            Ok(Ok(Request::Quit)) => self.quit(),
            Ok(Ok(Request::Taken)) => self.untaken = None,
            Ok(Err(_)) | Err(_) => {
                self.client = None;
                self.untaken = None;
                if !self.settled {
                    self.quit();
                }
            }
        }
    }

    fn keep_console(&mut self, luggage: Luggage, bound: u64) {
        if let Some((socket, log, times)) = luggage.printed() {
            (self.console, self.log) = (Some(Console::awaited(socket)), Some(Log::new(log, times, bound)));
        }
    }

    fn keep_log(&mut self, luggage: Luggage, bound: u64) {
        match luggage.printed() {
            Some((pipe, log, times)) => {
                (self.printed, self.log) = (Some(pipe), Some(Log::new(log, times, bound)));
            }
            None => self.log.iter_mut().for_each(|log| log.bind(bound)),
        }
        if self.init_ended.is_some() {
            // A command that took no longer than it takes to say this.
            self.finish_log();
        }
    }

    /// Has all that the guest printed be in its log, when it has ended.
    fn finish_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        if let Some(pipe) = &self.printed {
            log::carry_rest(pipe, log);
        }
        self.console = self.console.take().and_then(|console| console.serve_rest(log));
    }

    fn tell_of_init(&self) {
        let shim = rustix::process::getpid().as_raw_nonzero().get();
        let pid = if self.settled { self.init } else { 0 };
        self.answer(Answer::Init { shim, pid, ended: self.init_ended });
    }

    fn quit(&mut self) -> ! {
        for process in self.processes.iter().flatten() {
            let _ = rustix::process::pidfd_send_signal(&process.pidfd, Signal::KILL);
        }
        bare::exit(0)
    }

    fn launch(&mut self, start: Start, luggage: Luggage) {
        match self.fork(start, luggage) {
            Ok((pid, pidfd)) => {
                let free = self.processes.iter_mut().find(|slot| slot.is_none());
                if let Some(slot) = free {
                    self.untaken = Pid::from_raw(pid);
                    *slot = self.untaken.map(|pid| Process { pid, pidfd });
                }
                if start.init {
                    self.init = pid;
                }
                self.answer(Answer::Forked { pid });
            }
            Err(errno) => self.answer(Answer::NotForked { errno: errno.raw_os_error() }),
        }
    }

    fn fork(&self, start: Start, luggage: Luggage) -> Result<(i32, OwnedFd), Errno> {
        if start.init != (self.init == 0) {
            return Err(Errno::INVAL);
        }
        if self.processes.iter().all(Option::is_some) {
            return Err(Errno::AGAIN);
        }
        let cgroup = start.into_cgroup.map(|index| luggage.fd(index)).transpose()?;
        if start.init {
            return bare::share((start.namespaces, cgroup), &mut Room::for_init()?, &luggage, grow::grow);
        }
        // For children alone: the shim itself stays outside, where no process of the guest can name it.
        bare::enter(luggage.fd(start.pid_namespace)?)?;
        match bare::fork(cgroup)? {
            Forked::Child => grow::grow(luggage),
            Forked::Parent { pid, pidfd } => Ok((pid, pidfd)),
        }
    }

    #[inline(never)]
    fn ended(&mut self, index: usize) {
        let Some(process) = &self.processes[index] else { return };
        let Ok(Some((pid, status))) = rustix::process::waitpid(Some(process.pid), WaitOptions::NOHANG) else { return };
        let pid = pid.as_raw_nonzero().get();
        self.processes[index] = None;
        if pid == self.init && self.init_ended.is_none() {
            self.init_ended = Some(status.as_raw());
            // A daemon that hears of the end looks into the log.
            self.finish_log();
        }
        self.answer(Answer::Ended { pid, status: status.as_raw() });
    }

    /// Tells the client, in bytes alone: see [`Answer::Forked`]. That it may be gone is no matter: the next one asks.
    fn answer(&self, answer: Answer) {
        let Some(client) = &self.client else { return };
        let mut bytes = [0; MAX_MESSAGE];
        let Ok(bytes) = postcard::to_slice(&answer, &mut bytes) else { return };
        let _ = rustix::net::send(client, bytes, SendFlags::NOSIGNAL);
    }
}
