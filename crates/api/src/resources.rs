//! What guests use of the machine, and the limits that hold them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A limit as it is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLimit {
    /// The key, as `set` takes it.
    pub key: String,
    /// The amount that was asked for, in the user's words.
    pub request: String,
    /// The kernel's file that holds it, where the guest runs and a file does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
    /// What that file says now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub value: Option<String>,
    /// What this kernel cannot keep of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

/// What a guest used, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// When it was taken, in milliseconds since the epoch.
    pub time_ms: i64,
    /// Milliseconds of processor time since it was started.
    pub cpu_ms: i64,
    /// Percent of the whole machine's processor time since the sample before.
    pub cpu_percent: f64,
    /// Bytes of memory, page cache included.
    pub memory: i64,
    /// Bytes of that memory that are page cache.
    pub cache: i64,
    /// Bytes of memory that lie in swap.
    pub swap: i64,
    /// The number of processes and threads.
    pub pids: i64,
    /// Bytes read from disks since it was started.
    pub read: i64,
    /// Bytes written to disks since it was started.
    pub written: i64,
    /// Bytes received since it was started, over a network of its own or with bandwidth of its own.
    pub received: i64,
    /// Bytes sent since it was started, over a network of its own or with bandwidth of its own.
    pub sent: i64,
    /// Processes that the kernel killed for want of memory within the limit.
    pub oom_kills: i64,
}

/// What a guest uses, beside what it was granted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestUse {
    /// The guest's name, unique on this state root.
    pub name: String,
    /// Whether it has a process besides its init.
    pub active: bool,
    /// Whether it used 0.1 % of the machine's processor time or more in the last five minutes.
    pub live: bool,
    /// The newest sample of what it uses.
    pub now: Sample,
    /// The reserved part of the machine, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_reserve: Option<f64>,
    /// The most processor time, in processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<f64>,
    /// The most memory that it may use, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<i64>,
    /// The memory that is reserved for it, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_reserve: Option<i64>,
    /// The most processes and threads that it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<i64>,
    /// Bits a second that are guaranteed in what leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_reserve: Option<i64>,
    /// The most bits a second that leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_limit: Option<i64>,
    /// The most bits a second that come in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_limit_in: Option<i64>,
    /// Bytes of memory that it works with: without the page cache that nobody has used for long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set: Option<i64>,
    /// Bytes of its memory that are one with equal pages of others since they were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged: Option<i64>,
    /// Bytes that were taken back from it since it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaimed: Option<i64>,
    /// Earlier samples, oldest first, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Sample>,
}

/// What was taken back from a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reclaimed {
    /// The guest's name, unique on this state root.
    pub guest: String,
    /// How many bytes were taken back.
    pub bytes: i64,
}

/// The machine that they share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineUse {
    /// The number of processors that are online.
    pub processors: i64,
    /// The size of memory, in bytes.
    pub memory: i64,
    /// Bytes that could be had without swapping.
    pub memory_free: i64,
    /// The size of swap, in bytes.
    pub swap: i64,
    /// Bytes of it that are free.
    pub swap_free: i64,
}

/// What the watchdog sees, and what it has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchdogState {
    /// How it acts: `graduated`, `pl_mom` or `off`.
    pub policy: String,
    /// Whether it only tells what it would do.
    pub dry_run: bool,
    /// When it acts, by the names of pando.toml.
    pub rules: BTreeMap<String, String>,
    /// What it did last about the present want: `calm`, `reclaimed` or `frozen`.
    pub stage: String,
    /// The guest that it did that to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Percent of ten seconds in which nobody got on for want of memory, where the kernel tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<f64>,
    /// Percent of memory that could be had without swapping.
    pub memory_free: f64,
    /// Percent of swap in use, where there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_used: Option<f64>,
    /// What it would do if memory were wanting now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would: Option<WatchdogStep>,
    /// The last steps, oldest first.
    pub taken: Vec<WatchdogStep>,
}

/// A step of the watchdog's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchdogStep {
    /// When it was taken, in milliseconds since the epoch.
    pub time_ms: i64,
    /// The name of the guest that it was taken against.
    pub guest: String,
    /// `reclaim`, `freeze`, `thaw`, `restart` or `stop`.
    pub step: String,
    /// Why it was taken, as a sentence.
    pub why: String,
}
