//! How far a commit's operations are, for whoever goes on after its process was killed: what was done is not done once
//! more, since others may have changed it by then, and what others have changed before it was done is told from what
//! the commit has changed itself.

use crate::journal::file::JournalFile;
use crate::tree::attributes::Moment;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bytes of the name that a run of the kernel has (/proc/sys/kernel/random/boot_id), which stands first.
const BOOT: usize = 36;

/// What stands in the place of a size while nothing is written.
const NOT_WRITING: u64 = u64::MAX;

/// What is noted: the number of the operation that is under way, and the size of the file that it is writing to, before
/// it does.
type Noted = (u64, u64);

/// The number of the operation that is under way, and whether those before it are done.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Where it is noted. Nowhere in a target, where nobody else runs.
    file: Option<File>,
    /// The operation that was under way when an earlier process was killed, where that is known: those before it are
    /// done.
    interrupted: Option<Noted>,
    /// From when on a change by others is one that was not validated any more.
    since: Option<Moment>,
    /// The next operation.
    next: Cell<u64>,
}

/// What is known of an operation that is about to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It was done by an earlier process.
    Done,
    /// An earlier process was killed in it, while it wrote to a file that had this size before.
    Interrupted(u64),
    /// Nobody has written anything of it.
    New,
}

impl Progress {
    /// Begins to note. Where that cannot be done the commit goes on all the same. What others have changed was last
    /// compared at `looked`.
    pub(crate) fn begin(journal: &JournalFile, looked: Option<Moment>) -> Self {
        let noted = boot().and_then(|boot| {
            let file = File::options().read(true).write(true).create_new(true).open(journal.progress())?;
            file.write_all_at(&beginning(&boot), 0)?;
            Ok(file)
        });
        Self { file: noted.ok(), since: looked, ..Self::default() }
    }

    /// Takes up what an earlier process has noted. After a loss of power what it says may be on the disk, and what was
    /// done not: then all is done again, and what counts as others' is what was changed since the machine is up.
    pub(crate) fn take_up(journal: &JournalFile) -> io::Result<Self> {
        let committed = std::fs::metadata(journal.path())?;
        let committed = Moment {
            seconds: committed.ctime(),
            nanoseconds: u32::try_from(committed.ctime_nsec()).unwrap_or_default(),
        };
        let found = read(&journal.progress()).ok();
        let boot = boot()?;
        let (file, interrupted, since) = match found {
            Some((file, of, noted)) if of == boot => (Some(file), Some(noted), committed),
            Some((file, ..)) => {
                file.write_all_at(&beginning(&boot), 0)?;
                (Some(file), None, powered_on(committed))
            }
            None => (Self::begin(journal, None).file, None, powered_on(committed)),
        };
        Ok(Self { file, interrupted, since: Some(since), next: Cell::new(0) })
    }

    /// From when on a change by others is one that was not validated any more; nothing where nobody else runs.
    pub(crate) fn since(&self) -> Option<Moment> {
        self.since
    }

    /// Notes that the next operation begins, unless it was done.
    pub(crate) fn begin_next(&self) -> Begun {
        let number = self.next.replace(self.next.get() + 1);
        let begun = match self.interrupted {
            Some((interrupted, _)) if number < interrupted => return Begun::Done,
            // It stays noted what size the file had.
            Some((interrupted, size)) if number == interrupted && size != NOT_WRITING => {
                return Begun::Interrupted(size);
            }
            _ => Begun::New,
        };
        self.note((number, NOT_WRITING));
        begun
    }

    /// Notes that the operation begins to write to a file of this size.
    pub(crate) fn writing(&self, size: u64) {
        if let Some(number) = self.next.get().checked_sub(1)
            && self.interrupted.is_none_or(|(interrupted, noted)| number != interrupted || noted == NOT_WRITING)
        {
            self.note((number, size));
        }
    }

    /// What is not noted is done once more, which does no harm but to what others change meanwhile.
    fn note(&self, (number, size): Noted) {
        if let Some(file) = &self.file {
            let _ = file.write_all_at(&[number.to_le_bytes(), size.to_le_bytes()].concat(), BOOT as u64);
        }
    }
}

/// What stands there before the first operation.
fn beginning(boot: &[u8; BOOT]) -> Vec<u8> {
    [&boot[..], &0_u64.to_le_bytes(), &NOT_WRITING.to_le_bytes()].concat()
}

/// The name of this run of the kernel.
fn boot() -> io::Result<[u8; BOOT]> {
    if let Some(since) = crate::crash::powered_on() {
        return format!("{since:0BOOT$}").as_bytes().try_into().map_err(io::Error::other);
    }
    let text = pando_kernel::file::proc_file::text("/proc/sys/kernel/random/boot_id")?;
    text.trim_end().as_bytes().try_into().map_err(io::Error::other)
}

/// When the machine was powered on, if that was after a moment.
fn powered_on(moment: Moment) -> Moment {
    let (now, up) = (clock_gettime(ClockId::Realtime), clock_gettime(ClockId::Boottime));
    let seconds = crate::crash::powered_on().unwrap_or(now.tv_sec - up.tv_sec);
    if seconds > moment.seconds { Moment { seconds, nanoseconds: 0 } } else { moment }
}

fn read(path: &Path) -> io::Result<(File, [u8; BOOT], Noted)> {
    let file = File::options().read(true).write(true).open(path)?;
    let (mut boot, mut number, mut size) = ([0; BOOT], [0; 8], [0; 8]);
    file.read_exact_at(&mut boot, 0)?;
    file.read_exact_at(&mut number, BOOT as u64)?;
    file.read_exact_at(&mut size, BOOT as u64 + 8)?;
    Ok((file, boot, (u64::from_le_bytes(number), u64::from_le_bytes(size))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_told_from_what_was_not() {
        let directory = tempfile::tempdir().unwrap();
        let journal = JournalFile::of(directory.path());
        std::fs::write(journal.path(), "").unwrap();
        let first = Progress::begin(&journal, None);
        assert!(first.since().is_none());
        assert_eq!([(); 3].map(|()| first.begin_next()), [Begun::New; 3]);
        first.writing(77);
        let again = Progress::take_up(&journal).unwrap();
        assert!(again.since().is_some());
        let begun = [(); 4].map(|()| again.begin_next());
        assert_eq!(begun, [Begun::Done, Begun::Done, Begun::Interrupted(77), Begun::New]);
        assert_eq!(Progress::take_up(&journal).unwrap().interrupted, Some((3, NOT_WRITING)));
    }

    #[test]
    fn another_run_of_the_kernel_is_believed_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let journal = JournalFile::of(directory.path());
        std::fs::write(journal.path(), "").unwrap();
        std::fs::write(journal.progress(), beginning(&[b'0'; BOOT])).unwrap();
        for _ in 0..2 {
            let again = Progress::take_up(&journal).unwrap();
            assert_eq!((again.begin_next(), again.begin_next()), (Begun::New, Begun::New));
            std::fs::write(journal.progress(), "damaged").unwrap();
        }
    }
}
