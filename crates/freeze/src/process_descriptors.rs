//! Descriptors of processes (pidfd_open(2)), by which inits and message buses know whom they deal with. A process is there when it is forked, so that who has one
//! opens it itself, and waits for that.

use crate::descriptors::{Found, Outside, supplied};
use crate::image::pidfd::of;
use crate::image::{Image, Process};
use crate::objects::Slots;
use crate::refusal::Refusal;
use crate::script::{Call, Chapter, Writer};
use crate::tree::Member;

/// Whether a descriptor is one.
pub(crate) fn is(found: &Found) -> bool {
    found.target == "anon_inode:[pidfd]"
}

/// The pid, inside, of the process that one is of, which is looked for by [`objections`].
pub(crate) fn pid(found: &Found) -> i32 {
    found.lines.words("NSpid").last().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// What stands in the way: processes that are gone, or of the outside, and single threads.
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
        let outer = found.lines.get("Pid").parse().unwrap_or(-1);
        let is_there = outer == init || members.iter().any(|other| other.outer == outer);
        let flags = found.lines.number("flags", 8).unwrap_or(0) as i32;
        let kind = match outer {
            _ if is_there && flags & THREAD == 0 => continue,
            -1 => "a descriptor of a process that is gone",
            _ if is_there => "a descriptor of a thread",
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

/// Writes a process's opening of its own, to where the maker would have left them.
pub(crate) fn open(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    let mut own: Vec<_> = process.descriptors.iter().filter_map(|one| Some((one.file, of(image, one.file)?))).collect();
    own.sort_unstable();
    own.dedup();
    for (file, pid) in own {
        let flags = u64::from(image.files[file].flags) & libc::O_NONBLOCK as u64;
        let label = format!("finding process {pid}");
        let open = Call::patient(libc::SYS_pidfd_open);
        writer.open(chapter, label, open, &[pid as u64, flags], slots.file(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc_file::Lines;

    fn found(info: &str) -> Found {
        Found {
            number: 4,
            path: String::new(),
            target: "anon_inode:[pidfd]".into(),
            stat: rustix::fs::stat("/").unwrap(),
            info: info.into(),
            lines: Lines::parse(info),
        }
    }

    #[test]
    fn who_is_there_is_told_from_who_is_not() {
        let member = Member { outer: 77, pid: 7, name: "init".into(), state: 'S' };
        let said = |info: &str| {
            let all = [(&member, vec![found(info)])];
            objections(50, std::slice::from_ref(&member), &all, &[]).pop().map(|one| one.kind)
        };
        assert_eq!(pid(&found("flags:\t02\nPid:\t77\nNSpid:\t77\t7\n")), 7);
        assert_eq!(said("flags:\t02000002\nPid:\t77\nNSpid:\t77\t7\n"), None);
        assert_eq!(said("flags:\t02\nPid:\t50\nNSpid:\t50\t1\n"), None);
        for (info, wanted) in [
            ("flags:\t02\nPid:\t-1\n", "that is gone"),
            ("flags:\t02\nPid:\t9\nNSpid:\t9\n", "that does not come along"),
            ("flags:\t0202\nPid:\t77\nNSpid:\t77\t7\n", "of a thread"),
            ("", "that is gone"),
        ] {
            assert!(said(info).is_some_and(|kind| kind.contains(wanted)), "{wanted}");
        }
    }
}
