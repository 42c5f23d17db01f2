//! What guests use in the text form that Prometheus reads (exposition format 0.0.4).

use pando_api::{GuestUse, MachineUse, Sample};
use std::fmt::Write;

/// A figure: its name, what it is, what kind, and how it is read off a guest.
struct Figure {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    read: fn(&GuestUse) -> Option<f64>,
}

const fn counter(name: &'static str, help: &'static str, read: fn(&GuestUse) -> Option<f64>) -> Figure {
    Figure { name, help, kind: "counter", read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&GuestUse) -> Option<f64>) -> Figure {
    Figure { name, help, kind: "gauge", read }
}

const FIGURES: [Figure; 16] = [
    counter("pando_cpu_seconds_total", "Processor time since the guest was started.", |one| {
        Some(one.now.cpu_ms as f64 / 1000.0)
    }),
    gauge("pando_memory_bytes", "Memory, page cache included.", |one| number(one, |now| now.memory)),
    gauge("pando_memory_cache_bytes", "Page cache.", |one| number(one, |now| now.cache)),
    gauge("pando_swap_bytes", "Swap.", |one| number(one, |now| now.swap)),
    gauge("pando_processes", "Processes and threads.", |one| number(one, |now| now.pids)),
    counter("pando_disk_read_bytes_total", "Bytes read from disks.", |one| number(one, |now| now.read)),
    counter("pando_disk_written_bytes_total", "Bytes written to disks.", |one| number(one, |now| now.written)),
    counter("pando_network_received_bytes_total", "Bytes received over the guest's own network.", |one| {
        number(one, |now| now.received)
    }),
    counter("pando_network_sent_bytes_total", "Bytes sent over the guest's own network.", |one| {
        number(one, |now| now.sent)
    }),
    counter("pando_oom_kills_total", "Processes killed for want of memory.", |one| number(one, |now| now.oom_kills)),
    gauge("pando_active", "1 if the guest has a process besides its init.", |one| {
        Some(f64::from(u8::from(one.active)))
    }),
    gauge("pando_live", "1 if the guest used 0.1 % of the processors in five minutes.", |one| {
        Some(f64::from(u8::from(one.live)))
    }),
    gauge("pando_cpu_reserved_ratio", "The reserved part of the machine.", |one| Some(one.cpu_reserve? / 100.0)),
    gauge("pando_cpu_limit_processors", "The most processor time.", |one| one.cpu_limit),
    gauge("pando_memory_limit_bytes", "The most memory.", |one| Some(one.memory_limit? as f64)),
    gauge("pando_memory_reserved_bytes", "Memory that is not taken away.", |one| Some(one.memory_reserve? as f64)),
];

fn number(one: &GuestUse, read: fn(&Sample) -> i64) -> Option<f64> {
    Some(read(&one.now) as f64)
}

/// Everything as text. The names of guests need no escaping: they have no quotes, backslashes or newlines.
pub fn text(machine: &MachineUse, guests: &[GuestUse]) -> String {
    let mut text = String::new();
    for (name, help, value) in [
        ("pando_guests_running", "Guests that run.", guests.len() as f64),
        ("pando_machine_memory_available_bytes", "Memory to be had without swapping.", machine.memory_free as f64),
        ("pando_machine_swap_free_bytes", "Swap that is free.", machine.swap_free as f64),
    ] {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
    for Figure { name, help, kind, read } in FIGURES {
        let lines: Vec<_> = guests.iter().filter_map(|one| Some((one, read(one)?))).collect();
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (one, value) in lines {
            let _ = writeln!(text, "{name}{{guest=\"{}\"}} {value}", one.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_help_its_kind_and_a_line_a_guest() {
        let guest = |name: &str, limit| GuestUse { name: name.into(), memory_limit: limit, ..GuestUse::default() };
        let text = text(&MachineUse::default(), &[guest("a", Some(64)), guest("b", None)]);
        let expected = "# HELP pando_memory_limit_bytes The most memory.\n# TYPE pando_memory_limit_bytes gauge\npando_memory_limit_bytes{guest=\"a\"} 64\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("pando_memory_bytes{guest=\"b\"} 0\n") && !text.contains("reserved_bytes"), "{text}");
    }
}
