//! TxOS, table 5: whole programs. Not durable against ext4 as it comes; durable against ext4 with all data in its journal, as the paper has it.

use super::workload::{How, prepare};
use super::{Bed, done, settle};
use crate::report::Report;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A program: its name, what TxOS needs of Linux's time without and with durability, and what it may need here, durable.
struct Program {
    name: &'static str,
    paper: (f64, f64),
    most: Option<f64>,
    /// Whether it syncs each file where nothing is a transaction: what a program does that wants durability.
    syncs: bool,
}

const fn program(name: &'static str, paper: (f64, f64), most: Option<f64>, syncs: bool) -> Program {
    Program { name, paper, most, syncs }
}

const PROGRAMS: [Program; 12] = [
    program("postmark", (0.2, 0.9), None, true),
    program("lfs-create", (0.1, 0.1), Some(0.25), true),
    program("lfs-read", (1.2, 1.3), None, false),
    program("lfs-delete", (2.0, 2.4), None, false),
    program("lfs-write", (0.2, 0.6), None, true),
    program("lfs-scan", (1.1, 1.1), None, false),
    program("lfs-rewrite", (0.03, 0.05), None, true),
    program("lfs-probe", (0.9, 1.0), None, false),
    program("rab-mkdir", (0.3, 0.2), None, false),
    program("rab-cp", (0.2, 0.2), None, false),
    program("rab-du", (1.0, 0.8), None, false),
    program("rab-grep", (1.4, 0.9), None, false),
];

/// The four ways: the file system, whether it is a transaction, whether it has to last.
const WAYS: [(&str, bool, bool); 4] = [
    ("outside", false, false),
    ("inside, not durable", true, false),
    ("outside, data=journal", false, true),
    ("inside, durable", true, true),
];

pub(super) fn measure(plain: &Bed<'_>, journalled: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    let scale = if plain.settings.quick { 20 } else { 1 };
    for program in &PROGRAMS {
        for _ in 0..plain.settings.samples(3, 1) {
            for (way, inside, durable) in WAYS {
                let bed = if durable && !inside { journalled } else { plain };
                let time = one(bed, program, inside, How { scale, sync: durable && program.syncs })?;
                report.add(&series(program, way), "s", time);
            }
        }
        judge(program, report);
    }
    Ok(())
}

fn series(program: &Program, way: &str) -> String {
    format!("{}, {way}", program.name)
}

/// One run, in seconds; what it writes that nobody waits for is written before the next.
fn one(bed: &Bed<'_>, program: &Program, inside: bool, how: How) -> anyhow::Result<f64> {
    let directory = bed.fresh("program")?;
    prepare(program.name, &directory, how)?;
    settle(&directory)?;
    let mut command = if inside {
        let mut command = bed.run(how.sync || !program.syncs);
        command.arg(&bed.me);
        command
    } else {
        Command::new(&bed.me)
    };
    arguments(&mut command, program.name, &directory, how);
    let begun = Instant::now();
    done(&mut command)?;
    let time = begun.elapsed().as_secs_f64();
    settle(&directory)?;
    Ok(time)
}

fn arguments(command: &mut Command, name: &str, directory: &Path, how: How) {
    let sync = if how.sync { "sync" } else { "lazy" };
    command.args(["tx-program", name]).arg(directory).args([how.scale.to_string().as_str(), sync]);
}

fn judge(program: &Program, report: &mut Report) {
    let ratio = |above: usize, below: usize| {
        Some(report.median(&series(program, WAYS[above].0))? / report.median(&series(program, WAYS[below].0))?)
    };
    let (volatile, durable) = (ratio(1, 0), ratio(3, 2));
    if let (Some(volatile), Some(durable)) = (volatile, durable) {
        let (aci, acid) = program.paper;
        report.note(format!(
            "{}: not durable {volatile:.2}× (TxOS {aci}×), durable {durable:.2}× (TxOS {acid}×)",
            program.name
        ));
    }
    if let Some(most) = program.most {
        report.hold(format!("{}: durable, against data=journal", program.name), durable, most, "times");
    }
}
