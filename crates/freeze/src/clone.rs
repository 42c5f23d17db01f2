//! Making a clone: below a first process that somebody else has started, in its namespaces.

use crate::holder::Holder;
use pando_kernel::{CallError, Context};
use pando_restorer::{Report, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where a clone is to live.
#[derive(Debug)]
pub struct Target<'a> {
    /// The first process of the clone's pid namespace. It has the clone's namespaces and root, reaps whatever dies, and runs nothing of the image.
    pub init: i32,
    /// Directory of the cgroup (version 2) to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Files `cgroup.procs` of cgroups (version 1) to join.
    pub groups: &'a [BorrowedFd<'a>],
    /// What the clone has in place of the frozen outside, in its order.
    pub supplied: &'a [BorrowedFd<'a>],
}

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

impl Holder {
    /// Makes a clone of what this holder holds, up to its first instruction.
    pub fn clone_into(&self, target: &Target<'_>) -> Result<Ready, CloneError> {
        let script = self.script()?;
        if target.supplied.len() < script.supplied {
            return Err(CloneError::Supplies { wanted: script.supplied, given: target.supplied.len() });
        }
        let what = || "making a clone".to_owned();
        let (reports, report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context(what)?;
        let (theirs, gate) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context(what)?;
        let namespaces = namespaces(target.init)?;
        let mut fds = vec![report.as_fd(), theirs.as_fd()];
        fds.extend(target.cgroup);
        fds.extend(target.groups);
        fds.extend(namespaces.iter().map(AsFd::as_fd));
        fds.extend(target.supplied);
        let request = Request::Clone {
            cgroups: u32::from(target.cgroup.is_some()),
            groups: target.groups.len() as u32,
            namespaces: namespaces.len() as u32,
            supplied: target.supplied.len() as u32,
        };
        let answer = self.ask(request, &fds).context(what)?;
        drop((report, theirs));
        if answer.errno != 0 {
            return Err(self.failed(answer.errno, answer.step));
        }
        for _ in 0..script.reports {
            match self::report(&reports)? {
                Some(Report { errno: 0, .. }) => {}
                Some(Report { errno, step }) => return Err(self.failed(errno, step)),
                None => return Err(CloneError::Ended),
            }
        }
        Ok(Ready { gate, reports, processes: script.reports })
    }

    fn failed(&self, errno: i32, step: u32) -> CloneError {
        let label = self.script().map_or("preparing", |script| script.label(step));
        CloneError::Step { step: label.to_owned(), source: io::Error::from_raw_os_error(errno) }
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
