//! The namespaces that a container is in: new ones, others' by path, and the host's where it names none.

use super::{Plan, Want, Word};
use anyhow::{Result, bail};
use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxNamespaceType};
use pando_shim::Step;
use std::collections::HashMap;
use std::path::PathBuf;

/// `CLONE_NEW*`, and the name under /proc/PID/ns. Users come last: until then this command's own power counts.
const KINDS: [(LinuxNamespaceType, u32, &str); 8] = [
    (LinuxNamespaceType::Ipc, 0x0800_0000, "ipc"),
    (LinuxNamespaceType::Uts, 0x0400_0000, "uts"),
    (LinuxNamespaceType::Network, 0x4000_0000, "net"),
    (LinuxNamespaceType::Pid, 0x2000_0000, "pid"),
    (LinuxNamespaceType::Cgroup, 0x0200_0000, "cgroup"),
    (LinuxNamespaceType::Time, 0x80, "time"),
    (LinuxNamespaceType::Mount, 0x0002_0000, "mnt"),
    (LinuxNamespaceType::User, USER, "user"),
];
const USER: u32 = 0x1000_0000;
const PID: u32 = 0x2000_0000;
const TIME: u32 = 0x80;
const NETWORK: u32 = 0x4000_0000;

/// The namespaces of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// New ones: `CLONE_NEW*`.
    pub(crate) new: u32,
    /// Others', by path.
    pub(crate) joined: Vec<(u32, PathBuf)>,
}

impl Namespaces {
    /// The namespaces of a configuration.
    pub(crate) fn read(linux: &Linux) -> Result<Self> {
        let mut found = Self::default();
        let mut seen = 0;
        for namespace in linux.namespaces().iter().flatten() {
            let Some((_, flag, name)) = KINDS.iter().find(|(kind, ..)| *kind == namespace.typ()) else {
                bail!("namespace of kind {:?} is not known", namespace.typ());
            };
            if seen & flag != 0 {
                bail!("malformed spec: there are two namespaces of kind {name}");
            }
            seen |= flag;
            match namespace.path().as_ref().filter(|path| !path.as_os_str().is_empty()) {
                Some(path) => found.joined.push((*flag, path.clone())),
                None => found.new |= flag,
            }
        }
        found.joined.sort_by_key(|(flag, _)| KINDS.iter().position(|(_, known, _)| known == flag));
        if found.new & MOUNT == 0 {
            bail!("a container without a mount namespace of its own is not supported by this runtime");
        }
        Ok(found)
    }

    /// Whether one of the kind is new or another's, and not the host's.
    pub(crate) fn own(&self, kind: LinuxNamespaceType) -> bool {
        let flag = KINDS.iter().find(|(known, ..)| *known == kind).map_or(0, |(_, flag, _)| *flag);
        self.new & flag != 0 || self.joined.iter().any(|(joined, _)| *joined == flag)
    }

    /// Those of a process that runs, as far as they are not this command's.
    pub(crate) fn of_process(pid: i32) -> std::io::Result<Self> {
        let mut found = Self::default();
        for (_, flag, name) in KINDS {
            let path = PathBuf::from(format!("/proc/{pid}/ns/{name}"));
            let theirs = match std::fs::read_link(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                theirs => theirs?,
            };
            if theirs != std::fs::read_link(format!("/proc/self/ns/{name}"))? {
                found.joined.push((flag, path));
            }
        }
        Ok(found)
    }

    /// The steps into them. What comes after is in all of them.
    pub(crate) fn enter(&self, plan: &mut Plan, clocks: bool) {
        for (_, path) in &self.joined {
            let fd = plan.want(Want::Namespace(path.clone()));
            plan.step(format!("joining the namespace at {}", path.display()), Step::Join { fd });
        }
        if self.new & USER != 0 {
            plan.step("making a user namespace", Step::Unshare { namespaces: USER });
            plan.ask("asking for ids", Word::MapIds);
        }
        if self.own(LinuxNamespaceType::User) {
            let root = Step::User { uid: 0, gid: 0, groups: &[] };
            plan.step("becoming root of the user namespace", root);
        }
        if self.new & !USER != 0 {
            plan.step("making namespaces", Step::Unshare { namespaces: self.new & !USER });
        }
        if clocks && self.new & TIME != 0 {
            plan.ask("asking for clocks", Word::SetClocks);
        }
        if self.new & NETWORK != 0 {
            plan.step("bringing up the loopback device", Step::Loopback);
        }
        if self.forks() {
            plan.fork();
        }
    }

    /// Whether another process than the first is the one that goes on.
    pub(crate) fn forks(&self) -> bool {
        let forking = PID | TIME;
        self.new & forking != 0 || self.joined.iter().any(|(flag, _)| flag & forking != 0)
    }
}

const MOUNT: u32 = 0x0002_0000;

/// The lines of an id map.
pub(crate) fn id_map(mappings: &[LinuxIdMapping]) -> String {
    mappings.iter().map(|map| format!("{} {} {}\n", map.container_id(), map.host_id(), map.size())).collect()
}

/// The lines of /proc/PID/timens_offsets.
pub(crate) fn clocks(offsets: &HashMap<String, oci_spec::runtime::LinuxTimeOffset>) -> String {
    let line = |(clock, offset): (&String, &oci_spec::runtime::LinuxTimeOffset)| {
        format!("{clock} {} {}\n", offset.secs().unwrap_or(0), offset.nanosecs().unwrap_or(0))
    };
    offsets.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Namespaces> {
        Namespaces::read(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn users_are_joined_last() {
        let found = read(
            r#"{"namespaces":[{"type":"user","path":"/u"},{"type":"mount"},{"type":"network","path":"/n"},{"type":"pid","path":""}]}"#,
        )
        .unwrap();
        assert_eq!(found.new, MOUNT | PID);
        assert_eq!(found.joined, [(NETWORK, "/n".into()), (USER, "/u".into())]);
        assert!(found.own(LinuxNamespaceType::Network));
        assert!(!found.own(LinuxNamespaceType::Uts));
    }

    #[test]
    fn two_of_a_kind_and_none_of_mounts_are_refused() {
        let twice = read(r#"{"namespaces":[{"type":"mount"},{"type":"mount"}]}"#).unwrap_err();
        assert!(twice.to_string().contains("two namespaces of kind mnt"));
        assert!(read(r#"{"namespaces":[{"type":"pid"}]}"#).unwrap_err().to_string().contains("mount namespace"));
    }

    #[test]
    fn ids_are_mapped_before_anything_else_is_made() {
        let found = read(r#"{"namespaces":[{"type":"user"},{"type":"mount"},{"type":"pid"}]}"#).unwrap();
        let mut plan = Plan::new();
        found.enter(&mut plan, false);
        let ends: Vec<_> = plan.batches.iter().map(|batch| batch.ends_with).collect();
        assert_eq!(ends, [Some(Word::MapIds), Some(Word::Born), None]);
    }
}
