//! `update`: other limits for a container that is there.

use crate::command_line::Update;
use crate::container::{self, Status};
use crate::groups::settings;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::LinuxResources;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::Path;

pub(crate) fn run(root: &Path, update: &Update) -> Result<()> {
    let (home, mut record) = container::open(root, &update.id)?;
    if home.status(&record) == Status::Stopped {
        bail!("container not running");
    }
    let mut text = match &update.resources {
        Some(path) => read(path)?,
        None => of_options(update),
    };
    complete(&mut text, &record.config);
    let resources: LinuxResources = serde_json::from_value(text.clone()).context("reading resources")?;
    settings::apply(&settings::of(&resources, &record.groups)?)?;
    if let Some(linux) = record.config.get_mut("linux").and_then(Value::as_object_mut) {
        merge(linux.entry("resources").or_insert_with(|| json!({})), &text);
    }
    home.write(&record)
}

fn read(path: &Path) -> Result<Value> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).context("reading resources from standard input")?;
    } else {
        bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    }
    let mut text: Value = serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?;
    // The list of devices is made once, when a container is.
    if let Some(text) = text.as_object_mut() {
        text.remove("devices");
    }
    Ok(text)
}

fn of_options(update: &Update) -> Value {
    let mut resources = Map::new();
    let mut put = |part: &str, name: &str, value: Value| {
        if !value.is_null() {
            let part = resources.entry(part).or_insert_with(|| json!({}));
            part.as_object_mut().map(|part| part.insert(name.to_owned(), value));
        }
    };
    put("blockIO", "weight", json!(update.blkio_weight));
    put("cpu", "period", json!(update.cpu_period));
    put("cpu", "quota", json!(update.cpu_quota));
    put("cpu", "burst", json!(update.cpu_burst));
    put("cpu", "shares", json!(update.cpu_share));
    put("cpu", "realtimePeriod", json!(update.cpu_rt_period));
    put("cpu", "realtimeRuntime", json!(update.cpu_rt_runtime));
    put("cpu", "idle", json!(update.cpu_idle));
    put("cpu", "cpus", json!(update.cpuset_cpus));
    put("cpu", "mems", json!(update.cpuset_mems));
    put("memory", "limit", json!(update.memory));
    put("memory", "reservation", json!(update.memory_reservation));
    put("memory", "swap", json!(update.memory_swap));
    put("pids", "limit", json!(update.pids_limit));
    Value::Object(resources)
}

/// What one file of the kernel's holds together is said together: the part that is not changed stays as it was.
fn complete(resources: &mut Value, config: &Value) {
    for (part, names) in [("cpu", ["quota", "period"]), ("memory", ["limit", "swap"])] {
        let before = &config["linux"]["resources"][part];
        let Some(now) = resources.get_mut(part).and_then(Value::as_object_mut) else { continue };
        if names.iter().any(|name| now.contains_key(*name)) {
            for name in names.into_iter().filter(|name| !before[*name].is_null()) {
                now.entry(name).or_insert_with(|| before[name].clone());
            }
        }
    }
}

/// Puts what is new over what was.
fn merge(before: &mut Value, new: &Value) {
    match (before, new) {
        (Value::Object(before), Value::Object(new)) => {
            for (name, value) in new {
                merge(before.entry(name).or_insert(Value::Null), value);
            }
        }
        (before, new) => *before = new.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_together_is_completed_from_what_was() {
        let config = json!({"linux": {"resources": {"cpu": {"quota": 5, "period": 10, "shares": 3}}}});
        let mut new = json!({"cpu": {"quota": 7}, "pids": {"limit": 1}});
        complete(&mut new, &config);
        assert_eq!(new, json!({"cpu": {"quota": 7, "period": 10}, "pids": {"limit": 1}}));
        let mut merged = config["linux"]["resources"].clone();
        merge(&mut merged, &new);
        assert_eq!(merged["cpu"], json!({"quota": 7, "period": 10, "shares": 3}));
    }
}
