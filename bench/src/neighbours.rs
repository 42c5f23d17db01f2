//! `./x bench neighbours`: what a database keeps of its throughput while another guest does its worst, after figure 9 of Linux-VServer's paper.
//!
//! Every figure is a ratio of runs that follow each other at once: alone, beside the neighbour, and alone again. There are many: on a machine that others use
//! too what a database does alone differs by a fifth from one run to the next.

mod bfq_disk;
mod database;
mod disk_bound;
pub(crate) mod fork_bomb;
mod swap_file;

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use crate::{busybox_root, interrupt};
use anyhow::Context;
use database::Database;
use pando_api::{Amount, DiskWish, MemoryWish, Method, Spec};
use std::path::Path;
use std::time::{Duration, Instant};
use swap_file::SwapFile;

/// Of its throughput alone, in percent, what the database may lose.
const MOST_LOST: f64 = 10.0;

const NEIGHBOUR: &str = "neighbour";

/// Somebody who does his worst.
struct Neighbour {
    name: &'static str,
    script: &'static str,
    spec: Spec,
}

fn amount(text: &str) -> Option<Amount> {
    Some(Amount::from(text))
}

/// What each neighbour may have at the most: what a host would give to a guest that it does not know.
fn bounded(swap: &str) -> Spec {
    let memory = MemoryWish { limit: amount("128M"), swap: amount(swap), ..MemoryWish::default() };
    Spec { memory, pids: amount("200"), ..Spec::default() }
}

fn neighbours() -> Vec<Neighbour> {
    let disk = DiskWish { size: amount("64M"), inodes: amount("5000") };
    vec![
        Neighbour {
            name: "streams 6 GB",
            script: "while :; do i=0; while [ $i -lt 24 ]; do dd if=/dev/zero of=/big bs=1M count=256 conv=notrunc 2>/dev/null; i=$((i+1)); done; done",
            spec: bounded("0"),
        },
        Neighbour { name: "fork bomb", script: "exec /bin/fork-bomb fork-bomb", spec: bounded("0") },
        Neighbour {
            name: "memory hog",
            script: "while :; do head -c 1g /dev/zero | tail >/dev/null 2>&1; done",
            spec: bounded("0"),
        },
        Neighbour {
            name: "inode hog",
            script: "while :; do i=0; while true >/f$i; do i=$((i+1)); done 2>/dev/null; rm -f /f*; done",
            spec: Spec { disk, ..bounded("0") },
        },
    ]
}

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("neighbours");
    let all: Vec<_> = neighbours().into_iter().filter(|one| settings.wants(one.name)).collect();
    if !all.is_empty() || settings.wants("swap") {
        cached(settings, &all, &mut report)?;
    }
    if settings.wants("disk-bound database") || settings.wants("weights") {
        disk_bound::measure(settings, &mut report)?;
    }
    Ok(report)
}

/// A database that lies in memory whole, beside each neighbour.
fn cached(settings: &Settings, all: &[Neighbour], report: &mut Report) -> anyhow::Result<()> {
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    streaming_root(&root)?;
    let mut client = pando.connect()?;
    let database = Database::start(&pando, false)?;
    let time = Duration::from_secs(if settings.quick { 2 } else { 6 });
    // What came before the first is the database getting warm.
    database.throughput(time)?;
    let mut alone = database.throughput(time)?;
    for _ in 0..settings.samples(7, 1) {
        for one in all {
            alone = beside(&database, &mut client, &root, one, (time, alone), report)?;
        }
    }
    for one in all {
        let row = format!("{}: lost", one.name);
        report.hold(row.clone(), report.median(&row), MOST_LOST, "%");
    }
    if settings.wants("swap") {
        with_swap(&pando, &database, &mut client, &root, (time, alone), report)?;
    }
    database.stop(&mut client)
}

/// The root of neighbours.
fn streaming_root(root: &Path) -> anyhow::Result<()> {
    busybox_root::make(root)?;
    for applet in ["dd", "head", "rm", "tail"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    let program = std::env::current_exe()?;
    std::fs::copy(program, root.join("bin").join(fork_bomb::NAME)).context("cannot copy the fork bomb").map(drop)
}

/// Processor time that the neighbour has used, in milliseconds.
fn used(client: &mut Client) -> anyhow::Result<i64> {
    let stats = client.call(&Method::Stats { name: Some(NEIGHBOUR.into()), history: false })?;
    stats["guests"][0]["now"]["cpu_ms"].as_i64().context("the neighbour ended; it was to last")
}

/// Beside a neighbour, and alone, after it was alone already: what it did then. The last is returned, for who comes next.
fn beside(
    database: &Database<'_>,
    client: &mut Client,
    root: &Path,
    neighbour: &Neighbour,
    (time, before_it): (Duration, f64),
    report: &mut Report,
) -> anyhow::Result<f64> {
    let spec = Spec { command: vec!["/bin/sh".into(), "-c".into(), neighbour.script.into()], ..neighbour.spec.clone() };
    let source = Some(root.to_string_lossy().into_owned());
    client.call(&Method::Create { name: NEIGHBOUR.into(), source, spec, start: true })?;
    interrupt::pause(Duration::from_secs(1))?;
    let (begun, before) = (Instant::now(), used(client)?);
    let beside = database.throughput(time);
    let (after, span) = (used(client)?, begun.elapsed().as_millis() as f64);
    client.call(&Method::Remove { name: NEIGHBOUR.into(), force: true })?;
    let beside = beside?;
    let after_it = database.throughput(time)?;
    let alone = (before_it + after_it) / 2.0;
    let processors = std::thread::available_parallelism()?.get() as f64;
    // What it is entitled to is a loss by right: a twentieth, of shares that are equal and of nine tenths that are reserved.
    report.add(
        &format!("{}: what the neighbour had of the processors", neighbour.name),
        "%",
        (after - before) as f64 / span / processors * 100.0,
    );
    report.add(&format!("{}: alone", neighbour.name), "tps", alone);
    report.add(&format!("{}: beside", neighbour.name), "tps", beside);
    report.add(&format!("{}: lost", neighbour.name), "%", ((1.0 - beside / alone) * 100.0).max(0.0));
    Ok(after_it)
}

/// The memory hog once more, who may swap; printed beside, not judged.
fn with_swap(
    pando: &OwnPando,
    database: &Database<'_>,
    client: &mut Client,
    root: &Path,
    runs: (Duration, f64),
    report: &mut Report,
) -> anyhow::Result<()> {
    let swap = match SwapFile::make(&pando.directory().join("swap"), 512) {
        Ok(swap) => swap,
        Err(error) => {
            report.note(format!("with swap: not measured: {error:#}"));
            return Ok(());
        }
    };
    let hog = neighbours().into_iter().find(|one| one.name == "memory hog");
    if let Some(hog) = hog {
        let swapping = Neighbour { name: "memory hog with 256 MB of swap", spec: bounded("256M"), ..hog };
        beside(database, client, root, &swapping, runs, report)?;
    }
    drop(swap);
    Ok(())
}
