//! What the host's own settings mean for guests. They are read, never set: they are the administrator's, and others on
//! the host depend on them.

use super::{Area, Finding, Verdict};
use crate::mount::{MountEntry, mounts};
use std::path::Path;

const AREA: Area = Area("settings of the host");

pub(super) fn find() -> Vec<Finding> {
    let mut findings = vec![
        AREA.wanted(
            "limits out of namespaces' reach",
            "4.13",
            delegated(&mounts().unwrap_or_default()),
            "with --userns host the filter of system calls alone keeps a guest from its own limits; mount cgroup2 with nsdelegate",
        ),
        AREA.wanted(
            "cores kept as files",
            "2.6.19",
            cores(setting("kernel/core_pattern").as_deref()),
            "each crash in a guest runs that program as the host's root on memory that the guest filled; profile strict and --ulimit core=0 keep cores from it",
        ),
        AREA.wanted(
            "known faults of the processors closed",
            "4.15",
            faults(Path::new("/sys/devices/system/cpu/vulnerabilities")),
            "a guest may read memory of its neighbours and of the kernel through the processor; see microcode updates and the boot argument mitigations",
        ),
        AREA.wanted(
            "user namespaces inside guests",
            "3.8",
            user_namespaces(&|name| setting(name)),
            "programs that make them, such as browsers and builders of images, fail in guests, or guests do without their own",
        ),
    ];
    findings.extend(PROTECTED.map(|(name, since, file, without)| {
        let verdict = at_least_one(file, setting(&format!("fs/{file}")).as_deref());
        AREA.wanted(name, since, verdict, without)
    }));
    findings
}

/// What fs.protected_* keep users of the host, and guests in a volume that others write to, from.
const PROTECTED: [(&str, &str, &str, &str); 4] = [
    (
        "links of others not followed",
        "3.6",
        "protected_symlinks",
        "in a shared directory such as /tmp a user's link leads root's programs elsewhere",
    ),
    (
        "files of others not linked",
        "3.6",
        "protected_hardlinks",
        "a user can give root's files further names, and keep faulty set-user-id programs",
    ),
    (
        "fifos of others not opened",
        "4.19",
        "protected_fifos",
        "in a shared directory root's programs may write into a fifo that a user made",
    ),
    (
        "files of others not created over",
        "4.19",
        "protected_regular",
        "in a shared directory root's programs may write into a file that a user made",
    ),
];

/// A file of /proc/sys; `None` where the kernel does not have it.
fn setting(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    Some(text.trim().to_owned())
}

fn delegated(mounts: &[MountEntry]) -> Verdict {
    match mounts.iter().find(|mount| mount.kind == "cgroup2") {
        None => Verdict::Refused("version 2 is not mounted".into()),
        Some(mount) if mount.options.split(',').any(|option| option == "nsdelegate") => Verdict::Granted,
        Some(mount) => Verdict::Partial(format!("{} is mounted without nsdelegate", mount.at.display())),
    }
}

fn cores(pattern: Option<&str>) -> Verdict {
    let Some(pattern) = pattern else { return Verdict::Missing };
    match pattern.strip_prefix('|') {
        None => Verdict::Granted,
        Some(program) => {
            let program = program.split_whitespace().next().unwrap_or("a program");
            Verdict::Partial(format!("kernel.core_pattern gives them to {program}"))
        }
    }
}

fn faults(directory: &Path) -> Verdict {
    let Ok(entries) = std::fs::read_dir(directory) else { return Verdict::Missing };
    let is_open = |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("ulnerable"));
    let open = entries.flatten().filter(|entry| is_open(&entry.path()));
    let mut names: Vec<_> = open.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() { Verdict::Granted } else { Verdict::Partial(format!("open: {}", names.join(", "))) }
}

fn user_namespaces(setting: &dyn Fn(&str) -> Option<String>) -> Verdict {
    let is = |name: &str, value: &str| setting(name).is_some_and(|found| found == value);
    if setting("user/max_user_namespaces").is_none() {
        Verdict::Missing
    } else if is("user/max_user_namespaces", "0") {
        Verdict::Refused("user.max_user_namespaces is 0".into())
    } else if is("kernel/unprivileged_userns_clone", "0") {
        Verdict::Partial("kernel.unprivileged_userns_clone leaves them to root".into())
    } else if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        Verdict::Partial(
            "kernel.apparmor_restrict_unprivileged_userns takes their powers from programs that AppArmor does not name"
                .into(),
        )
    } else {
        Verdict::Granted
    }
}

fn at_least_one(name: &str, value: Option<&str>) -> Verdict {
    match value {
        None => Verdict::Missing,
        Some("0") => Verdict::Partial(format!("fs.{name} is 0")),
        Some(_) => Verdict::Granted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_of_cores_is_named() {
        assert_eq!(cores(Some("core")), Verdict::Granted);
        assert_eq!(cores(None), Verdict::Missing);
        let piped = cores(Some("|/usr/lib/systemd/systemd-coredump %P"));
        assert_eq!(
            piped,
            Verdict::Partial("kernel.core_pattern gives them to /usr/lib/systemd/systemd-coredump".into())
        );
    }

    #[test]
    fn delegation_is_an_option_of_the_mount() {
        let table = |options: &str| format!("31 1 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 {options}\n");
        let verdict = |text: &str| delegated(&crate::mount::entries(text).collect::<Vec<_>>());
        assert_eq!(verdict(&table("rw,nsdelegate,memory_recursiveprot")), Verdict::Granted);
        assert!(matches!(verdict(&table("rw")), Verdict::Partial(_)));
        assert!(matches!(verdict(""), Verdict::Refused(_)));
    }

    #[test]
    fn open_faults_are_named() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("meltdown"), "Not affected\n").unwrap();
        assert_eq!(faults(place.path()), Verdict::Granted);
        std::fs::write(place.path().join("mds"), "Vulnerable: Clear CPU buffers attempted, no microcode\n").unwrap();
        std::fs::write(place.path().join("srbds"), "Mitigation: x; SMT vulnerable\n").unwrap();
        assert_eq!(faults(place.path()), Verdict::Partial("open: mds, srbds".into()));
        assert_eq!(faults(&place.path().join("none")), Verdict::Missing);
    }

    #[test]
    fn what_restricts_user_namespaces_is_named() {
        let with = |given: &[(&str, &str)]| {
            user_namespaces(&|name| {
                given.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let most = ("user/max_user_namespaces", "100");
        assert_eq!(with(&[]), Verdict::Missing);
        assert_eq!(with(&[most]), Verdict::Granted);
        assert!(matches!(with(&[("user/max_user_namespaces", "0")]), Verdict::Refused(_)));
        for restriction in
            [("kernel/unprivileged_userns_clone", "0"), ("kernel/apparmor_restrict_unprivileged_userns", "1")]
        {
            assert!(matches!(with(&[most, restriction]), Verdict::Partial(_)), "{restriction:?}");
        }
    }

    #[test]
    fn a_protection_that_is_off_is_named() {
        assert_eq!(at_least_one("protected_fifos", Some("2")), Verdict::Granted);
        assert_eq!(at_least_one("protected_fifos", Some("0")), Verdict::Partial("fs.protected_fifos is 0".into()));
    }
}
