//! `pando stats`: what guests use, beside what they were granted.

use super::Verb;
use crate::replies::Used;
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print, print_json};
use anyhow::Context;
use pando_api::{GuestUse, MachineUse, Method};
use pando_limit::quantity::show_size;

#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// The guest [default: all that run]
    name: Option<String>,
    /// As JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// With the samples of the last day, one a minute (with --json)
    #[arg(long, requires = "json")]
    history: bool,
    /// In the text form that Prometheus reads
    #[arg(long)]
    prometheus: bool,
    /// Accepted for the habit: it looks once always, and `pando top` watches
    #[arg(long, hide = true)]
    no_stream: bool,
}

impl Verb for Stats {
    const NAME: &'static str = "stats";
    const ABOUT: &'static str = "Show what guests use";
    const EXAMPLES: &'static str = "\
Examples:
  pando stats
  pando stats --json --history web
  pando stats --prometheus >/var/lib/prometheus/node-exporter/pando.prom";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Stats { name: self.name, history: self.history };
        let used = client.call::<Used>(method).context("cannot tell what guests use")?;
        if self.json {
            print_json(&used)?;
        } else if self.prometheus {
            print(&pando_daemon::exposition::text(&used.machine, &used.guests))?;
        } else {
            table(&used.guests, &used.machine).print()?;
        }
        Ok(0)
    }
}

/// A quantity of bytes as the daemon tells it.
pub(crate) fn bytes(number: i64) -> String {
    show_size(u64::try_from(number).unwrap_or(0))
}

/// Bits a second, as they are granted.
fn rate(bits: i64) -> String {
    pando_net::bandwidth::Rate(u64::try_from(bits).unwrap_or(0)).to_string()
}

fn of(used: String, granted: Option<String>) -> String {
    granted.map_or(used.clone(), |granted| format!("{used} / {granted}"))
}

fn table(guests: &[GuestUse], machine: &MachineUse) -> Table {
    let mut table = Table::new(&[
        ("GUEST", Lean::Left),
        ("CPU", Lean::Right),
        ("RESERVED", Lean::Right),
        ("MEMORY", Lean::Right),
        ("WORKING SET", Lean::Right),
        ("CACHE", Lean::Right),
        ("MERGED", Lean::Right),
        ("SWAP", Lean::Right),
        ("PIDS", Lean::Right),
        ("READ", Lean::Right),
        ("WRITTEN", Lean::Right),
        ("RECEIVED", Lean::Right),
        ("SENT", Lean::Right),
        ("OOM", Lean::Right),
    ]);
    for guest in guests {
        let now = &guest.now;
        let most = guest.cpu_limit.map(|limit| format!("{:.0}%", limit / machine.processors.max(1) as f64 * 100.0));
        table.row([
            guest.name.clone(),
            of(format!("{:.1}%", now.cpu_percent), most),
            guest.cpu_reserve.map_or("-".to_owned(), |reserve| format!("{reserve:.0}%")),
            of(bytes(now.memory), guest.memory_limit.map(bytes)),
            guest.working_set.map_or("-".to_owned(), bytes),
            bytes(now.cache),
            guest.merged.map_or("-".to_owned(), bytes),
            bytes(now.swap),
            of(now.pids.to_string(), guest.pids_limit.map(|limit| limit.to_string())),
            bytes(now.read),
            bytes(now.written),
            of(bytes(now.received), guest.net_limit_in.map(rate)),
            of(bytes(now.sent), guest.net_limit.map(rate)),
            now.oom_kills.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_stands_beside_what_was_granted() {
        let guest = GuestUse {
            name: "web".into(),
            cpu_limit: Some(1.0),
            memory_limit: Some(64 << 20),
            cpu_reserve: Some(25.0),
            ..GuestUse::default()
        };
        let text = table(&[guest], &MachineUse { processors: 2, ..MachineUse::default() }).text(None);
        assert!(text.contains("0.0% / 50%") && text.contains("0B / 64M") && text.contains("25%"), "{text}");
    }
}
