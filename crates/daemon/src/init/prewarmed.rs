//! A guest's first process that was made before it is known which guest it is.

use crate::init::handoff::Handoff;
use crate::init::link::Link;
use pando_guest::slot;
use pando_kernel::mount::Tree;
use pando_kernel::process::pidfd;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A guest's first process that waits to learn which guest it is.
#[derive(Debug)]
pub(crate) struct PrewarmedInit {
    /// The slot that it stands in.
    pub(crate) slot: u32,
    /// The process of the shim that it grew from.
    pub(crate) shim: OwnedFd,
    /// The connection to its shim.
    pub(crate) link: Rc<Link>,
    /// Its user namespace, if it has one of its own.
    pub(crate) namespace: Option<OwnedFd>,
    /// Its pid on the host.
    pub(crate) pid: i32,
    /// The descriptor of its process.
    pub(crate) process: OwnedFd,
    /// Where it takes the rest of its plan and tells how that went.
    pub(crate) report: OwnedFd,
    /// The descriptor of its mount namespace.
    pub(crate) mounts: Option<OwnedFd>,
}

impl PrewarmedInit {
    /// The id that its root is on the host.
    pub(crate) fn root(&self) -> u32 {
        self.namespace.as_ref().map_or(0, |_| slot::first_id(self.slot))
    }

    /// Whether somebody has killed it.
    pub(crate) fn has_ended(&self) -> bool {
        pidfd::has_ended(&self.process) || pidfd::has_ended(&self.shim)
    }
}

/// What was made ahead for a start.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The first process that waits.
    pub(crate) init: PrewarmedInit,
    /// The root file system, over the guest's own files; `None` where it stands in it already: see [`stand_ahead`].
    pub(crate) tree: Option<Tree>,
    /// Where it waits to become the init of a frozen guest.
    pub(crate) handoff: Option<Handoff>,
}

/// The mount namespace of a process, if it still has one.
pub(crate) fn mounts(pid: i32) -> Option<OwnedFd> {
    std::fs::File::open(format!("/proc/{pid}/ns/mnt")).ok().map(OwnedFd::from)
}
