//! The governor of processor time: which groups are busy now, and the weights that follow.
//!
//! Static weights, computed over everybody, honour every reservation; but with only some of them busy they hand spare
//! time to the wrong ones (16 points off in the worst case measured). So while two or more want to run, and one of them
//! has a reservation and a share, the governor looks every [`TICK`] at what each used, and computes the weights over
//! those that want to run:
//!
//! ```text
//!   used ns ──observe──▶ rates ──▶ hungry? ──▶ worth of a share ──▶ weights ──▶ those that changed
//! ```
//!
//! From outside it cannot be seen what a group *would* use. A group that uses something while the machine is full is
//! taken to want more, on trial. If it then does not use what it could, it is content for a while, and what it uses is
//! taken off what the others share. One that is idle keeps the weight that honours its reservation the moment it wakes.
//! Those that want everything have accounts besides ([`Deficit`](crate::deficit)), and where weights do not help a
//! group with a reservation, the others get bounds for a time ([`Throttle`](crate::throttle)).

use crate::deficit::Deficit;
use crate::entitlement::{Claim, Scale, worth};
use crate::throttle::{Party, Throttle, WAITING};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often to look while it matters.
pub const TICK: Duration = Duration::from_millis(100);

/// How often to look whether it has begun to matter: a group that wakes on a reservation may go without it for as long.
pub const NAP: Duration = Duration::from_millis(200);

/// One in so many of those that were idle is looked at again each time, where nothing is promised to them: hundreds of
/// guests idle while two compete, and one of them that wakes has its usual weight meanwhile.
const SELDOM: u32 = 4;

/// How often all are looked at when it begins to matter: at the second look it shows which are busy.
const AT_FIRST: u32 = 3;

/// The part of the machine below which a group counts as idle.
const IDLE: f64 = 0.004;

/// The part of its entitlement above which a group wants it all.
const HUNGRY: f64 = 0.8;

/// How many looks a trial takes: time for new weights to show.
const TRIAL: u32 = 4;

/// The longest that a group that was found content is left alone, in looks.
const LONGEST_CONTENT: u32 = 256;

/// Of the machine, what those that are awake are taken to have at least when the others wake: weights have to stay
/// finite.
const LEAST_AWAKE: f64 = 0.01;

/// A group that wakes has a little more than its reservation for a moment, rather than a little less.
const WAKING: f64 = 1.05;

/// What the governor thinks of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// Uses nothing to speak of.
    Idle,
    /// It may want more than it gets; looks left to prove that.
    OnTrial(u32),
    /// It uses all that it is entitled to.
    Hungry,
    /// It has all that it wants; looks left until it is tried again, and how long that was at first.
    Content { left: u32, spell: u32 },
}

#[derive(Clone, Debug)]
struct Member {
    claim: Claim,
    /// What it had used when last looked at, in nanoseconds.
    used: Option<u64>,
    /// What it uses, as a fraction of the machine.
    rate: f64,
    mood: Mood,
    /// How long it was left alone after its last trial.
    spell: u32,
    /// The weight that was written for it last.
    told: u64,
    /// Seconds since the look before the last.
    span: f64,
    deficit: Deficit,
    /// The part of the time in which one of its processes waited, where the kernel tells.
    waits: Option<f64>,
    /// Whether the others are restrained for its sake.
    protected: bool,
    /// The bound that it is held to now, as a fraction of the machine, besides that of its own claim.
    held: Option<f64>,
}

/// Members and their weights; `K` names a member.
#[derive(Clone, Debug)]
pub struct Governor<K> {
    members: BTreeMap<K, Member>,
    processors: u32,
    scale: Scale,
    throttle: Throttle,
    /// Looks since it began to matter.
    looks: u32,
}

impl<K: Ord + Clone> Governor<K> {
    /// One for a machine of so many processors.
    pub fn new(processors: u32, scale: Scale) -> Self {
        let (members, throttle) = (BTreeMap::new(), Throttle::default());
        Self { members, processors: processors.max(1), scale, throttle, looks: 0 }
    }

    /// Takes in a member, or changes its claim. A new one's group has the kernel's usual weight, or `told` if another
    /// was written.
    pub fn join(&mut self, key: K, claim: Claim, told: Option<u64>) {
        let told = told.unwrap_or(self.scale.usual());
        let new = Member {
            claim,
            used: None,
            rate: 0.0,
            mood: Mood::Idle,
            spell: TRIAL,
            told,
            span: 0.0,
            deficit: Deficit::default(),
            waits: None,
            protected: false,
            held: None,
        };
        // A claim that changed was written, and with it whatever the group was held to.
        let changed = |member: &mut Member| (member.claim, member.held) = (claim, None);
        self.members.entry(key).and_modify(changed).or_insert(new);
    }

    /// Removes a member, and forgets what was counted of it.
    pub fn leave(&mut self, key: &K) {
        self.members.remove(key);
    }

    /// What is promised to all members but one, as a fraction of the machine.
    pub fn promised(&self, but: Option<&K>) -> f64 {
        self.members.iter().filter(|(key, _)| Some(*key) != but).map(|(_, member)| member.claim.reserve).sum()
    }

    /// Whether weights ever have to be looked after: a group has a reservation or a bound, and there is another.
    pub fn matters(&self) -> bool {
        self.members.len() > 1 && self.members.values().any(|member| member.claim.is_special())
    }

    /// Those to look at now: while nobody competes, those with a reservation or a bound; otherwise all that are awake
    /// besides, and a part of the others in turn.
    pub fn to_look_at(&mut self) -> Vec<K> {
        let competes = self.competes();
        self.looks = if competes { self.looks.saturating_add(1) } else { 0 };
        let (all, turn) = (self.looks <= AT_FIRST, self.looks % SELDOM);
        let has_turn = |number: u32, one: &Member| all || one.mood != Mood::Idle || number % SELDOM == turn;
        let numbered = (0..).zip(&self.members);
        let due = numbered.filter(|(number, (_, one))| one.claim.is_special() || competes && has_turn(*number, one));
        due.map(|(_, (key, _))| key.clone()).collect()
    }

    /// Whether weights matter and a group with a reservation or a bound is busy.
    pub fn competes(&self) -> bool {
        self.matters() && self.members.values().any(|member| member.claim.is_special() && member.mood != Mood::Idle)
    }

    /// When to look again; `None` where there is no need to.
    pub fn next_look(&self) -> Option<Duration> {
        self.matters().then(|| if self.competes() { TICK } else { NAP })
    }

    /// Takes in what a member has used in all, in nanoseconds of processor time, `elapsed` after the last look at it.
    pub fn observe(&mut self, key: &K, used: u64, elapsed: Duration) {
        let machine = elapsed.as_nanos() as f64 * f64::from(self.processors);
        if let Some(member) = self.members.get_mut(key) {
            member.rate = match member.used {
                Some(before) if machine > 0.0 => used.saturating_sub(before) as f64 / machine,
                _ => 0.0,
            };
            member.used = Some(used);
            member.span = elapsed.as_secs_f64();
        }
    }

    /// Takes in the part of the time since the last look in which a process of a member waited for a processor; `None`
    /// where nobody can tell.
    pub fn waited(&mut self, key: &K, part: Option<f64>) {
        if let Some(member) = self.members.get_mut(key) {
            member.waits = part;
        }
    }

    /// The weights that have to change, after every member to look at was observed.
    pub fn decide(&mut self) -> Vec<(K, u64)> {
        if self.competes() || self.members.values().any(Member::is_awake) {
            self.judge();
            self.keep_accounts();
            self.restrain();
        }
        self.weigh()
    }

    /// The bounds that have to change, as fractions of the machine: `None` lets a member have what its own claim
    /// allows.
    pub fn bounds(&mut self) -> Vec<(K, Option<f64>)> {
        /// A smaller change is not worth telling the kernel.
        const WORTH_TELLING: f64 = 0.1;
        if !self.matters() {
            self.throttle = Throttle::default();
        }
        let (on, value) = (self.throttle.is_on(), self.worth_to_all_awake());
        let mut changed = Vec::new();
        for (key, member) in &mut self.members {
            let due = member.claim.entitlement(value).max(IDLE);
            let bound = match (on && !member.protected, member.is_awake()) {
                (true, true) => (due < member.claim.bound).then_some(due),
                // A group that has next to nothing for a moment, because it is held, is not let go for that.
                (true, false) => member.held,
                (false, _) => None,
            };
            let same = match (bound, member.held) {
                (Some(bound), Some(held)) => (bound - held).abs() <= WORTH_TELLING * held,
                (bound, held) => bound == held,
            };
            if !same {
                member.held = bound;
                changed.push((key.clone(), bound));
            }
        }
        changed
    }

    /// Sees whether a group goes without what is reserved for it while another has too much.
    fn restrain(&mut self) {
        let value = self.worth_to_all_awake();
        let party = |member: &Member| Party {
            reserve: member.claim.reserve,
            due: member.claim.entitlement(value),
            rate: member.rate,
            waits: member.waits,
        };
        let parties: Vec<Party> = self.members.values().filter(|member| member.is_awake()).map(party).collect();
        let was_on = self.throttle.is_on();
        self.throttle.look(&parties);
        if self.throttle.is_on() && !was_on {
            for member in self.members.values_mut() {
                member.protected = member.is_awake() && party(member).is_short();
            }
        }
    }

    /// What a share of one is worth if all that are awake want everything.
    fn worth_to_all_awake(&self) -> f64 {
        let awake: Vec<Claim> = self.members.values().filter(|one| one.is_awake()).map(|one| one.claim).collect();
        worth(&awake, 1.0)
    }

    /// The weights that have to change when a group came, went, or changed its claim.
    pub fn weigh(&mut self) -> Vec<(K, u64)> {
        let busy = self.contenders();
        // With fewer than two that want to run all count as busy: those weights are right whichever wakes.
        let everybody = busy.len() < 2 || !self.matters();
        let in_set = |member: &Member| everybody || member.is_busy();
        let claims: Vec<Claim> = self.members.values().filter(|one| in_set(one)).map(|one| one.claim).collect();
        let capacity = if everybody { 1.0 } else { self.capacity() };
        let value = worth(&claims, capacity);
        let asleep = |member: &&Member| !in_set(member) && member.claim.reserve > 0.0;
        let awake: f64 = claims.iter().map(|claim| claim.weight(value)).sum();
        let reserved: f64 = self.members.values().filter(asleep).map(|member| member.claim.reserve).sum();
        // All those that sleep on a reservation may wake at once: then each has its part of what they and the others
        // weigh together.
        let unit = awake / (1.0 - reserved).max(LEAST_AWAKE);
        let weight = |member: &Member| {
            let claim = &member.claim;
            if asleep(&member) {
                claim.share + claim.reserve * unit * WAKING
            } else {
                claim.weight(value) * member.deficit.lean()
            }
        };
        let weights: Vec<f64> = self.members.values().map(weight).collect();
        let told = self.scale.fit(&weights);
        let mut changed = Vec::new();
        for ((key, member), weight) in self.members.iter_mut().zip(told) {
            // A part in two hundred is less than the scheduler keeps to.
            if weight.abs_diff(member.told) * 200 > member.told.max(1) {
                member.told = weight;
                changed.push((key.clone(), weight));
            }
        }
        changed
    }

    /// Counts what those that want everything had against what they were due of what they had together. A group that
    /// its bound holds is not among them.
    fn keep_accounts(&mut self) {
        let value = worth(&self.contenders(), self.capacity());
        let counts =
            |member: &Member| member.mood == Mood::Hungry && member.claim.entitlement(value) < member.claim.bound;
        let among = self.members.values().filter(|member| counts(member));
        let (had, due) =
            among.fold((0.0, 0.0), |(had, due), member| (had + member.rate, due + member.claim.entitlement(value)));
        for member in self.members.values_mut() {
            if counts(member) {
                member.deficit.count(member.claim.entitlement(value) / due * had, member.rate, member.span);
            } else {
                member.deficit = Deficit::default();
            }
        }
    }

    fn contenders(&self) -> Vec<Claim> {
        self.members.values().filter(|member| member.is_busy()).map(|member| member.claim).collect()
    }

    /// What those that do not contend leave of the machine.
    fn capacity(&self) -> f64 {
        let used: f64 = self.members.values().filter(|member| !member.is_busy()).map(|member| member.rate).sum();
        (1.0 - used).max(0.1)
    }

    fn judge(&mut self) {
        let busy = self.contenders();
        let value = worth(&busy, self.capacity());
        let one = 1.0 / f64::from(self.processors);
        // The host's own work, and the host of a virtual machine, take some of it: nobody is content because there is
        // less for all.
        let due: f64 = busy.iter().map(|claim| claim.entitlement(value)).sum();
        let had: f64 = self.members.values().filter(|member| member.is_busy()).map(|member| member.rate).sum();
        let delivered = if due > 0.0 { (had / due).min(1.0) } else { 1.0 };
        for member in self.members.values_mut() {
            // A program with one thread cannot use more than one processor, and wants that.
            let entitled = (member.claim.entitlement(value) * delivered).min(one.max(member.rate));
            let full = member.rate >= HUNGRY * entitled || member.rate >= 0.95 * one;
            member.mood = match member.mood {
                _ if !member.is_awake() => {
                    member.spell = TRIAL;
                    Mood::Idle
                }
                Mood::Idle => Mood::OnTrial(TRIAL),
                Mood::OnTrial(_) | Mood::Hungry if full => {
                    member.spell = TRIAL;
                    Mood::Hungry
                }
                Mood::Hungry => Mood::OnTrial(TRIAL),
                Mood::OnTrial(0) => {
                    member.spell = (member.spell * 2).min(LONGEST_CONTENT);
                    Mood::Content { left: member.spell, spell: member.spell }
                }
                Mood::OnTrial(left) => Mood::OnTrial(left - 1),
                Mood::Content { .. } if full => Mood::Hungry,
                Mood::Content { left: 0, .. } => Mood::OnTrial(TRIAL),
                Mood::Content { left, spell } => Mood::Content { left: left - 1, spell },
            };
        }
    }
}

impl Member {
    /// A group that gets next to nothing is awake all the same if it is known to wait for it.
    fn is_awake(&self) -> bool {
        self.rate > IDLE || self.waits.is_some_and(|part| part >= WAITING)
    }

    fn is_busy(&self) -> bool {
        matches!(self.mood, Mood::OnTrial(_) | Mood::Hungry)
    }
}

#[cfg(test)]
#[path = "governor_tests.rs"]
mod tests;
