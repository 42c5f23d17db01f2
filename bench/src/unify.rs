//! `./x bench unify`: guests on roots of their own against guests that share them, on the same trees and in the same
//! run: disk, page cache, start.
//!
//! The separate guests run on their directories as they lie there (`pando run --from DIR`), the unified ones on the
//! store (`pando create --from DIR`).

mod charts;
mod cold;
mod crowd;
mod daemons;
mod footprint;
mod installation;
mod meminfo;
mod parallel;
mod roots;
mod speed;
mod supply;
mod tables;

use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::quiesce::Quiesce;
use crate::report::Report;
use crate::settings::Settings;
use anyhow::Context;
use footprint::Footprint;
use roots::Roots;
use std::path::{Path, PathBuf};

/// The papers' experiment.
const GUESTS: usize = 30;

const MIB: f64 = 1_048_576.0;

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new(if settings.daemons { "unify-daemons" } else { "unify" });
    let pando = OwnPando::start(&settings.pando)?;
    if settings.daemons {
        daemons::measure(settings, &pando, &mut report)?;
        return Ok(report);
    }
    let usual = if settings.wants("sharing") { GUESTS } else { speed::LOOKED_THROUGH };
    let guests = settings.guests.unwrap_or(if settings.quick { 5 } else { usual });
    let roots = Roots::make(pando.directory(), settings, guests)?;
    report.note(roots.story());
    if settings.wants("sharing") {
        sharing(&roots, &pando, settings, &mut report)?;
    }
    if settings.wants("speed") {
        cold::measure(&roots, settings, &mut report)?;
        speed::measure(&roots, &pando, settings, &mut report)?;
    }
    Ok(report)
}

/// Disk, page cache and start of separate guests and of unified ones.
fn sharing(roots: &Roots, pando: &OwnPando, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let guests = roots.trees().len();
    let separate = separate(roots, pando, report).context("separate guests one by one")?;
    let unified = unified(roots, pando, settings, report).context("unified guests one by one")?;
    judge(guests, &separate, &unified, report);
    crowd::stop(pando, 0..guests)?;
    let together = parallel::measure(roots, pando, settings.quiesce.as_deref(), unified.cache, report);
    if let Err(error) = &together {
        // What was measured before is worth having all the same.
        report.note(format!("all guests together: {error:#}"));
    }
    interrupt::check()?;
    parallel::judge(report);
    Ok(())
}

fn judge(guests: usize, separate: &Taken, unified: &Taken, report: &mut Report) {
    // The papers' figures hold for 30 guests; fewer can share less.
    let scale = (GUESTS as f64 / guests as f64).max(1.0);
    let times_less = |ours: u64, theirs: u64| (theirs > 0).then(|| ours as f64 / theirs as f64 * 100.0);
    let disk = times_less(unified.disk, separate.disk);
    report.hold("disk, unified against separate", disk, 100.0 / 15.0 * scale, "%");
    let cache = times_less(unified.cache, separate.cache);
    report.hold("page cache, unified against separate", cache, 100.0 / 20.0 * scale, "%");
    report.hold("one more guest: disk", report.median("one more guest: disk"), 3.0, "MB");
    report.hold("one more guest: inodes", report.median("one more guest: inodes"), 10.0, "");
    report.hold("one more guest: time", report.median("one more guest: time"), 0.1, "s");
}

/// Disk and page cache of guests, in bytes.
struct Taken {
    disk: u64,
    cache: u64,
}

fn separate(roots: &Roots, pando: &OwnPando, report: &mut Report) -> anyhow::Result<Taken> {
    let places = roots.trees().to_vec();
    footprint::evict(&places)?;
    let mut crowd = crowd::Separate::default();
    let mut cache = 0;
    for tree in &places {
        report.add("separate: start and work, one by one", "s", crowd.start(pando, tree, crowd::WORK)?);
        // Nobody else uses a file of it, so that its pages may go while others are started.
        cache += footprint::cached(std::slice::from_ref(tree))?;
    }
    let taken = Taken { disk: Footprint::of(&places)?.bytes, cache };
    report.add("separate: disk", "MB", taken.disk as f64 / MIB);
    report.add("separate: page cache", "MB", taken.cache as f64 / MIB);
    crowd.end(pando)?;
    Ok(taken)
}

fn unified(roots: &Roots, pando: &OwnPando, settings: &Settings, report: &mut Report) -> anyhow::Result<Taken> {
    let state = pando.state();
    let places: Vec<PathBuf> = ["store", "guests"].iter().map(|name| state.join(name)).collect();
    let (last, others) = roots.trees().split_last().context("there are roots")?;
    let quiet = Quiesce::begin(settings.quiesce.as_deref())?;
    for (number, tree) in others.iter().enumerate() {
        let name = if number == 0 { "unified: create, the first" } else { "unified: create, each of the others" };
        report.add(name, "s", create(pando, &crowd::name(number), tree)?);
    }
    one_more(pando, &places, others.len(), last, report)?;
    drop(quiet);
    footprint::evict(&places)?;
    footprint::evict(roots.trees())?;
    for number in 0..roots.trees().len() {
        report.add("unified: start and work, one by one", "s", crowd::start_unified(pando, number)?);
    }
    let taken = Taken { disk: Footprint::of(&places)?.bytes, cache: footprint::cached(&places)? };
    report.add("unified: disk", "MB", taken.disk as f64 / MIB);
    report.add("unified: page cache", "MB", taken.cache as f64 / MIB);
    Ok(taken)
}

/// What the last guest adds. Its tree has been read once before, as a host's template would have been: then only what
/// changed is read.
fn one_more(
    pando: &OwnPando,
    places: &[PathBuf],
    number: usize,
    tree: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    create(pando, "warm", tree)?;
    crowd::remove(pando, "warm")?;
    // Its image too: the last guest's has to be counted.
    let done = pando.command().args(["store", "gc"]).output()?;
    anyhow::ensure!(done.status.success(), "gc: {}", String::from_utf8_lossy(&done.stderr));
    interrupt::check()?;
    let before = Footprint::of(places)?;
    let seconds = create(pando, &format!("g{number}"), tree)?;
    let after = Footprint::of(places)?;
    let more = |after: u64, before: u64| after.saturating_sub(before) as f64;
    report.add("one more guest: disk", "MB", more(after.bytes, before.bytes) / MIB);
    report.add("one more guest: inodes", "", more(after.inodes, before.inodes));
    report.add("one more guest: time", "s", seconds);
    Ok(())
}

/// Seconds that `pando create` takes.
fn create(pando: &OwnPando, name: &str, tree: &Path) -> anyhow::Result<f64> {
    crowd::create(pando, name, tree, crowd::WORK)
}
