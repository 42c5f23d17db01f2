//! Looking for what cannot be frozen, before anything is stopped, and once more after.

use crate::ahead::Ahead;
use crate::areas::{self, USER_END};
use crate::contents::DELETED;
use crate::descriptors::{self, Found};
use crate::first;
use crate::freeze::Subject;
use crate::image::AreaKind;
use crate::inotify::{self, Searched};
use crate::mounts;
use crate::pipes;
use crate::proc_file::{self, Lines};
use crate::queues::Queues;
use crate::refusal::Refusal;
use crate::sockets;
use crate::staging::STAGING;
use crate::sysv;
use crate::terminals;
use crate::tree::{self, Member, Roots};
use pando_kernel::CallError;
use pando_restorer::REGION;

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
    survey_members(subject, &roots.members(), (searched, &Queues::of(subject.init)?), None)
}

/// The same for processes that we have stopped, and looked at before.
pub(crate) fn survey_stopped(
    subject: &Subject<'_>,
    members: &[Member],
    known: (&Searched, &Queues),
    ahead: &Ahead,
) -> Result<Vec<Refusal>, CallError> {
    survey_members(subject, members, known, Some(ahead)).map(|mut refusals| {
        refusals.retain(|refusal| refusal.kind != TRACED);
        refusals
    })
}

const TRACED: &str = "it is being traced";

/// The same for processes that are known. A process that has gone meanwhile has nothing against it.
fn survey_members(
    subject: &Subject<'_>,
    members: &[Member],
    (searched, queues): (&Searched, &Queues),
    ahead: Option<&Ahead>,
) -> Result<Vec<Refusal>, CallError> {
    let Subject { init, outside, .. } = *subject;
    let mut refusals = Vec::new();
    let mut descriptors: Vec<(&Member, Vec<Found>)> = Vec::new();
    let home = Home::of(init)?;
    for member in members.iter().filter(|member| member.state != 'Z') {
        let mut objections = home.objections(member);
        objections.extend(stray_group(member, members));
        objections.extend(memory_objections(member, ahead));
        if member.outer == init {
            objections.extend(first::objections(init));
            objections.extend(mounts::objections(subject));
        }
        if let Ok(found) = descriptors::list(member.outer) {
            for one in &found {
                if let Some((kind, advice)) = descriptors::objection(one, outside) {
                    refusals.push(refusal(member, Some(one.number), kind, advice));
                }
            }
            descriptors.push((member, found));
        }
        refusals.extend(objections.into_iter().map(|(kind, advice)| refusal(member, None, kind, advice)));
    }
    refusals.extend(pipes::objections(&descriptors, outside));
    refusals.extend(sockets::objections(init, &descriptors, outside, ahead.is_some())?);
    refusals.extend(inotify::objections(init, &descriptors, outside, searched)?);
    refusals.extend(sysv::objections(init, members)?);
    refusals.extend(queues.objections(members, &descriptors, outside)?);
    let supplied = |one: &Found| self::descriptors::supplied(one, outside).is_some();
    refusals.extend(terminals::objections(&descriptors, subject.console, supplied));
    Ok(refusals)
}

fn refusal(member: &Member, descriptor: Option<i32>, kind: String, advice: &'static str) -> Refusal {
    Refusal { pid: member.pid, name: member.name.clone(), descriptor, kind, advice }
}

/// Paths of the files that processes map so that writing to memory writes to them: it shows in no time of the file.
pub fn written_mappings(subject: &Subject<'_>) -> Result<Vec<String>, CallError> {
    let mut paths = Vec::new();
    for member in Roots::find(subject.init, subject.whole)?.members().iter().filter(|member| member.state != 'Z') {
        let areas = match areas::read(member.outer) {
            Err(_) if tree::is_gone(member.outer) || tree::has_ended(member.outer) => continue,
            read => read?,
        };
        for seen in areas {
            if let AreaKind::Shared { path, writable: true, .. } = seen.area.kind {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

type Objection = (String, &'static str);

/// The namespaces of the first process: a clone has those and no others, but for [host names](crate::host_names).
struct Home(Vec<(&'static str, String)>);

impl Home {
    fn of(init: i32) -> Result<Self, CallError> {
        const KINDS: [&str; 6] = ["pid", "user", "mnt", "ipc", "net", "cgroup"];
        let link = |kind: &'static str| proc_file::link(init, &format!("ns/{kind}")).map(|target| (kind, target));
        KINDS.into_iter().map(link).collect::<Result<_, _>>().map(Self)
    }

    fn objections(&self, member: &Member) -> Vec<Objection> {
        let mut objections = Vec::new();
        for (kind, home) in &self.0 {
            let other = |name: &str| proc_file::link(member.outer, name).is_ok_and(|target| target != *home);
            let children = *kind == "pid" && other("ns/pid_for_children");
            if other(&format!("ns/{kind}")) || children {
                let what = format!("a {kind} namespace of its own");
                objections
                    .push((what, "stop what made it; nested namespaces, but of host names, are not supported yet"));
            }
        }
        let Ok(status) = Lines::read(member.outer, "status") else { return objections };
        if status.get("TracerPid") != "0" {
            objections.push((TRACED.into(), "end the debugger"));
        }
        if matches!(member.state, 'T' | 't') {
            objections.push(("it is stopped".into(), "send it SIGCONT"));
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
        let deleted = |what: &str| proc_file::link(member.outer, what).is_ok_and(|path| path.ends_with(DELETED));
        if deleted("cwd") {
            objections.push(("its working directory was deleted".into(), "start it in another directory"));
        }
        if deleted("exe") {
            objections
                .push(("its program was deleted or replaced".into(), "start it again, so that it runs the new one"));
        }
        if proc_file::link(member.outer, "root").is_ok_and(|root| root != "/") {
            objections.push(("it has a root directory of its own (chroot)".into(), "start the program without chroot"));
        }
        objections
    }
}

/// A process group whose leader is gone can be joined by nobody: only what a session's leader forked is in the group of that.
fn stray_group(member: &Member, members: &[Member]) -> Option<Objection> {
    let status = Lines::read(member.outer, "status").ok()?;
    let last = |key: &str| status.words(key).last().and_then(|word| word.parse::<i32>().ok()).unwrap_or(0);
    let (group, session) = (last("NSpgid"), last("NSsid"));
    // 0 is a group of the outside, 1 that of the first process.
    let led = group <= 1 || group == session || members.iter().any(|other| other.pid == group);
    (!led).then(|| (format!("it is in process group {group}, whose leader has ended"), "start it again"))
}

fn memory_objections(member: &Member, ahead: Option<&Ahead>) -> Vec<Objection> {
    let Ok(seen) = ahead.map_or_else(|| areas::read(member.outer), |ahead| ahead.read(member.outer)) else {
        return Vec::new();
    };
    let mut objections = Vec::new();
    for one in seen {
        if one.area.start < STAGING.end && one.area.end > REGION || one.area.end > USER_END {
            objections.push((
                format!("memory at {:#x}, where the restorer works", one.area.start),
                "start the program again: it will choose other addresses",
            ));
        }
        objections.extend(one.objection);
    }
    objections
}
