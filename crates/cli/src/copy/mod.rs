//! `pando cp`: tar streams between the host and a guest.
//!
//! ```text
//!   host ──pack──▶ pipe ──Copy in──▶ guest's side: unpack      (owners kept or root's)
//!   host ◀─unpack── pipe ◀──Copy out── guest's side: pack      (hostile: reader ─▶ landing ─▶ openat2 beneath it)
//! ```
//!
//! What comes out of a guest was written by the guest's root. A process without powers reads it, and nothing in it is
//! believed: names are resolved by the kernel below the destination and through no symbolic link, extension headers are
//! bounded, devices are left out, setuid and setgid bits, owners, capabilities and access control lists are dropped.

mod attributes;
mod landing;
mod pack;
mod place;
mod unpack;

pub(crate) use landing::Landing;
pub(crate) use pack::{Owners, pack};
pub(crate) use place::Place;
pub(crate) use unpack::{unpack_foreign, unpack_own};
