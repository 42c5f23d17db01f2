//! Tables 1 to 3 of the papers: guests with log, cron, secure shell, web, mail and database each, started one after another, separate and unified.

use super::meminfo::{self, COLUMNS, Row};
use super::roots::{self, Roots};
use super::{charts, crowd, footprint};
use crate::hush::Hush;
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use anyhow::Context;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The papers had 200; half of them is what a disk of ordinary size holds of separate ones.
const GUESTS: usize = 200;
const FEWEST: usize = 100;

const PACKAGES: [&str; 6] = ["rsyslog", "cron", "openssh-server", "apache2", "postfix", "postgresql"];
const SLIM: &str = include_str!("slim.sh");
const SERVE: &str = include_str!("serve.sh");

/// What must stay free of the disk, and what a guest writes beyond its tree, in bytes.
const FREE: u64 = 3 << 30;
const WRITTEN: u64 = 8 << 20;

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

pub(super) fn measure(settings: &Settings, pando: &OwnPando, report: &mut Report) -> anyhow::Result<()> {
    let template = pando.directory().join("template");
    roots::build(&template, settings.tree.as_deref(), &PACKAGES)?;
    let output = std::process::Command::new("sh").args(["-c", SLIM, "slim"]).arg(&template).output()?;
    anyhow::ensure!(output.status.success(), "slim: {}", String::from_utf8_lossy(&output.stderr));
    let each = footprint::Footprint::of(std::slice::from_ref(&template))?;
    let guests = fitting(pando.directory(), settings, each.bytes + WRITTEN)?;
    report.note(format!(
        "{guests} guests, each on a Debian root of {} files and {} MB, reduced to what the daemons read",
        each.inodes,
        each.bytes >> 20
    ));
    let roots = Roots::of_template(pando.directory(), template, guests)?;
    let separate = separate(&roots, pando, settings, report)?;
    let unified = unified(&roots, pando, settings, report)?;
    report.text(table("Table 1: separate guests", &separate));
    report.text(table("Table 2: unified guests", &unified));
    report.text(overhead(&separate, &unified));
    for chart in charts::draw(&settings.output, &separate, &unified)? {
        report.note(format!("drawn: {}", chart.display()));
    }
    let last = |samples: &[Sample]| samples.last().cloned();
    let both = last(&separate).zip(last(&unified));
    let part = |of: &dyn Fn(&Sample) -> f64| both.as_ref().map(|(one, other)| of(other) / of(one));
    report.hold("fewest guests against how many there were", Some(FEWEST as f64 / guests as f64), 1.0, "x");
    report.hold("time, unified against separate", part(&|sample| sample.seconds), 1.0, "x");
    report.hold("memory of all, unified against separate", part(&|sample| meminfo::all(&sample.row) as f64), 1.0, "x");
    Ok(())
}

/// As many guests as were asked for, or as fit on the disk.
fn fitting(directory: &Path, settings: &Settings, each: u64) -> anyhow::Result<usize> {
    let disk = rustix::fs::statvfs(directory)?;
    let most = usize::try_from((disk.f_bavail * disk.f_frsize).saturating_sub(FREE) / each)?;
    let wanted = settings.guests.unwrap_or(if settings.quick { 3 } else { GUESTS });
    anyhow::ensure!(most >= 2, "not even two roots of {} MB fit on the disk", each >> 20);
    Ok(wanted.min(most))
}

fn separate(roots: &Roots, pando: &OwnPando, settings: &Settings, report: &mut Report) -> anyhow::Result<Vec<Sample>> {
    footprint::evict(roots.trees())?;
    let mut crowd = crowd::Separate::default();
    let samples =
        line(settings, roots.trees().len(), &mut |number| crowd.start(pando, &roots.trees()[number], SERVE).map(drop))?;
    report.add("separate: disk", "MB", footprint::Footprint::of(roots.trees())?.bytes as f64 / super::MIB);
    report.add("separate: page cache of their roots", "MB", footprint::cached(roots.trees())? as f64 / super::MIB);
    crowd.end(pando)?;
    Ok(samples)
}

fn unified(roots: &Roots, pando: &OwnPando, settings: &Settings, report: &mut Report) -> anyhow::Result<Vec<Sample>> {
    for (number, tree) in roots.trees().iter().enumerate() {
        interrupt::check()?;
        report.add("unified: create", "s", crowd::create(pando, &crowd::name(number), tree, SERVE)?);
        // The disk may hold them once only, and what they have in memory is in nobody's way then.
        std::fs::remove_dir_all(tree).with_context(|| format!("removing {}", tree.display()))?;
    }
    let places: Vec<PathBuf> = ["store", "guests"].iter().map(|name| pando.state().join(name)).collect();
    footprint::evict(&places)?;
    let samples = line(settings, roots.trees().len(), &mut |number| crowd::start_unified(pando, number).map(drop))?;
    report.add("unified: disk", "MB", footprint::Footprint::of(&places)?.bytes as f64 / super::MIB);
    report.add("unified: page cache of their files", "MB", footprint::cached(&places)? as f64 / super::MIB);
    crowd::stop(pando, 0..roots.trees().len())?;
    Ok(samples)
}

/// Starts one guest after another, and looks at the machine's memory after each.
fn line(
    settings: &Settings,
    guests: usize,
    start: &mut dyn FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Sample>> {
    let _quiet = Hush::begin(settings.hush.as_deref())?;
    let (before, since) = (meminfo::now()?, Instant::now());
    let mut samples = Vec::new();
    for number in 0..guests {
        start(number)?;
        let row = meminfo::since(&before, &meminfo::now()?);
        samples.push(Sample { seconds: since.elapsed().as_secs_f64(), row });
    }
    Ok(samples)
}

/// The first and the last guests, as the papers print them.
fn table(title: &str, samples: &[Sample]) -> String {
    const SHOWN: usize = 3;
    let mut text = format!("{title}, in kilobytes more than before\n{:>5} {:>7}", "Guest", "Time");
    COLUMNS.iter().for_each(|column| text += &format!(" {column:>9}"));
    text.push('\n');
    for (number, sample) in samples.iter().enumerate() {
        if number < SHOWN || number + SHOWN >= samples.len() {
            // A string takes whatever is written to it.
            let _ = write!(text, "{:>5} {:>7.1}", number + 1, sample.seconds);
            sample.row.iter().for_each(|value| text += &format!(" {value:>9}"));
            text.push('\n');
        }
    }
    text
}

/// Table 3: what the last separate guest has more than the last unified one, here and in the papers.
fn overhead(separate: &[Sample], unified: &[Sample]) -> String {
    let mut text = format!(
        "Table 3: what separate guests take more than unified ones, at the last guest\n{:<10} {:>12} {:>9} {:>9}\n",
        "Attribute", "Difference", "Overhead", "papers'"
    );
    let (Some(one), Some(other)) = (separate.last(), unified.last()) else { return text };
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
        let text = table("T", &samples);
        assert_eq!(text.lines().count(), 2 + 6, "{text}");
        assert!(text.lines().last().unwrap().starts_with("   10     9.0         9"), "{text}");
    }
}
