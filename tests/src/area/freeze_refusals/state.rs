//! What is to be seen of the processes of a space: who they are, their memory, descriptors and namespaces; whether they
//! run.

use crate::patience::eventually;
use crate::spaces::Space;
use std::collections::BTreeMap;

/// All that does not go on by itself.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::area) struct State(BTreeMap<String, String>);

/// The processes of a space: their numbers here and inside, and their names. Ended ones have them, too.
pub(super) fn processes(space: &Space) -> Vec<(i32, i32, String)> {
    let home = space.number();
    let inside = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let numbers: Vec<&str> = line("NSpid:")?.split_whitespace().collect();
        Some((*pid, numbers.last()?.parse().ok()?, line("Name:")?.to_owned()))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_below(*pid, space.init(), home)).filter_map(|pid| inside(&pid)).collect()
}

/// Whether a process is of the namespace, or of one inside of it.
fn is_below(pid: i32, init: i32, home: u64) -> bool {
    use std::os::unix::fs::MetadataExt;
    let namespace = |pid: i32| std::fs::metadata(format!("/proc/{pid}/ns/pid")).map(|about| about.ino()).ok();
    let mut at = pid;
    for _ in 0..16 {
        if at == init || namespace(at) == Some(home) {
            return true;
        }
        let stat = std::fs::read_to_string(format!("/proc/{at}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        match parent {
            Some(parent) if parent > 1 => at = parent,
            _ => return false,
        }
    }
    false
}

impl State {
    pub(super) fn of(space: &Space) -> Self {
        Self::of_processes(processes(space).into_iter().map(|(pid, ..)| pid))
    }

    /// That of processes by their numbers here.
    pub(in crate::area) fn of_processes(pids: impl IntoIterator<Item = i32>) -> Self {
        const KEPT: [&str; 17] = [
            "Name",
            "Umask",
            "Tgid",
            "NSpid",
            "PPid",
            "TracerPid",
            "Uid",
            "Gid",
            "FDSize",
            "Threads",
            "SigBlk",
            "SigIgn",
            "SigCgt",
            "CapPrm",
            "CapBnd",
            "NoNewPrivs",
            "Seccomp",
        ];
        let mut all = BTreeMap::new();
        for pid in pids {
            let mut note = |file: &str, text: String| drop(all.insert(format!("{pid} {file}"), text));
            let text = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let kept = |line: &&str| KEPT.iter().any(|key| line.split(':').next() == Some(key));
            note("status", text("status").lines().filter(kept).collect::<Vec<_>>().join("\n"));
            note(
                "stopped",
                crate::process::state(pid).is_some_and(|state| matches!(state, 'T' | 't' | 'Z')).to_string(),
            );
            note("maps", text("maps"));
            for link in ["cwd", "root", "exe"]
                .map(str::to_owned)
                .into_iter()
                .chain(names(pid, "ns").map(|name| format!("ns/{name}")))
            {
                note(&link, target(pid, &link));
            }
            for name in names(pid, "fd") {
                note(
                    &format!("fd/{name}"),
                    format!("{} {}", target(pid, &format!("fd/{name}")), text(&format!("fdinfo/{name}"))),
                );
            }
        }
        Self(all)
    }

    /// Wants nothing to be otherwise now.
    #[track_caller]
    pub(super) fn is_unchanged(&self, space: &Space) {
        let now = Self::of(space);
        for (what, before) in &self.0 {
            assert_eq!(now.0.get(what), Some(before), "process {what} has changed");
        }
        assert_eq!(now.0.len(), self.0.len(), "there is more than there was");
    }
}

fn names(pid: i32, directory: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/{directory}")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn target(pid: i32, link: &str) -> String {
    let target = std::fs::read_link(format!("/proc/{pid}/{link}"));
    target.map(|to| to.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Wants those to go on that look around now and then: who stands by, at least.
pub(super) fn runs_on(space: &Space) {
    let switches = || -> BTreeMap<i32, u64> {
        let count = |pid: i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
        };
        processes(space).into_iter().filter_map(|(pid, ..)| Some((pid, count(pid)?))).collect()
    };
    let before = switches();
    eventually("they run on", || {
        switches().iter().any(|(pid, now)| before.get(pid).is_some_and(|then| *now > then + 5))
    });
}
