//! What the daemon tells of guests.

use crate::{Health, HeldLimit, Profile, Spec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Where a guest stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestState {
    /// Its files exist; nothing runs.
    Stopped,
    /// The guest is being started.
    Starting,
    /// The guest's first process runs.
    Running,
    /// The guest is being stopped.
    Stopping,
    /// It was left running, and the daemon cannot work with it now; it tries again.
    Unreachable,
    /// Its record cannot be read, so it is left alone until it is mended or removed.
    Unreadable,
}

impl std::fmt::Display for GuestState {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.pad(match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Unreachable => "unreachable",
            Self::Unreadable => "unreadable",
        })
    }
}

/// A guest in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStatus {
    /// The guest's name, unique on this state root.
    pub name: String,
    /// Whether the guest runs, is frozen, or is at rest.
    pub state: GuestState,
    /// Whether its processes stand still because somebody paused it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub paused: bool,
    /// Host pid of its first process, when it runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<i32>,
    /// What it was made from.
    pub source: String,
    /// Whether it goes away when its command ends (`pando run`).
    pub ephemeral: bool,
    /// Seconds since the epoch when it was created.
    pub created: i64,
    /// Seconds since the epoch when it was last started, when it runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started: Option<i64>,
    /// How the last run ended: 0–255, 128 + signal for a death by signal. Absent: never ended, or nobody could tell.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exit_code: Option<i32>,
    /// How many of its processes the kernel killed for want of memory in its last run, or in the one that it is in;
    /// absent: none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oom_kills: Option<u64>,
    /// How it is, by its health checks; absent: it has none, or does not run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health: Option<Health>,
    /// How often its restart policy has started it since somebody did; absent: never.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub restarts: Option<u32>,
    /// When its restart policy starts it next, in seconds since the epoch; absent: it does not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_start: Option<i64>,
    /// What its user notes about it, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// The command that the guest runs, and its arguments.
    pub command: Vec<String>,
    /// What is wrong with it, and what to do, in sentences.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
}

/// A frozen guest in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageStatus {
    /// The image's name, unique on this state root.
    pub name: String,
    /// The guest that was frozen.
    pub guest: String,
    /// Seconds since the epoch when that was.
    pub created: i64,
    /// How many processes it has.
    pub processes: i64,
    /// How many threads those have.
    pub threads: i64,
    /// KiB of memory that clones share until they write to it.
    pub memory_kib: i64,
    /// Microseconds for which the guest stood still.
    pub pause_us: i64,
    /// Whether it is on the disk.
    pub kept: bool,
    /// Whether a process holds it in memory now, so that a clone need not wait for the disk.
    pub held: bool,
    /// What a user who clones it ought to know, in sentences.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warnings: Option<Vec<String>>,
    /// Of an import that was signed: whose key that was, by the list of signers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signed_by: Option<String>,
    /// Of an import that was signed: the kind and fingerprint of the key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signing_key: Option<String>,
}

/// All that is known of a frozen image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInspection {
    /// What `pando images` prints of it in one line.
    pub status: ImageStatus,
    /// What the frozen guest's user said of it.
    pub spec: Spec,
    /// What clones stand on, uppermost first.
    pub layers: Vec<String>,
    /// Where it lies on the disk.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub directory: Option<String>,
    /// The pid of its holder.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holder: Option<i32>,
}

/// All that is known of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// What `pando ls` prints of it in one line.
    pub status: GuestStatus,
    /// What its user said of it.
    pub spec: Spec,
    /// Its directory of state on the host.
    pub directory: String,
    /// Its log file on the host.
    pub log: String,
    /// The read-only trees below its own files, uppermost first.
    pub layers: Vec<String>,
    /// The first host id of its 65,536, when it runs in a user namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_id: Option<u32>,
    /// Its cgroups on the host, when it runs.
    pub cgroups: Vec<String>,
    /// Its limits, and what holds them.
    #[serde(default)]
    pub limits: Vec<HeldLimit>,
    /// Its addresses on the private network, when it runs there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// What a running guest is kept from, as the kernel tells of its first process, its mounts and its groups: not what was
/// asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// The name of the guest that this is about.
    pub name: String,
    /// The profile that the guest was given.
    pub profile: Profile,
    /// Whether executing a file never gives privilege.
    pub no_new_privileges: bool,
    /// The capabilities that no process of it can exceed.
    pub capabilities: Vec<String>,
    /// How many filters each system call passes; 0: none is refused.
    pub system_call_filters: i64,
    /// The first host id of its 65,536; none where root inside is root outside.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_id: Option<u32>,
    /// The kinds of namespaces that are its own.
    pub own_namespaces: Vec<String>,
    /// Those that are the host's.
    pub host_namespaces: Vec<String>,
    /// What a Landlock domain keeps inside.
    pub landlock: Vec<String>,
    /// Paths that are hidden from the guest, absolute inside it.
    pub masked: Vec<String>,
    /// Paths that nothing can be written to.
    pub read_only: Vec<String>,
    /// The devices that it can use, whatever nodes it has.
    pub devices: Vec<String>,
    /// Resource limits of its first process that are below what the daemon itself has: SOFT:HARD.
    pub limits: BTreeMap<String, String>,
    /// What its profile asks for and is not in force, and why.
    pub missing: Vec<String>,
}

/// A process of a guest, or of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEntry {
    /// The guest's name; empty for the host's own.
    pub guest: String,
    /// Pid as the host sees it.
    pub host_pid: i32,
    /// Pid as the guest sees it.
    pub pid: i32,
    /// Pid of its parent as the guest sees it; 0 where the parent is outside.
    pub ppid: i32,
    /// User id as the guest sees it.
    pub uid: u32,
    /// The letter of ps(1): R, S, D, Z, T, …
    pub state: String,
    /// CPU time so far, in milliseconds.
    pub cpu_ms: i64,
    /// Resident memory of the process, in KiB.
    pub rss_kib: i64,
    /// Its command line, or its name in brackets where it has none.
    pub command: String,
}

/// Something that happened to a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened, in milliseconds since the epoch.
    pub time_ms: i64,
    /// The name of the guest that it happened to.
    pub guest: String,
    /// `create`, `start`, `exit`, `stop`, `kill`, `remove`, `exec`, `set`, `adopt`, …
    pub what: String,
    /// Details, such as an exit code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
}
