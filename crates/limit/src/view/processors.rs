//! Processors and their time as a group has them: /proc/cpuinfo, /proc/stat, /proc/uptime and the list of processors
//! that are online.

use crate::groups::{Controller, Groups};
use crate::limits::Cpu;
use crate::quantity;
use crate::usage::{Usage, field, text};
use std::fmt::Write;
use std::time::Duration;

/// Ticks a second in /proc/stat: USER_HZ is 100 everywhere.
const TICKS: u64 = 100;

/// The processors that a group is shown: those it may use, and no more of them than it could keep busy within its
/// bound.
pub(super) fn shown(cpu: &Cpu, online: &[u32]) -> Vec<u32> {
    let listed = cpu.cpus.as_deref().unwrap_or(online);
    let count = u32::try_from(online.len()).unwrap_or(u32::MAX);
    let most = cpu.bound(count).map_or(listed.len(), |bound| bound.ceil().max(1.0) as usize);
    listed.iter().copied().take(most).collect()
}

/// Processor time that a group has used, ever.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    user: Duration,
    system: Duration,
}

impl Times {
    pub(super) fn look(groups: &Groups) -> Self {
        let used = Duration::from_nanos(Usage::read(groups).cpu_ns);
        // Of what was used altogether the kernel tells which part was its own: in ticks, or in microseconds.
        let (user, system) = match groups.account() {
            Some(group) => {
                let stat = text(Some(group.join("cpuacct.stat")));
                (field(&stat, "user"), field(&stat, "system"))
            }
            None => {
                let stat = text(groups.file(Controller::Cpu, "cpu.stat"));
                (field(&stat, "user_usec"), field(&stat, "system_usec"))
            }
        };
        let (user, system) = (user.unwrap_or(0) as f64, system.unwrap_or(0) as f64);
        let part = if user + system > 0.0 { system / (user + system) } else { 0.0 };
        let system = used.mul_f64(part);
        Self { user: used.saturating_sub(system), system }
    }

    fn idle(&self, shown: usize, age: Duration) -> Duration {
        (age * u32::try_from(shown).unwrap_or(1)).saturating_sub(self.user + self.system)
    }
}

/// What else /proc/stat tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) began: Duration,
    pub(super) age: Duration,
    pub(super) running: u64,
}

/// The host's text without the processors that are not shown.
pub(super) fn cpuinfo(host: &str, shown: &[u32]) -> String {
    let number = |block: &str| {
        block.lines().find_map(|line| line.strip_prefix("processor")?.split_once(':')?.1.trim().parse::<u32>().ok())
    };
    // Some machines end with a block about all of them.
    let blocks = host.split("\n\n").filter(|block| !block.trim().is_empty());
    blocks
        .filter(|block| number(block).is_none_or(|number| shown.contains(&number)))
        .map(|block| format!("{}\n\n", block.trim_end()))
        .collect()
}

/// As /sys has it.
pub(super) fn online(shown: &[u32]) -> String {
    let runs = shown.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => quantity::show_list(run),
    });
    runs.collect::<Vec<_>>().join(",") + "\n"
}

/// Seconds since the beginning, and seconds that processors had nothing to do.
pub(super) fn uptime(shown: &[u32], times: &Times, age: Duration) -> String {
    format!("{:.2} {:.2}\n", age.as_secs_f64(), times.idle(shown.len(), age).as_secs_f64())
}

/// The group's times, spread evenly over its processors: the kernel counts them together.
pub(super) fn stat(host: &str, shown: &[u32], times: &Times, life: &Life) -> String {
    let ticks = |time: Duration| time.as_millis() as u64 * TICKS / 1000;
    let (user, system) = (ticks(times.user), ticks(times.system));
    let idle = ticks(times.idle(shown.len(), life.age));
    let mut text = format!("cpu  {user} 0 {system} {idle} 0 0 0 0 0 0\n");
    let count = shown.len().max(1) as u64;
    // A string takes whatever is written to it.
    for number in shown {
        let _ = writeln!(text, "cpu{number} {} 0 {} {} 0 0 0 0 0 0", user / count, system / count, idle / count);
    }
    let of_host = |key: &str| field(host, key).unwrap_or(0);
    let _ = write!(
        text,
        "intr 0\nctxt {}\nbtime {}\nprocesses {}\nprocs_running {}\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
        of_host("ctxt"),
        life.began.as_secs(),
        of_host("processes"),
        life.running.max(1),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    fn cpu(pairs: &[(&str, &str)]) -> Cpu {
        Limits::read(pairs.iter().copied()).unwrap().cpu
    }

    #[test]
    fn as_many_are_shown_as_can_be_kept_busy() {
        let online = [0, 1, 2, 3];
        assert_eq!(shown(&cpu(&[]), &online), online);
        assert_eq!(shown(&cpu(&[("cpu.limit", "1.5")]), &online), [0, 1]);
        assert_eq!(shown(&cpu(&[("cpu.limit", "0.2")]), &online), [0]);
        assert_eq!(shown(&cpu(&[("cpu.reserve", "25%")]), &online), [0]);
        assert_eq!(shown(&cpu(&[("cpu.reserve", "25%"), ("cpu.share", "1")]), &online), online);
        assert_eq!(shown(&cpu(&[("cpu.cpus", "1,3"), ("cpu.limit", "1")]), &online), [1]);
    }

    #[test]
    fn processors_keep_their_numbers() {
        let host = "processor\t: 0\nmodel\t: a\n\nprocessor\t: 1\nmodel\t: b\n\n";
        assert_eq!(cpuinfo(host, &[1]), "processor\t: 1\nmodel\t: b\n\n");
        assert_eq!(cpuinfo(host, &[0, 1]), host);
        assert_eq!(online(&[1, 2, 3]), "1-3\n");
        assert_eq!(online(&[0, 2, 3]), "0,2-3\n");
    }

    #[test]
    fn what_is_not_used_is_idle() {
        let times = Times { user: Duration::from_secs(3), system: Duration::from_secs(1) };
        let life = Life { began: Duration::from_secs(1000), age: Duration::from_secs(10), running: 2 };
        let text = stat("ctxt 77\nprocesses 9\n", &[0, 1], &times, &life);
        assert!(text.starts_with("cpu  300 0 100 1600 0 0 0 0 0 0\ncpu0 150 0 50 800 0"), "{text}");
        assert!(
            text.contains("btime 1000\n") && text.contains("ctxt 77\n") && text.contains("procs_running 2\n"),
            "{text}"
        );
        assert_eq!(uptime(&[0, 1], &times, life.age), "10.00 16.00\n");
        assert_eq!(uptime(&[0], &times, Duration::ZERO), "0.00 0.00\n", "clocks may be set back");
    }
}
