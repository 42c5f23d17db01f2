//! What a benchmark says: a table, verdicts, and the raw samples.

use crate::spread::Spread;
use anyhow::Context;
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Everything that was measured, in the order in which it is shown.
#[derive(Debug)]
pub(crate) struct Report {
    benchmark: &'static str,
    series: Vec<Series>,
    verdicts: Vec<Verdict>,
    notes: Vec<String>,
    texts: Vec<String>,
}

#[derive(Debug)]
struct Series {
    name: String,
    unit: &'static str,
    samples: Vec<f64>,
}

/// A figure against its target; `None` where it could not be measured, which is a miss.
#[derive(Debug)]
struct Verdict {
    figure: String,
    value: Option<f64>,
    target: f64,
    unit: &'static str,
}

impl Verdict {
    fn met(&self) -> bool {
        self.value.is_some_and(|value| value <= self.target)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { figure, target, unit, .. } = self;
        let word = if self.met() { "meets " } else { "misses" };
        let value = self.value.map_or("not measured".to_owned(), |value| format!("{value:.2} {unit}"));
        write!(out, "{word} {figure}: {value}, target at most {target:.2} {unit}")
    }
}

impl Report {
    pub(crate) fn new(benchmark: &'static str) -> Self {
        Self { benchmark, series: Vec::new(), verdicts: Vec::new(), notes: Vec::new(), texts: Vec::new() }
    }

    /// Adds samples to the series of that name; the first ones say where in the table it stands.
    pub(crate) fn add(&mut self, name: &str, unit: &'static str, sample: f64) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series { name: name.to_owned(), unit, samples: vec![sample] }),
        }
    }

    /// The median of a series, if it has samples.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        let series = self.series.iter().find(|series| series.name == name)?;
        Spread::of(&series.samples).map(|spread| spread.median)
    }

    /// What each sample of one series is of the one of another that was taken beside it: what the machine does
    /// meanwhile, it does to both.
    pub(crate) fn ratios(&self, above: &str, below: &str) -> Vec<f64> {
        let samples = |name: &str| self.series.iter().find(|series| series.name == name);
        let both = samples(above).zip(samples(below));
        both.map_or(Vec::new(), |(above, below)| {
            above.samples.iter().zip(&below.samples).map(|(above, below)| above / below).collect()
        })
    }

    /// Takes a series out again.
    pub(crate) fn forget(&mut self, name: &str) {
        self.series.retain(|series| series.name != name);
    }

    /// Holds a figure against the most that it may be. It is told at once, on standard error: what is measured later
    /// may take long, or fail.
    pub(crate) fn hold(&mut self, figure: impl Into<String>, value: Option<f64>, target: f64, unit: &'static str) {
        let verdict = Verdict { figure: figure.into(), value, target, unit };
        eprintln!("{verdict}");
        self.verdicts.push(verdict);
    }

    /// Something that the reader has to know beside the numbers.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// A table of its own, told at once as well.
    pub(crate) fn text(&mut self, text: String) {
        eprintln!("{text}");
        self.texts.push(text);
    }

    pub(crate) fn all_met(&self) -> bool {
        self.verdicts.iter().all(Verdict::met)
    }

    /// Writes the raw samples as `NAME-TIME.json`.
    pub(crate) fn save(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let path = directory.join(format!("{}-{seconds}.json", self.benchmark));
        let written = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&path, format!("{:#}\n", self.as_json(seconds))));
        written.with_context(|| format!("cannot keep the samples in {}", path.display()))?;
        Ok(path)
    }

    fn as_json(&self, seconds: u64) -> Value {
        let series =
            self.series.iter().map(|one| json!({ "name": one.name, "unit": one.unit, "samples": one.samples }));
        let verdicts = self.verdicts.iter().map(|one| {
            json!({ "figure": one.figure, "unit": one.unit, "value": one.value, "target": one.target, "met": one.met() })
        });
        json!({
            "benchmark": self.benchmark,
            "time": seconds,
            "series": series.collect::<Vec<_>>(),
            "verdicts": verdicts.collect::<Vec<_>>(),
            "notes": self.notes,
            "tables": self.texts,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:<54} {:>4} {:>10} {:>10} {:>10}", self.benchmark, "n", "p10", "median", "p90")?;
        for series in &self.series {
            if let Some(Spread { p10, median, p90 }) = Spread::of(&series.samples) {
                let (name, count, unit) = (&series.name, series.samples.len(), series.unit);
                writeln!(out, "{name:<54} {count:>4} {p10:>10.2} {median:>10.2} {p90:>10.2} {unit}")?;
            }
        }
        for text in &self.texts {
            writeln!(out, "\n{text}")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        writeln!(out)?;
        for verdict in &self.verdicts {
            writeln!(out, "{verdict}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_compared_with_those_beside_them() {
        let mut report = Report::new("x");
        for (one, other) in [(1.0, 2.0), (10.0, 20.0), (300.0, 900.0)] {
            report.add("one", "ms", one);
            report.add("other", "ms", other);
        }
        assert_eq!(report.ratios("other", "one"), [2.0, 2.0, 3.0]);
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        let mut report = Report::new("x");
        report.add("a", "ms", 1.0);
        report.hold("a", report.median("a"), 1.0, "ms");
        assert!(report.all_met());
        report.hold("b", report.median("b"), 1.0, "ms");
        assert!(!report.all_met());
        assert!(report.to_string().contains("misses b: not measured, target at most 1.00 ms"));
    }
}
