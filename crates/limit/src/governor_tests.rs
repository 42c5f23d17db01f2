//! The governor against a scheduler that keeps exactly to its weights.

use super::*;

/// A group to be scheduled: its claim and what it wants, as a fraction of the machine.
#[derive(Clone, Copy, Debug)]
struct Guest {
    claim: Claim,
    wants: f64,
}

const MACHINE: u32 = 2;

/// What each gets in a tick: in proportion to weights, and what one does not want goes to the others in proportion.
fn schedule(guests: &[Guest], weights: &[u64]) -> Vec<f64> {
    let most: Vec<f64> = guests.iter().map(|guest| guest.wants.min(guest.claim.bound)).collect();
    let mut got = vec![0.0; guests.len()];
    for _ in 0..guests.len() {
        let left = 1.0 - got.iter().sum::<f64>();
        let hungry: Vec<usize> = (0..guests.len()).filter(|i| got[*i] + 1e-12 < most[*i]).collect();
        let total: f64 = hungry.iter().map(|i| weights[*i] as f64).sum();
        for i in hungry {
            got[i] = (got[i] + left * weights[i] as f64 / total).min(most[i]);
        }
    }
    got
}

/// What each is entitled to, were it known what it wants.
fn ideal(guests: &[Guest]) -> Vec<f64> {
    let wanting: Vec<Claim> = guests
        .iter()
        .filter(|guest| guest.wants > 0.0)
        .map(|guest| Claim {
            bound: guest.claim.bound.min(guest.wants),
            reserve: guest.claim.reserve.min(guest.wants),
            ..guest.claim
        })
        .collect();
    let value = worth(&wanting, 1.0);
    guests
        .iter()
        .map(|guest| if guest.wants > 0.0 { guest.claim.entitlement(value).min(guest.wants) } else { 0.0 })
        .collect()
}

struct World {
    governor: Governor<usize>,
    used: Vec<u64>,
    /// Ticks since each was looked at.
    unseen: Vec<u32>,
    weights: Vec<u64>,
    /// The part of the machine that is left for guests.
    left: f64,
}

impl World {
    fn new(guests: &[Guest]) -> Self {
        let mut governor = Governor::new(MACHINE, Scale::Shares);
        for (key, guest) in guests.iter().enumerate() {
            governor.join(key, guest.claim, None);
        }
        let [used, weights] = [0, 1024].map(|value| vec![value; guests.len()]);
        let mut world = Self { governor, used, unseen: vec![0; guests.len()], weights, left: 1.0 };
        let changed = world.governor.weigh();
        world.tell(changed);
        world
    }

    fn tell(&mut self, changed: Vec<(usize, u64)>) {
        for (key, weight) in changed {
            self.weights[key] = weight;
        }
    }

    /// Lets time pass; what each got in the last tick.
    fn run(&mut self, guests: &[Guest], ticks: u32) -> Vec<f64> {
        let mut got = Vec::new();
        for _ in 0..ticks {
            got = schedule(guests, &self.weights).into_iter().map(|got| got * self.left).collect();
            for (used, got) in self.used.iter_mut().zip(&got) {
                *used += (got * TICK.as_nanos() as f64 * f64::from(MACHINE)) as u64;
            }
            self.unseen.iter_mut().for_each(|ticks| *ticks += 1);
            for key in self.governor.to_look_at() {
                let elapsed = TICK * std::mem::take(&mut self.unseen[key]);
                self.governor.observe(&key, self.used[key], elapsed);
            }
            let changed = self.governor.decide();
            self.tell(changed);
        }
        got
    }
}

fn guest(reserve: f64, share: f64, wants: f64) -> Guest {
    Guest { claim: Claim { reserve, share, bound: if share == 0.0 { reserve } else { 1.0 } }, wants }
}

#[track_caller]
fn near(got: &[f64], wanted: &[f64], points: f64) {
    for (number, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!((got - wanted).abs() * 100.0 < points, "{number} got {got:.4} instead of {wanted:.4}");
    }
}

#[test]
fn two_busy_of_eight_get_what_they_would_without_the_others() {
    let mut guests = vec![guest(0.0, 100.0, 0.0); 8];
    guests[0] = guest(0.25, 50.0, 1.0);
    guests[1] = guest(0.0, 200.0, 1.0);
    let mut world = World::new(&guests);
    let at_first = schedule(&guests, &world.weights);
    assert!((at_first[0] - ideal(&guests)[0]).abs() > 0.05, "static weights are off: {at_first:?}");
    near(&world.run(&guests, 10), &[0.25 + 0.75 * 0.2, 0.75 * 0.8], 0.5);
}

#[test]
fn nobody_is_content_because_the_host_takes_its_part() {
    let mut guests = vec![guest(0.0, 100.0, 0.0); 8];
    guests[0] = guest(0.25, 50.0, 1.0);
    guests[1] = guest(0.0, 200.0, 1.0);
    let mut world = World::new(&guests);
    world.left = 0.6;
    world.run(&guests, 10);
    for _ in 0..100 {
        near(&world.run(&guests, 1), &[0.4 * 0.6, 0.6 * 0.6], 0.5);
    }
}

#[test]
fn an_idle_reservation_holds_the_moment_its_guest_wakes() {
    let mut guests = vec![guest(0.0, 100.0, 1.0); 8];
    guests[0] = guest(0.25, 100.0, 1.0);
    guests[1] = guest(0.3, 0.0, 0.0);
    guests[2] = guest(0.2, 10.0, 0.0);
    let mut world = World::new(&guests);
    world.run(&guests, 20);
    guests[1].wants = 1.0;
    guests[2].wants = 1.0;
    let woken = world.run(&guests, 1);
    assert!(woken[1] >= 0.295 && woken[2] >= 0.195, "{woken:?}");
    near(&world.run(&guests, 20), &ideal(&guests), 0.5);
}

#[test]
fn one_who_wants_little_is_found_content_and_left_alone() {
    let guests = [guest(0.25, 100.0, 1.0), guest(0.0, 100.0, 1.0), guest(0.0, 300.0, 0.05)];
    let mut world = World::new(&guests);
    world.run(&guests, 40);
    let mut right = 0;
    for _ in 0..200 {
        let got = world.run(&guests, 1);
        right += u32::from((got[0] - ideal(&guests)[0]).abs() < 0.005);
    }
    assert!(right > 180, "right {right} times of 200");
}

#[test]
fn nothing_is_looked_at_where_nothing_can_be_wrong() {
    let mut governor = Governor::new(MACHINE, Scale::Weight);
    governor.join(1, guest(0.0, 100.0, 0.0).claim, None);
    governor.join(2, guest(0.0, 300.0, 0.0).claim, None);
    assert_eq!(governor.next_look(), None);
    assert_eq!(governor.weigh(), [(2, 300)]);
    governor.join(3, guest(0.25, 100.0, 0.0).claim, None);
    assert_eq!((governor.next_look(), governor.to_look_at()), (Some(NAP), vec![3]));
    governor.leave(&3);
    assert_eq!(governor.next_look(), None);
    assert!((governor.promised(None)).abs() < 1e-9);
}

#[test]
fn of_many_that_idle_a_part_is_looked_at_each_time_and_whoever_wakes_is_soon_seen() {
    let mut guests = vec![guest(0.0, 100.0, 0.0); 200];
    guests[0] = guest(0.25, 50.0, 1.0);
    guests[1] = guest(0.0, 200.0, 1.0);
    let mut world = World::new(&guests);
    world.run(&guests, 10);
    for _ in 0..SELDOM {
        let members = world.governor.to_look_at();
        assert!(
            members.starts_with(&[0, 1]) && members.len() <= 2 + 198_usize.div_ceil(SELDOM as usize),
            "{members:?}"
        );
    }
    guests[100].wants = 1.0;
    near(&world.run(&guests, SELDOM + 6), &ideal(&guests), 0.5);
}

/// Numbers without a pattern, the same every time (Knuth's linear congruence).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn whoever_they_are_they_get_their_due() {
    let mut numbers = Numbers(7);
    for round in 0..300 {
        let mut left = 0.9;
        let mut guests = Vec::new();
        for _ in 0..2 + numbers.next(10) {
            let reserve = if numbers.next(2) == 0 { 0.0 } else { (numbers.next(30) as f64 / 100.0).min(left) };
            left -= reserve;
            let share = if reserve > 0.0 && numbers.next(3) == 0 { 0.0 } else { (1 + numbers.next(40)) as f64 * 10.0 };
            let wants = if numbers.next(3) == 0 { 0.0 } else { 1.0 };
            guests.push(guest(reserve, share, wants));
        }
        let mut world = World::new(&guests);
        let got = world.run(&guests, 30);
        for (number, (got, guest)) in got.iter().zip(&guests).enumerate() {
            let due = guest.claim.reserve.min(guest.wants);
            assert!(*got > due - 0.006, "round {round}: {number} got {got:.4} of {due:.4}: {guests:?}");
        }
        near(&got, &ideal(&guests), 1.0);
    }
}

/// Weights are of no use to `guests[0]`, who has at most `squeezed` of the machine as long as the other is not held to
/// less.
fn squeeze(world: &mut World, waits: Option<f64>, ticks: u32) -> Vec<Option<f64>> {
    let mut held = None;
    let mut seen = Vec::new();
    for _ in 0..ticks {
        let other: f64 = held.unwrap_or(0.4);
        for (key, had) in [(0, 0.99 - other), (1, other)] {
            world.used[key] += (had * TICK.as_nanos() as f64 * f64::from(MACHINE)) as u64;
            world.governor.observe(&key, world.used[key], TICK);
        }
        world.governor.waited(&0, waits);
        world.governor.decide();
        for (key, bound) in world.governor.bounds() {
            assert_eq!(key, 1, "whoever goes without is not bounded");
            held = bound;
        }
        seen.push(held);
    }
    seen
}

#[test]
fn where_weights_do_not_help_the_others_are_held_to_their_due() {
    for waits in [Some(0.7), None] {
        let guests = [guest(0.9, 100.0, 1.0), guest(0.0, 100.0, 1.0)];
        let mut world = World::new(&guests);
        let seen = squeeze(&mut world, waits, 100);
        assert!(seen.iter().skip(5).all(|held| held.is_some_and(|held| (held - 0.05).abs() < 1e-6)), "{seen:?}");
        world.governor.observe(&1, world.used[1], TICK);
        world.governor.decide();
        assert_eq!(world.governor.bounds(), [], "who has nothing for a moment stays held");
        world.governor.leave(&0);
        assert_eq!(world.governor.bounds(), [(1, None)], "nobody is there to be protected any more");
    }
    let mut world = World::new(&[guest(0.9, 100.0, 1.0), guest(0.0, 100.0, 1.0)]);
    assert!(squeeze(&mut world, Some(0.0), 100).iter().all(Option::is_none), "who does not wait goes without nothing");
}

#[test]
fn who_gets_next_to_nothing_and_waits_is_awake() {
    for (waits, helped) in [(Some(0.99), true), (Some(0.0), false)] {
        let mut world = World::new(&[guest(0.6, 100.0, 1.0), guest(0.0, 100.0, 1.0)]);
        for _ in 0..5 {
            for (key, had) in [(0, IDLE / 2.0), (1, 0.9)] {
                world.used[key] += (had * TICK.as_nanos() as f64 * f64::from(MACHINE)) as u64;
                world.governor.observe(&key, world.used[key], TICK);
            }
            world.governor.waited(&0, waits);
            world.governor.decide();
        }
        assert_eq!(world.governor.bounds().iter().any(|(key, _)| *key == 1), helped, "{waits:?}");
    }
}
