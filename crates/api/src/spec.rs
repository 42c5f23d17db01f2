//! What a user says of a guest: `spec.toml` on disk, `Spec` on the wire.

use crate::resource_request::{Amount, CpuRequest, DiskRequest, IoRequest, MemoryRequest, NetRequest};
use crate::{Address, Boot, Device, HealthCheck, HostEntry, Publication, Restart, Tmpfs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What a user says of a guest. Every field has a default: an empty spec is a valid one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// What the guest runs, as the first process below its init. Empty: the guest idles, ready for `exec`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// What `command` is the arguments of. Default: what the image says. It is part of `command` once the guest is
    /// made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// What its user notes about it, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The guest's own init, run as its first process in place of Pando's: a path inside the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// The name the guest sees as its own. Default: the guest's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Whether `command` has an input that stays open: what `attach` is given goes there. Without it there is none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// Who runs `command`: `NAME`, `UID`, `NAME:GROUP` or `UID:GID`, looked up inside the guest. Default: root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Further groups of whoever runs `command`, each a name or a number, looked up inside the guest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub group_add: Vec<String>,
    /// Where `command` starts. Default: `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Environment of `command` and of every `exec`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What network the guest has.
    pub network: Network,
    /// Which private network it is on: one that was made by its name. Default: the one that is always there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_name: Option<String>,
    /// The addresses that the guest owns, on the host's network: `IP`, `IP/LENGTH`, `IP@DEVICE` or `IP/LENGTH@DEVICE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    /// How a private network is reached.
    #[serde(skip_serializing_if = "Link::is_default")]
    pub link: Link,
    /// Ports of the host's that lead to the guest on a private network: `[IP:]HOST:GUEST[/udp]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<Publication>,
    /// Whether every port that its image exposes is published, on a port of the host's that is free. They stand in
    /// `publish` once the guest is made.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub publish_all: bool,
    /// Names that it knows by its /etc/hosts: `NAME:IP`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add_host: Vec<HostEntry>,
    /// Settings of the kernel's for its own namespaces, by their names (`net.ipv4.ip_forward`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, String>,
    /// Name servers on a private network. Default: the host's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// Whether the guest has a user namespace of its own (65,536 ids). Without one, root inside is root outside.
    pub user_namespace: bool,
    /// Host directories or files shown inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Whether nothing can be written to its own files: volumes and file systems in memory stay as they are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// File systems in memory that it has from its start: `PATH[:size=SIZE,mode=MODE,exec]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tmpfs: Vec<Tmpfs>,
    /// Devices of the host's that it may use: `HOST[:GUEST][:rwm]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Capabilities added to the profile's set, by name (`NET_RAW` or `CAP_NET_RAW`; `ALL`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cap_add: Vec<String>,
    /// Capabilities taken from the profile's set, by name; `ALL` takes every one. Taken first, then added.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cap_drop: Vec<String>,
    /// How far it is trusted. Default: `system` for a guest with its own init, else `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Whether system calls are denied at all.
    pub seccomp: SeccompProfile,
    /// Into how many images at a time the guest may freeze itself.
    #[serde(skip_serializing_if = "is_none")]
    pub allow_freeze: u32,
    /// Resource limits of the first process, inherited by all others: `nofile`, `nproc`, `core`, …
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rlimits: BTreeMap<String, Rlimit>,
    /// Paths of the host that `--from host` shows although they are left out by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<String>,
    /// The signal that asks the guest to stop. Default: `SIGTERM`; for a guest with its own init, what that init
    /// understands as "halt".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Seconds between that signal and SIGKILL. Default: 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_grace: Option<u32>,
    /// When it is started again after it has ended: `no`, `on-failure[:N]`, `always`, `unless-stopped`.
    #[serde(skip_serializing_if = "Restart::is_no")]
    pub restart: Restart,
    /// How is found out whether it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthCheck>,
    /// Whether and when it is started as the machine boots.
    #[serde(skip_serializing_if = "Boot::is_default")]
    pub boot: Boot,
    /// How many processes and threads there may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<Amount>,
    /// How many files one process may have open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Amount>,
    /// How many files all its processes together may have open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_total: Option<Amount>,
    /// Processor time: what is reserved, shared, and bounded.
    #[serde(skip_serializing_if = "CpuRequest::is_empty")]
    pub cpu: CpuRequest,
    /// Memory: what is reserved, and what it is bounded by.
    #[serde(skip_serializing_if = "MemoryRequest::is_empty")]
    pub memory: MemoryRequest,
    /// Traffic with the disk: its weight and its bounds.
    #[serde(skip_serializing_if = "IoRequest::is_empty")]
    pub io: IoRequest,
    /// Room on the disk: bytes and files.
    #[serde(skip_serializing_if = "DiskRequest::is_empty")]
    pub disk: DiskRequest,
    /// Bandwidth: what is reserved, and what it is bounded by.
    #[serde(skip_serializing_if = "NetRequest::is_empty")]
    pub net: NetRequest,
}

impl Spec {
    /// What is requested to be granted or limited, by key, as `set` takes it.
    pub fn requests(&self) -> Vec<(&'static str, &str)> {
        let single = [("pids", &self.pids), ("files", &self.files), ("files_total", &self.files_total)];
        let single = single.into_iter().filter_map(|(key, amount)| Some((key, amount.as_ref()?.0.as_str())));
        let tables = [self.cpu.pairs(), self.memory.pairs(), self.io.pairs(), self.disk.pairs()];
        single.chain(tables.into_iter().flatten()).collect()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's.
fn is_none(count: &u32) -> bool {
    *count == 0
}

impl Spec {
    /// The profile that holds for the guest.
    pub fn security_profile(&self) -> Profile {
        self.profile.unwrap_or(if self.init.is_some() { Profile::System } else { Profile::Default })
    }
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            entrypoint: None,
            labels: BTreeMap::new(),
            init: None,
            hostname: None,
            stdin_open: false,
            user: None,
            group_add: Vec::new(),
            workdir: None,
            env: BTreeMap::new(),
            network: Network::None,
            network_name: None,
            addresses: Vec::new(),
            link: Link::Veth,
            publish: Vec::new(),
            publish_all: false,
            add_host: Vec::new(),
            sysctl: BTreeMap::new(),
            dns: Vec::new(),
            user_namespace: true,
            volumes: Vec::new(),
            read_only: false,
            tmpfs: Vec::new(),
            devices: Vec::new(),
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            profile: None,
            seccomp: SeccompProfile::Default,
            allow_freeze: 0,
            rlimits: BTreeMap::new(),
            expose: Vec::new(),
            stop_signal: None,
            stop_grace: None,
            restart: Restart::No,
            health: None,
            boot: Boot::default(),
            pids: None,
            files: None,
            files_total: None,
            cpu: CpuRequest::default(),
            memory: MemoryRequest::default(),
            io: IoRequest::default(),
            disk: DiskRequest::default(),
            net: NetRequest::default(),
        }
    }
}

/// What network a guest has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// A network namespace with nothing but a loopback device.
    #[default]
    None,
    /// The host's network, of which the guest owns its addresses and nothing else.
    Shared,
    /// A network namespace on a network of the guests', behind the host's address.
    Private,
    /// The host's network, unrestricted.
    Host,
}

/// How a guest with a private network is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// A pair of devices; the host's is a port of the guests' bridge.
    #[default]
    Veth,
    /// The same by devices that hand packets over without a queue (Linux 6.7).
    Netkit,
    /// A device of its own on a device of the host's: the guest is a machine on the host's network.
    Macvlan,
}

impl Link {
    /// Whether nothing else was asked for.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Network {
    /// Whether the guest's processes are in the host's network namespace.
    pub fn is_the_hosts(self) -> bool {
        matches!(self, Self::Shared | Self::Host)
    }
}

/// How far a guest is trusted: a name for everything that it is kept from (docs/security.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As a machine of its own would be.
    #[default]
    Default,
    /// Not at all: code that nobody vouches for.
    Strict,
    /// As a machine that boots a distribution.
    System,
}

/// Which system calls a guest is denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeccompProfile {
    /// The calls that the guest's profile names.
    #[default]
    Default,
    /// No filter of system calls.
    Off,
}

/// A host directory or file shown inside a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Absolute path on the host, or the name of a volume of Pando's, which is made if it is missing. In the spec of a
    /// guest that exists it is a path.
    pub source: String,
    /// Absolute path in the guest; made if it is missing.
    pub target: String,
    /// Whether the guest can only read it.
    #[serde(default)]
    pub read_only: bool,
}

/// A resource limit: soft and hard value in the limit's own unit (see getrlimit(2)); absent is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rlimit {
    /// What the process is held to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soft: Option<u64>,
    /// How far the process may raise it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard: Option<u64>,
}

/// A word of a spec that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// `--volume`
    #[error(
        "volume '{0}' is not HOST:GUEST or NAME:GUEST with absolute paths, and :ro after that if the guest is not to write; for example --volume /srv/www:/var/www:ro or --volume data:/var/lib/db"
    )]
    Volume(String),
    /// `--ulimit`
    #[error("limit '{0}' is not NAME=SOFT[:HARD] with numbers or 'unlimited'; for example --ulimit nofile=1024:4096")]
    Rlimit(String),
}

/// Whether a word can be the name of a volume of Pando's: letters, digits, `-`, `_` and `.`, 63 at most, beginning with
/// a letter or digit.
pub fn is_volume_name(word: &str) -> bool {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    word.len() <= 63 && word.starts_with(|first: char| first.is_ascii_alphanumeric()) && word.bytes().all(usual)
}

/// Words that say what kind of network a guest has, here or in other tools, and so are no network's name.
const KINDS_OF_NETWORKS: [&str; 8] = ["none", "shared", "private", "host", "bridge", "default", "container", "macvlan"];

/// Whether a word can be the name of a network: made of what a volume's may be made of, and no word for a kind.
pub fn is_network_name(word: &str) -> bool {
    is_volume_name(word) && !KINDS_OF_NETWORKS.contains(&word)
}

impl std::str::FromStr for Volume {
    type Err = SpecError;

    /// Reads `HOST:GUEST[:ro|:rw]`, as docker and podman write it.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = || SpecError::Volume(text.to_owned());
        let mut parts = text.split(':');
        let (source, target) = (parts.next().ok_or_else(wrong)?, parts.next().ok_or_else(wrong)?);
        let read_only = match parts.next() {
            None | Some("rw") => false,
            Some("ro") => true,
            Some(_) => return Err(wrong()),
        };
        let is_source = source.starts_with('/') || is_volume_name(source);
        if parts.next().is_some() || !is_source || !target.starts_with('/') {
            return Err(wrong());
        }
        Ok(Self { source: source.to_owned(), target: target.to_owned(), read_only })
    }
}

impl std::str::FromStr for Rlimit {
    type Err = SpecError;

    /// Reads `SOFT[:HARD]`, as docker writes it; one value stands for both.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let value = |word: &str| match word {
            "unlimited" | "-1" => Ok(None),
            number => number.parse().map(Some).map_err(|_| SpecError::Rlimit(text.to_owned())),
        };
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        let limit = Self { soft: value(soft)?, hard: value(hard)? };
        match (limit.soft, limit.hard) {
            (None, Some(_)) => Err(SpecError::Rlimit(text.to_owned())),
            (Some(soft), Some(hard)) if soft > hard => Err(SpecError::Rlimit(text.to_owned())),
            _ => Ok(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_a_path_or_a_name_and_where_it_is_shown() {
        let volume: Volume = "/a:/b:ro".parse().unwrap();
        assert_eq!(volume, Volume { source: "/a".into(), target: "/b".into(), read_only: true });
        assert_eq!("data:/b".parse::<Volume>().unwrap().source, "data");
        for wrong in ["", "/a", "../a:/b", "a/b:/c", ".a:/b", "/a:b", "/a:/b:rx", "/a:/b:ro:ro"] {
            assert!(wrong.parse::<Volume>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_is_one_or_two_numbers_in_order() {
        assert_eq!("5".parse(), Ok(Rlimit { soft: Some(5), hard: Some(5) }));
        assert_eq!("5:unlimited".parse(), Ok(Rlimit { soft: Some(5), hard: None }));
        for wrong in ["", "x", "6:5", "unlimited:5", "-3"] {
            assert!(wrong.parse::<Rlimit>().is_err(), "{wrong}");
        }
    }
}
