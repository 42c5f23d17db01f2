//! `./x bench txlib`: transactions that a program begins itself (libpando), against the same done without any.
//!
//! One program does each by turns: it begins, works and ends, and does the same work natively. Between two it rests, so
//! that views are there that the daemon makes ahead; a second run does not, and tells what comes through.

use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::spread::Spread;
use anyhow::{Context, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../txlib/txlib.c");
const HEADER: &str = include_str!("../../crates/capi/include/pando.h");

/// What is held against a figure: the work, and the most microseconds that it may take with its beginning and its end.
const FIGURES: [(&str, f64); 3] = [("empty", 60.0), ("ten reads", 150.0), ("one small file", 600.0)];

/// How many flushes of the same disk a durable one may take.
const FLUSHES: f64 = 3.0;

/// Microseconds between two, so that views are ready.
const REST: u32 = 100_000;

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("txlib");
    let pando = OwnPando::start(&settings.pando)?;
    let program = compile(&settings.pando, pando.directory())?;
    let work = pando.directory().join("work");
    std::fs::create_dir(&work)?;
    for (rest, how, samples) in [(REST, "", settings.samples(100, 5)), (0, ", back to back", settings.samples(100, 5))]
    {
        interrupt::check()?;
        let mut line = Command::new(&program);
        line.env("PANDO_ROOT", pando.root()).arg(&work).args([samples.to_string(), rest.to_string()]);
        let output = line.output().context("cannot run txlib")?;
        ensure!(output.status.success(), "txlib: {}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            add(&mut report, line, how)?;
        }
    }
    judge(&mut report);
    Ok(report)
}

/// Compiles the program against the library that was built beside the command: target/HOST/release/pando has it in
/// target/capi/HOST/release.
fn compile(pando: &Path, directory: &Path) -> anyhow::Result<PathBuf> {
    let profile = pando.parent().context("the command lies in a directory")?;
    let host = profile.parent().context("the command lies in a target directory")?;
    let names = host.file_name().zip(profile.file_name()).context("they have names")?;
    let library = host.parent().context("it lies in another")?.join("capi").join(names.0).join(names.1);
    if !library.join("libpando.so").is_file() {
        bail!("libpando is not built in {}; ./x build does that", library.display());
    }
    let (source, program) = (directory.join("txlib.c"), directory.join("txlib"));
    std::fs::write(&source, SOURCE).and_then(|()| std::fs::write(directory.join("pando.h"), HEADER))?;
    let mut line = Command::new("cc");
    line.args(["-O2", "-o"]).args([&program, &source]).arg(format!("-I{}", directory.display()));
    line.arg(format!("-L{}", library.display())).arg("-lpando").arg(format!("-Wl,-rpath,{}", library.display()));
    ensure!(line.status().context("cannot run cc; is gcc installed?")?.success(), "compiling txlib failed");
    Ok(program)
}

fn add(report: &mut Report, line: &str, how: &str) -> anyhow::Result<()> {
    let mut words = line.split('\t');
    let name = words.next().unwrap_or_default();
    let times: Result<Vec<f64>, _> = words.map(str::parse).collect();
    let Ok([native, begin, inside, end]) = <[f64; 4]>::try_from(times.context("txlib said no time")?) else {
        bail!("txlib said '{line}'");
    };
    if how.is_empty() {
        report.add(&format!("{name}: native"), "µs", native);
        report.add(&format!("{name}: begin"), "µs", begin);
        report.add(&format!("{name}: inside"), "µs", inside);
        report.add(&format!("{name}: end"), "µs", end);
    }
    report.add(&format!("{name}: transaction{how}"), "µs", begin + inside + end);
    Ok(())
}

fn judge(report: &mut Report) {
    for (name, most) in FIGURES {
        let value = report.median(&format!("{name}: transaction"));
        report.hold(format!("{name}: transaction"), value, most, "µs");
    }
    let durable = "one small file, durable";
    let ratios = report.ratios(&format!("{durable}: transaction"), &format!("{durable}: native"));
    let value = Spread::of(&ratios).map(|spread| spread.median);
    report.hold(format!("{durable}: transaction / write and fdatasync"), value, FLUSHES, "times");
    report.note("TxOS's empty transaction takes some 3 µs, in the kernel; entering and leaving a view alone takes 5");
}
