//! What the methods answer with, one type a reply.
//!
//! `pando_api::Reply` is one untagged enum: good for sending, but read back, `{}` is taken for the first variant whose
//! fields are all optional.

use pando_api::{
    Collection, Event, GuestStatus, GuestUse, ImageInspection, ImageStatus, Inspection, MachineUse, NamedNetwork,
    NamedVolume, ProcessEntry, ProcessNotice, Progress, PulledImage, Reclaimed, Security, StoreUsage, Unification,
    Verification, WatchdogState, WrittenDirectory,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(crate) struct Watched {
    pub(crate) watchdog: WatchdogState,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Taken {
    pub(crate) reclaimed: Vec<Reclaimed>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Volumes {
    pub(crate) volumes: Vec<NamedVolume>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Networks {
    pub(crate) networks: Vec<NamedNetwork>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct WrittenDirectories {
    pub(crate) directories: Vec<WrittenDirectory>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Done {}

#[derive(Debug, Deserialize)]
pub(crate) struct SpareTaken {
    pub(crate) spare: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Version {
    pub(crate) version: String,
    pub(crate) pid: i32,
    pub(crate) root: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Guests {
    pub(crate) guests: Vec<GuestStatus>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Image {
    pub(crate) image: ImageStatus,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Exported {
    pub(crate) statement: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Moved {
    pub(crate) from: String,
    pub(crate) processes: i64,
    pub(crate) threads: i64,
    pub(crate) pause_us: i64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Restored {
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Reloaded {
    pub(crate) applied: Vec<String>,
    pub(crate) at_next_daemon: Vec<String>,
    pub(crate) problems: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Repaired {
    pub(crate) done: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ImageInspected {
    pub(crate) image: ImageInspection,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Images {
    pub(crate) images: Vec<ImageStatus>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Inspected {
    pub(crate) guest: Inspection,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Secured {
    pub(crate) security: Security,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Processes {
    pub(crate) processes: Vec<ProcessEntry>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Used {
    pub(crate) machine: MachineUse,
    pub(crate) guests: Vec<GuestUse>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Applied {
    pub(crate) applied: Vec<String>,
    pub(crate) at_next_start: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Happened {
    pub(crate) event: Event,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Progressed {
    #[serde(default)]
    pub(crate) progress: Option<Progress>,
    #[serde(default)]
    pub(crate) warnings: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StoreUsed {
    pub(crate) usage: StoreUsage,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Verified {
    pub(crate) verification: Verification,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Collected {
    pub(crate) collection: Collection,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Unified {
    #[serde(default)]
    pub(crate) progress: Option<Progress>,
    #[serde(default)]
    pub(crate) unification: Option<Unification>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pulled {
    #[serde(default)]
    pub(crate) progress: Option<Progress>,
    #[serde(default)]
    pub(crate) pulled: Option<PulledImage>,
    #[serde(default)]
    pub(crate) changed: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct PulledImages {
    pub(crate) pulled_images: Vec<PulledImage>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pruned {
    pub(crate) removed: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Noticed {
    pub(crate) notice: ProcessNotice,
}
