//! Freezing: look, stop, read, fill a holder, let run.

pub(crate) mod migrate;
pub(crate) mod stopped_set;

use crate::capture::ahead::Ahead;
use crate::capture::early_contents::EarlyContents;
use crate::capture::findings::Known;
use crate::capture::generators::{self, Program};
use crate::capture::in_flight::Flight;
use crate::capture::inotify::Searched;
use crate::capture::ipc::Ipc;
use crate::capture::{fork_sharing, networks, tree};
use crate::clone::frozen::Frozen;
use crate::clone::holder::Holder;
use crate::clone::planted;
use crate::freeze::stopped_set::StoppedSet;
use crate::image::connection::Ends;
use crate::image::{AreaKind, Image};
use crate::inspect::process_tree::Roots;
use crate::inspect::{areas, limits, machine};
use crate::origin::Origin;
use crate::precheck::{dispatched_calls, host_settings, sockets, survey};
use crate::refusal::{FreezeError, Refusal};
use crate::restore::slots::Slots;
use crate::restore::{facts, plan};
use crate::stop::seize::Stopped;
use crate::subject::Subject;
use pando_kernel::CallError;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Freezes the processes of a pid namespace. `at_rest` runs while they stand still: it is the time to copy their files.
/// It gives a directory that has them as they are now: what the processes map privately is mapped from there for as
/// long as the image is held. They run on afterwards, whether or not all that succeeds.
pub fn freeze(
    subject: &Subject<'_>,
    at_rest: impl FnOnce() -> Result<OwnedFd, CallError>,
) -> Result<Frozen, FreezeError> {
    freeze_with(subject, Manner::Snapshots, at_rest, Ok)
}

/// How memory is copied while processes are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// While the processes run on, where that is possible. It takes memory for what they write to meanwhile.
    Snapshots,
    /// Memory is copied while the processes stand still.
    AtRest,
}

/// The same. `root` makes the directory of what `at_rest` gave, and need not be waited for by the processes.
pub fn freeze_with<T>(
    subject: &Subject<'_>,
    manner: Manner,
    at_rest: impl FnOnce() -> Result<T, CallError>,
    root: impl FnOnce(T) -> Result<OwnedFd, CallError>,
) -> Result<Frozen, FreezeError> {
    let Still { mut image, mut holder, mut standing, begun } =
        stand_still(subject, &Roots::find(subject.init, subject.whole)?)?;
    let connections = standing.read_connections(&image)?;
    // What processes share a snapshot shares too: it goes on changing.
    let early = if manner == Manner::Snapshots && image.keyed.is_empty() {
        EarlyContents::copy(&image, &standing.themselves(subject, &image))?
    } else {
        None
    };
    if early.is_some() {
        standing.take_snapshots(&image)?;
    }
    let files = at_rest()?;
    let (root, pause) = if let Some((sources, early)) = standing.snapshots(&image).zip(early) {
        standing.let_run();
        let pause = begun.elapsed();
        let root = root(files)?;
        let origin = Origin::Processes { sources, init: subject.init, keeper: 0, early: Some(early.path()) };
        hold(origin, &mut image, &mut holder, &root)?;
        (root, pause)
    } else {
        let root = root(files)?;
        hold(standing.themselves(subject, &image), &mut image, &mut holder, &root)?;
        standing.let_run();
        (root, begun.elapsed())
    };
    let unheard = standing.unheard();
    drop(standing);
    let generators = generators::find(programs(&image), &root);
    let files = machine::mapped(&image, root)?;
    let alike = AtomicBool::new(false);
    Ok(Frozen { image, holder, pause, connections, generators, unheard, files, alike })
}

/// Freezes likewise, and the processes do not run on: when all is held, `keep` is told of it, and then the first
/// process of their pid namespace is ended, and they with it. If either cannot be, they run on. `withhold` is told of
/// the TCP connections that they have with others: from there on nothing may come to them, and nothing be answered,
/// until they are revived or given up; whoever is told does that too where freezing fails.
pub fn freeze_and_end(
    subject: &Subject<'_>,
    withhold: impl FnOnce(&[Ends]) -> Result<(), CallError>,
    at_rest: impl FnOnce() -> Result<OwnedFd, CallError>,
    keep: impl FnOnce(&Frozen) -> Result<(), FreezeError>,
) -> Result<Frozen, FreezeError> {
    let Still { mut image, mut holder, mut standing, begun } =
        stand_still(subject, &Roots::find(subject.init, subject.whole)?)?;
    let connections = standing.find_connections(&image, subject.init)?;
    // The process that is to end with them was looked up by its pid.
    subject.is_there()?;
    withhold(&connections)?;
    let connections = standing.take_connections()?;
    let root = at_rest()?;
    hold(standing.themselves(subject, &image), &mut image, &mut holder, &root)?;
    let generators = generators::find(programs(&image), &root);
    let files = machine::mapped(&image, root)?;
    let (pause, alike) = (begun.elapsed(), AtomicBool::new(false));
    let unheard = standing.unheard();
    let frozen = Frozen { image, holder, pause, connections, generators, unheard, files, alike };
    keep(&frozen)?;
    standing.end()?;
    Ok(frozen)
}

/// What the processes of an image execute.
fn programs(image: &Image) -> impl Iterator<Item = Program<'_>> {
    image.processes.iter().filter_map(|process| {
        let code = process.areas.iter().filter_map(|area| match &area.kind {
            AreaKind::Private { path, .. } if area.protection & libc::PROT_EXEC as u32 != 0 => Some(path.as_str()),
            _ => None,
        });
        let name = &process.threads.first()?.name;
        Some(Program { pid: process.pid, name, code: code.collect() })
    })
}

/// Processes that stand still, and all that is known of them but their memory.
pub(crate) struct Still {
    pub(crate) image: Image,
    /// The holder, which holds nothing yet.
    pub(crate) holder: Holder,
    pub(crate) standing: StoppedSet,
    begun: Instant,
}

/// Stops the processes below some roots.
pub(crate) fn stand_still(subject: &Subject<'_>, roots: &Roots) -> Result<Still, FreezeError> {
    subject.is_there()?;
    let searched = Searched::default();
    let looked_at = roots.members().iter().map(|member| member.outer).collect();
    let refusals = lasting_refusals(subject, roots, &searched)?;
    if !refusals.is_empty() {
        return Err(FreezeError::Refused(refusals));
    }
    let holder = Holder::start()?;
    let refusals = host_settings::objections(&roots.members(), holder.pid())?;
    if !refusals.is_empty() {
        return Err(FreezeError::Refused(refusals));
    }
    // What waits is done before anybody is stopped.
    let prepare = || {
        let task_iterator = subject.task_iterator.and_then(|task_iterator| task_iterator.again().ok());
        Ok((Ipc::of(subject.init)?, task_iterator, subject.held_again()?))
    };
    let (standing, prepared) = StoppedSet::nobody(prepare)?;
    let (ipc, task_iterator, first) = &*prepared;
    // It was that one which was held again.
    subject.is_there()?;
    let (net_settings, net_device) = (networks::settings(subject), networks::device(subject));
    let ahead = Ahead::of(roots);
    let known = Known {
        searched: &searched,
        ipc,
        ahead: &ahead,
        task_iterator: task_iterator.as_ref(),
        net_settings: &net_settings,
        net_device: net_device.as_ref(),
        looked_at: &looked_at,
    };
    let begun = Instant::now();
    let (standing, image) = standing.stop(roots, |stopped| {
        // Who is traced keeps his pid, also when he has ended. Whose the first one's is shows only afterwards.
        Subject { held: first.as_ref(), ..*subject }.is_there()?;
        look(subject, stopped, &known)
    })?;
    Ok(Still { image, holder, standing, begun })
}

/// What stands in the way each time that one looks: of a tree that runs, some of what is seen has just begun or is
/// about to end.
fn lasting_refusals(subject: &Subject<'_>, roots: &Roots, searched: &Searched) -> Result<Vec<Refusal>, FreezeError> {
    const LOOKS: usize = 4;
    const BETWEEN: Duration = Duration::from_millis(5);
    let look = || survey::survey_roots(subject, roots, searched);
    let mut refusals = look()?;
    for _ in 1..LOOKS {
        if refusals.is_empty() {
            break;
        }
        std::thread::sleep(BETWEEN);
        let again = look()?;
        refusals.retain(|refusal| again.contains(refusal));
    }
    Ok(refusals)
}

/// Reads what there is, but for memory. What is in flight is kept: it may be nowhere else.
fn look(subject: &Subject<'_>, stopped: &[Stopped], known: &Known<'_>) -> Result<(Image, Flight), FreezeError> {
    let members: Vec<_> = stopped.iter().map(|process| process.member.clone()).collect();
    // What was looked at before may have changed until the stop.
    let mut found = survey::survey_stopped(subject, &members, known)?;
    if !found.refusals.is_empty() {
        return Err(FreezeError::Refused(std::mem::take(&mut found.refusals)));
    }
    // Of the others the task_iterator has told.
    let untold = stopped.iter().filter(|process| !found.told.contains_key(&process.member.outer));
    let mut late = dispatched_calls::objections(untold)?;
    let (image, flight) = tree::capture(subject, stopped, known, found)?;
    late.extend(sockets::late_objections(&image));
    late.extend(crowd(&image));
    if late.is_empty() { Ok((image, flight)) } else { Err(FreezeError::Refused(late)) }
}

/// Open files that whoever makes a clone could not have side by side.
fn crowd(image: &Image) -> Option<Refusal> {
    let most = image.processes.iter().max_by_key(|process| process.descriptors.len())?;
    let name = most.threads.first().map_or_else(String::new, |one| String::from_utf8_lossy(&one.name).into_owned());
    limits::too_many_open(Slots::of(image).most_open(image), (most.pid, &name))
}

/// Has the holder copy memory.
fn hold(origin: Origin, image: &mut Image, holder: &mut Holder, root: &OwnedFd) -> Result<(), FreezeError> {
    hold_above(origin, image, holder, root, 0)
}

/// The same for where pids up to one are taken.
pub(crate) fn hold_above(
    origin: Origin,
    image: &mut Image,
    holder: &mut Holder,
    root: &OwnedFd,
    taken: i32,
) -> Result<(), FreezeError> {
    if let Origin::Processes { sources, .. } = &origin {
        for (process, source) in image.processes.iter_mut().zip(sources) {
            if !process.threads.is_empty() {
                areas::refresh(*source, &mut process.areas)?;
                areas::find_pages(*source, &mut process.areas)?;
            }
        }
        fork_sharing::find(sources, &mut image.processes)?;
    }
    let facts = facts::Facts { taken, ..holder.facts(origin)? };
    let script = plan::script(&planted::of(image), &facts)?;
    limits::lift(image, holder.pid())?;
    holder.hold(script, root.as_fd(), false)?;
    Ok(())
}
