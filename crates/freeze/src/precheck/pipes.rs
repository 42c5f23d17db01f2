//! Pipes whose other end is outside.

use crate::inspect::descriptors::{Found, Outside, supplied};
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use rustix::fs::OFlags;
use std::collections::HashSet;

/// Objections against the whole: ends of pipes that are held by somebody outside.
pub(crate) fn objections(all: &[(&Member, Vec<Found>)], outside: &[Outside]) -> Vec<Refusal> {
    let access = |found: &Found| found.lines.number("flags", 8).unwrap_or(0) as i32 & libc::O_ACCMODE;
    let writes = |found: &Found| access(found) != libc::O_RDONLY;
    let ends: Vec<_> = all
        .iter()
        .flat_map(|(member, found)| found.iter().map(move |one| (*member, one)))
        .filter(|(_, one)| one.target.starts_with("pipe:") && supplied(one, outside).is_none())
        .collect();
    let mut kinds: HashSet<(u64, bool)> = ends.iter().map(|(_, end)| (end.stat.st_ino, writes(end))).collect();
    // One descriptor may be both ends, as a guest's input is that stays open.
    kinds.extend(ends.iter().filter(|(_, end)| access(end) == libc::O_RDWR).map(|(_, end)| (end.stat.st_ino, false)));
    let mut refusals = Vec::new();
    for (member, end) in &ends {
        let both = kinds.contains(&(end.stat.st_ino, !writes(end)));
        if !both && held_elsewhere(member.outer, end, writes(end)) {
            refusals.push(Refusal {
                pid: member.pid,
                name: member.name.clone(),
                descriptor: Some(end.number),
                kind: format!("a pipe whose other end is outside ({})", end.target),
                advice: "end the program, or start it with /dev/null instead",
            });
        }
    }
    refusals
}

/// Whether the other end of a pipe, of which the tree holds one kind of end only, is open at all.
fn held_elsewhere(outer: i32, end: &Found, writes: bool) -> bool {
    let path = format!("/proc/{outer}/fd/{}", end.number);
    let flags = if writes { OFlags::WRONLY } else { OFlags::RDONLY } | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Opening it once more for writing fails with ENXIO where nobody reads.
    let Ok(pipe) = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) else { return false };
    let mut polled = [rustix::event::PollFd::new(&pipe, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let closed = rustix::event::PollFlags::HUP | rustix::event::PollFlags::ERR;
    rustix::event::poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().intersects(closed)
}
