//! Waiting for what comes within microseconds, without sleeping.
//!
//! A thread that sleeps is woken where the kernel finds it best, and where processors share no cache that is the
//! processor of who wakes it: of a command, in the moment that it begins. What the daemon has to do then, a tenth of a
//! millisecond, would delay the command while another processor idles. Where several things are begun at once there is
//! other work to do meanwhile.

use pando_kernel::process::real_time;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often to look: where nobody else wants the processor, for somewhat longer than a first process takes from its
/// plan to the command's first instruction, half a millisecond.
const LOOKS: u32 = 1000;

/// How long at most, whoever gets the processor meanwhile.
const LONGEST: Duration = Duration::from_millis(2);

/// Looks again and again, for a short time, whether something has come. Whoever wants the processor meanwhile gets it;
/// where nobody would, the thread sleeps.
pub(crate) fn spin<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let since = Instant::now();
    let looks = if real_time::is_on() { 1 } else { LOOKS };
    for _ in 0..looks {
        let seen = look();
        if seen.is_some() || since.elapsed() > LONGEST {
            return seen;
        }
        rustix::thread::sched_yield();
    }
    None
}

/// How long a command that ends at once takes for that.
const BRIEF: Duration = Duration::from_millis(1);

/// Keeps the thread from sleeping for as long as a brief command takes, or until what is waited for has come. All else
/// goes on: this is the last in every round of its tasks, and whoever wants the processor gets it.
pub(crate) async fn stay_awake(come: impl Fn() -> bool) {
    let since = Instant::now();
    while !come() && since.elapsed() < BRIEF && !real_time::is_on() {
        rustix::thread::sched_yield();
        tokio::task::yield_now().await;
    }
}

/// How many are at something now.
#[derive(Debug, Default)]
pub(crate) struct Count(Cell<usize>);

impl Count {
    /// One more, until the value goes.
    pub(crate) fn one_more(&self) -> OneMore<'_> {
        self.0.set(self.0.get() + 1);
        OneMore(&self.0)
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.get() == 0
    }

    pub(crate) fn is_fewer_than(&self, bound: usize) -> bool {
        self.0.get() < bound
    }

    pub(crate) fn is_one(&self) -> bool {
        self.0.get() == 1
    }
}

/// One that is at it.
#[derive(Debug)]
pub(crate) struct OneMore<'a>(&'a Cell<usize>);

impl Drop for OneMore<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_until_something_came_or_time_is_up() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            (looks == 3).then_some(looks)
        };
        assert_eq!(spin(third), Some(3));
        assert_eq!(spin(|| None::<()>), None);
    }
}
