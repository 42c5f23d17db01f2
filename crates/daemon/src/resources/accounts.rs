//! The last look at what each guest used.

use pando_guest::GuestName;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The last look at each guest, and its notes.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    last: RefCell<BTreeMap<GuestName, Account>>,
}

#[derive(Debug)]
struct Account {
    /// When, and what was used then.
    looked: Instant,
    cpu_ns: u64,
    percent: f64,
    /// Looks of the last minutes, for who is live.
    marks: Vec<(Instant, u64)>,
}

impl Accounts {
    /// Notes a look; percent of the machine since the one before. Looks that follow each other at once would say
    /// little, so those keep the figure.
    pub(crate) fn look(&self, name: &GuestName, cpu_ns: u64, processors: u32) -> (f64, bool) {
        const LEAST: Duration = Duration::from_millis(100);
        let now = Instant::now();
        let mut last = self.last.borrow_mut();
        let account = last.entry(name.clone()).or_insert_with(|| Account {
            looked: now,
            cpu_ns,
            percent: 0.0,
            marks: vec![(now, cpu_ns)],
        });
        let elapsed = now - account.looked;
        if elapsed >= LEAST {
            let machine = elapsed.as_nanos() as f64 * f64::from(processors);
            account.percent = cpu_ns.saturating_sub(account.cpu_ns) as f64 / machine * 100.0;
            (account.looked, account.cpu_ns) = (now, cpu_ns);
        }
        let since = account.marks.first().map_or(cpu_ns, |(_, used)| *used);
        let live =
            cpu_ns.saturating_sub(since) as f64 >= LIVE_SPAN.as_nanos() as f64 * f64::from(processors) * LIVE_PART;
        (account.percent, live)
    }

    /// Remembers what was used at this moment, and forgets what is older than the span of living.
    pub(crate) fn mark(&self, name: &GuestName, cpu_ns: u64) {
        if let Some(account) = self.last.borrow_mut().get_mut(name) {
            let now = Instant::now();
            account.marks.push((now, cpu_ns));
            let old = account.marks.iter().take_while(|(then, _)| now - *then > LIVE_SPAN).count();
            // One from before the span stays: it says what had been used when the span began.
            account.marks.drain(..old.saturating_sub(1));
        }
    }

    /// What had been used when that was last remembered.
    pub(crate) fn marked(&self, name: &GuestName) -> Option<u64> {
        self.last.borrow().get(name)?.marks.last().map(|(_, cpu_ns)| *cpu_ns)
    }

    /// Forgets a guest that runs no more.
    pub(crate) fn forget(&self, name: &GuestName) {
        self.last.borrow_mut().remove(name);
    }
}

/// The span over which a guest counts as live, and the part of the machine that it has to have used in it (EuroSys
/// 2007, figure 1).
pub(super) const LIVE_SPAN: Duration = Duration::from_secs(300);

pub(super) const LIVE_PART: f64 = 0.001;
