//! Networks of guests: addresses of their own on the host's stack, at the host's speed.
//!
//! This crate knows no guests, only cgroups, numbers and devices. A *cgroup's* processes own addresses: they bind them,
//! send from them and receive on them, and on no others. The programs that see to it lie in `bpf/`, one hook a file;
//! once they are attached nothing depends on this process.
//!
//! ```text
//!   process of the group                                             packet from a device, or from lo
//!     │ socket  bind  connect  sendmsg                                 │
//!     ▼                                                                ▼
//!   create  bind  connect  send      own address? ANY ▷ anchor       steer     whose address? ▷ that guest's socket,
//!     │                               127.0.0.1 ▷ 127.x.y.1            │                        there or at its anchor
//!     ▼                                                                ▼
//!   the host's stack, unchanged ─────────────────────────────────▶  lookup    nobody's ▷ never the host's ANY
//!     │ getsockname  getpeername  recvmsg
//!     ▼
//!   show                               127.x.y.1 ▷ 127.0.0.1
//! ```
//!
//! [`private`] gives a network *namespace* a place on a network of its own: a bridge, translation of addresses,
//! published ports, names. [`bandwidth`] grants a group its part of a device. [`withhold`] keeps packets of a
//! connection back whose owner is away.
//!
//! [`offers`] tries what of this the machine has, and [`any_sockets`] finds the servers of the host that stand in the
//! way.
//!
//! [`shared`] loads, attaches and feeds them; [`placement`] plans on which device an address lies; [`device`] does
//! that.

pub mod any_sockets;
pub mod bandwidth;
pub mod device;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod netlink;
pub mod offers;
pub mod placement;
pub mod private;
pub mod shared;
mod sockets;
pub mod withhold;

pub use placement::Network;
