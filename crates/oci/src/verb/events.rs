//! `events`: what a container uses, as runc tells it.

use crate::container::{self, Status};
use crate::plan::cgroup_mount::GroupTree;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is printed, in the order that others compare it by.
#[derive(Serialize)]
struct Event<'a> {
    r#type: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

fn tell(id: &str, kind: &str, data: Option<Value>) -> Result<()> {
    println!("{}", serde_json::to_string(&Event { r#type: kind, id, data })?);
    Ok(())
}

/// How often the kernel is asked whether memory ran out: it is counted meanwhile, and none is missed.
const LOOKS: Duration = Duration::from_millis(100);

pub(crate) fn run(root: &Path, id: &str, once: bool, interval: &str) -> Result<()> {
    let interval = seconds(interval)?;
    let (home, record) = container::look(root, id)?;
    if home.status(&record) == Status::Stopped {
        if once {
            bail!("container not running");
        }
        return Ok(());
    }
    let groups = &record.groups;
    let mut told = None;
    let mut shortages = shortages(groups);
    // Until the container has ended, or is not there any more.
    while record.lives() {
        if told.is_none_or(|told: Instant| told.elapsed() >= interval) {
            tell(id, "stats", Some(statistics(groups)))?;
            told = Some(Instant::now());
        }
        if once {
            return Ok(());
        }
        std::thread::sleep(LOOKS.min(interval));
        let now = self::shortages(groups);
        if now > shortages {
            tell(id, "oom", None)?;
        }
        shortages = now;
    }
    Ok(())
}

/// How often the container has had its processes ended for want of memory.
fn shortages(groups: &GroupTree) -> u64 {
    let file = match (groups.legacy("memory"), groups.unified()) {
        (Some(group), _) => group.join("memory.oom_control"),
        (None, Some(group)) => group.join("memory.events"),
        (None, None) => return 0,
    };
    table(file).get("oom_kill").copied().unwrap_or(0)
}

/// A span such as `5s`, `500ms` or `1m`.
fn seconds(text: &str) -> Result<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().with_context(|| format!("'{text}' is no interval; write 5s"))?;
    let span = match &text[digits..] {
        "ms" => Duration::from_millis(number),
        "" | "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number * 60),
        _ => bail!("'{text}' is no interval; write 5s"),
    };
    if span.is_zero() {
        bail!("duration interval must be greater than 0");
    }
    Ok(span)
}

fn number(path: PathBuf) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(if text.trim() == "max" { u64::MAX } else { 0 })
}

/// A file of words and numbers.
fn table(path: PathBuf) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect()
}

fn statistics(groups: &GroupTree) -> Value {
    let seat =
        |old: &str| groups.legacy(old).map(|group| (group, true)).or(groups.unified().map(|group| (group, false)));
    json!({
        "cpu": seat("cpuacct").map(|(group, legacy)| cpu(group, legacy)),
        "memory": seat("memory").map(|(group, legacy)| memory(group, legacy)),
        "pids": seat("pids").map(|(group, _)| {
            let limit = number(group.join("pids.max"));
            json!({"current": number(group.join("pids.current")), "limit": if limit == u64::MAX { 0 } else { limit }})
        }),
    })
}

fn cpu(group: &Path, legacy: bool) -> Value {
    if legacy {
        let percpu = fs::read_to_string(group.join("cpuacct.usage_percpu")).unwrap_or_default();
        let percpu: Vec<u64> = percpu.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        let usage = json!({"total": number(group.join("cpuacct.usage")), "percpu": percpu, "kernel": number(group.join("cpuacct.usage_sys")), "user": number(group.join("cpuacct.usage_user"))});
        return json!({"usage": usage, "throttling": {}});
    }
    let said = table(group.join("cpu.stat"));
    let nanoseconds = |name: &str| said.get(name).map_or(0, |microseconds| microseconds * 1000);
    let plain = |name: &str| said.get(name).copied().unwrap_or(0);
    json!({
        "usage": {"total": nanoseconds("usage_usec"), "kernel": nanoseconds("system_usec"), "user": nanoseconds("user_usec")},
        "throttling": {"periods": plain("nr_periods"), "throttledPeriods": plain("nr_throttled"), "throttledTime": nanoseconds("throttled_usec")},
    })
}

fn memory(group: &Path, legacy: bool) -> Value {
    let (usage, limit, most, failures) = if legacy {
        (
            "memory.usage_in_bytes",
            "memory.limit_in_bytes",
            "memory.max_usage_in_bytes",
            number(group.join("memory.failcnt")),
        )
    } else {
        let events = table(group.join("memory.events"));
        ("memory.current", "memory.max", "memory.peak", events.get("max").copied().unwrap_or(0))
    };
    let raw = table(group.join("memory.stat"));
    let cache = raw.get(if legacy { "total_cache" } else { "file" }).copied().unwrap_or(0);
    json!({
        "cache": cache,
        "usage": {"limit": number(group.join(limit)), "usage": number(group.join(usage)), "max": number(group.join(most)), "failcnt": failures},
        "raw": raw,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_with_a_unit() {
        assert_eq!(seconds("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(seconds("2m").unwrap(), Duration::from_secs(120));
        for wrong in ["", "s", "0s", "1h2", "-1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
