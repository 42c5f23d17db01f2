//! Moving a tree of processes from one pid namespace into another: it is frozen, cloned there, ended here, and only
//! then runs on. Until it is ended here nothing has happened: whatever fails, it runs on where it was.

use crate::clone::error::CloneError;
use crate::clone::start::Target;
use crate::freeze::{Still, hold_above, stand_still};
use crate::image::{AreaKind, FileKind, Image, Process};
use crate::inspect::proc_file::Lines;
use crate::inspect::process_tree::{self, Roots};
use crate::refusal::{FreezeError, Refusal};
use crate::subject::Subject;
use pando_kernel::{CallError, Context};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Where a tree of processes goes.
#[derive(Debug)]
pub struct Bed<'a> {
    /// A guest's first process, its groups, and what stands for the outside there.
    pub target: Target<'a>,
    /// Its group of version 2, as a file that pids are written to.
    pub procs: Option<std::os::fd::BorrowedFd<'a>>,
}

/// How much has been moved to the other pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// How many processes have been moved.
    pub processes: usize,
    /// How many threads those processes have.
    pub threads: usize,
    /// How long they stood still.
    pub pause: Duration,
}

/// Why processes were not moved. They run on where they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// They cannot be taken from where they are.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// They cannot be had where they were to go.
    #[error(transparent)]
    Clone(#[from] CloneError),
    /// Somebody there has one of their numbers.
    #[error("pid {0} is taken there, and a process keeps its number; stop that process first")]
    Taken(i32),
}

impl From<CallError> for MigrateError {
    fn from(error: CallError) -> Self {
        Self::Freeze(error.into())
    }
}

/// Moves `processes`, pids here, and all below them. `files` sees to it that the files that they have open are there,
/// too, and gives the directory that what they map privately is mapped from.
pub fn migrate(
    subject: &Subject<'_>,
    processes: &[i32],
    bed: &Bed<'_>,
    files: impl FnOnce(&Image) -> Result<OwnedFd, FreezeError>,
) -> Result<Moved, MigrateError> {
    let begun = Instant::now();
    let Still { mut image, mut holder, standing, .. } = stand_still(subject, &Roots::of(processes))?;
    let mut shared = segments(&image);
    shared.extend(queues(&image));
    shared.extend(spaces(&image));
    shared.extend(in_flight(&image));
    // What System V IPC and the message queues keep is not the processes' own, and stays.
    image.keyed.clear();
    image.queues.clear();
    if !shared.is_empty() {
        return Err(FreezeError::Refused(shared).into());
    }
    let taken = pids(bed.target.init)?;
    if let Some(pid) = own_pids(&image).find(|pid| taken.contains(pid)) {
        return Err(MigrateError::Taken(pid));
    }
    let root = files(&image)?;
    // Memory is charged to whoever fills it first.
    enter(bed, holder.pid())?;
    let highest = taken.into_iter().max().unwrap_or(0);
    hold_above(standing.themselves(subject, &image), &mut image, &mut holder, &root, highest)?;
    let ready = holder.clone_into(&image, &bed.target)?;
    let threads = image.processes.iter().map(|process| process.threads.len()).sum();
    standing.end()?;
    ready.go()?;
    Ok(Moved { processes: image.processes.len(), threads, pause: begun.elapsed() })
}

/// Memory of System V that is shared with who stays.
fn segments(image: &Image) -> Vec<Refusal> {
    let has = |area: &crate::image::Area| matches!(area.kind, AreaKind::Segment { .. });
    let processes = image.processes.iter().filter(|process| process.areas.iter().any(has));
    processes.map(|process| refusal(process, None, "shared memory of System V")).collect()
}

/// Message queues, which belong to the guest that they are in.
fn queues(image: &Image) -> Vec<Refusal> {
    let is_queue = |file: usize| image.files.get(file).is_some_and(|file| matches!(file.kind, FileKind::Queue { .. }));
    let mut refusals = Vec::new();
    for process in &image.processes {
        for one in process.descriptors.iter().filter(|one| is_queue(one.file)) {
            refusals.push(refusal(process, Some(one.number), "a message queue"));
        }
    }
    refusals
}

/// Namespaces beside the guest's, and files of such: they are made of the guest that they are in.
fn spaces(image: &Image) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for process in &image.processes {
        if process.mount_space.is_some() {
            refusals.push(refusal(process, None, "a mnt namespace of its own"));
        }
        if process.ipc_space.is_some() {
            refusals.push(refusal(process, None, "an ipc namespace of its own"));
        }
        if process.net_space.is_some() {
            refusals.push(refusal(process, None, "a net namespace of its own"));
        }
        if process.user_space.is_some() {
            refusals.push(refusal(process, None, "a user namespace of its own"));
        }
        for one in process.descriptors.iter().filter(|one| leads_to_namespace(image, one.file)) {
            refusals.push(refusal(process, Some(one.number), "a namespace, or a socket of another"));
        }
        let elsewhere = |file: usize| image.files.get(file).is_some_and(|file| file.mount_space.is_some());
        for one in process.descriptors.iter().filter(|one| process.mount_space.is_none() && elsewhere(one.file)) {
            refusals.push(refusal(process, Some(one.number), "a file of another mnt namespace"));
        }
    }
    refusals
}

/// Whether an open file is a namespace, or a socket of another than its process's.
fn leads_to_namespace(image: &Image, file: usize) -> bool {
    match image.files.get(file).map(|file| &file.kind) {
        Some(FileKind::Namespace { .. }) => true,
        Some(FileKind::Plain(socket)) => socket.net_space.is_some(),
        Some(FileKind::Unix { socket }) => image.unix.get(*socket).is_some_and(|socket| socket.net_space.is_some()),
        _ => false,
    }
}

/// The same of what waits in unix sockets, which nobody has.
fn in_flight(image: &Image) -> Vec<Refusal> {
    let is_guests = |number: &usize| {
        let of_it =
            |file: &crate::image::OpenFile| file.mount_space.is_some() || matches!(file.kind, FileKind::Queue { .. });
        leads_to_namespace(image, *number) || image.files.get(*number).is_some_and(of_it)
    };
    let first = image.processes.first().filter(|_| image.in_flight().any(|file| is_guests(&file)));
    first
        .map(|process| refusal(process, None, "a file of its guest's own that waits in a unix socket"))
        .into_iter()
        .collect()
}

fn refusal(process: &Process, descriptor: Option<i32>, kind: &str) -> Refusal {
    Refusal {
        pid: process.pid,
        name: process.threads.first().map(|one| String::from_utf8_lossy(&one.name).into_owned()).unwrap_or_default(),
        descriptor,
        kind: kind.into(),
        advice: "freeze and clone the whole guest",
    }
}

fn own_pids(image: &Image) -> impl Iterator<Item = i32> {
    image
        .processes
        .iter()
        .flat_map(|process| process.threads.iter().map(|thread| thread.tid).chain([process.pid]).collect::<Vec<_>>())
}

/// All pids of a namespace, those of threads, groups and sessions too.
fn pids(init: i32) -> Result<HashSet<i32>, CallError> {
    let mut pids = HashSet::from([1]);
    for member in Roots::find(init, false)?.members() {
        for tid in process_tree::threads(member.outer).unwrap_or_default() {
            let Ok(status) = Lines::read(tid, "status") else { continue };
            let last = |key: &str| status.words(key).last().and_then(|word| word.parse::<i32>().ok());
            pids.extend(["NSpid", "NSpgid", "NSsid"].into_iter().filter_map(last));
        }
        pids.insert(member.pid);
    }
    Ok(pids)
}

/// Moves a process into the groups.
fn enter(bed: &Bed<'_>, pid: i32) -> Result<(), CallError> {
    let text = pid.to_string();
    for group in bed.target.groups.iter().chain(&bed.procs) {
        rustix::io::write(group, text.as_bytes()).context(|| "moving the holder into the guest's groups".into())?;
    }
    Ok(())
}
