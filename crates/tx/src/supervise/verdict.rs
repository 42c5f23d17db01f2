//! What becomes of a call, by its rule and by what it is about.

use super::argument::{self, Fails};
use super::bystanders::Bystanders;
use super::connection::{self, Packed};
use super::local_socket::{LocalSocket, Servers};
use super::message::{self, At};
use super::mounting::Seen;
use super::named_path::Namer;
use super::namespace::{Entered, namespace_of};
use super::policy::{Caught, Network, Owner, Receiver, Rule, SET_OWNER};
use super::receiver::{Meant, is_unheard, pid_of_descriptor};
use super::rights::{holds, may_signal, may_take_from};
use super::supervisor::Supervisor;
use super::system_v::Kind;
use pando_kernel::seccomp::notify::Call;
use pando_kernel::{process, process::pidfd};
use std::net::SocketAddr;

/// What a call reaches outside.
pub(super) enum Outside {
    Machine(SocketAddr),
    Socket(String),
}

/// What is done about one call.
pub(super) enum Verdict {
    Inside,
    /// It happens, and is told.
    Outside(Vec<Outside>),
    Hold {
        process: std::os::fd::OwnedFd,
        pid: i32,
        signal: i32,
    },
    /// It would fail with this error number.
    Fails(i32),
    /// What it is about, where that is known already.
    Unsupported(Option<String>),
}

impl From<Fails> for Verdict {
    fn from(Fails(errno): Fails) -> Self {
        Self::Fails(errno)
    }
}

/// What is done about a call, or that it fails because what it is about cannot be read.
type Judged = Result<Verdict, Fails>;

impl Supervisor {
    pub(super) fn verdict(&self, call: &Call, caught: &Caught) -> Verdict {
        self.judged(call, caught).unwrap_or_else(Verdict::from)
    }

    fn judged(&self, call: &Call, caught: &Caught) -> Judged {
        Ok(match caught.rule {
            Rule::Signal { to, signal } => self.signal(call, to, call.arguments[signal] as i32),
            Rule::Mounts if self.is_elsewhere(call.pid) => self.reaches_live(call, caught)?,
            Rule::Superblock => self.reaches_live(call, caught)?,
            Rule::Handle => self.handle(call),
            Rule::Key(kind) => self.object(call.pid, kind, call.arguments[0] as i32),
            Rule::ManyKeys => match Kind::of_many(call.arguments[0]) {
                Some(kind) => self.object(call.pid, kind, call.arguments[1] as i32),
                None => Verdict::Inside,
            },
            Rule::Connect => self.connect(call, call.arguments[1], call.arguments[2])?,
            Rule::Send if call.arguments[4] == 0 => Verdict::Inside,
            Rule::Send => self.connect(call, call.arguments[4], call.arguments[5])?,
            Rule::Message { several } => self.messages(call, if several { call.arguments[2] } else { 1 })?,
            Rule::Owner(how) => self.owner(call, how)?,
            Rule::Descriptor => self.descriptor(call),
            Rule::Socket => self.socket(call.arguments[0]),
            Rule::ManySockets => match connection::unpacked(call)? {
                Some(Packed::Connect { at, length }) if at != 0 => self.connect(call, at, length)?,
                Some(Packed::Messages { at, count }) => {
                    self.all(call, message::addresses(call.pid, at, count, true)?)?
                }
                Some(Packed::Socket { family }) => self.socket(family),
                Some(Packed::Connect { .. }) | None => Verdict::Inside,
            },
            // The kernel refuses what it has not the right to; until it is answered, it gets none.
            Rule::Mounts | Rule::Machine(_) | Rule::Namespace
                if caught.rule.needs().is_some_and(|one| !holds(call.pid, one)) =>
            {
                Verdict::Inside
            }
            Rule::Mounts | Rule::Machine(_) => Verdict::Unsupported(None),
            Rule::Ring => Verdict::Fails(libc::ENOSYS),
            Rule::Namespace => self.namespace(call),
        })
    }

    /// Whether a process has mounts of its own.
    fn is_elsewhere(&self, pid: i32) -> bool {
        namespace_of(pid, "mnt").is_ok_and(|link| !self.view.is(&link))
    }

    /// Mounts of a command's own are the transaction's, but for those of what is in the live tree.
    fn reaches_live(&self, call: &Call, caught: &Caught) -> Judged {
        let may = caught.rule.needs().is_none_or(|one| holds(call.pid, one));
        let namer = Namer { pid: call.pid, is_inside: &|groups| self.is_among_ours(groups) };
        let reaches = may && Seen::read(self.mounts.as_ref()).is_reached_by(call, caught.name, &namer)?;
        Ok(if reaches { Verdict::Unsupported(None) } else { Verdict::Inside })
    }

    /// What a handle leads to lies on the file system of the descriptor, wherever on that: it is judged by that alone.
    fn handle(&self, call: &Call) -> Verdict {
        let leads_out = Seen::read(self.mounts.as_ref()).is_live_descriptor(call.pid, call.arguments[0] as i32);
        if leads_out { Verdict::Unsupported(None) } else { Verdict::Inside }
    }

    /// With the key 0 it is nobody else's in any case (IPC_PRIVATE).
    fn object(&self, pid: i32, kind: Kind, key: i32) -> Verdict {
        let own = std::fs::read_link(format!("/proc/{pid}/ns/ipc")).ok();
        let is_private = own.is_some() && self.surroundings.objects().is_ok_and(|outside| own != Some(outside));
        let reaches_out = key != 0 && (!is_private || self.surroundings.has(kind, key));
        if reaches_out { Verdict::Unsupported(None) } else { Verdict::Inside }
    }

    fn socket(&self, family: u64) -> Verdict {
        let refused = self.network == Network::Refuse && connection::is_outward(family);
        if refused { Verdict::Unsupported(None) } else { Verdict::Inside }
    }

    fn messages(&self, call: &Call, count: u64) -> Judged {
        // The lower half is the number: the kernel takes no more of the argument.
        self.all(call, message::addresses(call.pid, call.arguments[1], count & 0xffff_ffff, call.older)?)
    }

    /// Several addresses of one call, which is carried out or not as a whole.
    fn all(&self, call: &Call, addresses: Vec<At>) -> Judged {
        let mut outside = Vec::new();
        for (at, length) in addresses {
            match self.connect(call, at, length)? {
                Verdict::Outside(more) => outside.extend(more),
                Verdict::Inside => {}
                refused => return Ok(refused),
            }
        }
        Ok(if outside.is_empty() { Verdict::Inside } else { Verdict::Outside(outside) })
    }

    /// What a process outside has open may be a file of the live tree, or lead to others.
    fn descriptor(&self, call: &Call) -> Verdict {
        match pid_of_descriptor(call.pid, call.arguments[0] as i32) {
            Err(_) => Verdict::Unsupported(None),
            Ok(Some(owner)) if !self.is_inside(owner) && may_take_from(call.pid, owner) => Verdict::Unsupported(None),
            // The kernel says that there is none, or that it may not.
            Ok(_) => Verdict::Inside,
        }
    }

    /// The namespaces of processes outside lead to the live tree, and to its objects of System V; those that the
    /// transaction itself has made are its own.
    fn namespace(&self, call: &Call) -> Verdict {
        let own = || process::all().unwrap_or_default().into_iter().filter(|pid| self.is_inside(*pid));
        let outside = match Entered::by(call) {
            Err(_) => true,
            Ok(Some(Entered::OfProcess(pid))) => !self.is_inside(pid),
            Ok(Some(Entered::Namespace { kind, link })) => {
                !self.view.is(&link) && !own().any(|pid| namespace_of(pid, kind).is_ok_and(|its| its == link))
            }
            Ok(None) => false,
        };
        if outside { Verdict::Unsupported(None) } else { Verdict::Inside }
    }

    /// Where the network is refused, there is no socket that could be connected to another machine.
    fn connect(&self, call: &Call, at: u64, length: u64) -> Judged {
        let address = argument::address(call.pid, at, length)?;
        if let Some(machine) = connection::machine(&address) {
            return Ok(Verdict::Outside(vec![Outside::Machine(machine)]));
        }
        if connection::family(&address) != Some(libc::AF_UNIX) {
            return Ok(Verdict::Inside);
        }
        // Mounts of its own show a process the servers of the view as well; what it has mounted itself is the
        // transaction's.
        let is_own = |place: &_| Seen::is_own_place(self.mounts.as_ref(), call.pid, place, self.is_elsewhere(call.pid));
        let namer = Namer { pid: call.pid, is_inside: &|groups| self.is_among_ours(groups) };
        let Bystanders { listening, logs, .. } = &self.bystanders;
        let servers = Servers { listening: listening.as_ref(), logs };
        Ok(match LocalSocket::at(&address[2..], &namer, &servers, is_own) {
            LocalSocket::Log(path) => Verdict::Outside(vec![Outside::Socket(path)]),
            LocalSocket::Server(name) => Verdict::Unsupported(Some(format!("socket {name}"))),
            LocalSocket::Own => Verdict::Inside,
        })
    }

    fn signal(&self, call: &Call, to: Receiver, signal: i32) -> Verdict {
        // By the signal 0 it is only asked whether there is somebody. What is no signal the kernel refuses.
        if !(1..=libc::SIGRTMAX()).contains(&signal) {
            return Verdict::Inside;
        }
        let receiver = match Meant::by(call.pid, call.arguments[0] as i32, to) {
            Meant::Nobody => return Verdict::Inside,
            Meant::All | Meant::Unknown => return Verdict::Unsupported(None),
            Meant::Group(members) if members.iter().all(|pid| self.is_inside(*pid)) => return Verdict::Inside,
            Meant::Group(_) => return Verdict::Unsupported(None),
            Meant::One(receiver) => receiver,
        };
        if receiver == call.pid || self.is_inside(receiver) || is_unheard(call.pid, receiver, signal) {
            return Verdict::Inside;
        }
        match pidfd::open(receiver) {
            Ok(_) if !may_signal(call.pid, receiver, signal) => Verdict::Fails(libc::EPERM),
            Ok(_) if !self.holds_signals => Verdict::Unsupported(Some(format!("process {receiver}"))),
            Ok(process) => Verdict::Hold { process, pid: receiver, signal },
            // There is none: the kernel says so to the caller. Or it is a thread, of which no descriptor can be had.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Verdict::Inside,
            Err(_) => Verdict::Unsupported(None),
        }
    }

    /// Whoever owns a descriptor gets signals when something comes: at once, and of a kind that the command chooses
    /// (F_SETSIG).
    fn owner(&self, call: &Call, how: Owner) -> Judged {
        let [_, word, value, ..] = call.arguments;
        let number = |at: u64| {
            let mut bytes = [0; 4];
            argument::read(call.pid, at, &mut bytes).map(|()| i32::from_ne_bytes(bytes))
        };
        // F_OWNER_TID, F_OWNER_PID and F_OWNER_PGRP. The kernel refuses a number below 0 there.
        const GROUP: i32 = 2;
        let owner = match how {
            Owner::Descriptor if word as u32 == SET_OWNER => value as i32,
            Owner::Descriptor => match (number(value)?, number(value.wrapping_add(4))?) {
                (GROUP, group) => group.wrapping_neg(),
                (_, process) => process,
            },
            Owner::Socket => number(value)?,
        };
        // Nobody, from now on.
        if owner == 0 {
            return Ok(Verdict::Inside);
        }
        let (meant, shown) = match owner < 0 {
            true => (
                Meant::by(call.pid, owner, Receiver::ProcessOrGroup),
                format!("process group {}", owner.unsigned_abs()),
            ),
            false => (Meant::by(call.pid, owner, Receiver::Task), format!("process {owner}")),
        };
        let is_inside = match meant {
            Meant::Nobody => true,
            Meant::One(pid) => pid == call.pid || self.is_inside(pid),
            Meant::Group(members) => members.iter().all(|pid| self.is_inside(*pid)),
            Meant::All | Meant::Unknown => false,
        };
        Ok(if is_inside { Verdict::Inside } else { Verdict::Unsupported(Some(shown)) })
    }

    pub(super) fn is_inside(&self, pid: i32) -> bool {
        process::read(pid, "cgroup").is_ok_and(|text| self.is_among_ours(&text))
    }

    /// Whether the control groups of a process (/proc/PID/cgroup) are the transaction's.
    fn is_among_ours(&self, groups: &str) -> bool {
        let is_ours =
            |path: &str| path.split_once(&self.group).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('/'));
        groups.lines().filter_map(|line| line.strip_prefix("0::")).any(is_ours)
    }
}
