//! What the last check of stopped processes found: the capture begins with it.

use crate::bpf::task_iterator::TaskIterator;
use crate::bpf::task_records::TaskRecords;
use crate::capture::ahead::Ahead;
use crate::capture::control_groups;
use crate::capture::in_flight::Flight;
use crate::capture::inotify::Searched;
use crate::capture::ipc::Ipc;
use crate::capture::nested::Nested;
use crate::image::{Area, NetDevice};
use crate::inspect::descriptors::Found;
use crate::refusal::Refusal;
use std::collections::{HashMap, HashSet};

/// What a look at processes finds.
pub(crate) struct Findings {
    /// What stands in the way.
    pub(crate) refusals: Vec<Refusal>,
    /// The memory of each process, by its pid here.
    pub(crate) areas: HashMap<i32, Vec<Area>>,
    /// What each has open.
    pub(crate) descriptors: HashMap<i32, Vec<Found>>,
    /// What was told of each, where anything was.
    pub(crate) told: HashMap<i32, TaskRecords>,
    /// What waits in their unix sockets, and what that is.
    pub(crate) flight: (Flight, Vec<Vec<Found>>),
    /// The namespaces that they are in, or have open.
    pub(crate) nested: Nested,
    /// Their control groups, where an init makes any.
    pub(crate) groups: Option<control_groups::Tree>,
}

/// What was found out, or made ready, before anybody was stopped.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) searched: &'a Searched,
    pub(crate) ipc: &'a Ipc,
    pub(crate) ahead: &'a Ahead,
    pub(crate) task_iterator: Option<&'a TaskIterator>,
    /// What is set of the guest's own network.
    pub(crate) net_settings: &'a [(String, String)],
    /// What was chosen of its device.
    pub(crate) net_device: Option<&'a NetDevice>,
    /// The processes that were there before the first look.
    pub(crate) looked_at: &'a HashSet<i32>,
}
