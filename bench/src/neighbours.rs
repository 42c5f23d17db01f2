//! `./x bench neighbours`: what a database keeps of its throughput while another guest does its worst, after figure 9
//! of Linux-VServer's paper.
//!
//! Every figure is a ratio of seconds that follow each other at once: alone, beside the neighbour, and alone again (see
//! [`turns`]).

mod bfq_disk;
mod database;
mod disk_bound;
pub(crate) mod fork_bomb;
mod swap_file;
mod turns;

use crate::busybox_root;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use anyhow::Context;
use database::Database;
use pando_api::{Amount, DiskRequest, MemoryRequest, Method, Spec};
use std::path::Path;
use swap_file::SwapFile;

/// Of its throughput alone, in percent, what the database may lose.
const MOST_LOST: f64 = 10.0;

const NEIGHBOUR: &str = "neighbour";

/// How often a neighbour takes its turn while it is there. It comes anew for each sample: what it is like depends on
/// how it began.
const TURNS: usize = 2;

/// Seconds until the database's pages are where they stay.
const WARM: usize = 6;

/// Somebody who does his worst.
struct Neighbour {
    name: &'static str,
    script: &'static str,
    spec: Spec,
}

impl Neighbour {
    /// Makes its guest, which begins at once.
    fn come(&self, client: &mut Client, root: &Path) -> anyhow::Result<()> {
        let spec = Spec { command: vec!["/bin/sh".into(), "-c".into(), self.script.into()], ..self.spec.clone() };
        let source = Some(root.to_string_lossy().into_owned());
        client.call(&Method::Create { name: NEIGHBOUR.into(), source, spec, start: true }).map(drop)
    }
}

fn amount(text: &str) -> Option<Amount> {
    Some(Amount::from(text))
}

/// What each neighbour may have at the most: what a host would give to a guest that it does not know.
fn bounded(swap: &str) -> Spec {
    let memory = MemoryRequest { limit: amount("128M"), swap: amount(swap), ..MemoryRequest::default() };
    Spec { memory, pids: amount("200"), ..Spec::default() }
}

fn neighbours() -> Vec<Neighbour> {
    let disk = DiskRequest { size: amount("64M"), inodes: amount("5000") };
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
    // The database getting warm.
    database.each_second(WARM, &mut |_| Ok(()))?;
    for _ in 0..settings.samples(5, 1) {
        for one in all {
            turns::take(&database, &mut client, &root, one, TURNS, report)?;
        }
    }
    for one in all {
        let row = format!("{}: lost", one.name);
        report.hold(row.clone(), report.median(&row), MOST_LOST, "%");
    }
    if settings.wants("swap") {
        with_swap(&pando, &database, &mut client, &root, report)?;
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

/// The memory hog once more, who may swap; printed beside, not judged.
fn with_swap(
    pando: &OwnPando,
    database: &Database<'_>,
    client: &mut Client,
    root: &Path,
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
        turns::take(database, client, root, &swapping, TURNS, report)?;
    }
    drop(swap);
    Ok(())
}
