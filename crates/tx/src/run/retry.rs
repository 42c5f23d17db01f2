//! The loop: attempts, until one is committed or none can go better.

use super::attempt::{Attempt, Tried};
use super::backoff::Backoff;
use super::lesson::{Lesson, Otherwise};
use crate::supervise::Reached;
use crate::transaction::Ended;
use crate::validate::abort_reason::AbortReason;
use std::time::{Duration, Instant};

/// How often a view is made anew at most, at once, where something is mounted or unmounted meanwhile. Where others
/// always do that, each further time counts as a run.
pub const MOST_VIEWS: u32 = 50;

/// How often a command runs again.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// How often at most, beside others.
    pub retries: u32,
    /// Whether it then runs once with its target to itself, so that it cannot be lost.
    pub exclusive_last: bool,
}

/// Another run, for whoever tells people of it.
#[derive(Debug)]
pub struct Retry<'a> {
    /// How the last run ended.
    pub after: &'a Attempt,
    /// What the next one does otherwise.
    pub otherwise: Option<Otherwise>,
    /// Which retry it is, from 1 on.
    pub number: u32,
    /// Whether it has its target to itself.
    pub exclusive: bool,
}

/// What runs a command as a transaction, once for each attempt.
pub trait Runner {
    /// Why there is no saying how an attempt ended.
    type Error;

    /// Makes one attempt. No other has its `number`. With `exclusive` nothing else runs in its target meanwhile.
    ///
    /// # Errors
    ///
    /// An error ends the loop.
    fn attempt(&mut self, number: u32, lesson: &mut Lesson, exclusive: bool) -> Result<Tried, Self::Error>;

    /// Tells that the command runs again.
    fn announce(&mut self, retry: &Retry<'_>);

    /// Waits between two attempts. A signal that is to end this program ends that, and is the answer.
    ///
    /// # Errors
    ///
    /// An error ends the loop.
    fn rest(&mut self, pause: Duration) -> Result<Option<i32>, Self::Error>;
}

/// What came of all attempts.
#[derive(Debug)]
pub struct Concluded {
    /// The last attempt, with what all of them have reached outside.
    pub tried: Tried,
    /// How many attempts there were before it.
    pub retries: u32,
    /// Whether it had its target to itself.
    pub exclusive: bool,
}

/// Runs a command as a transaction until that is committed, or another attempt would go no better.
///
/// # Errors
///
/// What an attempt or a pause says.
pub fn run_with_retries<R: Runner>(runner: &mut R, policy: RetryPolicy) -> Result<Concluded, R::Error> {
    let (mut lesson, mut reached, mut backoff) = (Lesson::default(), Reached::default(), Backoff::default());
    let (mut retries, mut views) = (0, 0);
    loop {
        // One that has lost all its retries has its target to itself: it ends.
        let exclusive = retries > policy.retries;
        let started = Instant::now();
        let tried = runner.attempt(retries + views, &mut lesson, exclusive)?;
        let took = started.elapsed();
        if matches!(tried.attempt, Attempt::NotBegun) && views < MOST_VIEWS {
            views += 1;
            continue;
        }
        // What an attempt has reached is not undone by its being lost.
        reached.add(tried.reached.clone());
        let is_left = is_left(&tried.attempt, retries, exclusive, policy);
        let Some(otherwise) = lesson.learn(&tried.attempt).filter(|_| is_left) else {
            return Ok(Concluded { tried: Tried { reached, ..tried }, retries, exclusive });
        };
        retries += 1;
        let exclusive = retries > policy.retries;
        runner.announce(&Retry { after: &tried.attempt, otherwise, number: retries, exclusive });
        let waits = !exclusive && is_in_the_way(&tried.attempt);
        let pause = if waits { backoff.after(took) } else { Duration::ZERO };
        if let Some(signal) = runner.rest(pause)? {
            let why = format!("ended by {}", pando_kernel::process::signal::name(signal));
            let attempt = Attempt::Aborted(Ended::Killed(signal).code(), why);
            return Ok(Concluded { tried: Tried { attempt, reached, ..tried }, retries, exclusive: false });
        }
    }
}

/// Whether the policy allows another attempt after this one.
fn is_left(attempt: &Attempt, retries: u32, exclusive: bool, policy: RetryPolicy) -> bool {
    // One whose command has failed by itself needs no run that cannot be misled.
    let last = policy.exclusive_last && !exclusive && !matches!(attempt, Attempt::Misled(..));
    retries < policy.retries || last
}

/// Whether whatever an attempt was lost to goes on, so that the next one waits. A transaction that has committed does
/// not, and what has outgrown its memory was in its own way.
fn is_in_the_way(attempt: &Attempt) -> bool {
    let goes_on = |reason: &AbortReason| !reason.is_lack_of_memory() && !reason.is_over();
    matches!(attempt, Attempt::Lost(reason) | Attempt::Misled(.., reason) if goes_on(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::daemons::Settled;
    use crate::validate::change_set::Figures;
    use crate::validate::conflict::{Conflict, Interference};
    use std::collections::VecDeque;

    /// Attempts that end as they are told.
    #[derive(Default)]
    struct Script {
        attempts: VecDeque<Attempt>,
        /// The number of each attempt, and whether it was exclusive.
        made: Vec<(u32, bool)>,
        announced: Vec<(u32, Option<Otherwise>, bool)>,
        pauses: Vec<Duration>,
        /// A signal that comes in the first pause.
        signal: Option<i32>,
    }

    impl Runner for Script {
        type Error = &'static str;

        fn attempt(&mut self, number: u32, _: &mut Lesson, exclusive: bool) -> Result<Tried, Self::Error> {
            self.made.push((number, exclusive));
            // Long enough for a pause that is a part of it.
            std::thread::sleep(Duration::from_millis(1));
            let attempt = self.attempts.pop_front().ok_or("nothing is left of the script")?;
            let mut tried = Tried::without_command(attempt);
            tried.reached.sockets.insert(format!("socket {number}"));
            Ok(tried)
        }

        fn announce(&mut self, retry: &Retry<'_>) {
            self.announced.push((retry.number, retry.otherwise, retry.exclusive));
        }

        fn rest(&mut self, pause: Duration) -> Result<Option<i32>, Self::Error> {
            self.pauses.push(pause);
            Ok(self.signal.take())
        }
    }

    fn committed() -> Attempt {
        Attempt::Committed(Figures::default(), Settled::default())
    }

    fn changed() -> AbortReason {
        Conflict::at("/f", Interference::Changed).into()
    }

    fn script(attempts: impl IntoIterator<Item = Attempt>) -> Script {
        Script { attempts: attempts.into_iter().collect(), ..Script::default() }
    }

    const TWICE: RetryPolicy = RetryPolicy { retries: 2, exclusive_last: false };

    #[test]
    fn what_is_lost_runs_again_and_what_it_reached_is_kept() {
        let mut script = script([Attempt::Lost(changed()), committed()]);
        let concluded = run_with_retries(&mut script, TWICE).unwrap();
        assert!(matches!(concluded.tried.attempt, Attempt::Committed(..)));
        assert_eq!((concluded.retries, concluded.exclusive), (1, false));
        assert_eq!(concluded.tried.reached.sockets.len(), 2);
        assert_eq!(script.announced, [(1, None, false)]);
        assert!(!script.pauses[0].is_zero(), "whoever it was lost to goes on");
    }

    #[test]
    fn an_end_has_no_further_attempt() {
        for end in [committed(), Attempt::Aborted(3, "exit code 3".into())] {
            let mut script = script([end, committed()]);
            assert_eq!(run_with_retries(&mut script, TWICE).unwrap().retries, 0);
            assert_eq!((script.made.len(), script.announced.len()), (1, 0));
        }
        let mut none = script([Attempt::Lost(changed()), committed()]);
        let concluded = run_with_retries(&mut none, RetryPolicy { retries: 0, exclusive_last: false }).unwrap();
        assert!(matches!(concluded.tried.attempt, Attempt::Lost(_)));
    }

    #[test]
    fn the_last_attempt_of_a_target_is_exclusive() {
        let policy = RetryPolicy { retries: 1, exclusive_last: true };
        let mut lost = script([Attempt::Lost(changed()), Attempt::Lost(changed()), Attempt::Lost(changed())]);
        let concluded = run_with_retries(&mut lost, policy).unwrap();
        assert!(concluded.exclusive && concluded.retries == 2);
        assert_eq!(lost.made, [(0, false), (1, false), (2, true)]);
        assert_eq!(lost.announced, [(1, None, false), (2, None, true)]);
        assert!(lost.pauses[1].is_zero(), "it waits for nobody");
        // A command that has failed by itself need not run alone.
        let misled = || Attempt::Misled(1, "exit code 1".into(), changed());
        let mut failed = script([misled(), misled(), committed()]);
        assert!(matches!(run_with_retries(&mut failed, policy).unwrap().tried.attempt, Attempt::Misled(..)));
        assert_eq!(failed.made.len(), 2);
    }

    #[test]
    fn views_are_made_anew_at_once_and_not_for_ever() {
        let views = MOST_VIEWS as usize + 1;
        let mut moving = script((0..views).map(|_| Attempt::NotBegun).chain([committed()]));
        let concluded = run_with_retries(&mut moving, TWICE).unwrap();
        assert_eq!((concluded.retries, moving.made.len(), moving.announced.len()), (1, views + 1, 1));
        let numbers: Vec<_> = moving.made.iter().map(|(number, _)| *number).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]), "{numbers:?}");
    }

    #[test]
    fn the_next_run_does_otherwise_what_the_last_was_lost_for() {
        let forgotten = Attempt::Lost(Conflict::Forgotten.into());
        let mut short = script([Attempt::Outgrown, forgotten, committed()]);
        run_with_retries(&mut short, TWICE).unwrap();
        let (disk, writes) = (Some(Otherwise::OnDisk), Some(Otherwise::WritesSynchronously));
        assert_eq!(short.announced, [(1, disk, false), (2, writes, false)]);
        assert!(short.pauses.iter().all(Duration::is_zero), "nobody else was in the way");
        let before = AbortReason::CommittedBefore("/f was changed by another transaction".into());
        let mut over = script([Attempt::Lost(before), committed()]);
        run_with_retries(&mut over, TWICE).unwrap();
        assert!(over.pauses[0].is_zero(), "the other one has ended");
    }

    #[test]
    fn a_signal_ends_the_pause_and_the_run() {
        let mut script = script([Attempt::Lost(changed()), committed()]);
        script.signal = Some(15);
        let concluded = run_with_retries(&mut script, TWICE).unwrap();
        assert!(matches!(&concluded.tried.attempt, Attempt::Aborted(143, why) if why == "ended by SIGTERM"));
    }
}
