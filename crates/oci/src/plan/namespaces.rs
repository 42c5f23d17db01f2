//! The namespaces that a container is in: new ones, others' by path, and the host's where it names none.

use super::{Plan, Want, Word};
use anyhow::{Result, bail};
use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxNamespaceType};
use pando_shim::Step;
use std::collections::HashMap;
use std::path::PathBuf;

/// `CLONE_NEW*`, and the name under /proc/PID/ns. Users come last: until then this command's own power counts.
pub(crate) const KINDS: [(LinuxNamespaceType, u32, &str); 8] = [
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

/// Where a namespace is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At a path of the host.
    Path(PathBuf),
    /// In this command's hands: it was opened before.
    Held,
}

/// What a kind is called.
fn name(flag: u32) -> String {
    let known = KINDS.iter().find(|(_, known, _)| *known == flag);
    known.map_or_else(|| format!("namespace {flag:#x}"), |(_, _, name)| format!("{name} namespace"))
}

/// The namespaces of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// New ones: `CLONE_NEW*`.
    pub(crate) new: u32,
    /// Others'.
    pub(crate) joined: Vec<(u32, Place)>,
    /// The kinds of those that turned out to be the host's: `CLONE_NEW*`.
    pub(crate) hosts: u32,
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
                Some(path) => found.joined.push((*flag, Place::Path(path.clone()))),
                None => found.new |= flag,
            }
        }
        found.joined.sort_by_key(|(flag, _)| KINDS.iter().position(|(_, known, _)| known == flag));
        Ok(found)
    }

    /// Whether one of the kind is new or another's, and not the host's.
    pub(crate) fn own(&self, kind: LinuxNamespaceType) -> bool {
        let flag = KINDS.iter().find(|(known, ..)| *known == kind).map_or(0, |(_, flag, _)| *flag);
        self.new & flag != 0 || (self.hosts & flag == 0 && self.joined.iter().any(|(joined, _)| *joined == flag))
    }

    /// Whether what is mounted is this container's alone.
    pub(crate) fn mounts_alone(&self) -> bool {
        self.new & MOUNT != 0
    }

    /// Those that this command [holds](Place::Held).
    pub(crate) fn held(kinds: impl IntoIterator<Item = u32>) -> Self {
        Self { joined: kinds.into_iter().map(|kind| (kind, Place::Held)).collect(), ..Self::default() }
    }

    /// The steps into them. What comes after is in all of them.
    pub(crate) fn enter(&self, plan: &mut Plan, clocks: bool) {
        for (kind, place) in &self.joined {
            let label = match place {
                Place::Path(path) => format!("joining the namespace at {}", path.display()),
                Place::Held => format!("joining the container's {}", name(*kind)),
            };
            let fd = plan.want(Want::HeldNamespace { kind: *kind });
            plan.step(label, Step::Join { fd });
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

/// Whether a configuration has one of the kind, new or by path.
pub(crate) fn named(linux: &Linux, kind: LinuxNamespaceType) -> bool {
    linux.namespaces().iter().flatten().any(|namespace| namespace.typ() == kind)
}

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
        assert_eq!(found.joined, [(NETWORK, Place::Path("/n".into())), (USER, Place::Path("/u".into()))]);
        assert!(found.own(LinuxNamespaceType::Network));
        assert!(!found.own(LinuxNamespaceType::Uts));
        let hosts = Namespaces { hosts: NETWORK, ..found };
        assert!(!hosts.own(LinuxNamespaceType::Network), "it was joined, and it is the host's");
        assert!(hosts.own(LinuxNamespaceType::Mount) && hosts.own(LinuxNamespaceType::User));
    }

    #[test]
    fn two_of_a_kind_are_refused() {
        let twice = read(r#"{"namespaces":[{"type":"mount"},{"type":"mount"}]}"#).unwrap_err();
        assert!(twice.to_string().contains("two namespaces of kind mnt"));
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
