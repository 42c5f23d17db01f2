//! A program that does nothing but note when it runs, after Regehr's Hourglass (USENIX 2002), which the papers used.
//!
//! Each thread reads the clock again and again. Two readings close together: it ran between them; far apart: it did
//! not. It does no input and output, so whatever is missing went to somebody else.

use anyhow::{Context, bail};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::Duration;

/// The name under which the benchmark runs itself inside a guest.
pub(crate) const NAME: &str = "hourglass";

/// Two readings further apart than this, in nanoseconds: something else ran. An interrupt takes tens of microseconds,
/// another's turn a good part of a millisecond.
const GAP: u64 = 200_000;

/// How finely the time that it ran is noted.
pub(crate) const BUCKET: u64 = 100_000_000;

/// The upper ends of the histogram's classes, in milliseconds; the last class is open.
pub(crate) const CLASSES: [u64; 8] = [1, 2, 5, 10, 15, 20, 25, 50];

/// The machine's clock since boot, in nanoseconds: the same in every guest.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What a thread noted.
#[derive(Clone, Debug, Default)]
struct Notes {
    ran: Vec<u64>,
    gaps: [u64; CLASSES.len() + 1],
    longest: u64,
}

impl Notes {
    fn gap(&mut self, span: u64) {
        let class = CLASSES.iter().position(|most| span < most * 1_000_000).unwrap_or(CLASSES.len());
        self.gaps[class] += 1;
        self.longest = self.longest.max(span);
    }
}

/// Runs from one moment of the clock to another on so many threads, and prints what was noted.
pub(crate) fn main(arguments: &[String]) -> anyhow::Result<()> {
    let numbers = arguments.iter().map(|word| word.parse::<u64>()).collect::<Result<Vec<_>, _>>();
    let numbers = numbers.context("the hourglass takes numbers: THREADS FROM UNTIL, in nanoseconds since boot")?;
    let [threads, from, until] = numbers[..] else { bail!("the hourglass takes THREADS FROM UNTIL") };
    let threads: Vec<_> = (0..threads).map(|_| std::thread::spawn(move || watch(from, until))).collect();
    let mut all = Notes { ran: vec![0; (until - from).div_ceil(BUCKET) as usize], ..Notes::default() };
    for thread in threads {
        let notes = thread.join().map_err(|_| anyhow::anyhow!("a thread failed"))?;
        all.ran.iter_mut().zip(notes.ran).for_each(|(sum, ran)| *sum += ran);
        all.gaps.iter_mut().zip(notes.gaps).for_each(|(sum, gaps)| *sum += gaps);
        all.longest = all.longest.max(notes.longest);
    }
    println!("{}", json!({ "ran": all.ran, "gaps": all.gaps, "longest": all.longest }));
    Ok(())
}

fn watch(from: u64, until: u64) -> Notes {
    let mut notes = Notes { ran: vec![0; (until - from).div_ceil(BUCKET) as usize], ..Notes::default() };
    std::thread::sleep(Duration::from_nanos(from.saturating_sub(now())));
    let mut last = now();
    while last < until {
        let here = now();
        let span = here - last;
        if span >= GAP {
            notes.gap(span);
        } else if let Some(bucket) = notes.ran.get_mut(((here.max(from) - from) / BUCKET) as usize) {
            *bucket += span;
        }
        last = here;
    }
    notes
}

/// What one of them printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hourglass {
    /// Nanoseconds that it ran, all threads together, a bucket of [`BUCKET`] each.
    pub(crate) ran: Vec<u64>,
    /// How many gaps of each class.
    pub(crate) gaps: Vec<u64>,
    /// The longest gap, in nanoseconds.
    pub(crate) longest: u64,
}

impl Hourglass {
    pub(crate) fn read(text: &str) -> anyhow::Result<Self> {
        let line = text.lines().rfind(|line| line.starts_with('{')).with_context(|| format!("no notes in: {text}"))?;
        let value: Value = serde_json::from_str(line)?;
        let numbers =
            |key: &str| -> Vec<u64> { value[key].as_array().into_iter().flatten().filter_map(Value::as_u64).collect() };
        Ok(Self { ran: numbers("ran"), gaps: numbers("gaps"), longest: value["longest"].as_u64().unwrap_or(0) })
    }

    /// Nanoseconds that it ran between two moments, in nanoseconds since its own beginning.
    pub(crate) fn between(&self, from: u64, until: u64) -> u64 {
        let (from, until) = ((from / BUCKET) as usize, ((until / BUCKET) as usize).min(self.ran.len()));
        self.ran.get(from..until).map_or(0, |buckets| buckets.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_belongs_to_a_class_and_a_bucket_to_a_span() {
        let mut notes = Notes::default();
        for milliseconds in [0, 1, 24, 70] {
            notes.gap(milliseconds * 1_000_000 + 1);
        }
        assert_eq!(notes.gaps, [1, 1, 0, 0, 0, 0, 1, 0, 1]);
        let glass = Hourglass::read("noise\n{\"ran\": [1, 2, 4, 8], \"gaps\": [], \"longest\": 7}\n").unwrap();
        assert_eq!((glass.between(BUCKET, 3 * BUCKET), glass.between(0, 99 * BUCKET), glass.longest), (6, 15, 7));
        assert!(Hourglass::read("nothing").is_err());
    }
}
