//! Open files of /proc that tell of the process which has them, as /proc/self/statm does. They are there when the process is, so that it opens them itself.

use crate::image::{FileKind, Image, Process};
use crate::objects::{self, Slots};
use crate::refusal::Refusal;
use crate::script::{Chapter, Writer};

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

/// The process that a path is about, and what of it; none where it is not one that comes to be with the rest of an image.
fn about<'a>(image: &Image, path: &'a str) -> Option<(i32, &'a str)> {
    let (pid, what) = path.strip_prefix("/proc/")?.split_once('/').unwrap_or((path.strip_prefix("/proc/")?, ""));
    let pid = pid.parse().ok()?;
    (pid != image.init).then_some((pid, what))
}

/// Whether an open file is one that its process opens.
pub(crate) fn is_one(image: &Image, file: usize) -> bool {
    path(image, file).is_some_and(|path| about(image, path).is_some())
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
            objects::named(writer, chapter, &image.files[file], path, slots.file(file));
        }
    }
}

/// Those that nobody could open in a clone: of others, and what is not for everybody to read.
pub(crate) fn objections(image: &Image) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for process in &image.processes {
        for one in &process.descriptors {
            let Some(path) = path(image, one.file) else { continue };
            let Some((pid, what)) = about(image, path) else { continue };
            let reads = image.files[one.file].flags & libc::O_ACCMODE as u32 == libc::O_RDONLY as u32;
            if pid == process.pid && reads && (what.is_empty() || READABLE.contains(&what)) {
                continue;
            }
            let name = process.threads.first().map(|thread| String::from_utf8_lossy(&thread.name).into_owned());
            refusals.push(Refusal {
                pid: process.pid,
                name: name.unwrap_or_default(),
                descriptor: Some(one.number),
                kind: format!("a file of /proc that it could not open in a clone ({path})"),
                advice: "close it, and open it each time that it is read",
            });
        }
    }
    refusals
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
        assert!(is_one(&own, 0) && objections(&own).is_empty());
        for other in ["/proc/meminfo", "/proc/1/status", "/etc/passwd", "/proc/sys/kernel/pid_max"] {
            let image = image(other, 2, &[7]);
            assert!(!is_one(&image, 0) && objections(&image).is_empty(), "{other}");
        }
        let mut writer = Writer::new();
        open(&mut writer, Writer::MAKING, &own, &own.processes[0], Slots::of(&own));
        assert_eq!(format!("{:?}", writer.finish(1, 1, 0, 0)).lines().count(), 1);
    }

    #[test]
    fn what_nobody_could_open_is_named() {
        let cases: [(&str, u32, &[i32]); 5] = [
            ("/proc/8/statm", 0, &[7]),
            ("/proc/7/statm", 0, &[7, 8]),
            ("/proc/7/environ", 0, &[7]),
            ("/proc/7/comm", 1, &[7]),
            ("/proc/7/task/8/stat", 0, &[7]),
        ];
        for (path, flags, holders) in cases {
            let refusals = objections(&image(path, flags, holders));
            assert_eq!(refusals.len(), 1, "{path}");
            assert!(refusals[0].kind.contains(path));
        }
    }
}
