//! What guests use, over time.

use crate::network::bandwidth::Bandwidth;
use crate::resources::{Resources, Tenant};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use pando_api::{Fault, GuestUse, MachineUse, Reply, Sample};
use pando_guest::GuestName;
use pando_guest::Places;
use pando_kernel::file::proc_file;
use pando_kernel::memory::ksm;
use pando_kernel::process::held::HeldProcess;
use pando_limit::ring::Ring;
use pando_limit::usage::Usage;
use std::rc::Rc;
use std::time::Duration;

/// How often everybody's use is noted.
const INTERVAL: Duration = Duration::from_secs(60);

/// How many notes are kept: a day.
const KEPT: u64 = 1440;

/// The file with a guest's notes.
const FILE: &str = "usage";

/// Notes everybody's use once a minute, for as long as the daemon runs.
pub(crate) async fn keep_accounts(daemon: Rc<Daemon>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
        for guest in guests {
            account(&daemon, &guest);
        }
    }
}

/// Notes what a guest used, if it used anything: of one that did nothing there is nothing to say, and hundreds may do
/// nothing.
fn account(daemon: &Daemon, guest: &Guest) {
    let accounts = &daemon.resources.accounts;
    let metered = daemon.resources.with(&guest.name, Tenant::used).flatten();
    if let Some(cpu_ns) = metered.filter(|cpu_ns| accounts.marked(&guest.name) == Some(*cpu_ns)) {
        accounts.look(&guest.name, cpu_ns, daemon.resources.machine.count());
        accounts.mark(&guest.name, cpu_ns);
        return;
    }
    let Some(usage) = usage(&daemon.resources, &guest.name) else { return };
    let (percent, _) = accounts.look(&guest.name, usage.cpu_ns, daemon.resources.machine.count());
    accounts.mark(&guest.name, usage.cpu_ns);
    note(daemon, guest, &sample(&daemon.bandwidth, guest, &usage, percent));
}

fn ring(places: &Places, guest: &Guest) -> Ring {
    Ring::new(guest.directory(places).join(FILE), KEPT)
}

fn note(daemon: &Daemon, guest: &Guest, sample: &Sample) {
    if guest.ephemeral {
        return;
    }
    if let Err(error) = ring(&daemon.places, guest).push(&pack(sample)) {
        tracing::warn!(%error, guest = %guest.name, "what it used could not be noted");
    }
}

fn usage(resources: &Resources, name: &GuestName) -> Option<Usage> {
    resources.with(name, |tenant| Usage::read(&tenant.groups))
}

fn sample(bandwidth: &Bandwidth, guest: &Guest, usage: &Usage, percent: f64) -> Sample {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let first = guest.running.borrow().as_ref().map(|running| running.first.clone());
    let own_network = !guest.spec.borrow().network.is_the_hosts();
    let counted = guest.running.borrow().as_ref().and_then(|running| bandwidth.counted(running.slot));
    let counted = counted.map(|counted| (number(counted.received), number(counted.sent)));
    let (received, sent) =
        counted.or_else(|| first.filter(|_| own_network).map(|first| traffic(&first))).unwrap_or_default();
    Sample {
        time_ms: crate::state::events::now_ms(),
        cpu_ms: number(usage.cpu_ns / 1_000_000),
        cpu_percent: (percent * 1000.0).round() / 1000.0,
        memory: number(usage.memory),
        cache: number(usage.cache),
        swap: number(usage.swap),
        // The shim is Pando's.
        pids: number(usage.pids.saturating_sub(1)),
        read: number(usage.read),
        written: number(usage.written),
        received,
        sent,
        oom_kills: number(usage.oom_kills),
    }
}

/// Bytes received and sent by all devices but the loopback of a process's network namespace.
fn traffic(first: &HeldProcess) -> (i64, i64) {
    let text = first.opened(|pid| proc_file::text(format!("/proc/{pid}/net/dev"))).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    lines.fold((0, 0), |(received, sent), (_, numbers)| {
        let numbers: Vec<i64> = numbers.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        (received + numbers.first().unwrap_or(&0), sent + numbers.get(8).unwrap_or(&0))
    })
}

/// What guests use: one, or all that run.
pub(crate) fn stats(daemon: &Rc<Daemon>, name: Option<&str>, history: bool) -> Result<Reply, Fault> {
    let guests = match name {
        Some(name) => {
            let guest = daemon.guest(name)?;
            guest.life()?;
            vec![guest]
        }
        None => daemon.guests.borrow().values().cloned().collect(),
    };
    let guests = guests.iter().filter_map(|guest| guest_use(daemon, guest, history)).collect();
    Ok(Reply::Stats { machine: machine_use(&daemon.resources), guests })
}

fn machine_use(resources: &Resources) -> MachineUse {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let free = pando_limit::machine::Free::look();
    MachineUse {
        processors: i64::from(resources.machine.count()),
        memory: number(resources.machine.memory),
        memory_free: number(free.memory),
        swap: number(free.swap_size),
        swap_free: number(free.swap),
    }
}

fn guest_use(daemon: &Daemon, guest: &Guest, history: bool) -> Option<GuestUse> {
    let resources = &daemon.resources;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let usage = usage(resources, &guest.name)?;
    let (percent, live) = resources.accounts.look(&guest.name, usage.cpu_ns, resources.machine.count());
    let now = sample(&daemon.bandwidth, guest, &usage, percent);
    let granted = crate::network::bandwidth::read(&guest.spec.borrow()).unwrap_or_default();
    let bits = |rate: Option<pando_net::bandwidth::Rate>| rate.map(|rate| number(rate.0));
    let limits = resources.with(&guest.name, |tenant| tenant.limits.clone())?;
    let kept = if history { ring(&daemon.places, guest).all().unwrap_or_default() } else { Vec::new() };
    Some(GuestUse {
        name: guest.name.to_string(),
        // Its init is there as long as it runs.
        active: now.pids > 1,
        live,
        now,
        cpu_reserve: limits.cpu.reserve.map(|part| part * 100.0),
        cpu_limit: limits.cpu.bound(resources.machine.count()),
        memory_limit: limits.memory.limit.map(number),
        memory_reserve: limits.memory.reserve.map(number),
        pids_limit: limits.pids.map(number),
        net_reserve: bits(granted.reserve),
        net_limit: bits(granted.limit),
        net_limit_in: bits(granted.limit_in),
        working_set: Some(number(usage.memory.saturating_sub(usage.inactive))),
        merged: merged(daemon, guest).map(number),
        reclaimed: daemon.reclaiming.taken_from(guest).map(number),
        history: kept.iter().map(unpack).collect(),
    })
}

/// Bytes of a guest's memory that are one with equal pages of others. Where nothing was merged on this machine no
/// process is asked.
fn merged(daemon: &Daemon, guest: &Guest) -> Option<u64> {
    const PAGE: u64 = 4096;
    if ksm::counters().is_ok_and(|counters| counters.pages_shared == 0) {
        return None;
    }
    let slot = guest.running.borrow().as_ref()?.slot;
    let pids = crate::state::processes::pids(&daemon.field, slot);
    let pages: Vec<u64> = pids.into_iter().filter_map(|pid| ksm::merged_pages(pid).ok()).collect();
    (!pages.is_empty()).then(|| pages.iter().sum::<u64>() * PAGE)
}

/// A sample as the ring keeps it.
fn pack(sample: &Sample) -> [i64; 12] {
    let thousandths = (sample.cpu_percent * 1000.0) as i64;
    [
        sample.time_ms,
        sample.cpu_ms,
        thousandths,
        sample.memory,
        sample.cache,
        sample.swap,
        sample.pids,
        sample.read,
        sample.written,
        sample.received,
        sample.sent,
        sample.oom_kills,
    ]
}

fn unpack(kept: &[i64; 12]) -> Sample {
    let [time_ms, cpu_ms, thousandths, memory, cache, swap, pids, read, written, received, sent, oom_kills] = *kept;
    let cpu_percent = thousandths as f64 / 1000.0;
    Sample { time_ms, cpu_ms, cpu_percent, memory, cache, swap, pids, read, written, received, sent, oom_kills }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::accounts::{Accounts, LIVE_PART, LIVE_SPAN};

    #[test]
    fn a_sample_survives_being_kept() {
        let sample = Sample { time_ms: 1, cpu_ms: 2, cpu_percent: 12.5, memory: 4, oom_kills: 5, ..Sample::default() };
        assert_eq!(unpack(&pack(&sample)), sample);
    }

    #[test]
    fn who_used_a_thousandth_of_the_machine_in_five_minutes_is_live() {
        let accounts = Accounts::default();
        let name: GuestName = "web".parse().unwrap();
        assert!(!accounts.look(&name, 0, 2).1);
        let enough = (LIVE_SPAN.as_nanos() as f64 * 2.0 * LIVE_PART) as u64;
        assert!(!accounts.look(&name, enough - 1, 2).1);
        assert!(accounts.look(&name, enough, 2).1);
    }
}
