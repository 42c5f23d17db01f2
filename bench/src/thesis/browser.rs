//! Figure 5.2: a heavy program, several times, each in a guest of its own.

use super::charge::Charge;
use super::{clone, desktop, freeze, remove};
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::varlink::Client;
use anyhow::Context;
use pando_api::{Method, Network, Spec};
use std::time::Duration;

/// It starts in stages after its window is there.
const SETTLE: Duration = Duration::from_secs(8);

/// Its own sandboxes are namespaces within the guest's, which no image holds.
const START: &str = "\
cd /root
export DISPLAY=:1 HOME=/root MOZ_DISABLE_CONTENT_SANDBOX=1 MOZ_DISABLE_SOCKET_PROCESS_SANDBOX=1 MOZ_DISABLE_RDD_SANDBOX=1
export MOZ_DISABLE_UTILITY_SANDBOX=1 MOZ_DISABLE_GMP_SANDBOX=1 MOZ_CRASHREPORTER_DISABLE=1
setsid firefox-esr --no-remote about:blank >/dev/null 2>&1 </dev/null &";

const SHOWN: &str = "DISPLAY=:1 xdotool search --onlyvisible --class firefox >/dev/null";

/// Memory of so many instances, in MiB, from one on.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// What one takes in a guest that was started cold, so many times: the thesis's isolation by an operating system.
    pub(super) alone: Vec<f64>,
    /// Each started in a clone of the desktop, which was frozen without it.
    pub(super) in_clones: Vec<f64>,
    /// Clones of a desktop that was frozen while it ran.
    pub(super) warm: Vec<f64>,
}

/// The desktop's guest runs, and its image is held.
pub(super) fn measure(pando: &OwnPando, instances: usize, report: &mut Report) -> anyhow::Result<Lines> {
    let mut client = pando.connect()?;
    let image = super::charge::of_holder(&mut client, "x11")? / 1024.0;
    let one = alone(pando, &mut client)?;
    report.add("a browser in a guest started cold", "MiB", one);
    let mut lines = Lines { alone: (1..=instances).map(|n| n as f64 * one).collect(), ..Lines::default() };
    let names: Vec<String> = (1..=instances).map(|number| format!("browsing-{number}")).collect();
    for name in &names {
        clone(&mut client, "x11", name)?;
        start(pando, name).with_context(|| format!("a browser in clone '{name}'"))?;
        lines.in_clones.push(image + sum(&mut client, &names[..=lines.in_clones.len()])?);
    }
    names.iter().try_for_each(|name| remove(&mut client, name))?;
    match warm(pando, &mut client, instances) {
        Ok(warm) => lines.warm = warm,
        Err(error) => report.note(format!("a guest with a browser that runs could not be cloned: {error:#}")),
    }
    for (kind, line) in [("started in clones", &lines.in_clones), ("cloned while they ran", &lines.warm)] {
        let each = line.first().zip(line.last()).map(|(first, last)| (last - first) / (instances as f64 - 1.0));
        report.hold(
            format!("each further browser, {kind}, against one alone"),
            each.map(|each| each / one),
            1.0,
            "times",
        );
    }
    Ok(lines)
}

fn start(pando: &OwnPando, guest: &str) -> anyhow::Result<()> {
    desktop::until(pando, guest, START)?;
    desktop::until(pando, guest, SHOWN)?;
    interrupt::pause(SETTLE)
}

/// What one takes beside the desktop, in MiB.
fn alone(pando: &OwnPando, client: &mut Client) -> anyhow::Result<f64> {
    let name = "cold".to_owned();
    let spec = Spec { network: Network::None, command: desktop::command(), ..Spec::default() };
    client.call(&Method::Create { name: name.clone(), source: Some(desktop::source()), spec, start: true })?;
    desktop::wait_until_ready(pando, &name)?;
    let before = Charge::of_guest(client, &name)?.sum();
    start(pando, &name)?;
    let after = Charge::of_guest(client, &name)?.sum();
    remove(client, &name)?;
    Ok((after - before) / 1024.0)
}

/// Clones of a guest that was frozen with a browser in it.
fn warm(pando: &OwnPando, client: &mut Client, instances: usize) -> anyhow::Result<Vec<f64>> {
    start(pando, "x11")?;
    client.call(&Method::RemoveImage { image: "x11".to_owned() })?;
    freeze(client, "x11")?;
    let image = super::charge::of_holder(client, "x11")? / 1024.0;
    let names: Vec<String> = (1..=instances).map(|number| format!("warm-{number}")).collect();
    let mut line = Vec::new();
    for name in &names {
        clone(client, "x11", name)?;
        desktop::until(pando, name, SHOWN)?;
        interrupt::pause(SETTLE)?;
        line.push(image + sum(client, &names[..=line.len()])?);
    }
    names.iter().try_for_each(|name| remove(client, name))?;
    Ok(line)
}

/// What guests take together, in MiB.
fn sum(client: &mut Client, names: &[String]) -> anyhow::Result<f64> {
    names.iter().map(|name| Charge::of_guest(client, name).map(|charge| charge.sum() / 1024.0)).sum()
}
