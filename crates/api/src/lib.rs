//! The interface between Pando's daemon and its clients, types only.
//!
//! The daemon speaks [varlink](https://varlink.org): JSON messages over a Unix socket, with file descriptors travelling
//! beside them. The interface is described once, in [`DESCRIPTION`] (`org.pando.Guests.varlink`), and any varlink
//! client can use it; the types here are the same interface for Rust, and a test holds the two against each other.
//!
//! ```text
//!   pando (cli) ──Method──▶ socket ──▶ daemon
//!               ◀─Reply / Fault──
//! ```
//!
//! [`Spec`] is what a user says of a guest. It travels on the socket, and is the same structure that lies on disk as
//! `spec.toml`.

mod address;
mod device;
mod fault;
mod guest;
mod health;
mod host_entry;
mod method;
mod network;
mod publication;
mod resource_request;
mod resources;
mod restart;
mod spec;
mod store;
mod tmpfs;

pub use address::{Address, AddressError};
pub use device::{Device, DeviceError};
pub use fault::{Fault, FaultKind};
pub use guest::{Event, GuestState, GuestStatus, ImageInspection, ImageStatus, Inspection, ProcessEntry, Security};
pub use health::{Health, HealthCheck, OnFailure, OnFailureError, Wellbeing};
pub use host_entry::{HostEntry, HostEntryError};
pub use method::{
    AddressChange, Copying, Method, MethodCall, PartOf, Process, ProcessNotice, Progress, Reply, TransactionOutcome,
};
pub use network::NamedNetwork;
pub use publication::{Protocol, Publication, PublicationError};
pub use resources::{GuestUse, HeldLimit, MachineUse, Reclaimed, Sample, WatchdogState, WatchdogStep};
pub use restart::{Boot, Restart, RestartError};
pub use spec::{
    Link, Network, Profile, Rlimit, SeccompProfile, Spec, SpecError, Volume, is_network_name, is_volume_name,
};
pub use store::{
    Collection, DamagedFile, GuestUnification, GuestUsage, NamedVolume, PulledImage, StoreDamage, StoreUsage,
    Unification, Verification, WrittenDirectory,
};

pub use resource_request::{Amount, CpuRequest, DiskRequest, IoRequest, MemoryRequest, NetRequest};
pub use tmpfs::{Tmpfs, TmpfsError};

/// The name of Pando's varlink interface.
pub const INTERFACE: &str = "org.pando.Guests";

/// The interface's description, as the daemon serves it to `org.varlink.service.GetInterfaceDescription`.
pub const DESCRIPTION: &str = include_str!("org.pando.Guests.varlink");
