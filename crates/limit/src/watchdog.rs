//! The watchdog: what to do when memory was promised twice and both want it.
//!
//! Two policies. `pl_mom`, as PlanetLab had it: when swap is almost full, whoever uses the most physical memory is restarted. And the default, which
//! goes by steps, each only when the one before was of no avail:
//!
//! ```text
//!   want of memory ──▶ reclaim from whoever is furthest above his reservation ──▶ freeze him, reclaim all he has ──▶ restart or stop him
//!   relief         ──▶ thaw
//! ```
//!
//! It decides on what it is shown and does nothing itself; the host's own processes are not among what it is shown.

use crate::machine::Free;
use serde::Deserialize;
use std::time::Duration;

/// How to act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// By steps.
    #[default]
    Graduated,
    /// As PlanetLab's daemon of that name did.
    PlMom,
    /// Not at all.
    Off,
}

/// The last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastResort {
    /// It is started anew.
    #[default]
    Restart,
    /// It stays stopped.
    Stop,
}

/// When to act: the table `[watchdog]` of pando.toml.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// How.
    pub policy: Policy,
    /// Percent of ten seconds in which nobody got on for want of memory (`full avg10` of /proc/pressure/memory).
    pub pressure: f64,
    /// Percent of memory that has to be had without swapping. Only where the kernel does not tell of pressure.
    pub free: f64,
    /// Percent of memory that is to be had without swapping from which on pressure is no want of the machine's: whoever thrashes within his own limit
    /// makes as much of it.
    pub plenty: f64,
    /// Percent of swap that may be in use; beside `free`, and alone for `pl_mom`.
    pub swap: f64,
    /// Seconds from one look to the next, and at the least from one step to the next.
    pub every: u64,
    /// Seconds without want before somebody is thawed.
    pub relief: u64,
    /// The last step.
    pub last: LastResort,
    /// Only to tell what would be done.
    pub dry_run: bool,
}

impl Default for Rules {
    fn default() -> Self {
        let (policy, last) = (Policy::default(), LastResort::default());
        Self { policy, pressure: 10.0, free: 3.0, plenty: 20.0, swap: 90.0, every: 5, relief: 30, last, dry_run: false }
    }
}

/// Somebody who could be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant<K> {
    /// Who.
    pub key: K,
    /// Bytes of memory that he holds.
    pub memory: u64,
    /// Bytes that he was promised.
    pub reserve: u64,
}

/// The machine at a moment.
#[derive(Clone, Debug)]
pub struct Scene<K> {
    /// Bytes of memory there are.
    pub memory: u64,
    /// What of it and of swap is free.
    pub free: Free,
    /// Percent of ten seconds in which nobody got on; `None` where the kernel does not tell.
    pub pressure: Option<f64>,
    /// Who holds memory.
    pub tenants: Vec<Tenant<K>>,
}

/// Something to be done to somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<K> {
    /// Take so many bytes from him, to swap or to the disk.
    Reclaim(K, u64),
    /// Freeze him, and take all that he holds.
    Freeze(K),
    /// Let him go on.
    Thaw(K),
    /// End him, and begin him anew.
    Restart(K),
    /// End him.
    Stop(K),
}

impl<K> Step<K> {
    /// In a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Reclaim(..) => "reclaim",
            Self::Freeze(_) => "freeze",
            Self::Thaw(_) => "thaw",
            Self::Restart(_) => "restart",
            Self::Stop(_) => "stop",
        }
    }

    /// To whom.
    pub fn whom(&self) -> &K {
        let (Self::Reclaim(key, _) | Self::Freeze(key) | Self::Thaw(key) | Self::Restart(key) | Self::Stop(key)) = self;
        key
    }
}

impl Policy {
    /// As pando.toml names it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Graduated => "graduated",
            Self::PlMom => "pl_mom",
            Self::Off => "off",
        }
    }

    /// The policy of a name.
    pub fn named(word: &str) -> Option<Self> {
        [Self::Graduated, Self::PlMom, Self::Off].into_iter().find(|policy| policy.word() == word)
    }
}

impl Rules {
    /// Everything but the policy, by the names of pando.toml.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        let last = if self.last == LastResort::Stop { "stop" } else { "restart" };
        vec![
            ("pressure", self.pressure.to_string()),
            ("free", self.free.to_string()),
            ("plenty", self.plenty.to_string()),
            ("swap", self.swap.to_string()),
            ("every", self.every.to_string()),
            ("relief", self.relief.to_string()),
            ("last", last.to_owned()),
        ]
    }
}

/// What was done, and who was it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage<K> {
    Calm,
    Reclaimed(K),
    Frozen(K),
}

/// The watchdog's memory.
#[derive(Clone, Debug)]
pub struct Watchdog<K> {
    rules: Rules,
    stage: Stage<K>,
    /// How long there was no want.
    calm: Duration,
}

/// Of what somebody holds above his reservation, the part that is taken at a time.
const SLICE: u64 = 4;

impl<K: Clone + PartialEq> Watchdog<K> {
    /// One that goes by these rules.
    pub fn new(rules: Rules) -> Self {
        Self { rules, stage: Stage::Calm, calm: Duration::ZERO }
    }

    /// Its rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What it did last about the present want, in a word, and to whom.
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
                Step::Reclaim(..) => "it is furthest above its reservation",
                _ => "what was done before was of no avail",
            };
            (step, why.to_owned())
        })
    }

    /// Whether memory is wanted, whoever holds it. If not, nobody has to be looked at: [`Watchdog::decide`] then asks of no tenant.
    pub fn is_wanting(&self, scene: &Scene<K>) -> bool {
        self.reason(scene).is_some()
    }

    /// Why something has to be done.
    fn reason(&self, scene: &Scene<K>) -> Option<String> {
        match self.rules.policy {
            Policy::Off => None,
            Policy::PlMom => self.swap_is_full(scene),
            Policy::Graduated => self.want(scene),
        }
    }

    /// What to do now, and why. To be asked once every [`Rules::every`] seconds.
    pub fn decide(&mut self, scene: &Scene<K>) -> Option<(Step<K>, String)> {
        if self.rules.policy == Policy::Off {
            return None;
        }
        match (self.reason(scene), self.rules.policy) {
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
                let above = |tenant: &&Tenant<K>| tenant.memory.saturating_sub(tenant.reserve);
                let worst = scene.tenants.iter().max_by_key(above).filter(|worst| above(worst) > 0)?;
                self.stage = Stage::Reclaimed(worst.key.clone());
                let why = format!("{why}; it is furthest above its reservation");
                Some((Step::Reclaim(worst.key.clone(), above(&worst).div_ceil(SLICE)), why))
            }
        }
    }

    /// Why memory is wanted, if it is.
    fn want(&self, scene: &Scene<K>) -> Option<String> {
        let free = scene.free.memory as f64 / scene.memory.max(1) as f64 * 100.0;
        if let Some(pressure) = scene.pressure {
            return (pressure >= self.rules.pressure && free < self.rules.plenty)
                .then(|| format!("nobody got on for want of memory for {pressure:.0}% of ten seconds"));
        }
        let no_swap = scene.free.swap_size == 0 || self.swap_is_full(scene).is_some();
        (free < self.rules.free && no_swap).then(|| format!("{free:.1}% of memory is free, and no swap to speak of"))
    }

    fn swap_is_full(&self, scene: &Scene<K>) -> Option<String> {
        let Free { swap, swap_size, .. } = scene.free;
        let used = swap_size.saturating_sub(swap) as f64 / swap_size.max(1) as f64 * 100.0;
        (swap_size > 0 && used >= self.rules.swap).then(|| format!("swap is {used:.0}% full"))
    }
}

/// The `full avg10` of /proc/pressure/memory; `None` where the kernel does not tell of it.
pub fn pressure() -> Option<f64> {
    read_pressure(&std::fs::read_to_string("/proc/pressure/memory").ok()?)
}

fn read_pressure(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("full "))?;
    line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(free: u64, swap_free: u64, pressure: Option<f64>) -> Scene<&'static str> {
        let tenant = |key, memory, reserve| Tenant { key, memory, reserve };
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

    #[test]
    fn pressure_is_read_off_the_kernels_words() {
        let text = "some avg10=1.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!((read_pressure(text), read_pressure("")), (Some(0.5), None));
    }
}
