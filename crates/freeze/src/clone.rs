//! Making a clone: below a first process that somebody else has started, in its namespaces.

use crate::freeze::Frozen;
use crate::holder::{self, Holder};
use crate::image::Image;
use crate::refusal::FreezeError;
use crate::script::Script;
use pando_kernel::{CallError, Context, memory_file, packet};
use pando_restorer::{Report, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where a clone is to live.
#[derive(Debug)]
pub struct Target<'a> {
    /// The first process of the clone's pid namespace. It has the clone's namespaces and root, and reaps whatever dies; or it
    /// waits in a [`Cradle`].
    pub init: i32,
    /// Directory of the cgroup (version 2) to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Files `cgroup.procs` of cgroups (version 1) to join.
    pub groups: &'a [BorrowedFd<'a>],
    /// What the clone has in place of the frozen outside, in its order.
    pub supplied: &'a [BorrowedFd<'a>],
    /// What the first process waits at, if it is to become one of the image.
    pub cradle: Option<Cradle<'a>>,
}

/// The other end of the socket that a first process has as its descriptor 0, which runs [`crate::program`] and waits to become one of the image.
#[derive(Clone, Copy, Debug)]
pub struct Cradle<'a>(pub BorrowedFd<'a>);

/// Why a clone was not made. Nothing of it runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloneError {
    /// The kernel did not do its part.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A step in a process of the clone failed.
    #[error("making the clone, {step}: {source}")]
    Step {
        /// What it was to do.
        step: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A process of the clone ended before it ran.
    #[error("a process of the clone ended before it ran")]
    Ended,
    /// Some thread does not become ready.
    #[error("the clone did not become ready within {SECONDS} seconds")]
    Late,
    /// The first process cannot be made.
    #[error(transparent)]
    Unmade(FreezeError),
    /// The image has a first process, and nobody waits to become that.
    #[error("the image has a first process of its own, and none waits to become it")]
    NoCradle,
    /// A first process waits to become one of the image, and that has none.
    #[error("the image has no first process, and the guest that it is said to be of has an init of its own")]
    NoFirst,
    /// The holder holds nothing.
    #[error("the holder holds no image")]
    Empty,
    /// The image needs descriptors of the outside.
    #[error("the image needs {wanted} descriptors of the outside, {given} were given")]
    Supplies {
        /// How many.
        wanted: usize,
        /// How many there are.
        given: usize,
    },
}

const SECONDS: i64 = 30;

/// A clone every thread of which waits to run. Dropped, it ends; [`Self::go`] lets it run.
#[derive(Debug)]
pub struct Ready {
    gate: OwnedFd,
    reports: OwnedFd,
    processes: usize,
}

impl Ready {
    /// Lets the clone run, and waits until every thread of it does: a process lets go of its end of the reports when its last thread has passed.
    pub fn go(self) -> Result<(), CloneError> {
        let bytes = vec![1; self.processes];
        let mut sent = 0;
        while sent < bytes.len() {
            sent += rustix::io::write(&self.gate, &bytes[sent..]).context(|| "letting a clone run".into())?;
        }
        // They have taken all they need of it.
        drop(self.gate);
        match report(&self.reports)? {
            None => Ok(()),
            Some(_) => Err(CloneError::Ended),
        }
    }
}

impl Frozen {
    /// Makes a clone, up to its first instruction.
    pub fn clone_into(&self, target: &Target<'_>) -> Result<Ready, CloneError> {
        self.holder.clone_into(&self.image, target)
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
        let namespaces = namespaces(target.init)?;
        if image.first().is_none() && target.cradle.is_some() {
            return Err(CloneError::NoFirst);
        }
        let first = image.first().map(|_| First::begin(self, image, target)).transpose()?;
        let mut fds = vec![report.as_fd(), theirs.as_fd()];
        fds.extend(target.cgroup);
        fds.extend(target.groups);
        fds.extend(namespaces.iter().map(AsFd::as_fd));
        let supplied = &target.supplied[..script.supplied];
        fds.extend(supplied);
        fds.extend(first.as_ref().map(|first| first.handover.as_fd()));
        let request = Request::Clone {
            cgroups: u32::from(target.cgroup.is_some()),
            groups: target.groups.len() as u32,
            namespaces: namespaces.len() as u32,
            supplied: (supplied.len() + usize::from(first.is_some())) as u32,
        };
        let answer = self.ask(request, &fds).context(what)?;
        drop((report, theirs));
        // It must be gone where the maker is.
        let first = first.map(|First { script, cradle, .. }| (script, cradle));
        let stands = || {
            if answer.errno != 0 {
                return Err((answer.errno, answer.step).into());
            }
            (0..script.reports).try_for_each(|_| match self::report(&reports)? {
                Some(Report { errno: 0, .. }) => Ok(()),
                Some(Report { errno, step }) => Err((errno, step).into()),
                None => Err(Hindrance::Other(CloneError::Ended)),
            })
        };
        match stands() {
            Ok(()) => Ok(Ready { gate, reports, processes: script.reports }),
            Err(hindrance) => Err(hindrance.explained(script, first.as_ref())),
        }
    }
}

/// Why the processes of a clone do not stand.
enum Hindrance {
    /// A step, and the error.
    Step {
        errno: i32,
        step: u32,
    },
    Other(CloneError),
}

impl From<(i32, u32)> for Hindrance {
    fn from((errno, step): (i32, u32)) -> Self {
        Self::Step { errno, step }
    }
}

impl From<CloneError> for Hindrance {
    fn from(error: CloneError) -> Self {
        Self::Other(error)
    }
}

impl Hindrance {
    /// In words. With a first process all others end, and what it says itself is the reason.
    fn explained(self, script: &Script, first: Option<&(Script, BorrowedFd<'_>)>) -> CloneError {
        let own = first.and_then(|(_, cradle)| {
            let mut polled = [PollFd::new(cradle, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let said = matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1));
            said.then(|| holder::answer(cradle).ok()).flatten()
        });
        let hindrance = own.map_or(self, |answer| (answer.errno, answer.step).into());
        let (errno, step) = match hindrance {
            Self::Step { errno, step } => (errno, step),
            Self::Other(error) => return error,
        };
        let beyond = u64::from(step).checked_sub(script.length());
        let label = match (beyond, first) {
            (Some(step), Some((own, _))) => own.label(u32::try_from(step).unwrap_or(u32::MAX)),
            _ => script.label(step),
        };
        CloneError::Step { step: label.to_owned(), source: io::Error::from_raw_os_error(errno) }
    }
}

/// A first process that becomes one of the image.
struct First<'a> {
    script: Script,
    cradle: BorrowedFd<'a>,
    /// Where the maker hands over what it has made.
    handover: OwnedFd,
}

impl<'a> First<'a> {
    /// Sends it all that it needs but what the maker will hand over.
    fn begin(holder: &Holder, image: &Image, target: &Target<'a>) -> Result<Self, CloneError> {
        let what = || "making a clone's first process".to_owned();
        let Cradle(cradle) = target.cradle.ok_or(CloneError::NoCradle)?;
        let script = holder.script_of_first(image, target.init)?.ok_or(CloneError::NoCradle)?;
        let file = memory_file::sealed("pando-script", &script.bytes, false).context(what)?;
        let length = u32::try_from(script.bytes.len())
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
            .context(what)?;
        let (handover, theirs) = packet::pair().context(what)?;
        let memory = holder.memory()?;
        let fds = [file.as_fd(), memory.as_fd(), theirs.as_fd()];
        holder::send(cradle, Request::Become { length }, &fds).context(what)?;
        Ok(Self { script, cradle, handover })
    }
}

/// The next report; `None` when nobody is left who could make one.
fn report(reports: &OwnedFd) -> Result<Option<Report>, CloneError> {
    let what = || "waiting for a clone".to_owned();
    let mut ready = [PollFd::new(reports, PollFlags::IN)];
    let limit = Timespec { tv_sec: SECONDS, tv_nsec: 0 };
    if rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, Some(&limit))).context(what)? == 0 {
        return Err(CloneError::Late);
    }
    let mut bytes = [0; Report::LENGTH];
    match rustix::io::read(reports, &mut bytes).context(what)? {
        Report::LENGTH => Ok(Some(Report::from_bytes(bytes))),
        _ => Ok(None),
    }
}

/// The namespaces of a process that are not ours, the user namespace first: the right to enter the others comes with it.
fn namespaces(pid: i32) -> Result<Vec<OwnedFd>, CallError> {
    let mut namespaces = Vec::new();
    for kind in ["user", "cgroup", "ipc", "uts", "net", "pid", "mnt"] {
        let path = format!("/proc/{pid}/ns/{kind}");
        let link = |path: &str| std::fs::read_link(path).context(|| format!("reading {path}"));
        if link(&path)? != link(&format!("/proc/self/ns/{kind}"))? {
            namespaces.push(File::open(&path).context(|| format!("opening {path}"))?.into());
        }
    }
    Ok(namespaces)
}
