//! `./x bench many`: hundreds of idle guests, how fast they start and what each keeps of the machine's memory.

mod crowd;
pub(crate) mod daemon_cost;
pub(crate) mod group_charge;
pub(crate) mod machine_memory;
mod own_keep;

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::{busybox_root, interrupt};
use crowd::Crowd;
use group_charge::GroupCharge;
use pando_api::Network;
use std::time::Duration;

/// How long the machine is left alone after something was done to many guests.
const SETTLE: Duration = Duration::from_secs(2);

/// How many connections start and stop guests at once where that is what is measured.
const CONNECTIONS: usize = 50;

/// A size of crowd, and what is expected of it.
struct Size {
    guests: usize,
    /// Seconds for all, one after another.
    serial: f64,
    /// Seconds for all by many connections, where that has a target.
    parallel: Option<f64>,
    /// Seconds to stop and remove them all, where that has one.
    removal: Option<f64>,
}

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("many");
    report.note("the client speaks varlink over a blocking socket, without a library: its own share is least so");
    report.note(
        "of the machine's memory a guest takes more than is charged for it: its control groups, and in each memory group a bitmap of the reclaimable objects \
         of every mounted file system of the machine, which is a kilobyte for ten guests that there have ever been at once",
    );
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    let source = root.to_string_lossy().into_owned();
    let hundreds =
        Size { guests: if settings.quick { 40 } else { 200 }, serial: 1.0, parallel: Some(0.6), removal: Some(2.0) };
    one_size(&pando, &source, &hundreds, settings.samples(5, 1), &mut report)?;
    if !settings.quick {
        let thousand = Size { guests: 1000, serial: 6.0, parallel: None, removal: None };
        one_size(&pando, &source, &thousand, settings.samples(2, 1).min(2), &mut report)?;
    }
    Ok(report)
}

fn one_size(pando: &OwnPando, source: &str, size: &Size, samples: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut crowd = Crowd::create(pando, source, size.guests, CONNECTIONS)?;
    // The two kinds of network take turns, so that what else the machine does falls on both alike.
    for round in 0..=samples {
        for network in [Network::Host, Network::None] {
            crowd.set_network(network)?;
            // The first round warms up: it makes the daemon's shims, and its caches.
            let mut unheard = Report::new("warm-up");
            let into = if round > 0 { &mut *report } else { &mut unheard };
            one_round(pando, &mut crowd, size, network, into)?;
        }
    }
    if size.removal.is_some() {
        at_rest_cost(pando, &mut crowd, size, report)?;
    }
    let removal = row(size, Network::None, "stopped and removed");
    crowd.start_together()?;
    interrupt::pause(SETTLE)?;
    report.add(&removal, "s", crowd.stop_and_remove()?);
    judge(size, report);
    Ok(())
}

/// The name of a row, which the verdicts find it by.
fn row(size: &Size, network: Network, what: &str) -> String {
    let network = if network == Network::Host { "--net host" } else { "own network" };
    format!("{} guests, {network}: {what}", size.guests)
}

fn one_round(
    pando: &OwnPando,
    crowd: &mut Crowd<'_>,
    size: &Size,
    network: Network,
    report: &mut Report,
) -> anyhow::Result<()> {
    let row = |what: &str| row(size, network, what);
    machine_memory::settle()?;
    let before = machine_memory::used_kib()?;
    let charge = GroupCharge::of(pando)?;
    let kept = own_keep::kilobytes(pando)?;
    report.add(&row("one after another"), "s", crowd.start_one_by_one()?);
    interrupt::pause(SETTLE)?;
    let guests = size.guests as f64;
    report.add(&row("memory each, of the machine's"), "kB", (machine_memory::used_kib()? - before) / guests);
    let (own, shim) = charge.each(pando)?;
    report.add(&row("memory each, of its groups'"), "kB", own);
    let kept = (own_keep::kilobytes(pando)? - kept).max(0.0) / guests;
    report.add(&row("memory each, of its groups' and Pando's own"), "kB", own + kept);
    if let Some(shim) = shim {
        report.add(&row("memory of a shim that waits"), "kB", shim);
    }
    report.add(&row("stopped"), "s", crowd.stop()?);
    if size.parallel.is_some() {
        interrupt::pause(SETTLE)?;
        report.add(&row("by 50 connections"), "s", crowd.start_together()?);
        crowd.stop()?;
        interrupt::pause(SETTLE)?;
        report.add(&row("by one `pando start`"), "s", crowd.start_by_command(pando)?);
        crowd.stop()?;
    }
    Ok(())
}

/// What the daemon costs while the crowd runs and nothing happens.
fn at_rest_cost(pando: &OwnPando, crowd: &mut Crowd<'_>, size: &Size, report: &mut Report) -> anyhow::Result<()> {
    const WATCHED: Duration = Duration::from_secs(10);
    // Once a minute it notes what each guest used, and starting is use: after that, nothing happens.
    const NOTED: Duration = Duration::from_secs(62);
    crowd.start_together()?;
    interrupt::pause(NOTED)?;
    let before = daemon_cost::ticks(pando.daemon())?;
    interrupt::pause(WATCHED)?;
    let ticks = daemon_cost::ticks(pando.daemon())? - before;
    let resident = daemon_cost::resident_mib(pando.daemon())?;
    report.add("daemon: CPU in 10 s at rest", "ticks", ticks);
    report.add("daemon: resident memory", "MiB", resident);
    report.hold(format!("CPU of the daemon in 10 s with {} idle guests", size.guests), Some(ticks), 0.0, "ticks");
    report.hold(format!("memory of the daemon with {} guests", size.guests), Some(resident), 20.0, "MiB");
    crowd.stop().map(drop)
}

fn judge(size: &Size, report: &mut Report) {
    for (network, most) in [(Network::Host, 230.0), (Network::None, 320.0)] {
        let row = |what: &str| row(size, network, what);
        report.hold(row("one after another"), report.median(&row("one after another")), size.serial, "s");
        if let Some(target) = size.parallel {
            report.hold(row("by 50 connections"), report.median(&row("by 50 connections")), target, "s");
        }
        let name = row("memory each, of its groups' and Pando's own");
        report.hold(name.clone(), report.median(&name), most, "kB");
    }
    if let Some(target) = size.removal {
        let name = row(size, Network::None, "stopped and removed");
        report.hold(name.clone(), report.median(&name), target, "s");
    }
}
