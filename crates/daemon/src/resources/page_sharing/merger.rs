//! The kernel's merger of equal pages, run for as long as there is something to merge, and left as it was found.
//!
//! It is the machine's: how it was found is written down before it is changed, so that whatever becomes of this daemon,
//! the next puts it back. Where somebody else has it running it is not touched.

use crate::state::record;
use pando_guest::Places;
use pando_kernel::memory::ksm::{self, Counters, Pace};
use serde::{Deserialize, Serialize};
use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How often it is looked how far it has come.
const LOOK: Duration = Duration::from_millis(200);

/// It has to see a page twice before it believes that the page stays, and once more to find all others.
const SCANS: u64 = 3;

/// The longest that it runs at a time.
const LONGEST: Duration = Duration::from_secs(30);

/// In which it gives up what nobody has any more.
const MOMENT: Duration = Duration::from_secs(3);

/// A clock tick of /proc: USER_HZ is 100 on every architecture that Pando runs on.
const TICK: Duration = Duration::from_millis(10);

/// What lasts from one daemon to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// The boot that it is about.
    boot: String,
    /// The image of which some memory was offered.
    pub(super) image: Option<String>,
    /// How the merger was found, while it runs for this daemon: whether it ran, its pages and its sleep.
    found: Option<[u64; 3]>,
}

/// The merger, as this daemon knows it.
#[derive(Debug)]
pub(super) struct Merger {
    path: PathBuf,
    note: RefCell<Note>,
    thread: OnceCell<Option<i32>>,
}

impl Merger {
    /// Takes over what an earlier daemon has left, and puts the merger back as that had found it.
    pub(super) fn new(places: &Places, boot: &str) -> Self {
        let path = places.run().join("page-sharing");
        let mut note: Note = record::read_toml(&path).unwrap_or_default();
        if note.boot != boot {
            note = Note { boot: boot.to_owned(), ..Note::default() };
        }
        let merger = Self { path, note: RefCell::new(note), thread: OnceCell::new() };
        merger.put_back();
        merger
    }

    /// The image of which memory is offered.
    pub(super) fn image(&self) -> Option<String> {
        self.note.borrow().image.clone()
    }

    /// Notes whose memory is offered from now on.
    pub(super) fn note_image(&self, image: Option<&str>) -> io::Result<()> {
        if self.note.borrow().image.as_deref() == image {
            return Ok(());
        }
        self.note.borrow_mut().image = image.map(str::to_owned);
        self.write()
    }

    /// Whether others than these processes offer memory, or have. Blocking: it asks every process of the machine.
    pub(super) fn has_strangers(own: &HashSet<i32>) -> io::Result<bool> {
        if ksm::has_offered(std::process::id() as i32).is_err() {
            // The kernel tells it of none.
            return Ok(own.is_empty() && ksm::counters()?.pages_shared > 0);
        }
        let is_stranger = |pid: &i32| !own.contains(pid) && ksm::has_offered(*pid).unwrap_or(false);
        Ok(pando_kernel::process::all()?.iter().any(is_stranger))
    }

    /// Has it give up what it keeps of processes that have ended, which it does only while it runs.
    pub(super) async fn settle(&self) -> io::Result<Duration> {
        self.run(pace(0), MOMENT, |_, _, now| now.pages_shared == 0).await
    }

    /// Has it merge what was offered, about so many pages. The processor time that it has used for that.
    pub(super) async fn merge(&self, pages: u64) -> io::Result<Duration> {
        self.run(pace(pages), LONGEST, is_done).await
    }

    /// Runs it until that is done, by what it had come to at first, at the last look, and now.
    async fn run(
        &self,
        pace: Pace,
        longest: Duration,
        is_done: impl Fn(Counters, Counters, Counters) -> bool,
    ) -> io::Result<Duration> {
        let found = ksm::pace()?;
        if found.run == 1 {
            return Ok(Duration::ZERO);
        }
        let before = self.ticks();
        self.note.borrow_mut().found = Some([found.run, found.pages_to_scan, found.sleep_millisecs]);
        self.write()?;
        let merged = match ksm::set_pace(pace) {
            Ok(()) => {
                crate::crash::point("sharing.merging");
                watch(longest, is_done).await
            }
            failed => failed,
        };
        self.put_back();
        merged.map(|()| TICK * u32::try_from(self.ticks().saturating_sub(before)).unwrap_or(u32::MAX))
    }

    /// Puts it back as it was found.
    pub(super) fn put_back(&self) {
        let Some([run, pages_to_scan, sleep_millisecs]) = self.note.borrow_mut().found.take() else { return };
        // Somebody may have said 0 or 2 meanwhile, who does not want it to run: that holds.
        let is_running = ksm::pace().is_ok_and(|now| now.run == 1);
        let run = if is_running { run } else { ksm::pace().map_or(run, |now| now.run) };
        let put_back = ksm::set_pace(Pace { run, pages_to_scan, sleep_millisecs }).and_then(|()| self.write());
        if let Err(error) = put_back {
            tracing::warn!(%error, "the kernel's merger of equal pages is not as it was found");
        }
    }

    fn ticks(&self) -> u64 {
        self.thread.get_or_init(ksm::thread).and_then(|thread| ksm::ticks(thread).ok()).unwrap_or(0)
    }

    fn write(&self) -> io::Result<()> {
        record::write_toml(&self.path, &*self.note.borrow()).map_err(|error| error.source)
    }
}

/// How it works through so many pages: once in about two seconds, within what does not burden the machine.
fn pace(pages: u64) -> Pace {
    Pace { run: 1, pages_to_scan: (pages / 100).clamp(200, 4000), sleep_millisecs: 20 }
}

/// Waits until it has found all that it will.
async fn watch(longest: Duration, is_done: impl Fn(Counters, Counters, Counters) -> bool) -> io::Result<()> {
    let (begun, begin) = (tokio::time::Instant::now(), ksm::counters()?);
    let mut before = begin;
    while begun.elapsed() < longest {
        tokio::time::sleep(LOOK).await;
        let now = ksm::counters()?;
        if is_done(begin, before, now) {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Whether it finds no more: it has been through everything often enough, and the last look brought nothing.
fn is_done(begin: Counters, before: Counters, now: Counters) -> bool {
    now.full_scans >= begin.full_scans + SCANS && now.pages_sharing <= before.pages_sharing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_done_when_nothing_more_is_found() {
        let counters = |full_scans, pages_sharing| Counters { full_scans, pages_sharing, pages_shared: 0 };
        let begin = counters(10, 0);
        assert!(!is_done(begin, counters(11, 9), counters(12, 9)), "not often enough");
        assert!(!is_done(begin, counters(12, 9), counters(13, 20)), "it still finds some");
        assert!(is_done(begin, counters(13, 20), counters(13, 20)));
    }

    #[test]
    fn few_pages_are_looked_at_slowly_and_many_not_too_fast() {
        assert_eq!([10, 51_200, 9_000_000].map(|pages| pace(pages).pages_to_scan), [200, 512, 4000]);
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_of_another_boot_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::new(directory.path());
        std::fs::create_dir_all(places.run()).unwrap();
        let merger = Merger::new(&places, "one");
        merger.note_image(Some("warm")).unwrap();
        assert_eq!(Merger::new(&places, "one").image().as_deref(), Some("warm"));
        assert_eq!(Merger::new(&places, "two").image(), None);
    }
}
