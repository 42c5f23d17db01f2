//! Entitlements: how much of the machine's processors each group is entitled to, and the weights that give it.
//!
//! Over the set A of those that want to run now, with reservations r and shares s, each is entitled to
//!
//! ```text
//!   e = r + (C − R_A) · s / S_A        C: what those outside A leave of the machine (1 is all of it)
//! ```
//!
//! and what a group may not use for its bound is split among the others again. The kernel's scheduler knows weights
//! alone. Divided by what a share of one is worth, c = (C − R_A) / S_A, an entitlement becomes a weight of s + r / c. A
//! group with a share and no reservation has its share for a weight, whichever others are busy, so that only the
//! weights of reservations ever change.

use crate::limits::{Cpu, DEFAULT_SHARE};

/// A claim to processor time, in parts of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// What is guaranteed, as a fraction of the machine.
    pub reserve: f64,
    /// The weight in what is left; 0 for a reservation that is an upper bound too.
    pub share: f64,
    /// The most, as a fraction of the machine.
    pub bound: f64,
}

impl Claim {
    /// The claim of limits, on a machine of so many processors.
    pub fn of(cpu: &Cpu, processors: u32) -> Self {
        let machine = f64::from(processors);
        let listed = cpu.cpus.as_ref().map_or(1.0, |cpus| cpus.len() as f64 / machine);
        let bound = cpu.bound(processors).map_or(1.0, |bound| bound / machine).min(listed).min(1.0);
        Self { reserve: cpu.reserve.unwrap_or(0.0), share: cpu.effective_share() as f64, bound }
    }

    /// Whether it is more than a plain share: then what static weights give it depends on which others are busy, or on
    /// when its bound holds.
    pub fn is_special(&self) -> bool {
        self.reserve > 0.0 || self.bound < 1.0
    }
}

/// The least part of the machine that all shares together are left with, however much is reserved: weights have to stay
/// finite.
const LEAST_LEFT: f64 = 0.002;

/// A reservation that a bound holds down gets twice the weight that it needs, so that the bound decides, exactly, and
/// not the weight: also while the host's own work takes up to half of the machine, and in every period of the bound,
/// which is shorter than a round of all that run.
const HEADROOM: f64 = 2.0;

/// What a share of one is worth among `claims`, which have `capacity` of the machine between them.
pub(crate) fn worth(claims: &[Claim], capacity: f64) -> f64 {
    let mut bounded = vec![false; claims.len()];
    loop {
        let (mut left, mut shares) = (capacity, 0.0);
        for (claim, bounded) in claims.iter().zip(&bounded) {
            left -= if *bounded { claim.bound } else { claim.reserve };
            shares += if *bounded { 0.0 } else { claim.share };
        }
        // With nobody to share what is left, the next to come will be of the usual kind.
        let shares = if shares > 0.0 { shares } else { DEFAULT_SHARE as f64 };
        let worth = left.max(LEAST_LEFT) / shares;
        let before = bounded.clone();
        for (claim, bounded) in claims.iter().zip(&mut bounded) {
            *bounded |= claim.share > 0.0 && claim.reserve + claim.share * worth > claim.bound;
        }
        if bounded == before {
            return worth;
        }
    }
}

impl Claim {
    /// What it is entitled to where a share of one is worth so much.
    pub(crate) fn entitlement(&self, worth: f64) -> f64 {
        (self.reserve + self.share * worth).min(self.bound)
    }

    /// Its weight there, in units of shares.
    pub(crate) fn weight(&self, worth: f64) -> f64 {
        if self.reserve == 0.0 {
            return self.share;
        }
        let entitled = self.reserve + self.share * worth;
        let wanted = if entitled >= self.bound { self.bound * HEADROOM } else { entitled };
        wanted / worth
    }
}

/// The scheduler's interface: what a weight may be, and what it is when nobody says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// `cpu.shares` of version 1: 2 to 262,144, usually 1024.
    Shares,
    /// `cpu.weight` of version 2: 1 to 10,000, usually 100.
    Weight,
}

impl Scale {
    /// The weight of a group that nobody said anything about: that of the usual share.
    pub fn usual(self) -> u64 {
        match self {
            Self::Shares => 1024,
            Self::Weight => 100,
        }
    }

    fn most(self) -> f64 {
        match self {
            Self::Shares => 262_144.0,
            Self::Weight => 10_000.0,
        }
    }

    /// Weights in units of shares as the kernel takes them. Where one would be too large all are scaled down, by a
    /// power of four so that this happens seldom.
    pub fn fit(self, weights: &[f64]) -> Vec<u64> {
        let unit = self.usual() as f64 / DEFAULT_SHARE as f64;
        let largest = weights.iter().fold(0.0_f64, |largest, weight| largest.max(*weight)) * unit;
        let mut factor = unit;
        while largest * factor / unit > self.most() {
            factor /= 4.0;
        }
        let least = if self == Self::Shares { 2.0 } else { 1.0 };
        weights.iter().map(|weight| (weight * factor).round().clamp(least, self.most()) as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(reserve: f64, share: f64) -> Claim {
        Claim { reserve, share, bound: if share == 0.0 { reserve } else { 1.0 } }
    }

    fn entitlements(claims: &[Claim]) -> Vec<f64> {
        let worth = worth(claims, 1.0);
        claims.iter().map(|claim| claim.entitlement(worth)).collect()
    }

    fn close(found: &[f64], expected: &[f64]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
        }
    }

    #[test]
    fn equals_share_equally_and_a_quarter_is_a_quarter() {
        close(&entitlements(&[claim(0.0, 100.0); 8]), &[0.125; 8]);
        let mut eight = [claim(0.0, 100.0); 8];
        eight[0] = claim(0.25, 0.0);
        close(&entitlements(&eight)[..2], &[0.25, 0.75 / 7.0]);
        eight[0] = claim(0.25, 100.0);
        close(&entitlements(&eight)[..2], &[0.25 + 0.75 / 8.0, 0.75 / 8.0]);
    }

    #[test]
    fn what_a_bound_forbids_is_split_among_the_others() {
        let bounded = Claim { reserve: 0.0, share: 100.0, bound: 0.1 };
        close(&entitlements(&[bounded, claim(0.0, 100.0), claim(0.0, 200.0)]), &[0.1, 0.3, 0.6]);
    }

    #[test]
    fn weights_are_entitlements_in_proportion() {
        let claims = [claim(0.25, 100.0), claim(0.1, 50.0), claim(0.0, 300.0), claim(0.0, 20.0)];
        let worth = worth(&claims, 1.0);
        let total: f64 = claims.iter().map(|claim| claim.weight(worth)).sum();
        let parts: Vec<f64> = claims.iter().map(|claim| claim.weight(worth) / total).collect();
        close(&parts, &entitlements(&claims));
        assert_eq!(claims[2].weight(worth), 300.0, "a plain share never changes its weight");
    }

    #[test]
    fn a_machine_that_is_all_reserved_leaves_weights_finite() {
        let claims = [claim(0.6, 0.0), claim(0.4, 0.0), claim(0.0, 100.0)];
        let worth = worth(&claims, 1.0);
        let weights: Vec<f64> = claims.iter().map(|claim| claim.weight(worth)).collect();
        let kernel = Scale::Weight.fit(&weights);
        assert!(kernel.iter().all(|weight| (1..=10_000).contains(weight)), "{kernel:?}");
        assert!(kernel[0] > kernel[1] && kernel[1] > 50 * kernel[2], "{kernel:?}");
    }

    #[test]
    fn the_usual_share_is_the_kernels_usual_weight() {
        assert_eq!(Scale::Shares.fit(&[100.0, 200.0]), [1024, 2048]);
        assert_eq!(Scale::Weight.fit(&[100.0, 50.0]), [100, 50]);
        assert_eq!(Scale::Weight.fit(&[20_000.0, 400.0]), [5000, 100]);
    }

    #[test]
    fn a_claim_comes_from_limits() {
        let cpu = |pairs: &[(&str, &str)]| crate::Limits::read(pairs.iter().copied()).unwrap().cpu;
        assert_eq!(Claim::of(&cpu(&[]), 4), Claim { reserve: 0.0, share: 100.0, bound: 1.0 });
        assert_eq!(Claim::of(&cpu(&[("cpu.reserve", "25%")]), 4), Claim { reserve: 0.25, share: 0.0, bound: 0.25 });
        assert_eq!(Claim::of(&cpu(&[("cpu.limit", "1"), ("cpu.cpus", "0-1")]), 4).bound, 0.25);
        assert_eq!(Claim::of(&cpu(&[("cpu.cpus", "0-1")]), 4).bound, 0.5);
    }
}
