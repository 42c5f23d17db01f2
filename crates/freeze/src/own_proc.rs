//! Open files of /proc that tell of the process which has them, as /proc/self/statm does. They are there when the process is, so that it opens them itself.

use crate::descriptors::{Found, Outside, supplied};
use crate::image::own_proc::{about, is_one, path};
use crate::image::{Image, Process};
use crate::objects::{self, Slots};
use crate::refusal::Refusal;
use crate::script::{Chapter, Writer};
use crate::tree::Member;

/// What everybody may read. The rest is for who owns the process's memory, which nobody inside does of a clone's, or is written to.
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

/// Writes a process's opening of its own, to where the maker would have left them.
pub(crate) fn open(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    let mut own: Vec<usize> =
        process.descriptors.iter().map(|one| one.file).filter(|file| is_one(image, *file)).collect();
    own.sort_unstable();
    own.dedup();
    for file in own {
        if let Some(path) = path(image, file) {
            objects::own(writer, chapter, &image.files[file], path, slots.file(file));
        }
    }
}

/// Those that nobody could open in a clone: of others, and what is not for everybody to read. `first` is the first process, as those inside know it.
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
