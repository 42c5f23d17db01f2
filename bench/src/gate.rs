//! `./x bench gate`: what a gate costs a commit on the host, and those whom it keeps out.
//!
//! Commits of one file by turns without a gate and with each that this machine has, beside an outsider who opens the
//! file as fast as he can. His longest opening during a commit is how long he was held. What he calls while a
//! transaction is open, and nobody commits, is held against the same without one: the calls of TxOS's table 4. With the
//! gate `hold` its programs are asked meanwhile. And 300 processes of a control group are frozen and let go.
//!
//! Where the machine's clock counts instructions (`tests/vm/run --icount`), so do the figures: a nanosecond is one.

use crate::outside::{self, Outsider};
use crate::report::Report;
use crate::settings::Settings;
use crate::tx::whole::BEHIND;
use anyhow::{Context, ensure};
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::cgroup::timed_freeze::TimedFreeze;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Processes that are frozen.
const FROZEN: usize = 300;

/// What is held against the others.
const NONE: &str = "none";

pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("gate");
    let directory = tempfile::tempdir().context("cannot make a directory")?;
    let tx = |action: &str| {
        let mut command = Command::new(&settings.pando);
        command.arg("--root").arg(directory.path().join("state")).args(["tx", action]).stdin(Stdio::null());
        command
    };
    let file = directory.path().join("file");
    std::fs::write(&file, "before")?;
    beside_open(settings, &tx, directory.path(), &mut report)?;
    frozen(settings, &mut report)?;
    let gates = available(&tx, &mut report)?;
    for round in 0..=settings.samples(60, 5) {
        for gate in &gates {
            let mut command = tx("run");
            command.args([
                "-q",
                "--no-durable",
                "--retry",
                "0",
                "--gate",
                gate,
                "--hold-timeout",
                "5",
                "--",
                "sh",
                "-c",
            ]);
            command.arg(format!("echo {round} >{}", file.display()));
            // Nobody pays for what is done behind the end of the one before.
            std::thread::sleep(BEHIND);
            let (time, longest) = beside_outsider(&mut command, &file)?;
            if round > 0 {
                report.add(&commit(gate), "ms", time);
                report.add(&held(gate), "ms", longest);
            }
        }
    }
    for gate in gates.iter().filter(|gate| **gate != NONE) {
        let added =
            report.median(&commit(gate)).zip(report.median(&commit(NONE))).map(|(with, without)| with - without);
        let (adds, holds) = if *gate == "freeze" { (5.0, 5.0) } else { (0.3, 5.0) };
        report.hold(format!("{gate}: a commit takes longer by"), added, adds, "ms");
        let longest = report.median(&held(gate));
        report.hold(format!("{gate}: an outsider is held by a one-file commit for"), longest, holds, "ms");
    }
    Ok(report)
}

fn commit(gate: &str) -> String {
    format!("begin and commit of one file, gate {gate}")
}

fn held(gate: &str) -> String {
    format!("an outsider's longest opening meanwhile, gate {gate}")
}

/// The gates that this machine has.
fn available(tx: &impl Fn(&str) -> Command, report: &mut Report) -> anyhow::Result<Vec<&'static str>> {
    let mut gates = vec![NONE];
    for gate in ["bpf", "fanotify", "freeze"] {
        if available_one(tx, gate, report)? {
            gates.push(gate);
        }
    }
    Ok(gates)
}

/// Whether the machine has this one. Where not, the reason is noted.
fn available_one(tx: &impl Fn(&str) -> Command, gate: &str, report: &mut Report) -> anyhow::Result<bool> {
    let tried = tx("run").args(["--gate", gate, "--", "true"]).output()?;
    if !tried.status.success() {
        report.note(format!("{gate}: {}", String::from_utf8_lossy(&tried.stderr).trim()));
    }
    Ok(tried.status.success())
}

/// How long a command takes, and the longest that an opening of the file takes meanwhile, in milliseconds.
fn beside_outsider(command: &mut Command, file: &Path) -> anyhow::Result<(f64, f64)> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let outsider = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let opened = File::open(file);
                longest = longest.max(begun.elapsed());
                drop(opened);
                std::thread::sleep(Duration::from_micros(20));
            }
            longest
        });
        let begun = Instant::now();
        let ended = command.status();
        let time = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        let longest = outsider.join().map_err(|_| anyhow::anyhow!("the outsider has died"))?;
        ensure!(ended?.success(), "a commit has failed");
        Ok((time.as_secs_f64() * 1000.0, longest.as_secs_f64() * 1000.0))
    })
}

/// Calls outside, by turns with no transaction, beside an open one that has changed the same file, and beside one that
/// has others wait for what it has read.
fn beside_open(
    settings: &Settings,
    tx: &impl Fn(&str) -> Command,
    directory: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    let outsider = Outsider::new(directory)?;
    let done = |command: &mut Command| -> anyhow::Result<()> {
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    let holds = available_one(tx, "hold", report)?;
    for _ in 0..settings.samples(20, 3) {
        outsider.sample(report, outside::ALONE)?;
        done(tx("begin").arg("open"))?;
        done(tx("enter").args(["open", "--", "touch"]).arg(directory.join("file")))?;
        let taken = outsider.sample(report, outside::BESIDE);
        done(tx("abort").arg("open"))?;
        taken?;
        if holds {
            let held = outside::Held::begin(tx("run"), &outsider)?;
            outsider.sample(report, outside::HELD)?;
            held.end()?;
        }
    }
    outside::judge(report, outside::BESIDE, 1.03);
    if holds {
        outside::judge(report, outside::HELD, 1.03);
    }
    Ok(())
}

/// How long it takes to freeze a group of processes and to let them go, as the gate `freeze` does it.
fn frozen(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let Some(unified) = Hierarchies::detect()?.unified else {
        report.note("no control groups of version 2: nothing is frozen");
        return Ok(());
    };
    let group = Group::begin(unified.join(format!("pando-bench-gate-{}", std::process::id())), FROZEN)?;
    let name = format!("{FROZEN} processes frozen and let go");
    for _ in 0..settings.samples(60, 5) {
        std::thread::sleep(BEHIND);
        let begun = Instant::now();
        let mut frozen = TimedFreeze::begin(std::slice::from_ref(&group.path), Duration::from_secs(5))?;
        while !frozen.is_complete() {
            ensure!(!frozen.has_lapsed(), "they did not stand still within 5 s");
            std::thread::sleep(Duration::from_micros(100));
        }
        frozen.end();
        report.add(&name, "ms", begun.elapsed().as_secs_f64() * 1000.0);
    }
    report.hold(name.clone(), report.median(&name), 5.0, "ms");
    Ok(())
}

/// A control group of processes that sleep, until this is dropped.
struct Group {
    path: PathBuf,
    children: Vec<Child>,
}

impl Group {
    fn begin(path: PathBuf, count: usize) -> anyhow::Result<Self> {
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut group = Self { path, children: Vec::new() };
        for _ in 0..count {
            let child = Command::new("sleep").arg("100000").stdin(Stdio::null()).spawn()?;
            std::fs::write(group.path.join("cgroup.procs"), child.id().to_string())?;
            group.children.push(child);
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir(&self.path);
    }
}
