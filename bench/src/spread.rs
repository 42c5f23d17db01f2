//! Samples in three numbers.

/// The median of samples, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// A tenth of the samples lie below.
    pub(crate) p10: f64,
    /// Half do.
    pub(crate) median: f64,
    /// Nine tenths do.
    pub(crate) p90: f64,
}

impl Spread {
    /// Of samples in any order; `None` where there are none.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self { p10: quantile(&sorted, 0.1), median: quantile(&sorted, 0.5), p90: quantile(&sorted, 0.9) })
    }
}

/// Between the two nearest samples, in proportion.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_read_off_the_sorted_samples() {
        let spread = Spread::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((spread.p10, spread.median, spread.p90), (1.4, 3.0, 4.6));
        assert_eq!(Spread::of(&[7.0]).unwrap(), Spread { p10: 7.0, median: 7.0, p90: 7.0 });
        assert_eq!(Spread::of(&[]), None);
    }
}
