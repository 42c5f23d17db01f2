//! `spec`: a configuration to begin with, as runc writes it.

use crate::groups;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

pub(crate) fn run(bundle: &Path, rootless: bool) -> Result<()> {
    if rootless {
        bail!("spec --rootless is not supported by this runtime yet");
    }
    let path = bundle.join("config.json");
    let file = std::fs::File::options().write(true).create_new(true).open(&path);
    let mut file = file.with_context(|| format!("writing {}", path.display()))?;
    let mut example = example();
    // As runc does: where there is version 1 the groups are shown by their whole paths.
    if groups::find(None, "spec", false)?.is_unified()
        && let Some(namespaces) = example.pointer_mut("/linux/namespaces").and_then(Value::as_array_mut)
    {
        namespaces.push(json!({"type": "cgroup"}));
    }
    let text = serde_json::to_string_pretty(&example)?;
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}

fn example() -> Value {
    let capabilities = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    json!({
        "ociVersion": "1.3.0",
        "process": {
            "terminal": true,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "pando",
        "mounts": mounts(),
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": [
                {"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
            ],
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

fn mounts() -> Value {
    json!([
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
         "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
         "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
         "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
         "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_configuration_that_is_understood_in_full() {
        let spec: oci_spec::runtime::Spec = serde_json::from_value(example()).unwrap();
        assert_eq!(spec.process().as_ref().unwrap().args().as_deref(), Some(&["sh".to_owned()][..]));
    }
}
