//! The view: the live system as the processes of a transaction see it, with their own changes.
//!
//! ```text
//!   mounts ─▶ plan (plain data) ─▶ overlays over "/" and every other writable mount  ─▶ this thread's mount namespace
//!                                  virtual and read-only mounts, live sockets: bound
//! ```

mod in_reach;
mod make;
mod memory;
mod plan;
mod sockets;
mod target;

pub(crate) use make::{View, ViewNamespaces, enter_root, join};
pub use plan::{How, ViewPlan};
pub(crate) use sockets::listening;
