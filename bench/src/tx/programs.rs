//! TxOS, table 5: whole programs. Not durable against the file system as it comes; durable against ext4 with all data
//! in its journal, as the paper has it, or xfs, where every file is synced.

use super::workload::{How, prepare};
use super::{Bed, Kept, done, memory, settle, table5};
use crate::report::Report;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A program: its name, and what it may need here of the time outside, durable.
struct Program {
    name: &'static str,
    most: Option<f64>,
    /// Whether it syncs each file where nothing is a transaction: what a program does that wants durability.
    syncs: bool,
    /// Where what it works on is, if it leaves that as it found it: one preparation does for all its samples, and for
    /// others that find the same.
    finds: Option<&'static str>,
}

const fn writer(name: &'static str, most: Option<f64>, syncs: bool) -> Program {
    Program { name, most, syncs, finds: None }
}

const fn reader(name: &'static str, finds: &'static str) -> Program {
    Program { name, most: None, syncs: false, finds: Some(finds) }
}

const PROGRAMS: [Program; 12] = [
    writer("postmark", None, true),
    writer("lfs-create", Some(0.25), true),
    reader("lfs-read", "small"),
    writer("lfs-delete", None, false),
    writer("lfs-write", None, true),
    reader("lfs-scan", "large"),
    writer("lfs-rewrite", None, true),
    reader("lfs-probe", "large"),
    writer("rab-mkdir", None, false),
    writer("rab-cp", None, false),
    reader("rab-du", "copies"),
    reader("rab-grep", "copies"),
];

/// One of the ways that a program is run in.
pub(super) struct Way {
    name: &'static str,
    /// As a transaction, and which.
    pub(super) inside: Option<Kept>,
    /// It has to last.
    pub(super) durable: bool,
}

impl Way {
    const fn new(name: &'static str, inside: Option<Kept>, durable: bool) -> Self {
        Self { name, inside, durable }
    }

    /// Whether it has to last with nothing but the file system to see to that.
    pub(super) fn lasts_outside(&self) -> bool {
        self.durable && self.inside.is_none()
    }

    /// The series of its samples.
    pub(super) fn series(&self, program: &str) -> String {
        format!("{program}, {}", self.name)
    }
}

/// What lasts outside is on a file system with all data in its journal, if it is ext4.
pub(super) const WAYS: [Way; 6] = [
    Way::new("outside", None, false),
    Way::new("inside, not durable", Some(Kept::OnDisk), false),
    Way::new("in memory, not durable", Some(Kept::InMemory), false),
    Way::new("outside, durable", None, true),
    Way::new("inside, durable", Some(Kept::OnDisk), true),
    Way::new("in memory, durable", Some(Kept::InMemory), true),
];

/// How many of them are not durable, and come first.
const VOLATILE: usize = 3;

pub(super) fn measure(plain: &Bed<'_>, journalled: &Bed<'_>, report: &mut Report) -> anyhow::Result<()> {
    let scale = if plain.settings.quick { 20 } else { 1 };
    for program in &PROGRAMS {
        let name = format!("{}: {}", plain.name, program.name);
        for _ in 0..plain.settings.samples(3, 1) {
            for way in &WAYS {
                let bed = if way.lasts_outside() { journalled } else { plain };
                let how = How { scale, sync: way.durable && program.syncs };
                report.add(&way.series(&name), "s", one(bed, program, way, how)?);
            }
        }
        let durable = compare(&name, program.name, report);
        if let Some(most) = program.most {
            report.hold(format!("{name}: durable, against the same outside"), durable, most, "times");
        }
    }
    memory::measure(plain, report)
}

/// One run, in seconds; what it writes that nobody waits for is written before the next.
fn one(bed: &Bed<'_>, program: &Program, way: &Way, how: How) -> anyhow::Result<f64> {
    let directory = bed.image.path().join(program.finds.unwrap_or("program"));
    if program.finds.is_none() || !directory.exists() {
        let directory = bed.fresh(program.finds.unwrap_or("program"))?;
        prepare(program.name, &directory, how)?;
        settle(&directory)?;
    }
    let mut command = bed.command(way.inside, way.durable, &bed.me);
    arguments(&mut command, program.name, &directory, how);
    let begun = Instant::now();
    done(&mut command)?;
    let time = begun.elapsed().as_secs_f64();
    settle(&directory)?;
    Ok(time)
}

pub(super) fn arguments(command: &mut Command, name: &str, directory: &Path, how: How) {
    let sync = if how.sync { "sync" } else { "lazy" };
    command.args(["tx-program", name]).arg(directory).args([how.scale.to_string().as_str(), sync]);
}

/// The medians of a program's ways, not durable and durable: outside, inside, in memory.
pub(super) fn medians(name: &str, report: &Report) -> Option<[[f64; VOLATILE]; 2]> {
    let median = |number: usize| report.median(&WAYS[number].series(name));
    let three = |first: usize| Some([median(first)?, median(first + 1)?, median(first + 2)?]);
    Some([three(0)?, three(VOLATILE)?])
}

/// Notes a program's ratios, inside to outside, beside the paper's; the durable one.
pub(super) fn compare(name: &str, program: &str, report: &mut Report) -> Option<f64> {
    let (aci, acid) = table5::ratios(program)?;
    let [[plain, inside, memory], [lasting, kept, kept_memory]] = medians(name, report)?;
    let durable = kept / lasting;
    report.note(format!(
        "{name}: not durable {:.2}×, in memory {:.2}× (TxOS {aci}×), durable {durable:.2}×, from memory {:.2}× (TxOS {acid}×)",
        inside / plain,
        memory / plain,
        kept_memory / lasting
    ));
    Some(durable)
}
