//! What an address of its own adds to a clone.

use super::{PAUSE, Size, cold_start, milliseconds, remove, row, subject};
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use anyhow::{Context, ensure};
use nix::sched::{CloneFlags, unshare};
use pando_api::{Address, Method, Network, Spec};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const NAME: &str = "addressed";
const WITHOUT: &str = "clone on the shared network";
const WITH: &str = "clone on the shared network, with an address";

/// This process and its children have a network of their own from here on.
pub(super) fn leave_the_others_network() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("iproute2 is missing")?;
    ensure!(up.success(), "the loopback device cannot be set up");
    Ok(())
}

/// Measures clones without and with one, in turn.
pub(super) fn measure(
    (pando, client, root): (&OwnPando, &mut Client, &Path),
    settings: &Settings,
    size: &Size,
    report: &mut Report,
) -> anyhow::Result<()> {
    let spec = Spec { network: Network::Shared, command: subject::command(size.mib), ..Spec::default() };
    let source = Some(root.to_string_lossy().into_owned());
    client.call(&Method::Create { name: NAME.into(), source, spec, start: false })?;
    cold_start(pando, client, NAME)?;
    let image = Some(NAME.to_owned());
    client.call(&Method::Freeze {
        name: NAME.into(),
        image,
        stop: false,
        memory: true,
        wait: false,
        unchecked: false,
    })?;
    let address: Address = "10.9.0.5@lo".parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    for round in 0..=settings.samples(50, 5) {
        for (what, addresses) in [(WITHOUT, Vec::new()), (WITH, vec![address.clone()])] {
            interrupt::pause(PAUSE)?;
            let names = vec!["clone".to_owned()];
            let since = Instant::now();
            client.call(&Method::Clone {
                image: NAME.into(),
                names,
                addresses,
                signal: None,
                admit: None,
                overbook: None,
            })?;
            let took = milliseconds(since);
            if round > 0 {
                report.add(&row(size, what), "ms", took);
            }
            remove(client, "clone")?;
        }
    }
    let added =
        report.median(&row(size, WITH)).zip(report.median(&row(size, WITHOUT))).map(|(with, without)| with - without);
    report.hold(row(size, "what an address adds to a clone"), added, 0.5, "ms");
    remove(client, NAME).map(drop)
}
