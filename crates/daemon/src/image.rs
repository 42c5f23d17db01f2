//! Frozen images, as the daemon holds them.

use crate::ready_roots::{Ancestor, RootKind};
use pando_api::{ImageStatus, Spec};
use pando_freeze::Frozen;
use pando_guest::policy::profile;
use std::sync::Arc;

/// A frozen guest. Others threads make clones of it.
#[derive(Debug)]
pub(crate) struct HeldImage {
    pub(crate) name: String,
    /// The guest that was frozen.
    pub(crate) guest: String,
    /// What its user said of that.
    pub(crate) spec: Spec,
    /// The read-only trees that clones stand on, uppermost first: the frozen guest's own files, then what that stood on.
    pub(crate) layers: Vec<String>,
    pub(crate) frozen: Frozen,
    /// The pid of the frozen guest's command, if it ran one.
    pub(crate) command: Option<i32>,
    /// Seconds since the epoch.
    pub(crate) created: i64,
}

impl HeldImage {
    /// What its clones are said to be: as the frozen guest was, but for what was that guest's alone: host name, addresses, ports.
    pub(crate) fn spec_of_clones(&self) -> Spec {
        Spec { hostname: None, addresses: Vec::new(), publish: Vec::new(), ..self.spec.clone() }
    }

    /// The root file systems of its clones.
    pub(crate) fn roots(&self) -> RootKind {
        let ancestor = Ancestor {
            image: self.name.clone(),
            created: self.created,
            spec: profile::completed(&self.spec_of_clones()),
            command: self.command,
        };
        RootKind::of_clones(&self.layers, ancestor)
    }

    /// Its line in a listing.
    pub(crate) fn status(self: &Arc<Self>) -> ImageStatus {
        let processes = &self.frozen.image.processes;
        let own = |pages: &[(u64, u64)]| pages.iter().map(|(_, length)| length).sum::<u64>();
        let bytes: u64 = processes.iter().flat_map(|process| &process.areas).map(|area| own(&area.pages)).sum();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        ImageStatus {
            name: self.name.clone(),
            guest: self.guest.clone(),
            created: self.created,
            processes: number(processes.len()),
            threads: number(processes.iter().map(|process| process.threads.len()).sum()),
            memory_kib: i64::try_from(bytes / 1024).unwrap_or(i64::MAX),
            pause_us: i64::try_from(self.frozen.pause.as_micros()).unwrap_or(i64::MAX),
        }
    }
}
