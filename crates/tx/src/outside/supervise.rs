//! Answering the calls of a transaction's processes.

use super::connection::{self, Packed};
use super::held_signals::HeldSignals;
use super::local_socket::LocalSocket;
use super::object;
use super::policy::{Caught, Network, Receiver, Rule, of};
use super::system_v::Kind;
use pando_kernel::seccomp_notify::{Answer, Call, Listener};
use pando_kernel::{pidfd, process};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// No more addresses than this are kept; more of them say nothing new.
const MOST_CONNECTIONS: usize = 1000;

/// A signal by number 0 only asks whether the process is there.
const NO_SIGNAL: i32 = 0;

/// What is done when a transaction does what cannot be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnsupported {
    /// It is not done, and the transaction is aborted.
    Abort,
    /// It is not done, which is told; the command goes on.
    Refuse,
    /// It is done, and told.
    Warn,
}

/// Something that cannot be a part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The call.
    pub call: &'static str,
    /// The pid of who made it.
    pub pid: i32,
    /// Its name.
    pub program: String,
    /// What the call is about, where it is about one thing.
    pub object: Option<String>,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, pid, program, object } = self;
        write!(out, "{call} by process {pid} ({program})")?;
        if let Some(object) = object {
            write!(out, ", of {object},")?;
        }
        write!(out, " cannot be a part of a transaction")
    }
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It happened, or is held.
    Done,
    /// It cannot be a part of the transaction.
    Unsupported(Unsupported),
    /// It would have reached outside, and the transaction cannot be committed any more: what others changed.
    Lost(String),
}

/// Answers the calls that are caught.
#[derive(Debug)]
pub struct Supervisor {
    listener: Listener,
    /// The line of /proc/PID/cgroup of who is inside.
    group: String,
    /// The mount namespace of the view.
    view: PathBuf,
    network: Network,
    /// The transaction's directory, where signals are written down if another process will commit.
    noted_in: Option<PathBuf>,
    held: HeldSignals,
    connections: BTreeSet<SocketAddr>,
    sockets: BTreeSet<String>,
    /// Names without a file that somebody listened on when it began.
    listening: BTreeSet<Vec<u8>>,
}

/// What reached outside, or is to.
#[derive(Debug, Default)]
pub struct Passed {
    /// Signals that wait for the commit.
    pub held: HeldSignals,
    /// Other machines that were connected to.
    pub connections: BTreeSet<SocketAddr>,
    /// Sockets of this machine that were.
    pub sockets: BTreeSet<String>,
    /// Where calls arrive: those of processes that go on are to be let through.
    pub listener: Option<Listener>,
}

impl AsFd for Supervisor {
    /// Readable when a call waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// What a call reaches outside.
enum Outside {
    Machine(SocketAddr),
    Socket(String),
}

/// What is done about one call.
enum Verdict {
    Inside,
    /// It happens, and is told.
    Outside(Outside),
    Hold {
        process: std::os::fd::OwnedFd,
        pid: i32,
        signal: i32,
    },
    Unsupported,
}

impl Supervisor {
    /// One for the processes in the group at `group`. The calling thread must be in the view. Who listens without a file is told [later](Self::beside).
    pub(crate) fn new(listener: Listener, group: &Path, network: Network) -> io::Result<Self> {
        let view = std::fs::read_link("/proc/thread-self/ns/mnt")?;
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // The last two names tell it from every other group; what stands before them depends on where the hierarchy is mounted.
        let around = group.parent().map(name).unwrap_or_default();
        let group = format!("/{around}/{}", name(group));
        let (held, connections, sockets) = (HeldSignals::default(), BTreeSet::new(), BTreeSet::new());
        let listening = BTreeSet::new();
        Ok(Self { listener, group, view, network, noted_in: None, held, connections, sockets, listening })
    }

    /// The same beside servers that have these names.
    pub(crate) fn beside(self, listening: BTreeSet<Vec<u8>>) -> Self {
        Self { listening, ..self }
    }

    /// Signals are written down in a transaction's directory from now on, for whoever commits it.
    pub(crate) fn noting_in(self, directory: &Path) -> Self {
        Self { noted_in: Some(directory.to_owned()), ..self }
    }

    /// Answers one call that waits. `lost` says, before anything reaches outside, what has doomed the transaction.
    pub(crate) fn answer_one(
        &mut self,
        when: WhenUnsupported,
        lost: &mut dyn FnMut() -> Option<String>,
    ) -> io::Result<Answered> {
        let Some(call) = self.listener.receive()? else { return Ok(Answered::Done) };
        let Some(caught) = of(call.number, call.older) else {
            self.listener.answer(&call, Answer::Continue)?;
            return Ok(Answered::Done);
        };
        let verdict = self.verdict(&call, caught);
        let reaches_out = matches!(verdict, Verdict::Outside(_))
            || matches!(verdict, Verdict::Unsupported) && when == WhenUnsupported::Warn;
        if reaches_out && let Some(what) = lost() {
            self.listener.answer(&call, Answer::Fail(libc::EPERM))?;
            return Ok(Answered::Lost(what));
        }
        match verdict {
            Verdict::Inside => self.listener.answer(&call, Answer::Continue)?,
            Verdict::Outside(passed) => {
                match passed {
                    Outside::Machine(address) if self.connections.len() < MOST_CONNECTIONS => {
                        self.connections.insert(address);
                    }
                    Outside::Socket(path) if self.sockets.len() < MOST_CONNECTIONS => drop(self.sockets.insert(path)),
                    Outside::Machine(_) | Outside::Socket(_) => {}
                }
                self.listener.answer(&call, Answer::Continue)?;
            }
            Verdict::Hold { process, pid, signal } => {
                match &self.noted_in {
                    Some(directory) => HeldSignals::note(directory, pid, signal)?,
                    None => self.held.keep(process, signal),
                }
                self.listener.answer(&call, Answer::Return(0))?;
            }
            Verdict::Unsupported => {
                let program = process::describe(call.pid).map(|found| found.command).unwrap_or_default();
                let answer = match when {
                    WhenUnsupported::Abort | WhenUnsupported::Refuse => Answer::Fail(libc::EPERM),
                    WhenUnsupported::Warn => Answer::Continue,
                };
                // It still waits, so that what is read of it is its own.
                let object = object::of(&call, caught.name);
                self.listener.answer(&call, answer)?;
                return Ok(Answered::Unsupported(Unsupported { call: caught.name, pid: call.pid, program, object }));
            }
        }
        Ok(Answered::Done)
    }

    /// What reached outside, or is to.
    pub fn into_passed(self) -> Passed {
        Passed { held: self.held, connections: self.connections, sockets: self.sockets, listener: Some(self.listener) }
    }

    fn verdict(&self, call: &Call, caught: &Caught) -> Verdict {
        match caught.rule {
            Rule::Signal { to, signal } => self.signal(call, to, call.arguments[signal] as i32),
            Rule::Mounts if self.is_elsewhere(call.pid) => Verdict::Inside,
            Rule::Key(kind) => self.object(call.pid, kind, call.arguments[0] as i32),
            Rule::ManyKeys => match Kind::of_many(call.arguments[0]) {
                Some(kind) => self.object(call.pid, kind, call.arguments[1] as i32),
                None => Verdict::Inside,
            },
            Rule::Connect => self.connect(call, call.arguments[1], call.arguments[2]),
            Rule::Send if call.arguments[4] == 0 => Verdict::Inside,
            Rule::Send => self.connect(call, call.arguments[4], call.arguments[5]),
            Rule::Socket => self.socket(call.arguments[0]),
            Rule::ManySockets => match connection::unpacked(call) {
                Some((Packed::Connect, [_, at, length])) => self.connect(call, at, length),
                Some((Packed::Socket, [family, ..])) => self.socket(family),
                None => Verdict::Inside,
            },
            Rule::Mounts | Rule::Machine => Verdict::Unsupported,
        }
    }

    /// Whether a process has mounts of its own.
    fn is_elsewhere(&self, pid: i32) -> bool {
        std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|namespace| namespace != self.view)
    }

    /// With the key 0 it is nobody else's in any case (IPC_PRIVATE).
    fn object(&self, pid: i32, kind: Kind, key: i32) -> Verdict {
        let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/ipc")).ok();
        let is_private = namespace(&pid.to_string()) != namespace("self");
        let reaches_out = key != 0 && (!is_private || kind.has_outside(key));
        if reaches_out { Verdict::Unsupported } else { Verdict::Inside }
    }

    fn socket(&self, family: u64) -> Verdict {
        let refused = self.network == Network::Refuse && connection::is_outward(family);
        if refused { Verdict::Unsupported } else { Verdict::Inside }
    }

    /// Where the network is refused, there is no socket that could be connected to another machine.
    fn connect(&self, call: &Call, at: u64, length: u64) -> Verdict {
        if let Some(address) = connection::address(call.pid, at, length) {
            return Verdict::Outside(Outside::Machine(address));
        }
        if self.is_elsewhere(call.pid) {
            return Verdict::Inside;
        }
        match LocalSocket::at(call.pid, at, length, &self.listening) {
            Some(LocalSocket::Log(path)) => Verdict::Outside(Outside::Socket(path)),
            Some(LocalSocket::Server(_)) => Verdict::Unsupported,
            None => Verdict::Inside,
        }
    }

    fn signal(&self, call: &Call, to: Receiver, signal: i32) -> Verdict {
        let first = call.arguments[0] as i32;
        let receiver = match to {
            Receiver::ProcessOrGroup if first <= 0 => {
                return if self.is_group_inside(call.pid, first) { Verdict::Inside } else { Verdict::Unsupported };
            }
            Receiver::ProcessOrGroup | Receiver::Task => Some(first),
            Receiver::Pidfd => pid_of_descriptor(call.pid, first),
        };
        let Some(receiver) = receiver else { return Verdict::Inside };
        if signal == NO_SIGNAL || receiver == call.pid || self.is_inside(receiver) {
            return Verdict::Inside;
        }
        match pidfd::open(receiver) {
            Ok(process) => Verdict::Hold { process, pid: receiver, signal },
            // There is none: the kernel says so to the caller. Or it is a thread, of which no descriptor can be had.
            Err(_) if process::start_time(receiver).is_err() => Verdict::Inside,
            Err(_) => Verdict::Unsupported,
        }
    }

    fn is_inside(&self, pid: i32) -> bool {
        process::read(pid, "cgroup")
            .is_ok_and(|text| text.lines().any(|line| line.starts_with("0::") && line.contains(&self.group)))
    }

    /// Whether every process of a group is inside: with 0 of the caller's own, with -1 of all that there are.
    fn is_group_inside(&self, caller: i32, number: i32) -> bool {
        if number == -1 {
            return false;
        }
        let wanted = if number == 0 { process::group(caller).ok() } else { number.checked_neg() };
        let members = process::all().unwrap_or_default().into_iter().filter(|pid| process::group(*pid).ok() == wanted);
        members.into_iter().all(|pid| self.is_inside(pid))
    }
}

/// The process behind a descriptor of another process.
fn pid_of_descriptor(owner: i32, descriptor: i32) -> Option<i32> {
    let text = process::read(owner, &format!("fdinfo/{descriptor}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}
