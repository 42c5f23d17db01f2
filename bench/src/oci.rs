//! `./x bench oci`: how long a container of a bundle takes, from the command to its end, by each runtime.

use crate::busybox_root;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::start::{CRUN, Contender, Peers, RUNC, bundle, sample, timed};
use anyhow::Context;
use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Stdio};

const RUN: &str = "pando-oci run";

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("oci");
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    let peers = Peers::new(&pando, &root)?;
    let runtime = settings.pando.with_file_name("pando-oci");
    let (states, own) = (pando.directory().join("oci-states"), pando.directory().join("oci-bundle"));
    let group = format!("pando-bench-oci-{}", std::process::id());
    bundle::write(&own, &root, &bundle::Cgroup::Own(group)).context("cannot write an OCI bundle")?;
    let count = Cell::new(0_u64);
    let mut contenders = vec![Contender::new(RUN, || run(&runtime, &states, &own, &count))];
    contenders.extend(peers.contenders(&mut report).into_iter().filter(|peer| [CRUN, RUNC].contains(&peer.name)));
    let samples = settings.samples(100, 6);
    for round in 0..=samples {
        for number in 0..contenders.len() {
            let count = contenders.len();
            sample(&mut contenders[(number + round) % count], round > 0, &mut report)?;
        }
    }
    let ratio = |own: Option<f64>, other: Option<f64>| Some(own? / other?);
    let (run, crun, runc) = (report.median(RUN), report.median(CRUN), report.median(RUNC));
    report.hold("pando-oci run against crun", ratio(run, crun), 0.7, "times");
    report.hold("pando-oci run against runc", ratio(run, runc), 0.35, "times");
    Ok(report)
}

fn run(runtime: &Path, states: &Path, bundle: &Path, count: &Cell<u64>) -> anyhow::Result<f64> {
    count.set(count.get() + 1);
    let mut command = Command::new(runtime);
    command.arg("--root").arg(states).args(["run", "--bundle"]).arg(bundle).arg(format!("box-{}", count.get()));
    timed(command.stdin(Stdio::piped()))
}
