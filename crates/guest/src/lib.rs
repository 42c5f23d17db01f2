//! A guest from its spec.
//!
//! Data flows one way: a [`Spec`](pando_api::Spec), what the user said, becomes a [`Plan`](plan::Plan), every step
//! resolved and checked, plain data that needs no privilege; the plan and the file descriptors it wants go to a
//! [shim](pando_shim), which takes the steps.
//!
//! ```text
//!   Spec ──plan──▶ Plan (steps + wants) ──launch──▶ shim ──▶ init, the guest's first process
//!                         ▲                  ▲
//!            policy (capabilities,     root (layers ▷ overlay), devices, volumes: detached trees, undone by drop
//!            seccomp, masks, limits)
//!
//!   spawner: a small process that makes shims, each in its slot: cgroups, range of ids, namespaces
//! ```

#![forbid(unsafe_code)]

pub mod account;
pub mod device_list;
pub mod devices;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod given_device;
pub mod host_device;
pub mod launch;
pub mod mask;
pub mod name;
mod own_disk;
pub mod places;
pub mod plan;
pub mod policy;
pub mod root;
pub mod settings;
pub mod shim;
pub mod slot;
pub mod source;
mod spare;
pub mod spawner;
mod sub_ids;
pub mod volume;

pub use name::{GuestName, NameError};
pub use places::Places;
