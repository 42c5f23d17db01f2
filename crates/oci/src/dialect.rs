//! Configurations as engines write them: what other runtimes read with a meaning, and the words' library does not.

use oci_spec::runtime::Capability;
use serde_json::{Map, Value, json};

/// The sets of capabilities of a process.
const SETS: [&str; 5] = ["bounding", "effective", "permitted", "inheritable", "ambient"];

/// Flags of a scheduler as the specification writes them, and as the library does.
const FLAGS: [(&str, &str); 2] =
    [("SCHED_FLAG_RESET_ON_FORK", "SCHED_RESET_ON_FORK"), ("SCHED_FLAG_DL_OVERRUN", "SCHED_FLAG_D_L_OVERRUN")];

/// Rewrites a configuration: names of capabilities that nobody knows, which are left out.
pub(crate) fn understand(config: &mut Value) -> Vec<String> {
    for limit in
        config.pointer_mut("/linux/resources/hugepageLimits").and_then(Value::as_array_mut).into_iter().flatten()
    {
        // Names are compared without their case where runtimes are written in Go.
        if let Some(limit) = limit.as_object_mut()
            && let Some(size) = limit.remove("pagesize")
        {
            limit.entry("pageSize").or_insert(size);
        }
    }
    config.get_mut("process").map(understand_process).unwrap_or_default()
}

/// The same of a process alone.
pub(crate) fn understand_process(process: &mut Value) -> Vec<String> {
    let Some(process) = process.as_object_mut() else { return Vec::new() };
    // A process without a user is root's.
    let user = process.entry("user").or_insert_with(|| json!({}));
    if let Some(user) = user.as_object_mut() {
        for id in ["uid", "gid"] {
            user.entry(id).or_insert_with(|| json!(0));
        }
    }
    let flags = process.get_mut("scheduler").and_then(|scheduler| scheduler.get_mut("flags"));
    for flag in flags.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some((_, known)) = FLAGS.iter().find(|(written, _)| flag == written) {
            *flag = json!(known);
        }
    }
    process.get_mut("capabilities").and_then(Value::as_object_mut).map(unknown_capabilities).unwrap_or_default()
}

fn unknown_capabilities(sets: &mut Map<String, Value>) -> Vec<String> {
    let mut unknown = Vec::new();
    for set in SETS {
        let Some(names) = sets.get_mut(set).and_then(Value::as_array_mut) else { continue };
        names.retain(|name| {
            let known = serde_json::from_value::<Capability>(name.clone()).is_ok();
            if let (false, Some(name)) = (known, name.as_str()) {
                unknown.push(name.to_owned());
            }
            known
        });
    }
    unknown.sort();
    unknown.dedup();
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_has_its_meaning_and_what_nobody_knows_is_named() {
        let mut config = json!({"process": {"args": ["a"], "scheduler": {"flags": ["SCHED_FLAG_RESET_ON_FORK"]},
            "capabilities": {"bounding": ["CAP_KILL", "CAP_NONE"], "ambient": ["CAP_NONE", "NONE"]}},
            "linux": {"resources": {"hugepageLimits": [{"pagesize": "2MB", "limit": 1}]}}});
        assert_eq!(understand(&mut config), ["CAP_NONE", "NONE"]);
        let expected = json!({"process": {"args": ["a"], "scheduler": {"flags": ["SCHED_RESET_ON_FORK"]},
            "user": {"uid": 0, "gid": 0}, "capabilities": {"bounding": ["CAP_KILL"], "ambient": []}},
            "linux": {"resources": {"hugepageLimits": [{"pageSize": "2MB", "limit": 1}]}}});
        assert_eq!(config, expected);
    }

    #[test]
    fn the_library_reads_the_flags_so() {
        for (_, flag) in FLAGS {
            assert!(serde_json::from_value::<oci_spec::runtime::LinuxSchedulerFlag>(json!(flag)).is_ok(), "{flag}");
        }
    }
}
