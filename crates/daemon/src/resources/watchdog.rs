//! The watchdog: its rules, where it stands, and the last steps that it took.

use pando_api::WatchdogStep;
use pando_guest::GuestName;
use pando_guest::settings::{Problem, Settings};
use pando_limit::watchdog::{Policy, Rules, Scene, Step, Watchdog};
use std::cell::RefCell;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// The watchdog, and the last steps that it took.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) dog: RefCell<Watchdog<GuestName>>,
    pub(crate) taken: RefCell<VecDeque<WatchdogStep>>,
    /// Told when it goes by other rules.
    pub(crate) changed: Notify,
}

impl Watch {
    pub(crate) fn new(settings: &Settings) -> Self {
        let dog = RefCell::new(Watchdog::new(rules(settings).0));
        Self { dog, taken: RefCell::default(), changed: Notify::new() }
    }

    pub(crate) fn rules(&self) -> Rules {
        self.dog.borrow().rules().clone()
    }

    pub(crate) fn decide(&self, scene: &Scene<GuestName>) -> Option<(Step<GuestName>, String)> {
        self.dog.borrow_mut().decide(scene)
    }

    pub(crate) fn is_wanting(&self, scene: &Scene<GuestName>) -> bool {
        self.dog.borrow().is_wanting(scene)
    }

    pub(crate) fn note(&self, step: WatchdogStep) {
        /// How many steps are remembered.
        const KEPT: usize = 32;
        let mut taken = self.taken.borrow_mut();
        taken.push_back(step);
        while taken.len() > KEPT {
            taken.pop_front();
        }
    }
}

/// The rules in pando.toml, and what is wrong with them. Of a file of which nothing is understood nobody knows whether
/// it wants a watchdog: then there is none, since what it does to guests cannot be undone.
pub(crate) fn rules(settings: &Settings) -> (Rules, Vec<Problem>) {
    let (rules, problems) = settings.table::<Rules>("watchdog");
    let unknown = settings.is_unreadable() || problems.iter().any(|problem| problem.what.contains("[watchdog] policy"));
    (if unknown { Rules { policy: Policy::Off, ..rules } } else { rules }, problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn rules_come_from_the_settings() {
        let read = |text: &str| rules(&Settings::parse(Path::new("pando.toml"), text));
        assert_eq!(read(""), (Rules::default(), Vec::new()));
        let (found, problems) = read("[other]\n[watchdog]\npolicy = \"pl_mom\"\nswap = 80\n");
        assert_eq!((found, problems), (Rules { policy: Policy::PlMom, swap: 80.0, ..Rules::default() }, Vec::new()));
    }

    #[test]
    fn what_is_not_understood_turns_no_watchdog_on() {
        let read = |text: &str| rules(&Settings::parse(Path::new("pando.toml"), text));
        for text in ["[watchdog]\npolicy = \"cat\"\n", "[watchdog]\npolicy = \"off\"\nswpa = 1\n", "[watchdog\n"] {
            let (found, problems) = read(text);
            assert_eq!(found.policy, Policy::Off, "{text}");
            assert_eq!(problems.len(), 1, "{text}");
        }
    }
}
