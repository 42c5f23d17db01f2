//! Files of /proc that no process of a clone could open.

use crate::image::own_files::about;
use crate::inspect::descriptors::{Found, Outside, supplied};
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;

/// What everybody may read. The rest is for who owns the process's memory, which nobody inside does of a clone's, or is
/// written to.
const READABLE: [&str; 19] = [
    "cgroup",
    "cmdline",
    "comm",
    "fd",
    "fdinfo",
    "limits",
    "maps",
    "mountinfo",
    "mounts",
    "oom_score",
    "oom_score_adj",
    "schedstat",
    "smaps",
    "smaps_rollup",
    "stat",
    "statm",
    "status",
    "task",
    "wchan",
];

/// Those that nobody could open in a clone: of others, and what is not for everybody to read. `first` is the first
/// process, as those inside know it.
pub(crate) fn objections(first: i32, all: &[(&Member, Vec<Found>)], outside: &[Outside]) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (member, found) in all.iter().flat_map(|(member, found)| found.iter().map(move |one| (*member, one))) {
        let flags = found.lines.number("flags", 8).unwrap_or(0) as i32;
        let opens = |(pid, what)| opens_its_own(member.pid, (pid, what), flags);
        let lacks = about(first, &found.target).is_some_and(|about| !opens(about));
        if lacks && supplied(found, outside).is_none() {
            let kind = format!("a file of /proc that it could not open in a clone ({})", found.target);
            let (pid, name) = (member.pid, member.name.clone());
            let advice = "close it, and open it each time that it is read";
            refusals.push(Refusal { pid, name, descriptor: Some(found.number), kind, advice });
        }
    }
    refusals
}

/// Whether a process can open what a file of /proc is about.
pub(crate) fn opens_its_own(own: i32, (pid, what): (i32, &str), flags: i32) -> bool {
    pid == own && flags & libc::O_ACCMODE == libc::O_RDONLY && (what.is_empty() || READABLE.contains(&what))
}
