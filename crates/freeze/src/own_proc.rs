//! Open files of /proc that tell of the process which has them, as /proc/self/statm does. They are there when the process is, so that it opens them itself.

use crate::descriptors::{Found, Outside, supplied};
use crate::image::{FileKind, Image, Process};
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

/// The process that a path is about, and what of it; none where it is not one that comes to be with the rest of an image, as the first is.
fn about(first: i32, path: &str) -> Option<(i32, &str)> {
    let (pid, what) = path.strip_prefix("/proc/")?.split_once('/').unwrap_or((path.strip_prefix("/proc/")?, ""));
    let pid = pid.parse().ok()?;
    (pid != first).then_some((pid, what))
}

/// Whether an open file is one that its process opens.
pub(crate) fn is_one(image: &Image, file: usize) -> bool {
    path(image, file).is_some_and(|path| about(image.init, path).is_some())
}

fn path(image: &Image, file: usize) -> Option<&str> {
    match &image.files.get(file)?.kind {
        FileKind::Named { path } => Some(path),
        _ => None,
    }
}

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
fn opens_its_own(own: i32, (pid, what): (i32, &str), flags: i32) -> bool {
    pid == own && flags & libc::O_ACCMODE == libc::O_RDONLY && (what.is_empty() || READABLE.contains(&what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Descriptor, OpenFile};

    fn image(path: &str, flags: u32, holders: &[i32]) -> Image {
        let kind = FileKind::Named { path: path.into() };
        let process = |pid: &i32| Process {
            pid: *pid,
            descriptors: vec![Descriptor { number: 3, file: 0, close_on_exec: false }],
            ..Process::default()
        };
        Image {
            files: vec![OpenFile { flags, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None }],
            processes: holders.iter().map(process).collect(),
            init: 1,
            ..Image::default()
        }
    }

    #[test]
    fn what_tells_of_who_has_it_is_opened_by_that() {
        let own = image("/proc/7/statm", 0, &[7]);
        assert!(is_one(&own, 0) && opens_its_own(7, about(1, "/proc/7/statm").unwrap(), 0));
        for other in ["/proc/meminfo", "/proc/1/status", "/etc/passwd", "/proc/sys/kernel/pid_max"] {
            assert!(!is_one(&image(other, 2, &[7]), 0) && about(1, other).is_none(), "{other}");
        }
        let mut writer = Writer::new();
        open(&mut writer, Writer::MAKING, &own, &own.processes[0], Slots::of(&own));
        assert_eq!(format!("{:?}", writer.finish(1, 1, 0, 0)).lines().count(), 1);
    }

    #[test]
    fn what_nobody_could_open_is_told_apart() {
        let cases = [("/proc/8/statm", 0), ("/proc/7/environ", 0), ("/proc/7/comm", 1), ("/proc/7/task/8/stat", 0)];
        for (path, flags) in cases {
            assert!(!opens_its_own(7, about(1, path).unwrap(), flags), "{path}");
        }
    }
}
