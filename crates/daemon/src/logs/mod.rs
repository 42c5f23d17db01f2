//! Guests' logs, kept within bounds.
//!
//! What a guest prints its shim carries into the log, and no more of it than the bound allows: a log beyond that loses
//! its beginning, in place, and who follows it reads on. Guests that an earlier Pando started have their logs
//! themselves. Those are looked after here until the guests end.
//!
//! Silent logs cost nothing: the kernel tells of the first write (inotify(7)). One that was written to is looked at
//! every second, instead of being told of every line, until it is silent again.

mod bound;
pub(crate) mod orphan;
mod pipe;
mod watched;

use bound::{Bound, Extent};
use pando_guest::settings::{Problem, Settings};
pub(crate) use pipe::{Feed, LogFiles, Printed, times};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use watched::Watched;

/// How often a log that is written to is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The logs of the guests that run.
#[derive(Debug)]
pub(crate) struct Logs {
    bound: Cell<Bound>,
    /// Those that came since the last look.
    joined: RefCell<Vec<PathBuf>>,
    stirred: Notify,
}

impl Logs {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { bound: Cell::new(Bound::read(settings).0), joined: RefCell::default(), stirred: Notify::new() }
    }

    /// The most that each takes of the disk: bytes.
    pub(crate) fn bound(&self) -> u64 {
        self.bound.get().bytes()
    }

    /// From now on logs have another bound. Whether it is another one.
    pub(crate) fn go_by(&self, LogBound(bound): LogBound) -> bool {
        self.bound.replace(bound) != bound
    }

    /// From now on this log is minded, if it exists by the next look; until it is removed.
    pub(crate) fn mind(&self, log: PathBuf) {
        self.joined.borrow_mut().push(log);
        self.stirred.notify_one();
    }
}

/// What the settings say of logs, and what is wrong with that.
pub(crate) fn settings(settings: &Settings) -> (LogBound, Vec<Problem>) {
    let (bound, problems) = Bound::read(settings);
    (LogBound(bound), problems)
}

/// A bound that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogBound(Bound);

/// Minds logs, for as long as the daemon runs.
pub(crate) async fn keep_bounded(logs: Rc<Logs>) {
    let mut watched = match Watched::new() {
        Ok(watched) => watched,
        Err(error) => {
            tracing::warn!(%error, "the kernel does not tell of writes to logs; they are looked at every second");
            Watched::nothing()
        }
    };
    // Those that were written to, with what they were at the last look.
    let mut lively: BTreeMap<PathBuf, Option<Extent>> = BTreeMap::new();
    loop {
        if lively.is_empty() {
            tokio::select! {
                () = logs.stirred.notified() => {}
                () = watched.stir() => {}
            }
        }
        tokio::time::sleep(LOOK).await;
        lively.extend(logs.joined.take().into_iter().map(|log| (log, None)));
        lively.extend(watched.written().into_iter().map(|log| (log, None)));
        lively.retain(|log, before| match logs.bound.get().keep(log) {
            Ok(Some(now)) if *before == Some(now) => {
                !watched.add(log, || matches!(Extent::of(log), Ok(then) if then == Some(now)))
            }
            Ok(Some(now)) => {
                *before = Some(now);
                true
            }
            // It is gone, or the guest has none.
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(%error, log = %log.display(), "a guest's log could not be kept within its bound");
                false
            }
        });
    }
}
