//! Who waits for the disk: a database whose transactions wait for it, beside a guest that streams; and guests of equal
//! and unequal weights.

use super::bfq_disk::BfqDisk;
use super::database::Database;
use super::{Neighbour, TURNS, WARM, amount, bounded, streaming_root, turns};
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use anyhow::{Context, bail};
use pando_api::{IoRequest, Method, Spec};
use std::path::Path;
use std::time::Duration;

/// What the database may lose, in percent: a disk's head start is worth more than a processor's.
const MOST_LOST: f64 = 34.0;

/// How far apart equals may be, and what one to three may come to.
const EQUAL: f64 = 10.0;
const THREE: (f64, f64) = (2.5, 3.5);

/// Readers that wait for the disk in each guest, so that it always has a choice.
const READERS: u32 = 4;

/// What the scheduler is told, for the rows of weights: as it comes, without its favours for who has just begun, and
/// with one request at a time.
const MANNERS: [(&str, &[(&str, &str)]); 3] = [
    ("bfq as it comes", &[("iosched/low_latency", "1"), ("iosched/strict_guarantees", "0")]),
    ("bfq, low_latency off", &[("iosched/low_latency", "0"), ("iosched/strict_guarantees", "0")]),
    ("bfq, strict_guarantees", &[("iosched/low_latency", "0"), ("iosched/strict_guarantees", "1")]),
];

/// Takes every sample and judges them.
pub(super) fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let disk = match BfqDisk::make(3) {
        Ok(disk) => disk,
        Err(error) => {
            report.note(format!("disk-bound: not measured: {error:#}"));
            return Ok(());
        }
    };
    let pando = OwnPando::start_in(&settings.pando, &disk.path())?;
    let root = pando.directory().join("busybox");
    streaming_root(&root)?;
    let mut client = pando.connect()?;
    let time = Duration::from_secs(if settings.quick { 2 } else { 6 });
    if settings.wants("disk-bound database") {
        database(&pando, &mut client, &root, settings.samples(3, 1), report)?;
    }
    if settings.wants("weights") {
        for (manner, properties) in MANNERS {
            for (property, value) in properties {
                disk.tell(property, value)?;
            }
            for _ in 0..settings.samples(2, 1) {
                weights(&mut client, &root, manner, time, report)?;
            }
        }
        judge(report);
    }
    drop(client);
    drop(pando);
    drop(disk);
    Ok(())
}

fn database(
    pando: &OwnPando,
    client: &mut Client,
    root: &Path,
    samples: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let database = Database::start(pando, true)?;
    let streamer = Neighbour {
        name: "disk-bound database, beside a stream of writes",
        script: "while :; do dd if=/dev/zero of=/big bs=1M count=512 oflag=direct conv=notrunc 2>/dev/null; done",
        spec: bounded("0"),
    };
    database.each_second(WARM, &mut |_| Ok(()))?;
    for _ in 0..samples {
        turns::take(&database, client, root, &streamer, TURNS, report)?;
    }
    let row = format!("{}: lost", streamer.name);
    report.hold(row.clone(), report.median(&row), MOST_LOST, "%");
    database.stop(client)
}

/// Two guests read as fast as they may, with equal weights and with one to three.
fn weights(client: &mut Client, root: &Path, manner: &str, time: Duration, report: &mut Report) -> anyhow::Result<()> {
    for (first, second, row) in [("100", "100", "1:1"), ("100", "300", "1:3")] {
        for (name, weight) in [("light", first), ("heavy", second)] {
            let read = "while :; do dd if=/file of=/dev/null bs=64k iflag=direct 2>/dev/null; done &";
            let readers = read.repeat(READERS as usize);
            let script = format!("dd if=/dev/zero of=/file bs=1M count=192 oflag=direct 2>/dev/null; {readers} wait");
            let io = IoRequest { weight: amount(weight), ..IoRequest::default() };
            let spec = Spec { command: vec!["/bin/sh".into(), "-c".into(), script], io, ..Spec::default() };
            let source = Some(root.to_string_lossy().into_owned());
            client.call(&Method::Create { name: name.into(), source, spec, start: true })?;
        }
        both_read(client)?;
        let before = (read(client, "light")?, read(client, "heavy")?);
        interrupt::pause(time)?;
        let after = (read(client, "light")?, read(client, "heavy")?);
        for name in ["light", "heavy"] {
            client.call(&Method::Remove { name: name.into(), force: true })?;
        }
        let (light, heavy) = ((after.0 - before.0).max(1) as f64, (after.1 - before.1) as f64);
        report.add(&format!("weights {row}, {manner}"), "to 1", heavy / light);
        report.add(&format!("weights {row}, {manner}: together"), "MB/s", (heavy + light) / 1e6 / time.as_secs_f64());
    }
    Ok(())
}

/// Waits until both have written their files and begun to read, and a moment more: the scheduler is told who they are
/// by what they do.
fn both_read(client: &mut Client) -> anyhow::Result<()> {
    const ENOUGH: i64 = 32 << 20;
    for _ in 0..120 {
        interrupt::pause(Duration::from_millis(500))?;
        if read(client, "light")? > ENOUGH && read(client, "heavy")? > ENOUGH {
            return interrupt::pause(Duration::from_secs(2));
        }
    }
    bail!("the readers of the disk did not begin within a minute")
}

/// Bytes that a guest has read from disks.
fn read(client: &mut Client, name: &str) -> anyhow::Result<i64> {
    let stats = client.call(&Method::Stats { name: Some(name.into()), history: false })?;
    stats["guests"][0]["now"]["read"].as_i64().context("a guest's reads are counted")
}

/// Each manner by itself: what weights can be trusted for depends on how the scheduler is set.
fn judge(report: &mut Report) {
    for (manner, _) in MANNERS {
        let off = report.median(&format!("weights 1:1, {manner}")).map(|ratio| (ratio - 1.0).abs() * 100.0);
        let three = report.median(&format!("weights 1:3, {manner}"));
        if let (Some(off), Some(three)) = (off, three) {
            let reached = off <= EQUAL && (THREE.0..=THREE.1).contains(&three);
            let word = if reached { "reached" } else { "unreachable here" };
            report.note(format!("weights, {manner}: equals {off:.0} % apart, 1:3 comes to 1:{three:.2}: {word}"));
        }
    }
}
