//! The watchdog: what to do when memory was promised twice and both want it.
//!
//! Two policies. `pl_mom`, as PlanetLab had it: when swap is almost full, the guest that uses the most physical memory
//! is restarted. And the default, which goes by steps, each only when the one before was of no avail:
//!
//! ```text
//!   want of memory ──▶ reclaim from a guest above its reservation: the one furthest above it, unless another is chosen
//!                  ──▶ freeze it, reclaim all it has ──▶ restart or stop it
//!   relief         ──▶ thaw
//! ```
//!
//! It decides on what it is shown and does nothing itself; the host's own processes are not among what it is shown.

mod rules;
mod step;
mod want;

pub use rules::{LastResort, Policy, Rules, Victim};
pub use step::Step;
pub use want::{Scene, Tenant, pressure};

use crate::machine::Free;
use std::time::Duration;

/// What was done, and to which tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage<K> {
    Calm,
    Reclaimed(K),
    Frozen(K),
}

/// The watchdog, with what it remembers from one look to the next.
#[derive(Clone, Debug)]
pub struct Watchdog<K> {
    rules: Rules,
    stage: Stage<K>,
    /// How long there was no want.
    calm: Duration,
}

/// The part that is taken at a time, of what a tenant holds above its reservation.
const SLICE: u64 = 4;

impl<K: Clone + PartialEq> Watchdog<K> {
    /// One that goes by these rules.
    pub fn new(rules: Rules) -> Self {
        Self { rules, stage: Stage::Calm, calm: Duration::ZERO }
    }

    /// The rules that the watchdog acts by.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What it did last about the present want, in a word, and to which tenant.
    pub fn stage(&self) -> (&'static str, Option<&K>) {
        match &self.stage {
            Stage::Calm => ("calm", None),
            Stage::Reclaimed(key) => ("reclaimed", Some(key)),
            Stage::Frozen(key) => ("frozen", Some(key)),
        }
    }

    /// What would be done by a policy if memory were wanting now, which it need not be.
    pub fn would(&self, policy: Policy, scene: &Scene<K>) -> Option<(Step<K>, String)> {
        let mut other = self.clone();
        other.rules.policy = policy;
        let swap_size = scene.free.swap_size.max(1);
        let free = Free { memory: 0, swap: 0, swap_size };
        other.decide(&Scene { pressure: Some(100.0), free, ..scene.clone() }).map(|(step, _)| {
            let why = match step {
                Step::Restart(_) if policy == Policy::PlMom => "it holds the most memory",
                Step::Reclaim(..) => self.rules.victim.why(),
                _ => "what was done before was of no avail",
            };
            (step, why.to_owned())
        })
    }

    /// Whether memory is wanted, whichever tenant holds it. If not, none has to be looked at: [`Watchdog::decide`] then
    /// asks of no tenant.
    pub fn is_wanting(&self, scene: &Scene<K>) -> bool {
        self.rules.reason(scene).is_some()
    }

    /// What to do now, and why. To be asked once every [`Rules::every`] seconds.
    pub fn decide(&mut self, scene: &Scene<K>) -> Option<(Step<K>, String)> {
        if self.rules.policy == Policy::Off {
            return None;
        }
        match (self.rules.reason(scene), self.rules.policy) {
            (None, _) => self.relieved(),
            (Some(why), Policy::PlMom) => {
                let worst = scene.tenants.iter().max_by_key(|tenant| tenant.memory)?;
                Some((Step::Restart(worst.key.clone()), format!("{why}; it holds the most memory")))
            }
            (Some(why), _) => {
                self.calm = Duration::ZERO;
                self.escalate(scene, why)
            }
        }
    }

    /// Takes account of that the last step was not taken: there was no want any more when it was to be.
    pub fn spared(&mut self) {
        self.stage = Stage::Calm;
    }

    fn relieved(&mut self) -> Option<(Step<K>, String)> {
        self.calm += Duration::from_secs(self.rules.every);
        if self.calm < Duration::from_secs(self.rules.relief) {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::Calm) {
            Stage::Frozen(key) => Some((Step::Thaw(key), format!("no want of memory for {} s", self.calm.as_secs()))),
            _ => None,
        }
    }

    fn escalate(&mut self, scene: &Scene<K>, why: String) -> Option<(Step<K>, String)> {
        let lives = |key: &K| scene.tenants.iter().any(|tenant| tenant.key == *key);
        match std::mem::replace(&mut self.stage, Stage::Calm) {
            Stage::Reclaimed(key) if lives(&key) => {
                self.stage = Stage::Frozen(key.clone());
                Some((Step::Freeze(key), format!("{why}, also after memory was taken from it")))
            }
            Stage::Frozen(key) if lives(&key) => {
                let why = format!("{why}, also while it was frozen");
                Some((if self.rules.last == LastResort::Stop { Step::Stop(key) } else { Step::Restart(key) }, why))
            }
            _ => {
                let worst = self.rules.worst(scene)?;
                self.stage = Stage::Reclaimed(worst.key.clone());
                let why = format!("{why}; {}", self.rules.victim.why());
                Some((Step::Reclaim(worst.key.clone(), worst.excess().div_ceil(SLICE)), why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(free: u64, swap_free: u64, pressure: Option<f64>) -> Scene<&'static str> {
        let tenant = |key, memory, reserve| {
            let (began, shares) = if key == "idle" { (9, 1) } else { (1, 1000) };
            Tenant { key, memory, reserve, began, shares }
        };
        let free = Free { memory: free, swap: swap_free, swap_size: 100 };
        Scene {
            memory: 1000,
            free,
            pressure,
            tenants: vec![tenant("big", 500, 400), tenant("hog", 300, 0), tenant("idle", 9, 0)],
        }
    }

    fn watchdog(policy: Policy) -> Watchdog<&'static str> {
        Watchdog::new(Rules { policy, ..Rules::default() })
    }

    fn step(watchdog: &mut Watchdog<&'static str>, scene: &Scene<&'static str>) -> Option<Step<&'static str>> {
        watchdog.decide(scene).map(|(step, _)| step)
    }

    #[test]
    fn steps_follow_each_other_while_want_lasts() {
        let mut dog = watchdog(Policy::Graduated);
        let want = scene(1, 0, Some(50.0));
        assert_eq!(step(&mut dog, &want), Some(Step::Reclaim("hog", 75)), "not from the one within its reservation");
        assert_eq!(step(&mut dog, &want), Some(Step::Freeze("hog")));
        assert_eq!(dog.stage(), ("frozen", Some(&"hog")));
        assert_eq!(step(&mut dog, &want), Some(Step::Restart("hog")));
        assert_eq!(step(&mut dog, &want), Some(Step::Reclaim("hog", 75)));
    }

    #[test]
    fn who_was_frozen_is_thawed_after_lasting_relief() {
        let mut dog = watchdog(Policy::Graduated);
        let (want, relief) = (scene(1, 0, Some(50.0)), scene(900, 100, Some(0.0)));
        step(&mut dog, &want);
        step(&mut dog, &want);
        for _ in 0..5 {
            assert_eq!(step(&mut dog, &relief), None);
        }
        assert_eq!(step(&mut dog, &relief), Some(Step::Thaw("hog")));
        assert_eq!(step(&mut dog, &relief), None);
        // Want in between begins the wait anew.
        step(&mut dog, &want);
        assert_eq!(step(&mut dog, &relief), None);
    }

    #[test]
    fn pressure_within_somebodys_own_limit_is_no_want() {
        let mut dog = watchdog(Policy::Graduated);
        assert_eq!(step(&mut dog, &scene(500, 0, Some(99.0))), None, "half of the memory is to be had");
        assert!(step(&mut dog, &scene(199, 0, Some(99.0))).is_some());
    }

    #[test]
    fn without_pressure_free_memory_and_swap_tell() {
        let mut dog = watchdog(Policy::Graduated);
        assert_eq!(step(&mut dog, &scene(20, 50, None)), None, "there is swap");
        assert_eq!(step(&mut dog, &scene(40, 0, None)), None, "there is memory");
        assert!(step(&mut dog, &scene(20, 5, None)).is_some());
    }

    #[test]
    fn pl_mom_restarts_the_largest_when_swap_is_nine_tenths_full() {
        let mut dog = watchdog(Policy::PlMom);
        assert_eq!(step(&mut dog, &scene(1, 11, Some(99.0))), None);
        assert_eq!(step(&mut dog, &scene(1, 10, None)), Some(Step::Restart("big")));
        let mut none = scene(1, 0, None);
        none.free.swap_size = 0;
        assert_eq!(step(&mut dog, &none), None, "no swap is never full");
        assert_eq!(step(&mut watchdog(Policy::Off), &scene(1, 0, Some(99.0))), None);
    }

    #[test]
    fn the_operator_says_whose_memory_goes_first() {
        let want = scene(1, 0, Some(50.0));
        let first = |victim| {
            let mut dog = Watchdog::new(Rules { victim, ..Rules::default() });
            dog.decide(&want).map(|(step, why)| (*step.whom(), why.ends_with(victim.why())))
        };
        let chosen = [Victim::Excess, Victim::Largest, Victim::Newest, Victim::Share].map(first);
        assert_eq!(chosen, ["hog", "big", "idle", "idle"].map(|key| Some((key, true))));
        // Whoever is within its reservation is none of them.
        let mut promised = want.clone();
        promised.tenants[0].reserve = 500;
        let mut dog = Watchdog::new(Rules { victim: Victim::Largest, ..Rules::default() });
        assert_eq!(step(&mut dog, &promised), Some(Step::Reclaim("hog", 75)));
    }

    #[test]
    fn who_was_spared_is_not_frozen() {
        let mut dog = watchdog(Policy::Graduated);
        let want = scene(1, 0, Some(50.0));
        step(&mut dog, &want);
        assert_eq!(step(&mut dog, &want), Some(Step::Freeze("hog")));
        dog.spared();
        assert_eq!(step(&mut dog, &want), Some(Step::Reclaim("hog", 75)), "it begins anew");
    }

    #[test]
    fn what_would_be_done_can_be_asked_in_calm() {
        let dog = watchdog(Policy::Graduated);
        let calm = scene(90, 100, Some(0.0));
        assert_eq!(dog.clone().decide(&calm), None);
        let (step, why) = dog.would(Policy::PlMom, &calm).unwrap();
        assert_eq!((step.word(), *step.whom(), why.as_str()), ("restart", "big", "it holds the most memory"));
        assert_eq!(dog.would(Policy::Graduated, &calm).unwrap().0.word(), "reclaim");
        assert_eq!(dog.would(Policy::Off, &calm), None);
        assert_eq!(dog.stage(), ("calm", None), "asking changes nothing");
        assert_eq!(Policy::named("pl_mom"), Some(Policy::PlMom));
    }

    #[test]
    fn nobody_to_take_from_is_nobody() {
        let mut dog = watchdog(Policy::Graduated);
        let mut alone = scene(1, 0, Some(99.0));
        alone.tenants.truncate(1);
        alone.tenants[0].reserve = 600;
        assert_eq!(step(&mut dog, &alone), None);
    }
}
