//! A guest's first process that was made before it is known which guest it is.

use crate::init::handoff::Handoff;
use crate::init::link::Link;
use pando_api::Profile;
use pando_guest::host_device::HostDevice;
use pando_guest::{device_list, devices, slot};
use pando_kernel::CallError;
use pando_kernel::cgroup::Field;
use pando_kernel::mount::Tree;
use pando_kernel::process::{held::HeldProcess, pidfd};
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
    /// Its process.
    pub(crate) first: HeldProcess,
    /// Where it takes the rest of its plan and tells how that went.
    pub(crate) report: OwnedFd,
    /// Its /dev, as long as nothing of its guest has run.
    pub(crate) dev: Tree,
    /// The descriptor of its mount namespace.
    pub(crate) mounts: Option<OwnedFd>,
}

impl PrewarmedInit {
    /// The id that its root is on the host.
    pub(crate) fn root(&self) -> u32 {
        self.namespace.as_ref().map_or(0, |_| slot::first_id(self.slot))
    }

    /// Gives it devices of the host's, before anything of its guest runs. Blocking.
    pub(crate) fn give_devices(
        &self,
        profile: Profile,
        devices: &[HostDevice],
        field: &Field,
    ) -> Result<(), CallError> {
        let rules: Vec<_> = devices.iter().map(HostDevice::rule).collect();
        device_list::widen(profile, &rules, field, self.slot)?;
        devices::give(&self.dev, self.root(), devices)
    }

    /// Whether somebody has killed it.
    pub(crate) fn has_ended(&self) -> bool {
        self.first.has_ended() || pidfd::has_ended(&self.shim)
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

/// The mount namespace of a first process, if it still has one.
pub(crate) fn mounts(first: &HeldProcess) -> Option<OwnedFd> {
    first.namespace("mnt").ok()
}
