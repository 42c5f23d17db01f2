//! Open files of an image that each process opens itself: files of /proc about a process, and descriptors of processes
//! (pidfd_open(2)).

use crate::image::Image;
use crate::image::file::FileKind;

/// The process that a path is about, and what of it; none where it is not one that comes to be with the rest of an
/// image, as the first is.
pub(crate) fn about(first: i32, path: &str) -> Option<(i32, &str)> {
    let (pid, what) = path.strip_prefix("/proc/")?.split_once('/').unwrap_or((path.strip_prefix("/proc/")?, ""));
    let pid = pid.parse().ok()?;
    (pid != first).then_some((pid, what))
}

/// Whether an open file is one that its process opens.
pub(crate) fn is_own_proc(image: &Image, file: usize) -> bool {
    path(image, file).is_some_and(|path| about(image.init, path).is_some())
}

pub(crate) fn path(image: &Image, file: usize) -> Option<&str> {
    match &image.files.get(file)?.kind {
        FileKind::Named { path } => Some(path),
        _ => None,
    }
}

/// What a descriptor of a process says of one that has ended and was asked for.
pub(crate) const GONE: i32 = -1;

/// The process that an open file is a descriptor of, and that is there.
pub(crate) fn process_of(image: &Image, file: usize) -> Option<i32> {
    match image.files.get(file)?.kind {
        FileKind::Process { pid } => Some(pid).filter(|pid| *pid != GONE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::file::{Descriptor, OpenFile};
    use crate::image::process::Process;
    use crate::precheck::own_proc::opens_its_own;
    use crate::restore::own_files::open_proc_files;
    use crate::restore::script::Writer;
    use crate::restore::slots::Slots;

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
        assert!(is_own_proc(&own, 0) && opens_its_own(7, about(1, "/proc/7/statm").unwrap(), 0));
        for other in ["/proc/meminfo", "/proc/1/status", "/etc/passwd", "/proc/sys/kernel/pid_max"] {
            assert!(!is_own_proc(&image(other, 2, &[7]), 0) && about(1, other).is_none(), "{other}");
        }
        let mut writer = Writer::new();
        open_proc_files(&mut writer, Writer::MAKING, &own, &own.processes[0], Slots::of(&own));
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
