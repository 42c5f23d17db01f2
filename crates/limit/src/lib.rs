//! Guarantees and limits on plain control groups, of version 1 and 2.
//!
//! This crate knows groups, files and numbers; it does not matter here which processes are in a group. What is granted
//! is one plain structure, [`Limits`]; what it means on this machine is a plan, a list of files and words; making it is
//! writing them.
//!
//! ```text
//!   texts ──▶ Limits ──Machine──▶ refused, warned or borne ──Site──▶ settings ──apply──▶ groups
//!             (limits)  (machine)                                    (setting)           │
//!                │                                                                       ▼
//!                └──Claim──▶ Governor: who is busy, whose weight changes ◀──used ns── meter, usage
//!                            (entitlement, governor)
//! ```
//!
//! What a group may have and has is also shown to those within it, in the words of /proc ([`view`]).
//!
//! Version 1 and 2 are told apart controller by controller ([`Groups`]), since a host may have both.

#![forbid(unsafe_code)]

pub mod admission;
pub mod apply;
pub mod block_device;
pub mod ceilings;
mod deficit;
pub mod disk;
pub mod entitlement;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod governor;
pub mod groups;
pub mod idleness;
pub mod learned;
pub mod limits;
pub mod machine;
pub mod meter;
pub mod oom;
pub mod open_files;
pub mod page_sharing;
pub mod process_bound;
pub mod quantity;
pub mod quota;
pub mod reclaim;
mod refusal;
pub mod ring;
pub mod setting;
pub mod slice_latency;
pub mod socket_bound;
mod throttle;
pub mod usage;
pub mod view;
pub mod waiting;
pub mod watchdog;

pub use groups::{Controller, Groups};
pub use limits::Limits;
pub use machine::{Machine, Promised};
pub use refusal::Refusal;
