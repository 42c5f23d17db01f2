//! Making a clone: below a first process that somebody else has started, in its namespaces.

use crate::clone::error::{CloneError, SECONDS};
use crate::clone::frozen::Frozen;
use crate::clone::hindrance::Hindrance;
use crate::clone::holder::{self, Holder};
use crate::clone::{host_settings, ready_barrier};
use crate::image::Image;
use crate::likeness;
use crate::restore::script::Script;
use crate::trampoline;
use pando_kernel::process::held::HeldProcess;
use pando_kernel::{CallError, Context, memory, process::pidfd, socket::packet};
use pando_restorer::Request;
use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Where a clone is to live.
#[derive(Debug)]
pub struct Target<'a> {
    /// The first process of the clone's pid namespace. It has the clone's namespaces and root, and reaps whatever dies;
    /// or it waits in a [`Handoff`].
    pub init: i32,
    /// The same process, as its maker holds it: nothing is forked to whoever has its pid once it has ended.
    pub held: Option<&'a HeldProcess>,
    /// Directory of the cgroup (version 2) to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Files `cgroup.procs` of cgroups (version 1) to join.
    pub groups: &'a [BorrowedFd<'a>],
    /// What the clone has in place of the frozen outside, in its order.
    pub supplied: &'a [BorrowedFd<'a>],
    /// What the first process waits at, if it is to become one of the image.
    pub handoff: Option<Handoff<'a>>,
    /// What a Landlock domain around all others keeps inside (`LANDLOCK_SCOPE_*`): what is executed there has another,
    /// and cannot be joined.
    pub scopes: u32,
}

/// The other end of the socket that a first process has as its descriptor 0, which runs [`crate::program`] and waits to
/// become one of the image.
#[derive(Clone, Copy, Debug)]
pub struct Handoff<'a>(pub BorrowedFd<'a>);

const LIMIT: Duration = Duration::from_secs(SECONDS);

/// A clone every thread of which waits to run. Dropped, it ends; [`Self::go`] lets it run.
#[derive(Debug)]
pub struct Ready {
    gate: OwnedFd,
    reports: OwnedFd,
    processes: usize,
}

impl Ready {
    /// Whether it still waits. What it waits in may have been ended.
    pub fn waits(&self) -> bool {
        matches!(ready_barrier::is_readable(&self.reports, Duration::ZERO), Ok(false))
    }

    /// Opens the gate: from here on it runs, thread after thread.
    pub fn open(self) -> Result<Going, CloneError> {
        let bytes = vec![1; self.processes];
        let mut sent = 0;
        while sent < bytes.len() {
            sent += rustix::io::write(&self.gate, &bytes[sent..]).context(|| "letting a clone run".into())?;
        }
        Ok(Going { gate: self.gate, reports: self.reports })
    }

    /// Lets the clone run, and waits until every thread of it does.
    pub fn go(self) -> Result<(), CloneError> {
        let going = self.open()?;
        if !ready_barrier::is_readable(&going.reports, LIMIT)? {
            return Err(CloneError::Late);
        }
        going.gone().unwrap_or(Err(CloneError::Ended))
    }
}

/// A clone whose gate is open. What it has as a descriptor can be read when the last thread has passed.
#[derive(Debug)]
pub struct Going {
    gate: OwnedFd,
    reports: OwnedFd,
}

impl Going {
    /// What came of it, once every thread of it runs: a process lets go of its end of the reports when its last thread
    /// has passed.
    pub fn gone(&self) -> Option<Result<(), CloneError>> {
        let look = || match ready_barrier::is_readable(&self.reports, Duration::ZERO)? {
            false => Ok(None),
            true if ready_barrier::report(&self.reports)?.is_some() => Err(CloneError::Ended),
            // Each took a byte; one that was killed while it waited left its own.
            true => match rustix::io::ioctl_fionread(&self.gate).context(|| "letting a clone run".into())? {
                0 => Ok(Some(())),
                _ => Err(CloneError::Ended),
            },
        };
        look().transpose()
    }
}

impl AsRawFd for Going {
    fn as_raw_fd(&self) -> RawFd {
        self.reports.as_raw_fd()
    }
}

impl AsFd for Going {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }
}

impl Frozen {
    /// Makes a clone, up to its first instruction. The first one is compared with what was frozen, unless that is not
    /// wanted.
    pub fn clone_into(&self, target: &Target<'_>) -> Result<Ready, CloneError> {
        let ready = self.holder.clone_into(&self.image, target)?;
        // Several may be the first.
        if !self.alike.load(Ordering::Acquire) {
            let differences = likeness::differences(&self.image, target.init)?;
            if !differences.is_empty() {
                return Err(CloneError::Differs(differences));
            }
            self.alike.store(true, Ordering::Release);
        }
        Ok(ready)
    }

    /// Has no clone compared with what was frozen.
    pub fn take_as_alike(&self) {
        self.alike.store(true, Ordering::Release);
    }
}

impl Holder {
    /// Makes a clone of the image that this holder holds.
    pub(crate) fn clone_into(&self, image: &Image, target: &Target<'_>) -> Result<Ready, CloneError> {
        let script = self.script()?;
        if target.supplied.len() < script.supplied {
            return Err(CloneError::Supplies { wanted: script.supplied, given: target.supplied.len() });
        }
        let what = || "making a clone".to_owned();
        let (reports, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context(what)?;
        let (theirs, gate) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context(what)?;
        let (process, namespaces) = namespaces(target)?;
        if image.first().is_none() && target.handoff.is_some() {
            return Err(CloneError::NoFirst);
        }
        let first = image.first().map(|_| First::begin(self, image, target)).transpose()?;
        let mut fds = vec![report.as_fd(), theirs.as_fd()];
        fds.extend(target.cgroup);
        fds.extend(target.groups);
        fds.push(process.as_fd());
        let supplied = &target.supplied[..script.supplied];
        fds.extend(supplied);
        fds.extend(first.as_ref().map(|first| first.handover.as_fd()));
        let request = Request::Clone {
            cgroups: u32::from(target.cgroup.is_some()),
            groups: target.groups.len() as u32,
            namespaces,
            supplied: (supplied.len() + usize::from(first.is_some())) as u32,
            scopes: target.scopes,
        };
        let answer = self.ask(request, &fds).context(what)?;
        drop((report, theirs));
        // It must be gone where the maker is.
        let first = first.map(|First { script, handoff, .. }| (script, handoff));
        let stands = || -> Result<(), Hindrance> {
            if answer.errno != 0 {
                // Who helps the maker says itself at what it has failed.
                let said = ready_barrier::failure(&reports)?;
                return Err(said.unwrap_or((answer.errno, answer.step)).into());
            }
            ready_barrier::stand(&reports, image, target.init)?;
            host_settings::restore(image, self.pid(), target.init).map_err(|error| CloneError::from(error).into())
        };
        match stands() {
            Ok(()) => Ok(Ready { gate, reports, processes: script.reports }),
            Err(hindrance) => Err(hindrance.explained(script, first.as_ref())),
        }
    }
}

/// A first process that becomes one of the image.
struct First<'a> {
    script: Script,
    handoff: BorrowedFd<'a>,
    /// Where the maker hands over what it has made.
    handover: OwnedFd,
}

impl<'a> First<'a> {
    /// Sends it all that it needs but what the maker will hand over.
    fn begin(holder: &Holder, image: &Image, target: &Target<'a>) -> Result<Self, CloneError> {
        let what = || "making a clone's first process".to_owned();
        let Handoff(handoff) = target.handoff.ok_or(CloneError::NoHandoff)?;
        let script = holder.script_of_first(image, (target.init, handoff))?.ok_or(CloneError::NoHandoff)?;
        let file = memory::file::sealed(trampoline::NAME, &script.bytes, false).context(what)?;
        let length = u32::try_from(script.bytes.len())
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
            .context(what)?;
        let (handover, theirs) = packet::pair().context(what)?;
        let memory = holder.memory()?;
        let fds = [file.as_fd(), memory.as_fd(), theirs.as_fd()];
        holder::send(handoff, Request::Become { length }, &fds).context(what)?;
        Ok(Self { script, handoff, handover })
    }
}

/// The kinds of namespaces, by their names in /proc.
const KINDS: [(&str, i32); 7] = [
    ("user", libc::CLONE_NEWUSER),
    ("cgroup", libc::CLONE_NEWCGROUP),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("net", libc::CLONE_NEWNET),
    ("pid", libc::CLONE_NEWPID),
    ("mnt", libc::CLONE_NEWNS),
];

/// A process's namespaces, as /proc names them.
type Identities = [PathBuf; KINDS.len()];

fn identities(process: &str) -> Result<Identities, CallError> {
    let mut found = Identities::default();
    for ((kind, _), identity) in KINDS.iter().zip(&mut found) {
        let path = format!("/proc/{process}/ns/{kind}");
        *identity = std::fs::read_link(&path).context(|| format!("reading {path}"))?;
    }
    Ok(found)
}

/// Our own, which stay what they are.
fn ours() -> Result<&'static Identities, CallError> {
    static OURS: OnceLock<Identities> = OnceLock::new();
    if let Some(ours) = OURS.get() {
        return Ok(ours);
    }
    let ours = identities("thread-self")?;
    Ok(OURS.get_or_init(|| ours))
}

/// A process by which all its namespaces are entered at once (setns(2) with a pidfd, since Linux 5.8), and which of
/// them are not ours: those alone its user namespace gives a right to.
fn namespaces(target: &Target<'_>) -> Result<(OwnedFd, u32), CallError> {
    let pid = target.init;
    let what = || format!("finding process {pid}");
    let process = match target.held {
        Some(held) => {
            let ended = || io::Error::from_raw_os_error(libc::ESRCH);
            held.descriptor().ok_or_else(ended).and_then(|descriptor| descriptor.try_clone_to_owned()).context(what)?
        }
        None => pidfd::open(pid).context(what)?,
    };
    let (ours, theirs) = (ours()?, identities(&pid.to_string())?);
    if pidfd::has_ended(&process) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH)).context(what);
    }
    let others = KINDS.iter().zip(ours.iter().zip(&theirs)).filter(|(_, (ours, theirs))| ours != theirs);
    let flags = others.fold(0, |flags, ((_, flag), _)| flags | *flag as u32);
    Ok((process, flags))
}
