//! `features`: what this runtime can do.

use crate::plan::memory_policy;
use anyhow::Result;
use serde_json::json;

pub(crate) fn run() -> Result<()> {
    let features = json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": "1.3.0",
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": [
            "async", "atime", "bind", "defaults", "dev", "diratime", "dirsync", "exec", "idmap", "lazytime", "noatime", "nodev",
            "nodiratime", "noexec", "norelatime", "nostrictatime", "nosuid", "nosymfollow", "private", "ratime", "rbind",
            "rdev", "rdiratime", "relatime", "rexec", "ridmap", "rnoatime", "rnodev", "rnodiratime", "rnoexec", "rnorelatime",
            "rnostrictatime", "rnosuid", "rnosymfollow", "ro", "rprivate", "rrelatime", "rro", "rrw", "rshared",
            "rslave", "rstrictatime", "rsuid", "rsymfollow", "runbindable", "rw", "shared", "slave", "strictatime",
            "suid", "symfollow", "sync", "tmpcopyup", "unbindable",
        ],
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"],
            "capabilities": capabilities(),
            "cgroup": {"v1": true, "v2": true, "systemd": false, "systemdUser": false, "rdma": true},
            "seccomp": {
                "enabled": true,
                "actions": [
                    "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
                    "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_NOTIFY", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP",
                ],
                "operators": [
                    "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT", "SCMP_CMP_MASKED_EQ",
                    "SCMP_CMP_NE",
                ],
                "archs": ["SCMP_ARCH_X32", "SCMP_ARCH_X86", "SCMP_ARCH_X86_64"],
                "knownFlags": FLAGS,
                "supportedFlags": FLAGS,
            },
            "apparmor": {"enabled": false},
            "selinux": {"enabled": false},
            "intelRdt": {"enabled": false},
            "memoryPolicy": {"modes": memory_policy::MODES, "flags": memory_policy::flags()},
            "mountExtensions": {"idmap": {"enabled": true}},
            "netDevices": {"enabled": false},
        },
        "annotations": {"org.opencontainers.runc.checkpoint.enabled": "false"},
        "potentiallyUnsafeConfigAnnotations": [],
    });
    println!("{}", serde_json::to_string_pretty(&features)?);
    Ok(())
}

/// Flags of a seccomp profile.
const FLAGS: [&str; 4] = [
    "SECCOMP_FILTER_FLAG_LOG",
    "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
    "SECCOMP_FILTER_FLAG_TSYNC",
    "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
];

/// Names of capabilities, in the order of their numbers (linux/capability.h).
fn capabilities() -> Vec<&'static str> {
    vec![
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
        "CAP_MAC_OVERRIDE",
        "CAP_MAC_ADMIN",
        "CAP_SYSLOG",
        "CAP_WAKE_ALARM",
        "CAP_BLOCK_SUSPEND",
        "CAP_AUDIT_READ",
        "CAP_PERFMON",
        "CAP_BPF",
        "CAP_CHECKPOINT_RESTORE",
    ]
}
