//! Reading and walking through a layer against the file system that it lies on, by one guest and in turn; and looking
//! for what can be shared.

use super::footprint;
use super::roots::Roots;
use crate::own_pando::OwnPando;
use crate::quiesce::Quiesce;
use crate::report::Report;
use crate::settings::Settings;
use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The big file that is read, in bytes; four times in one go, so that starting the reader is little beside it.
const BIG: usize = 256 << 20;

/// How many guests' worth of files is looked through.
pub(super) const LOOKED_THROUGH: usize = 10;

/// What is timed: through the layer, and on the directory that the guest's layer was made of.
const PAIRS: [(&str, &str, &str); 3] = [
    (
        "read 1 GiB",
        "cat /big /big /big /big >/dev/null",
        "cat /native/big /native/big /native/big /native/big >/dev/null",
    ),
    ("find -ls", "find /usr -xdev -ls >/dev/null", "find /native/usr -xdev -ls >/dev/null"),
    ("du", "du -xs /usr >/dev/null", "du -xs /native/usr >/dev/null"),
];

pub(super) fn measure(roots: &Roots, pando: &OwnPando, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    through_a_layer(roots, pando, settings, report)?;
    looking(roots, pando, settings, report)
}

fn through_a_layer(roots: &Roots, pando: &OwnPando, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let tree = &roots.trees()[0];
    let bytes: Vec<u8> = (0..BIG).map(|index| (index >> 12) as u8).collect();
    std::fs::write(tree.join("big"), bytes)?;
    let volume = format!("{}:/native:ro", tree.display());
    run(pando.command().args(["create", "reader", "--volume", &volume, "--start", "--from"]).arg(tree))?;
    let big = [tree.join("big"), object_of(BIG, &pando.state().join("store/objects"))?];
    let _quiet = Quiesce::begin(settings.quiesce.as_deref())?;
    for round in 0..=settings.samples(25, 3) {
        place_anew(&big, round)?;
        for (name, layer, native) in PAIRS {
            let mut turns = [("layer", layer), ("native", native)];
            // Who is first has what came before in the processor's caches.
            if round % 2 == 1 {
                turns.reverse();
            }
            let mut took = BTreeMap::new();
            for (kind, script) in turns {
                let since = Instant::now();
                run(pando.command().args(["exec", "reader", "--", "sh", "-c", script]))?;
                took.insert(kind, since.elapsed().as_secs_f64() * 1e3);
            }
            // The first round brings everything else into memory.
            if round > 0 {
                report.add(&format!("{name}: layer"), "ms", took["layer"]);
                report.add(&format!("{name}: native"), "ms", took["native"]);
                report.add(&ratio(name), "x", took["layer"] / took["native"]);
            }
        }
    }
    for ((name, ..), least) in PAIRS.iter().zip([0.97, 0.8, 0.8]) {
        report.hold(ratio(name), report.median(&ratio(name)), 1.0 / least, "x");
    }
    super::crowd::remove(pando, "reader")
}

/// Has big files read into memory from the disk again, in one order or the other. Files keep the places that they once
/// got there, in pieces as big as they were written or read in, and reading two copies of one file differed by a
/// seventh for as long as they lay where they lay, whichever was which.
fn place_anew(big: &[PathBuf; 2], round: usize) -> anyhow::Result<()> {
    footprint::evict(big)?;
    for number in [round / 2, round / 2 + 1] {
        std::io::copy(&mut File::open(&big[number % 2])?, &mut std::io::sink())?;
    }
    Ok(())
}

/// The object of a length that no other has.
fn object_of(length: usize, objects: &Path) -> anyhow::Result<PathBuf> {
    let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut objects = entries(objects).flat_map(|below| entries(&below.path())).map(|entry| entry.path());
    let found = objects.find(|path| path.metadata().is_ok_and(|found| found.len() == length as u64));
    found.context("the big file did not become an object")
}

fn ratio(name: &str) -> String {
    format!("{name}: time through a layer against native")
}

/// Guests that never ran get trees as files of their own, of which every file has to be looked at.
fn looking(roots: &Roots, pando: &OwnPando, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let guests = if settings.quick { 2 } else { LOOKED_THROUGH };
    for (number, tree) in roots.trees().iter().rev().take(guests).enumerate() {
        let name = format!("full{number}");
        run(pando.command().args(["create", &name, "--from"]).arg(tree))?;
        let upper = pando.state().join("guests").join(&name).join("files/upper");
        std::fs::remove_dir(&upper)?;
        run(Command::new("cp").args(["-al"]).arg(tree).arg(&upper))?;
    }
    // What was linked just now has a fresh time of change, and is not trusted yet.
    crate::interrupt::pause(std::time::Duration::from_secs(4))?;
    let _quiet = Quiesce::begin(settings.quiesce.as_deref())?;
    for what in ["first", "again", "again", "again"] {
        let since = Instant::now();
        let done = pando.command().args(["unify", "--dry-run", "--json"]).output()?;
        let seconds = since.elapsed().as_secs_f64();
        let told: serde_json::Value = serde_json::from_slice(&done.stdout)?;
        let (files, read) = (told["files"].as_f64().unwrap_or(0.0), told["read"].as_f64().unwrap_or(0.0));
        report.add(&format!("unify --dry-run, {what}: files a second"), "1/s", files / seconds);
        report.add(&format!("unify --dry-run, {what}: files read"), "", read);
    }
    let rate = report.median("unify --dry-run, again: files a second");
    report.hold("incremental: seconds for 400,000 files", rate.map(|rate| 400_000.0 / rate), 1.0, "s");
    Ok(())
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let done = command.output()?;
    anyhow::ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}
