//! What stands in the way of a first process's becoming another program.

use crate::bpf::task_records::TaskRecords;
use crate::capture::control_groups;
use crate::capture::findings::{Findings, Known};
use crate::capture::in_flight::Flight;
use crate::capture::inotify::Searched;
use crate::capture::ipc::Ipc;
use crate::capture::lost_names::{self, Name, of, of_open};
use crate::capture::mount_spaces::Spaces;
use crate::capture::nested::Nested;
use crate::image::memory::USER_END;
use crate::image::{Area, AreaKind};
use crate::inspect::areas::{self, Seen};
use crate::inspect::descriptors::{self, Found, Outside};
use crate::inspect::limits;
use crate::inspect::namespaces::Beside;
use crate::inspect::proc_file::{self, Lines};
use crate::inspect::process_tree::{self, Member, Roots};
use crate::precheck::descriptors::descriptor_objection;
use crate::precheck::unsupported_state::Usual;
use crate::precheck::{aio, inotify, own_network, own_proc, pidfd, pipes, sharing, sockets, sysv, terminals};
use crate::refusal::Refusal;
use crate::restore::staging::{self, STAGING};
use crate::stop::seize::{END_DEBUGGER, TRACED};
use crate::subject::Subject;
use pando_kernel::CallError;
use pando_restorer::{REGION, REGION_LENGTH};
use std::collections::HashMap;
use std::io::ErrorKind;

/// The most further threads of a process: their stacks fit the restorer's region.
const MOST_THREADS: usize = 16_384;

/// Everything that stands in the way of freezing processes.
pub fn survey(subject: &Subject<'_>) -> Result<Vec<Refusal>, CallError> {
    survey_roots(subject, &Roots::find(subject.init, subject.whole)?, &Searched::default())
}

/// The same below roots that are known.
pub(crate) fn survey_roots(
    subject: &Subject<'_>,
    roots: &Roots,
    searched: &Searched,
) -> Result<Vec<Refusal>, CallError> {
    // Made anew each time: its end waits for a grace period, and nobody for that.
    survey_members(subject, &roots.members(), (searched, &Ipc::of(subject.init)?), None).map(|found| found.refusals)
}

/// The same for processes that we have stopped, and looked at before.
pub(crate) fn survey_stopped(
    subject: &Subject<'_>,
    members: &[Member],
    known: &Known<'_>,
) -> Result<Findings, CallError> {
    survey_members(subject, members, (known.searched, known.ipc), Some(known)).map(|mut found| {
        // By us.
        found.refusals.retain(|refusal| refusal.kind != TRACED);
        found
    })
}

/// The same for processes that are known. A process that has gone meanwhile has nothing against it.
fn survey_members(
    subject: &Subject<'_>,
    members: &[Member],
    (searched, kept): (&Searched, &Ipc),
    known: Option<&Known<'_>>,
) -> Result<Findings, CallError> {
    let Subject { init, outside, .. } = *subject;
    let stopped = known.is_some();
    let mut refusals = Vec::new();
    let mut descriptors: Vec<(&Member, Vec<Found>)> = Vec::new();
    let mut areas = HashMap::new();
    let home = Home::of(init)?;
    let mut nested = Nested::of(subject, members)?;
    let groups = control_groups::Tree::of(subject)?;
    let usual = Usual::of(init, known.map_or(subject.task_iterator, |known| known.task_iterator))?;
    let all_told = told_of(members, &usual, stopped);
    refusals.extend(sharing::objections(members, known.map(|known| known.looked_at)));
    refusals.extend(members.iter().filter(|member| member.state == 'Z').filter_map(leaderless));
    for member in members.iter().filter(|member| member.state != 'Z') {
        let (status, told) = (Lines::read(member.outer, "status").ok(), all_told.get(&member.outer));
        let mut objections = home.objections(member, status.as_ref());
        if let Ok(seen) = known.map_or_else(|| areas::read(member.outer), |known| known.ahead.read(member.outer)) {
            objections.extend(memory_objections(&seen));
            let plain: Vec<_> = seen.into_iter().map(|seen| seen.area).collect();
            objections.extend(nested.mounts.member_objections(member, &plain));
            objections.extend(ipc_objection(&nested.ipc, member, &plain));
            objections.extend(lost_name_objections(member.outer, &plain));
            let contexts = told.and_then(|told| told.contexts.as_deref());
            objections.extend(aio::objections(&plain, contexts, stopped));
            areas.insert(member.outer, plain);
        }
        objections.extend(usual.objections(member.outer, told));
        if member.outer == init {
            objections.extend(first_process_objections(init));
            objections.extend(groups.iter().flat_map(control_groups::Tree::objections));
        }
        if let Ok(found) = descriptors::list(member.outer) {
            refusals.extend(file_objections(init, (member, &found), outside, &nested.mounts));
            descriptors.push((member, found));
        }
        refusals.extend(objections.into_iter().map(|(kind, advice)| refusal(member, None, kind, advice)));
    }
    if !stopped {
        refusals.extend(own_network::objections(subject, members)?);
    }
    refusals.extend(reservation(members, &areas));
    refusals.extend(crowd(&descriptors));
    // What is in flight is looked at as what one more process has.
    let (flight, waiting) = Flight::look(&descriptors, outside, stopped)?;
    refusals.extend(flight.objections(&waiting));
    let (held, carriers) = (descriptors.len(), flight.members());
    for (member, found) in carriers.iter().zip(waiting) {
        refusals.extend(file_objections(init, (member, &found), outside, &nested.mounts));
        descriptors.push((member, found));
    }
    refusals.extend(nested.complete(members, &descriptors, stopped)?);
    refusals.extend(between(subject, members, &descriptors, (searched, &nested, stopped))?);
    refusals.extend(sysv::objections(&kept.keys, members)?);
    refusals.extend(sysv::part_objections(&kept.keys, members, &areas)?);
    refusals.extend(kept.queues.objections(members, &descriptors, outside)?);
    flight.explain(&mut refusals);
    let waiting = descriptors.split_off(held).into_iter().map(|(_, found)| found).collect();
    let descriptors = descriptors.into_iter().map(|(member, found)| (member.outer, found)).collect();
    Ok(Findings { refusals, areas, descriptors, told: all_told, flight: (flight, waiting), nested, groups })
}

/// What is told of processes; of those that stand still when what they have asked for is done: that has changed files,
/// and what else they have open.
fn told_of(members: &[Member], usual: &Usual<'_>, stopped: bool) -> HashMap<i32, TaskRecords> {
    let living = members.iter().filter(|member| member.state != 'Z');
    let look = |outer: i32| usual.look(outer);
    let mut told = living.filter_map(|member| Some((member.outer, look(member.outer)?))).collect();
    if stopped {
        aio::let_end(&mut told, look);
    }
    told
}

/// Who has so many descriptors that whoever makes a clone could not have them: above those that it will have, all its
/// open files lie side by side. How many processes share is seen when they stand still.
fn crowd(descriptors: &[(&Member, Vec<Found>)]) -> Option<Refusal> {
    let needed = |found: &[Found]| found.last().map_or(0, |last| last.number as u64 + 1) + found.len() as u64;
    let most = descriptors.iter().map(|(member, found)| (*member, needed(found))).max_by_key(|(_, needed)| *needed)?;
    limits::too_many_open(most.1, (most.0.pid, &most.0.name))
}

/// Addresses that have no room side by side in a holder, named by whoever has most of them.
fn reservation(members: &[Member], areas: &HashMap<i32, Vec<Area>>) -> Option<Refusal> {
    const TERABYTE: u64 = 1 << 40;
    let in_order = || members.iter().filter_map(|member| Some((member, areas.get(&member.outer)?)));
    if staging::has_room(in_order().map(|(_, areas)| areas.as_slice())) {
        return None;
    }
    let bytes = |areas: &[Area]| -> u64 { areas.iter().map(|area| area.end - area.start).sum() };
    let (member, most) = in_order().map(|(member, areas)| (member, bytes(areas))).max_by_key(|(_, bytes)| *bytes)?;
    let all: u64 = in_order().map(|(_, areas)| bytes(areas)).sum();
    let kind = format!(
        "it reserves {} TiB of addresses, and all processes together {} TiB, more than the {} TiB that an image can have",
        most / TERABYTE,
        all / TERABYTE,
        (STAGING.end - STAGING.start) / TERABYTE
    );
    Some(refusal(member, None, kind, "start fewer such programs, as those built with a sanitizer are"))
}

fn leaderless(member: &Member) -> Option<Refusal> {
    sharing::leaderless(member.outer).map(|(kind, advice)| refusal(member, None, kind, advice))
}

/// What stands in the way of open files that nobody can tell by one of them, but by all, or by who has them.
fn between(
    subject: &Subject<'_>,
    members: &[Member],
    descriptors: &[(&Member, Vec<Found>)],
    (searched, nested, stopped): (&Searched, &Nested, bool),
) -> Result<Vec<Refusal>, CallError> {
    let Subject { init, outside, .. } = *subject;
    let mut refusals = pidfd::objections(init, members, descriptors, outside);
    refusals.extend(pipes::objections(descriptors, outside));
    refusals.extend(sockets::objections(init, descriptors, outside, (&nested.nets, stopped))?);
    refusals.extend(inotify::objections(init, descriptors, outside, searched)?);
    refusals.extend(own_proc::objections(process_tree::number_inside(init), descriptors, outside));
    let supplied = |one: &Found| descriptors::supplied(one, outside).is_some();
    refusals.extend(terminals::objections(descriptors, subject.console, supplied));
    Ok(refusals)
}

/// What stands in the way of some open files by themselves.
fn file_objections(
    init: i32,
    (member, found): (&Member, &[Found]),
    outside: &[Outside],
    spaces: &Spaces,
) -> Vec<Refusal> {
    let objection = |one: &Found| {
        let elsewhere = || spaces.file_objection(member.outer, one, outside);
        let renamed = || open_file_objection(init, one, outside);
        let (kind, advice) = descriptor_objection(one, outside).or_else(renamed).or_else(elsewhere)?;
        Some(refusal(member, Some(one.number), kind, advice))
    };
    found.iter().filter_map(objection).collect()
}

fn refusal(member: &Member, descriptor: Option<i32>, kind: String, advice: &'static str) -> Refusal {
    Refusal { pid: member.pid, name: member.name.clone(), descriptor, kind, advice }
}

/// Paths, in the file system of the first process's root, of the files of it that processes map so that writing to
/// memory writes to them: it shows in no time of the file.
///
/// # Errors
///
/// Also where it cannot be told which file of it is mapped.
pub fn written_mappings(subject: &Subject<'_>) -> Result<Vec<String>, CallError> {
    let mut paths = Vec::new();
    let members = Roots::find(subject.init, subject.whole)?.members();
    let spaces = Spaces::of(subject, &members)?;
    for member in members.iter().filter(|member| member.state != 'Z') {
        let areas = match areas::read(member.outer) {
            Err(_) if process_tree::is_gone(member.outer) || process_tree::has_ended(member.outer) => continue,
            read => read?,
        };
        for seen in areas {
            let (file, name) = (areas::map_file(&seen.area), of(member.outer, &seen.area));
            if let AreaKind::Shared { path, writable: true, .. } = seen.area.kind {
                let path = if let Name::Other(other) = name { other } else { path };
                paths.extend(spaces.path_in_root(member.outer, &path, &file)?);
            }
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

type Objection = (String, &'static str);

/// What a clone has one of, as the first process has it.
struct Home {
    /// Namespaces, but for [those that are nested](crate::capture::nested): what leads to each, its name, and which it
    /// is.
    spaces: Vec<(&'static str, &'static str, String)>,
}

impl Home {
    fn of(init: i32) -> Result<Self, CallError> {
        const KINDS: [(&str, &str); 5] = [
            ("ns/pid", "pid"),
            ("ns/pid_for_children", "pid"),
            ("ns/cgroup", "cgroup"),
            ("ns/time", "time"),
            ("ns/time_for_children", "time"),
        ];
        let own = |(file, kind): (&'static str, &'static str)| {
            // Those for children are told of when they are there to be had. A kernel may have none of time.
            let link = proc_file::link(init, file.trim_end_matches("_for_children"));
            if kind == "time" { link.ok().map(Ok) } else { Some(link) }.map(|link| Ok((file, kind, link?)))
        };
        let spaces = KINDS.into_iter().filter_map(own).collect::<Result<_, CallError>>()?;
        Ok(Self { spaces })
    }

    fn objections(&self, member: &Member, status: Option<&Lines>) -> Vec<Objection> {
        let mut objections = Vec::new();
        for (file, kind, home) in &self.spaces {
            if is_elsewhere(member.outer, file, home) {
                objections.push((
                    format!("a {kind} namespace of its own"),
                    "stop what made it; of nested namespaces those of host names, mounts, ipc, networks and users come along",
                ));
            }
        }
        objections.dedup();
        let Some(status) = status else { return objections };
        objections.extend(standing_objections(member, status));
        objections
    }
}

/// Whether a process is in another namespace than is told of the first one. That of children to come, of which none has
/// come, is not told at all.
fn is_elsewhere(outer: i32, file: &str, home: &str) -> bool {
    match proc_file::link(outer, file) {
        Ok(target) => target != *home,
        Err(error) if error.source.kind() == ErrorKind::NotFound && file == "ns/pid_for_children" => {
            !process_tree::is_gone(outer) && !process_tree::has_ended(outer)
        }
        Err(_) => false,
    }
}

/// What it is kept in, or held by.
fn standing_objections(member: &Member, status: &Lines) -> Vec<Objection> {
    let mut objections: Vec<Objection> = Vec::new();
    if status.get("TracerPid") != "0" {
        objections.push((TRACED.into(), END_DEBUGGER));
    }
    if member.state == 'T' && is_in_restorer(member.outer) {
        objections.push(("it has been stopped since it was cloned".into(), "send it SIGCONT"));
    }
    if status.get("Seccomp") == "1" {
        objections.push(("it is in strict seccomp mode".into(), "make the program use a filter"));
    }
    if status.get("x86_Thread_features").contains("shstk") {
        objections.push(("it has a shadow stack".into(), "start the program without it"));
    }
    if status.number("Threads", 10).unwrap_or(0) > MOST_THREADS as u64 {
        objections.push(("it has too many threads".into(), "have fewer"));
    }
    objections
}

/// Whether a process that is stopped has yet to leave the restorer, which made it stop before its program went on.
fn is_in_restorer(outer: i32) -> bool {
    let call = proc_file::text(outer, "syscall").unwrap_or_default();
    let place =
        call.split_ascii_whitespace().last().and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    place.is_some_and(|place| (REGION..REGION + REGION_LENGTH).contains(&place))
}

/// Memory that is kept by another ipc namespace than the process is in.
fn ipc_objection(ipc: &Beside, member: &Member, areas: &[Area]) -> Option<Objection> {
    let is_kept = |area: &Area| matches!(area.kind, AreaKind::Segment { .. });
    let elsewhere = ipc.of_process(member.outer).is_ok_and(|space| space.is_some());
    (elsewhere && areas.iter().any(is_kept)).then(|| {
        let kind = "System V shared memory of another ipc namespace than its own".to_owned();
        (kind, "start the program in the guest's own ipc namespace")
    })
}

fn memory_objections(seen: &[Seen]) -> Vec<Objection> {
    /// Where the addresses of a program of 32 bits end.
    const NARROW: u64 = 1 << 32;
    let mut objections = Vec::new();
    if seen.last().is_some_and(|last| last.area.end <= NARROW) {
        objections.push(("a program of 32 bits".into(), "use the one for 64 bits"));
    }
    for one in seen {
        if one.area.start < STAGING.end && one.area.end > REGION || one.area.end > USER_END {
            objections.push((
                format!("memory at {:#x}, where the restorer works", one.area.start),
                "start the program again: it will choose other addresses",
            ));
        }
        objections.extend(one.objection.clone());
    }
    objections
}

/// What stands in the way of a first process's becoming another program.
pub(crate) fn first_process_objections(init: i32) -> Vec<(String, &'static str)> {
    // CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE: prctl(2), PR_SET_MM_MAP.
    const EITHER: u64 = 1 << 21 | 1 << 40;
    const ADVICE: &str = "create the guest with --profile system, or with --cap-add CHECKPOINT_RESTORE";
    let bound = Lines::read(init, "status").and_then(|status| status.number("CapBnd", 16)).unwrap_or(0);
    let whole = (bound & EITHER == 0).then(|| ("an init that lacks the capability to be cloned".to_owned(), ADVICE));
    whole.into_iter().collect()
}

/// What stands in the way of an open file whose name is gone.
fn open_file_objection(init: i32, found: &Found, outside: &[Outside]) -> Option<Objection> {
    let unknown = descriptors::supplied(found, outside).is_none() && of_open(init, found) == Name::Unknown;
    let kind = || format!("a file that lost this name and has others elsewhere ({})", found.target);
    unknown.then(|| (kind(), "close it, or have the program open it by the name that it has"))
}

/// What stands in the way of the memory of a process.
pub(crate) fn lost_name_objections(outer: i32, areas: &[Area]) -> Vec<lost_names::Objection> {
    let unknown = areas.iter().filter(|area| of(outer, area) == Name::Unknown);
    let say = |area: &Area| {
        let AreaKind::Shared { path, .. } = &area.kind else { return String::new() };
        format!("a shared mapping of a file that lost this name and has others ({path})")
    };
    unknown.map(|area| (say(area), "have the program open it again by the name that it has")).collect()
}
