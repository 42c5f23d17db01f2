//! Files kept by content, so that a hundred guests cost the disk and the page cache of one (unification).
//!
//! A **layer** is a read-only tree. What an inode carries (names, mode, owner, times, extended attributes, hard links)
//! is the layer's own, in one erofs image; what a file contains is an **object**, kept once whatever number of files
//! and layers hold it. Objects are named by their content (its fs-verity digest), layers by their image: equal trees
//! are one layer.
//!
//! ```text
//!   tree ──scan──▶ metadata ─────────────────────────▶ image ─┐
//!            │ open files                                     ├─ staged ──barrier──▶ objects/ ──▶ images/ID: committed
//!            ╰────▶ workers: digest, new ones staged ─────────┘
//!
//!   guest's root = overlay( own files · image, mounted by erofs · objects as data-only layer )      back end "image"
//!                = overlay( own files · a tree of hard links )                                      back end "farm"
//! ```
//!
//! Writing to a shared file copies it up into the guest's own files: that is copy-on-write link breaking, done by the
//! kernel.
//!
//! The format of the repository, the writer and reader of images, digests, collection and the check are those of the
//! `composefs` crate. What it lacks stands here: an order of writing that survives a power cut ([`Store::import`]),
//! files taken over instead of copied, holes, hard-link farms, telling damage by guest and path ([`Store::verify`]),
//! repair, knowing unchanged files again without reading them, sharing blocks of files that are in use
//! ([`Survey::share_live`]), and having in memory what guests use before they are charged for it ([`Store::warm`]).
//!
//! A store knows no guests: the caller that collects or verifies says which layers are in use. Locks say which process
//! works with it; they end with their holder.

#![forbid(unsafe_code)]

mod assembly;
mod attributes;
mod checkpoint;
mod collect;
mod content;
mod crash;
mod deep_stack;
mod digest;
mod error;
mod farm;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod hot;
mod image;
mod import;
mod known;
mod layer;
mod live_sharing;
mod look;
mod mounts;
mod publish;
mod readers;
mod repair;
mod scan;
mod staging;
mod store;
mod survey;
mod usage;
mod verify;

#[cfg(test)]
mod tests;

pub use attributes::dress_like;
pub use collect::{Collected, Exclusive};
pub use error::{ImportError, StoreError};
pub use import::{Imported, Taking};
pub use layer::{LayerId, NotALayer};
pub use live_sharing::LivelyShared;
pub use mounts::{Backend, LayerMounts, Mounted};
pub use repair::Repaired;
pub use store::{Lease, Store};
pub use survey::{Survey, Worth};
pub use usage::{LayerUsage, Usage};
pub use verify::{Damage, Verified};
