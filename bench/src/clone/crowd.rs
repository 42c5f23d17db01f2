//! Many clones at once: how long they take, and what each keeps of the machine's memory.

use super::{PAUSE, SETTLE, Size, clone, milliseconds, remove, row};
use crate::interrupt;
use crate::many::group_charge::GroupCharge;
use crate::many::machine_memory;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::varlink::Client;
use pando_api::{Method, Network, Spec};
use std::path::Path;
use std::time::Instant;

/// How many clones are made at once, and alive at once when their memory is read.
pub(super) const CROWD: usize = 100;

/// How many of the smallest guest there are to be alive at once.
const MULTITUDE: usize = 1000;

/// What that is.
const SMALLEST: &str = "busybox";

/// A hundred clones at once.
pub(super) fn hundred(pando: &OwnPando, client: &mut Client, size: &Size, report: &mut Report) -> anyhow::Result<()> {
    let names: Vec<String> = (1..=CROWD).map(|number| format!("crowd-{number}")).collect();
    machine_memory::settle()?;
    let before = machine_memory::used_kib()?;
    report.add(&row(size, "100 clones in one call"), "s", clone(client, size, names.clone())? / 1e3);
    interrupt::pause(SETTLE)?;
    let each = (machine_memory::used_kib()? - before) / CROWD as f64;
    report.add(&row(size, "memory each, of the machine's"), "kB", each);
    let (own, _) = GroupCharge::of(pando)?.each_named(pando, "crowd-")?;
    report.add(&row(size, "memory each, of its groups'"), "kB", own);
    names.iter().try_for_each(|name| remove(client, name).map(drop))
}

pub(super) fn judge_hundred(size: &Size, report: &mut Report) {
    let crowd = row(size, "100 clones in one call");
    report.hold(crowd.clone(), report.median(&crowd), 0.4, "s");
    for whose in ["of the machine's", "of its groups'"] {
        let name = row(size, &format!("memory each, {whose}"));
        // Others gave more memory back than the clones took: nothing was measured.
        report.hold(name.clone(), report.median(&name).filter(|kb| *kb > 0.0), 614.0, "kB");
    }
}

/// A thousand clones of a busybox that sleeps, alive at once.
pub(super) fn thousand(client: &mut Client, root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let command = ["sh", "-c", "sleep 1000000"].map(str::to_owned).to_vec();
    let spec = Spec { network: Network::None, command, ..Spec::default() };
    let source = Some(root.to_string_lossy().into_owned());
    client.call(&Method::Create { name: SMALLEST.into(), source, spec, start: true })?;
    interrupt::pause(PAUSE)?;
    let image = Some(SMALLEST.to_owned());
    client.call(&Method::Freeze {
        name: SMALLEST.into(),
        image,
        stop: false,
        memory: true,
        wait: false,
        unchecked: false,
    })?;
    let names: Vec<String> = (1..=MULTITUDE).map(|number| format!("thousand-{number}")).collect();
    machine_memory::settle()?;
    let before = machine_memory::used_kib()?;
    let since = Instant::now();
    client.call(&Method::Clone {
        image: SMALLEST.into(),
        names: names.clone(),
        addresses: Vec::new(),
        signal: None,
        admit: None,
        overbook: None,
    })?;
    report.add("busybox: 1,000 clones in one call", "s", milliseconds(since) / 1e3);
    let listing = client.call(&Method::List {})?;
    let listed = listing["guests"].as_array().cloned().unwrap_or_default();
    let lives = |name: &str| name.starts_with("thousand-");
    let alive = listed.iter().filter(|guest| guest["state"] == "running" && guest["name"].as_str().is_some_and(lives));
    let missing = MULTITUDE - alive.count().min(MULTITUDE);
    interrupt::pause(SETTLE)?;
    report.add("busybox: memory each of 1,000 clones", "kB", (machine_memory::used_kib()? - before) / MULTITUDE as f64);
    report.hold("busybox: clones of 1,000 that are not alive at once", Some(missing as f64), 0.0, "");
    names.iter().try_for_each(|name| remove(client, name).map(drop))?;
    remove(client, SMALLEST).map(drop)
}
