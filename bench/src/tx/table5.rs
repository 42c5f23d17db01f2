//! TxOS's table 5, as the paper has it and as it is here.

use super::programs::medians;
use crate::report::Report;
use std::fmt::Write;

/// A row of the paper's: the program; seconds on ext2, as ACI transaction, on ext3 with all data in its journal, as
/// ACID transaction; the two ratios as they are printed.
struct Row(&'static str, [f64; 4], (f64, f64));

const PAPER: [Row; 15] = [
    Row("postmark", [38.0, 7.6, 180.9, 154.6], (0.2, 0.9)),
    Row("lfs-create", [4.6, 0.6, 10.1, 1.4], (0.1, 0.1)),
    Row("lfs-read", [1.7, 2.2, 1.7, 2.1], (1.2, 1.3)),
    Row("lfs-delete", [0.2, 0.4, 0.2, 0.5], (2.0, 2.4)),
    Row("lfs-write", [1.4, 0.3, 3.4, 2.0], (0.2, 0.6)),
    Row("lfs-scan", [1.3, 1.4, 1.5, 1.6], (1.1, 1.1)),
    Row("lfs-rewrite", [77.3, 2.6, 84.3, 4.2], (0.03, 0.05)),
    Row("lfs-probe", [75.8, 71.8, 70.1, 70.2], (0.9, 1.0)),
    Row("rab-mkdir", [8.7, 2.3, 9.4, 2.2], (0.3, 0.2)),
    Row("rab-cp", [14.2, 2.5, 13.8, 2.6], (0.2, 0.2)),
    Row("rab-du", [0.3, 0.3, 0.4, 0.3], (1.0, 0.8)),
    Row("rab-grep", [2.7, 3.9, 4.2, 3.8], (1.4, 0.9)),
    Row("dpkg", [0.8, 0.9, 0.8, 0.9], (1.1, 1.1)),
    Row("make", [3.2, 3.3, 3.1, 3.3], (1.0, 1.1)),
    Row("make install", [1.9, 2.7, 1.7, 2.9], (1.4, 1.7)),
];

/// The paper's ratios of a program, without and with durability.
pub(super) fn ratios(program: &str) -> Option<(f64, f64)> {
    PAPER.iter().find(|Row(name, ..)| *name == program).map(|Row(.., ratios)| *ratios)
}

/// The table, with what was measured on a file system beside; nothing if nothing was.
pub(super) fn text(file_system: &str, report: &Report) -> Option<String> {
    let mut text = format!(
        "TxOS's table 5, in seconds: the paper's, and here on {file_system}\n{:<13} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}  ",
        "", "ext2", "ACI", "", "ext3", "ACID", ""
    );
    for outside in ["plain", "lasting"] {
        let _ = write!(text, " {outside:>8} {:>8} {:>6} {:>8} {:>6}", "inside", "", "memory", "");
    }
    let mut measured = false;
    for Row(name, [ext2, aci, ext3, acid], (volatile, durable)) in &PAPER {
        let Some(ours) = medians(&format!("{file_system}: {name}"), report) else { continue };
        measured = true;
        let (volatile, durable) = (format!("{volatile}×"), format!("{durable}×"));
        let _ = write!(text, "\n{name:<13} {ext2:>6} {aci:>6} {volatile:>6} {ext3:>6} {acid:>6} {durable:>6}  ");
        for [outside, inside, memory] in ours {
            let ratio = |one: f64| format!("{:.2}×", one / outside);
            let (ours, from_memory) = (ratio(inside), ratio(memory));
            let _ = write!(text, " {outside:>8.3} {inside:>8.3} {ours:>6} {memory:>8.3} {from_memory:>6}");
        }
    }
    measured.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::super::programs::WAYS;
    use super::*;

    #[test]
    fn what_was_measured_stands_beside_the_papers_numbers() {
        let mut report = Report::new("tx");
        assert_eq!(text("ext4", &report), None);
        for (way, seconds) in WAYS.iter().zip([2.0, 1.0, 0.5, 4.0, 1.0, 2.0]) {
            report.add(&way.series("ext4: postmark"), "s", seconds);
        }
        let shown = text("ext4", &report).unwrap();
        let row = shown.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row[..7], ["postmark", "38", "7.6", "0.2×", "180.9", "154.6", "0.9×"]);
        assert_eq!(
            row[7..],
            ["2.000", "1.000", "0.50×", "0.500", "0.25×", "4.000", "1.000", "0.25×", "2.000", "0.50×"]
        );
        assert_eq!(text("xfs", &report), None);
    }

    #[test]
    fn the_papers_ratios_are_those_of_its_seconds() {
        // As far as it has rounded both.
        for Row(name, [ext2, aci, ext3, acid], (volatile, durable)) in &PAPER {
            for (found, printed) in [(aci / ext2, volatile), (acid / ext3, durable)] {
                assert!((found - printed).abs() < 0.13, "{name}: {found} {printed}");
            }
        }
    }
}
