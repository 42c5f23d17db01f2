//! An OCI bundle that isolates as Pando's defaults do: the same namespaces, capabilities and denied system calls.

use pando_guest::policy::{capabilities, seccomp};
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
    let text = serde_json::to_vec_pretty(&configuration(root, cgroup)?)?;
    Ok(std::fs::write(directory.join("config.json"), text)?)
}

fn configuration(root: &Path, cgroup: &Cgroup) -> anyhow::Result<Value> {
    let held = capability_names();
    Ok(json!({
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
        "linux": linux(cgroup)?,
    }))
}

fn linux(cgroup: &Cgroup) -> anyhow::Result<Value> {
    let map = json!([{ "containerID": 0, "hostID": FIRST_ID, "size": IDS }]);
    let kinds = ["pid", "network", "ipc", "uts", "mount", "user", "cgroup"];
    let mut linux = json!({
        "uidMappings": map,
        "gidMappings": map,
        "namespaces": kinds.map(|kind| json!({ "type": kind })),
        "seccomp": filter()?,
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
        "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
    });
    if let Cgroup::Own(name) = cgroup {
        linux["cgroupsPath"] = json!(format!("/{name}"));
    }
    Ok(linux)
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
fn capability_names() -> Vec<&'static str> {
    // In the order of linux/capability.h, as far as the default set reaches.
    const NAMES: [&str; 32] = [
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_DAC_READ_SEARCH",
        "CAP_FOWNER",
        "CAP_FSETID",
        "CAP_KILL",
        "CAP_SETGID",
        "CAP_SETUID",
        "CAP_SETPCAP",
        "CAP_LINUX_IMMUTABLE",
        "CAP_NET_BIND_SERVICE",
        "CAP_NET_BROADCAST",
        "CAP_NET_ADMIN",
        "CAP_NET_RAW",
        "CAP_IPC_LOCK",
        "CAP_IPC_OWNER",
        "CAP_SYS_MODULE",
        "CAP_SYS_RAWIO",
        "CAP_SYS_CHROOT",
        "CAP_SYS_PTRACE",
        "CAP_SYS_PACCT",
        "CAP_SYS_ADMIN",
        "CAP_SYS_BOOT",
        "CAP_SYS_NICE",
        "CAP_SYS_RESOURCE",
        "CAP_SYS_TIME",
        "CAP_SYS_TTY_CONFIG",
        "CAP_MKNOD",
        "CAP_LEASE",
        "CAP_AUDIT_WRITE",
        "CAP_AUDIT_CONTROL",
        "CAP_SETFCAP",
    ];
    let held = capabilities::default();
    (0..).zip(NAMES).filter(|(bit, _)| held & 1_u64 << bit != 0).map(|(_, name)| name).collect()
}

/// The calls that Pando denies, as the OCI writes a filter.
fn filter() -> anyhow::Result<Value> {
    let policy: Value = serde_json::from_str(seccomp::POLICY)?;
    let rules = policy["default"]["filter"].as_array().cloned().unwrap_or_default();
    // Those with conditions on arguments are a handful; a peer that denies a few calls less has less to do.
    let names: Vec<_> =
        rules.iter().filter(|rule| rule.get("args").is_none()).map(|rule| rule["syscall"].clone()).collect();
    Ok(json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [format!("SCMP_ARCH_{}", std::env::consts::ARCH.to_uppercase())],
        "syscalls": [{ "names": names, "action": "SCMP_ACT_ERRNO" }],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_holds_what_a_guest_holds_and_is_denied_what_it_is_denied() {
        assert_eq!(capability_names().len() as u32, capabilities::default().count_ones());
        let filter = filter().unwrap();
        assert!(filter["syscalls"][0]["names"].as_array().unwrap().len() > 20);
    }
}
