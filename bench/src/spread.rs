//! Samples in three numbers, and how sure one can be of the middle one.

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

/// Where the median lies with 95 % confidence, whatever the distribution: between two of the sorted samples (their
/// ranks by the binomial law, as its normal approximation gives them).
pub(crate) fn interval(samples: &[f64]) -> (f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (count, reach) = (sorted.len() as f64, 0.98 * (sorted.len() as f64).sqrt());
    let low = (count / 2.0 - reach).floor().max(0.0) as usize;
    let high = ((count / 2.0 + reach).ceil() as usize).min(sorted.len() - 1);
    (sorted[low], sorted[high])
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

    #[test]
    fn an_interval_holds_the_median_and_narrows() {
        let samples: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(interval(&samples), (40.0, 60.0));
        assert_eq!(interval(&[1.0, 2.0, 3.0]), (1.0, 3.0));
    }
}
