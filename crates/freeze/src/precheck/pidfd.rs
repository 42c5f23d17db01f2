//! Descriptors of processes that no clone could have.

use crate::image::own_files::GONE;
use crate::inspect::descriptors::{Found, Outside, supplied};
use crate::inspect::pidfd::is;
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;

/// What stands in the way: processes of the outside, and single threads.
pub(crate) fn objections(
    init: i32,
    members: &[Member],
    all: &[(&Member, Vec<Found>)],
    outside: &[Outside],
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (member, found) in all.iter().flat_map(|(member, found)| found.iter().map(move |one| (*member, one))) {
        if !is(found) || supplied(found, outside).is_some() {
            continue;
        }
        let outer = found.lines.get("Pid").parse().unwrap_or(0);
        let is_there = outer == init || members.iter().any(|other| other.outer == outer);
        let flags = found.lines.number("flags", 8).unwrap_or(0) as i32;
        let kind = match outer {
            _ if (is_there || outer == GONE) && flags & THREAD == 0 => continue,
            _ if is_there || outer == GONE => "a descriptor of a thread",
            0 => "a descriptor of a process that nobody tells of",
            _ => "a descriptor of a process that does not come along",
        };
        let (pid, name) = (member.pid, member.name.clone());
        let kind = format!("{kind} ({})", found.target);
        refusals.push(Refusal { pid, name, descriptor: Some(found.number), kind, advice: "close it" });
    }
    refusals
}

/// `PIDFD_THREAD`, since Linux 6.9.
const THREAD: i32 = libc::O_EXCL;
