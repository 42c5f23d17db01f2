//! TxOS, table 4, the last column: system calls with the begin and the end of their transaction. There a transaction is
//! begun by a system call of the program's own; here it is a whole command, so that one call has to bear what
//! milliseconds of work are for. Beside it stand as many calls in one transaction as the other columns are measured
//! with.

use super::calls::{NATIVE, PAPER, TIMES, series};
use super::whole::{BEHIND, timed};
use super::{Bed, settle};
use crate::own_pando::OwnPando;
use crate::report::Report;
use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::path::Path;
use std::process::{Command, Stdio};

/// How many calls of a kind are made in one transaction.
fn many(call: &str) -> usize {
    if matches!(call, "unlink" | "link" | "mkdir") { TIMES / 4 } else { TIMES }
}

/// `pando-bench tx-some CALL COUNT DIR`: makes a call so many times in a directory that [`prepare`] filled.
pub(crate) fn make(call: &str, count: usize, directory: &Path) -> anyhow::Result<()> {
    rustix::process::chdir(directory)?;
    let open = |flags| rustix::fs::open(c"file", flags | OFlags::CLOEXEC, Mode::empty());
    let mut block = [b'y'; 4096];
    let file = if matches!(call, "read" | "write") && count > 0 { Some(open(OFlags::RDWR)?) } else { None };
    for number in 0..count {
        match (call, &file) {
            ("access", _) => rustix::fs::access(c"file", rustix::fs::Access::READ_OK)?,
            ("stat", _) => drop(rustix::fs::stat(c"file")?),
            ("open", _) => drop(open(OFlags::RDONLY)?),
            ("read", Some(file)) => drop(rustix::io::pread(file, &mut block, 0)?),
            ("write", Some(file)) => drop(rustix::io::pwrite(file, &block, 0)?),
            ("unlink", _) => rustix::fs::unlinkat(CWD, format!("old{number}"), AtFlags::empty())?,
            ("link", _) => rustix::fs::link(c"file", format!("link{number}"))?,
            ("mkdir", _) => rustix::fs::mkdir(format!("directory{number}"), Mode::RWXU)?,
            _ => bail!("there is no call '{call}'"),
        }
    }
    Ok(())
}

fn prepare(call: &str, count: usize, directory: &Path) -> anyhow::Result<()> {
    std::fs::write(directory.join("file"), [b'x'; 4096])?;
    if call == "unlink" {
        for number in 0..count {
            std::fs::write(directory.join(format!("old{number}")), "")?;
        }
    }
    settle(directory)
}

/// The program with so many calls of a kind, as a transaction beside a daemon or plainly; in milliseconds.
fn sample(bed: &Bed<'_>, daemon: Option<&OwnPando>, call: &str, count: usize) -> anyhow::Result<f64> {
    let directory = bed.fresh("ends")?;
    prepare(call, count, &directory)?;
    // Nobody pays for what is done behind another's end.
    std::thread::sleep(BEHIND);
    let mut command = match daemon {
        Some(daemon) => {
            let mut command = bed.run_in(daemon.root(), false);
            command.arg(&bed.me);
            command
        }
        None => Command::new(&bed.me),
    };
    timed(command.args(["tx-some", call, &count.to_string()]).arg(&directory).stdin(Stdio::null()))
}

/// The series of a program's times.
fn name(bed: &Bed<'_>, call: &str, count: usize, inside: bool) -> String {
    format!("{}: {count} {call}, {}", bed.name, if inside { "in a transaction" } else { "without" })
}

pub(super) fn measure(bed: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    let daemon = OwnPando::start_in(&bed.settings.pando, bed.image.path())?;
    // The first that asks finds nothing made ahead.
    for round in 0..=bed.settings.samples(9, 2) {
        for (call, ..) in PAPER {
            for (count, inside) in [(0, false), (1, true), (many(call), false), (many(call), true)] {
                let time = sample(bed, inside.then_some(&daemon), call, count)?;
                if round > 0 {
                    report.add(&name(bed, call, count, inside), "ms", time);
                }
            }
        }
    }
    judge(bed, report).context("a series has no samples")
}

/// By how much one call is slower that has a transaction to itself, and so many that have one together: without what
/// the program itself takes to start.
fn ratios(bed: &Bed<'_>, report: &Report, call: &str) -> Option<(f64, f64)> {
    let median = |count, inside| report.median(&name(bed, call, count, inside));
    let nothing = median(0, false)?;
    let alone = report.median(&series(bed, call, NATIVE))? / 1e6;
    let one = (median(1, true)? - nothing) / alone;
    let together =
        (median(many(call), true)? - nothing) / (median(many(call), false)? - nothing).max(f64::MIN_POSITIVE);
    Some((one, together))
}

fn judge(bed: &Bed<'_>, report: &mut Report) -> Option<()> {
    let mut sums = [0.0; 3];
    for (call, _, paper) in PAPER {
        let (one, together) = ratios(bed, report, call)?;
        sums[0] += one.ln();
        sums[1] += together.ln();
        sums[2] += paper.ln();
        let (fs, count) = (bed.name, many(call));
        report.note(format!(
            "{fs}: {call}: with begin and end, one in a transaction {one:.0}×, {count} in one {together:.2}× (TxOS {paper:.1}×)"
        ));
    }
    let [one, together, paper] = sums.map(|sum| (sum / PAPER.len() as f64).exp());
    report.note(format!(
        "{}: eight calls with begin and end, geometric mean: one in a transaction {one:.0}×, thousands in one {together:.2}× (TxOS {paper:.2}×)",
        bed.name
    ));
    Some(())
}
