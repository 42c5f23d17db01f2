//! Tables 1 to 3 of the papers, with what they print beside what was measured.

use super::meminfo::{COLUMNS, Row};
use std::fmt::Write;

/// What the papers print at 200 guests, in kilobytes: separate, unified (tables 1 and 2), with the seconds before.
const PAPERS: [(i64, Row); 2] = [
    (1_599, [2_113_004, 149_272, 2_382_964, 858_344, 934_336, 415_528, 245_896, 169_632]),
    (1_322, [1_184_368, 88_568, 2_483_208, 858_988, 310_640, 386_256, 233_388, 152_868]),
];

/// One line of a table: seconds since the first guest was started, and what the machine has more in memory than before.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) row: Row,
}

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Separate,
    Unified,
}

/// The first and the last guests, as the papers print them, with the papers' last one; and the guest of the number
/// `also`.
pub(super) fn table(kind: Kind, samples: &[Sample], also: usize) -> String {
    const SHOWN: usize = 3;
    let (title, (seconds, row)) = match kind {
        Kind::Separate => ("Table 1: separate guests", PAPERS[0]),
        Kind::Unified => ("Table 2: unified guests", PAPERS[1]),
    };
    let mut text = format!("{title}, in kilobytes more than before\n{:>10} {:>7}", "Guest", "Time");
    COLUMNS.iter().for_each(|column| text += &format!(" {column:>9}"));
    text.push('\n');
    for (number, sample) in samples.iter().enumerate() {
        if number < SHOWN || number + SHOWN >= samples.len() || number + 1 == also {
            line(&mut text, &(number + 1).to_string(), sample);
        }
    }
    line(&mut text, "papers 200", &Sample { seconds: seconds as f64, row });
    text
}

fn line(text: &mut String, name: &str, sample: &Sample) {
    // A string takes whatever is written to it.
    let _ = write!(text, "{name:>10} {:>7.1}", sample.seconds);
    sample.row.iter().for_each(|value| *text += &format!(" {value:>9}"));
    text.push('\n');
}

/// Table 3: what separate guests take more than unified ones, here at the last guest that there is of both, and in the
/// papers.
pub(super) fn overhead(separate: &[Sample], unified: &[Sample]) -> String {
    let guests = separate.len().min(unified.len());
    let mut text = format!(
        "Table 3: what separate guests take more than unified ones, at guest {guests}\n{:<10} {:>12} {:>9} {:>9}\n",
        "Attribute", "Difference", "Overhead", "papers'"
    );
    let Some((one, other)) = separate[..guests].last().zip(unified[..guests].last()) else { return text };
    let percent = |one: f64, other: f64| (one - other) / other * 100.0;
    let [(their_time, theirs), (their_unified_time, their_unified)] = PAPERS;
    let papers = percent(their_time as f64, their_unified_time as f64);
    let difference = one.seconds - other.seconds;
    // A string takes whatever is written to it.
    let _ = writeln!(
        text,
        "{:<10} {difference:>10.1} s {:>8.1}% {papers:>8.1}%",
        "Time",
        percent(one.seconds, other.seconds)
    );
    for (column, name) in COLUMNS.iter().enumerate() {
        let (ours, ours_unified) = (one.row[column] as f64, other.row[column] as f64);
        let papers = percent(theirs[column] as f64, their_unified[column] as f64);
        let difference = one.row[column] - other.row[column];
        let _ = writeln!(text, "{name:<10} {difference:>10} k {:>8.1}% {papers:>8.1}%", percent(ours, ours_unified));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_overhead_is_what_they_print() {
        let sample = |(seconds, row): (i64, Row)| Sample { seconds: seconds as f64, row };
        let text = overhead(&[sample(PAPERS[0])], &[sample(PAPERS[1])]);
        assert!(text.contains("guest 1\n"), "{text}");
        assert!(text.contains("Time            277.0 s     21.0%     21.0%"), "{text}");
        for line in [
            "Mapped         623696 k    200.8%",
            "Slab            29272 k      7.6%",
            "Cache         -100244 k     -4.0%",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn the_first_and_the_last_are_shown() {
        let samples: Vec<Sample> =
            (0..10).map(|number| Sample { seconds: f64::from(number), row: [i64::from(number); 8] }).collect();
        let text = table(Kind::Unified, &samples, 5);
        assert_eq!(text.lines().count(), 2 + 7 + 1, "{text}");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[5].starts_with("         5     4.0         4"), "{text}");
        assert!(lines[8].starts_with("        10     9.0         9"), "{text}");
        assert!(lines[9].starts_with("papers 200  1322.0   1184368     88568"), "{text}");
    }
}
