//! Looking at what clones have of their own, in a thread that runs only where nobody else wants the processor.

use pando_freeze::{Frozen, HeldPages, SampledPage, Sampling, has_gone, not_offered};
use pando_guest::GuestName;
use pando_kernel::CallError;
use pando_kernel::cgroup::Field;
use pando_kernel::process::scheduling_policy;
use pando_limit::page_sharing::{Hints, Rules, Seen};
use rustix::time::{ClockId, clock_gettime};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// How many pages of a mapping stand for it.
const OF_AREA: u64 = 96;

/// How many of a process are looked at.
const OF_PROCESS: usize = 1536;

/// A guest that runs out of an image.
#[derive(Clone, Debug)]
pub(super) struct Clone {
    pub(super) guest: GuestName,
    pub(super) slot: u32,
    /// When it began.
    pub(super) started: i64,
}

/// An image and those of its clones whose pages may be shared.
#[derive(Debug)]
pub(super) struct Kin {
    pub(super) image: String,
    pub(super) frozen: Arc<Frozen>,
    pub(super) clones: Vec<Clone>,
}

/// Mappings of a process that are worth being offered, by their first address and the one after their last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Worth {
    pub(super) guest: GuestName,
    pub(super) pid: i32,
    pub(super) ranges: Vec<(u64, u64)>,
}

/// What there is to be had of an image and its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) image: String,
    /// Pages that would be saved.
    pub(super) gain: u64,
    /// Pages that the merger would have to look at for that.
    pub(super) pages: u64,
    pub(super) worth: Vec<Worth>,
}

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    hints: Hints,
    secret: RandomState,
}

impl Scanner {
    /// Looks at all of them; the processor time that it took. Blocking.
    pub(super) fn look(&mut self, rules: &Rules, field: &Field, kin: &[Kin]) -> (Vec<Findings>, Duration) {
        if let Err(error) = scheduling_policy::yield_to_all() {
            tracing::debug!(%error, "looking for equal pages takes its part of the processor");
        }
        self.hints.begin_round();
        let found = kin.iter().map(|kin| self.look_at(rules, field, kin)).collect();
        let used = clock_gettime(ClockId::ThreadCPUTime);
        (found, Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec as u32))
    }

    fn look_at(&mut self, rules: &Rules, field: &Field, kin: &Kin) -> Findings {
        let mut findings = Findings { image: kin.image.clone(), ..Findings::default() };
        let held = match HeldPages::of(&kin.frozen) {
            Ok(held) => held,
            Err(error) => {
                tracing::debug!(%error, image = kin.image, "its clones are not looked at");
                return findings;
            }
        };
        for clone in &kin.clones {
            for pid in crate::state::processes::pids(field, clone.slot) {
                match self.look_at_process(rules, &held, (kin, clone, pid), &mut findings) {
                    Err(error) if !has_gone(&error) => {
                        tracing::debug!(%error, guest = %clone.guest, "a process of it is not looked at");
                    }
                    _ => {}
                }
            }
        }
        findings
    }

    fn look_at_process(
        &mut self,
        rules: &Rules,
        held: &HeldPages<'_>,
        (kin, clone, pid): (&Kin, &Clone, i32),
        findings: &mut Findings,
    ) -> Result<(), CallError> {
        let hash = |bytes: &[u8]| self.secret.hash_one(bytes);
        let areas = held.sample(pid, &Sampling { of_area: OF_AREA, of_process: OF_PROCESS, hash: &hash })?;
        let whose =
            (self.secret.hash_one(&kin.image), self.secret.hash_one((&clone.guest, clone.started)), pid_inside(pid));
        let mut ranges = Vec::new();
        for area in areas {
            let pages: Vec<Seen> = area.pages.iter().map(seen).collect();
            let evidence = self.hints.note(rules, whose, area.own, &pages);
            if evidence.is_worth(rules) {
                findings.gain += evidence.gain();
                findings.pages += evidence.own;
                ranges.push((area.start, area.end));
            }
        }
        let ranges = not_offered(pid, ranges)?;
        if !ranges.is_empty() {
            findings.worth.push(Worth { guest: clone.guest.clone(), pid, ranges });
        }
        Ok(())
    }
}

/// The number of a process in its guest, by which its siblings have it too.
fn pid_inside(pid: i32) -> i32 {
    pando_kernel::process::describe(pid).map_or(pid, |process| process.inner_pid)
}

fn seen(page: &SampledPage) -> Seen {
    Seen { address: page.address, content: page.content, is_known: page.is_zero || page.is_like_image }
}
