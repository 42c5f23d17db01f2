//! Whether a clone may be made before anybody asks for one, and wait at its gate for as long as that takes.

use crate::image::file::{FileKind, OpenFile};
use crate::image::ipc::{Keyed, KeyedKind};
use crate::image::process::Process;
use crate::image::socket::UnixSocket;
use crate::image::{Image, aio};

/// What a clone that waits costs, and what it has meanwhile that others may want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dormancy {
    /// How many threads the processes have.
    pub threads: usize,
    /// Bytes of memory that are not shared with the holder.
    pub bytes: u64,
    /// Whether it has something of its network: a socket, or a name.
    pub networked: bool,
}

impl Image {
    /// What a clone costs that waits. `None` where it must not: a clock of its would have run off by the time it runs;
    /// or it has what a machine has little of, contexts of asynchronous input and output.
    pub fn dormancy(&self) -> Option<Dormancy> {
        let wound = |kind: &FileKind| matches!(kind, FileKind::TimerFd { setting, .. } if *setting != [0; 4]);
        if self.files.iter().any(|file| wound(&file.kind)) || aio::are_in(self) {
            return None;
        }
        let own = |runs: &[(u64, u64)]| runs.iter().map(|(_, length)| length).sum::<u64>();
        let contents: u64 = self.contents.iter().map(|content| own(&content.runs)).sum();
        // A first process cannot be forked from the holder: its memory is copied.
        let first =
            self.first().map_or(0, |first| self.processes[first].areas.iter().map(|area| own(&area.pages)).sum());
        let segment = |keyed: &Keyed| match &keyed.kind {
            KeyedKind::Segment { content, .. } => content.len() as u64,
            KeyedKind::Semaphores { .. } | KeyedKind::Queue { .. } => 0,
        };
        let keyed: u64 = self.keyed.iter().map(segment).sum();
        Some(Dormancy {
            threads: self.processes.iter().map(|process| process.threads.len()).sum(),
            bytes: contents + first + keyed,
            networked: self.files.iter().any(|file| matches!(file.kind, FileKind::Plain(_)))
                || self.unix.iter().any(|socket| socket.is_named() && socket.path().is_none()),
        })
    }
}

impl Image {
    /// Whether a clone has something below these paths that two cannot have at a time, or that is taken from whoever
    /// has it: locks, and names of sockets and pipes.
    pub fn holds_in(&self, paths: &[String]) -> bool {
        let is_below = |path: &str| {
            let rest = |above: &String| path.strip_prefix(above.trim_end_matches('/')).map(str::to_owned);
            paths.iter().filter_map(rest).any(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let named = |file: usize| match self.files.get(file).map(|file| &file.kind) {
            Some(FileKind::Named { path }) => is_below(path),
            _ => false,
        };
        let is_locked =
            |(number, file): (usize, &OpenFile)| (file.lock.is_some() || !file.ranges.is_empty()) && named(number);
        let has_locked = |process: &Process| {
            let mut locked = process.locks.iter().map(|(number, ..)| *number);
            locked.any(|number| process.descriptors.iter().any(|one| one.number == number && named(one.file)))
        };
        self.files.iter().enumerate().any(is_locked)
            || self.processes.iter().any(has_locked)
            || self.unix.iter().filter_map(UnixSocket::path).any(|path| is_below(&path))
            || self.pipes.iter().filter_map(|pipe| pipe.path.as_ref()).any(|path| is_below(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::memory::{AioRing, Area, AreaKind};

    fn with(kind: FileKind) -> Image {
        let file = OpenFile { flags: 0, position: 0, lock: None, ranges: Vec::new(), kind, mount_space: None };
        Image { files: vec![file], init: 1, ..Image::default() }
    }

    #[test]
    fn a_clock_that_runs_is_not_made_ahead() {
        let timer = |setting| with(FileKind::TimerFd { clock: 1, flags: 0, setting, ticks: 0 });
        assert_eq!(timer([0, 0, 5, 0]).dormancy(), None);
        assert!(timer([0; 4]).dormancy().is_some());
    }

    #[test]
    fn names_that_one_alone_can_have_are_told() {
        let bound = |name: &[u8]| Image {
            unix: vec![UnixSocket { name: name.to_vec(), directory: "/".into(), ..UnixSocket::default() }],
            init: 1,
            ..Image::default()
        };
        let networked = |image: Image| image.dormancy().unwrap().networked;
        assert!(networked(bound(b"\x01\0\0abstract")));
        assert!(!networked(bound(b"\x01\0/run/x\0")));
        assert!(!networked(bound(b"\x01\0")));
        assert!(networked(with(FileKind::Plain(Default::default()))));
        assert!(!networked(with(FileKind::Epoll)));
    }

    #[test]
    fn what_two_cannot_have_is_found_below_a_path() {
        let mut image = with(FileKind::Named { path: "/data/db".into() });
        let holds = |image: &Image, path: &str| image.holds_in(&["/srv".into(), path.into()]);
        assert!(!holds(&image, "/data"));
        image.files[0].lock = Some(libc::LOCK_EX);
        assert!(holds(&image, "/data") && holds(&image, "/data/") && holds(&image, "/data/db"));
        assert!(!holds(&image, "/dat") && !holds(&image, "/data/db/x") && !image.holds_in(&[]));
        image.files[0].lock = None;
        image.unix.push(UnixSocket { name: b"\x01\0/data/socket\0".to_vec(), ..UnixSocket::default() });
        assert!(holds(&image, "/data") && !holds(&image, "/run"));
    }

    #[test]
    fn contexts_of_asynchronous_input_and_output_are_for_who_runs() {
        let area = Area::new(0x5000, 0x6000, 3, AreaKind::AioRing(AioRing::default()));
        let process = Process { areas: vec![area], ..Process::default() };
        let image = Image { processes: vec![process], init: 1, ..Image::default() };
        assert_eq!(image.dormancy(), None);
    }
}
