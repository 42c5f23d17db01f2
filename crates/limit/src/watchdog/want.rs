//! Whether memory is wanting, and why: what is seen of the machine, held against the rules.

use super::rules::{Policy, Rules, Victim};
use crate::machine::Free;

/// A guest that could be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant<K> {
    /// The key by which the caller knows the tenant.
    pub key: K,
    /// Bytes of memory that it holds.
    pub memory: u64,
    /// Bytes that it was promised.
    pub reserve: u64,
    /// When it was started, in seconds since the epoch.
    pub began: i64,
    /// Its weight in processor time that is left over; 0 for a bare reservation.
    pub shares: u64,
}

impl<K> Tenant<K> {
    /// Bytes that it holds above what it was promised.
    pub(super) fn excess(&self) -> u64 {
        self.memory.saturating_sub(self.reserve)
    }
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
    /// Those that hold memory and could be acted on.
    pub tenants: Vec<Tenant<K>>,
}

impl Rules {
    /// Whose memory is taken first. Whoever is within its reservation is left alone.
    pub(super) fn worst<'a, K>(&self, scene: &'a Scene<K>) -> Option<&'a Tenant<K>> {
        let excessive = scene.tenants.iter().filter(|tenant| tenant.excess() > 0);
        let for_shares =
            |one: &Tenant<K>, other: &Tenant<K>| u128::from(one.excess()) * u128::from(other.shares.max(1));
        match self.victim {
            Victim::Excess => excessive.max_by_key(|tenant| tenant.excess()),
            Victim::Largest => excessive.max_by_key(|tenant| tenant.memory),
            Victim::Newest => excessive.max_by_key(|tenant| tenant.began),
            Victim::Share => excessive.max_by(|one, other| for_shares(one, other).cmp(&for_shares(other, one))),
        }
    }

    /// Why something has to be done, if it has.
    pub(super) fn reason<K>(&self, scene: &Scene<K>) -> Option<String> {
        match self.policy {
            Policy::Off => None,
            Policy::PlMom => self.swap_is_full(scene),
            Policy::Graduated => self.want(scene),
        }
    }

    /// Why memory is wanted, if it is.
    fn want<K>(&self, scene: &Scene<K>) -> Option<String> {
        let free = scene.free.memory as f64 / scene.memory.max(1) as f64 * 100.0;
        if let Some(pressure) = scene.pressure {
            return (pressure >= self.pressure && free < self.plenty)
                .then(|| format!("nobody got on for want of memory for {pressure:.0}% of ten seconds"));
        }
        let no_swap = scene.free.swap_size == 0 || self.swap_is_full(scene).is_some();
        (free < self.free && no_swap).then(|| format!("{free:.1}% of memory is free, and no swap to speak of"))
    }

    fn swap_is_full<K>(&self, scene: &Scene<K>) -> Option<String> {
        let Free { swap, swap_size, .. } = scene.free;
        let used = swap_size.saturating_sub(swap) as f64 / swap_size.max(1) as f64 * 100.0;
        (swap_size > 0 && used >= self.swap).then(|| format!("swap is {used:.0}% full"))
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

    #[test]
    fn pressure_is_read_off_the_kernels_words() {
        let text = "some avg10=1.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!((read_pressure(text), read_pressure("")), (Some(0.5), None));
    }
}
