//! `./x bench start`: how long a guest for one command takes, and a command in a running guest, against the runtimes
//! that people use.

pub(crate) mod bundle;
mod contender;
mod peers;

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::{busybox_root, interrupt};
pub(crate) use contender::{Contender, inside, timed};
pub(crate) use peers::Peers;
use std::time::Duration;

/// Between two samples. Moving a task between cgroups is slow after idleness and only then, so a tight loop would
/// flatter everybody.
const PAUSE: Duration = Duration::from_millis(300);

/// The rows of the table; the verdicts find them by name.
const RUN: &str = "pando run";
const RUN_HOST: &str = "pando run --net host";
const INSIDE: &str = "inside the daemon, all defaults";
const INSIDE_HOST: &str = "inside the daemon, --net host";
const EXEC: &str = "pando exec";
pub(crate) const CRUN: &str = "crun run";
pub(crate) const RUNC: &str = "runc run";
const BWRAP: &str = "bwrap";

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("start");
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    let peers = peers::Peers::new(&pando, &root)?;
    let mut contenders = contender::of_pando(&pando, &root)?;
    contenders.extend(peers.contenders(&mut report));
    let samples = settings.samples(40, 6);
    for round in 0..=samples {
        // Whoever goes first changes, so that nobody always follows the same neighbour. The first round warms up.
        for number in 0..contenders.len() {
            let count = contenders.len();
            sample(&mut contenders[(number + round) % count], round > 0, &mut report)?;
        }
    }
    judge(&mut report);
    Ok(report)
}

/// Takes a sample of one that has not failed yet; `counts`: not the first, which warms up.
pub(crate) fn sample(contender: &mut Contender<'_>, counts: bool, report: &mut Report) -> anyhow::Result<()> {
    interrupt::pause(PAUSE)?;
    if contender.failed {
        return Ok(());
    }
    match (contender.run)() {
        Ok(milliseconds) if counts => report.add(contender.name, "ms", milliseconds),
        Ok(_) => {}
        // One failure and it is out: a figure that leaves its failures out would be no figure.
        Err(error) => {
            interrupt::check()?;
            contender.failed = true;
            report.forget(contender.name);
            report.note(format!("{} could not be measured: {error:#}", contender.name));
        }
    }
    Ok(())
}

fn judge(report: &mut Report) {
    let ratio = |own: Option<f64>, other: Option<f64>| Some(own? / other?);
    let run = report.median(RUN);
    let (crun, runc, bwrap) = (report.median(CRUN), report.median(RUNC), report.median(BWRAP));
    // Both must have been measured, or the faster one might be the one that is missing.
    let faster = crun.zip(runc).map(|(crun, runc)| crun.min(runc));
    report.hold("pando run against the faster of crun and runc", ratio(run, faster), 0.25, "times");
    report.hold("pando run against bwrap", ratio(run, bwrap), 1.0, "times");
    report.hold("start to exit inside the daemon, --net host", report.median(INSIDE_HOST), 2.0, "ms");
    report.hold("start to exit inside the daemon, all defaults", report.median(INSIDE), 2.0, "ms");
    report.hold("pando exec in a running guest", report.median(EXEC), 3.0, "ms");
}
