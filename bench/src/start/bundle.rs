//! An OCI bundle that isolates as Pando's defaults do: the same namespaces, capabilities and denied system calls.

use pando_api::Profile;
use pando_guest::policy::{capabilities, profile, seccomp};
use serde_json::{Value, json};
use std::path::Path;

/// Where the peer's guest is accounted for.
pub(crate) enum Cgroup {
    /// In a group of this name.
    Own(String),
    /// Where the runtime itself is.
    None,
}

/// The ids that the guest gets: the last range of those that Pando would give.
const FIRST_ID: u32 = 0x6fff_0000;
const IDS: u32 = 65_536;

/// Writes the bundle's one file into a new directory.
pub(crate) fn write(directory: &Path, root: &Path, cgroup: &Cgroup) -> anyhow::Result<()> {
    std::fs::create_dir(directory)?;
    let text = serde_json::to_vec_pretty(&configuration(root, cgroup))?;
    Ok(std::fs::write(directory.join("config.json"), text)?)
}

fn configuration(root: &Path, cgroup: &Cgroup) -> Value {
    let held = capability_names();
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/true"],
            "env": ["PATH=/bin"],
            "cwd": "/",
            "capabilities": { "bounding": held, "effective": held, "permitted": held },
        },
        "root": { "path": root, "readonly": false },
        "hostname": "bench",
        "mounts": mounts(),
        "linux": linux(cgroup),
    })
}

fn linux(cgroup: &Cgroup) -> Value {
    let map = json!([{ "containerID": 0, "hostID": FIRST_ID, "size": IDS }]);
    let kinds = ["pid", "network", "ipc", "uts", "mount", "user", "cgroup"];
    let mut linux = json!({
        "uidMappings": map,
        "gidMappings": map,
        "namespaces": kinds.map(|kind| json!({ "type": kind })),
        "seccomp": filter(),
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
        "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
    });
    if let Cgroup::Own(name) = cgroup {
        linux["cgroupsPath"] = json!(format!("/{name}"));
    }
    linux
}

fn mounts() -> Value {
    let one = |at: &str, kind: &str, options: &[&str]| json!({ "destination": at, "type": kind, "source": kind, "options": options });
    json!([
        one("/proc", "proc", &[]),
        one("/dev", "tmpfs", &["nosuid", "mode=755", "size=65536k"]),
        one("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        one("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777"]),
        one("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        one("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ])
}

/// The set that a guest of Pando's holds, by name.
fn capability_names() -> Vec<String> {
    capabilities::names(profile::of(Profile::Default).capabilities(true))
}

/// The calls that Pando denies, as the OCI writes a filter.
fn filter() -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [format!("SCMP_ARCH_{}", std::env::consts::ARCH.to_uppercase())],
        "syscalls": [{ "names": seccomp::refused(Profile::Default), "action": "SCMP_ACT_ERRNO" }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_holds_what_a_guest_holds_and_is_denied_what_it_is_denied() {
        assert_eq!(capability_names().len(), 14);
        let filter = filter();
        assert!(filter["syscalls"][0]["names"].as_array().unwrap().len() > 20);
    }
}
