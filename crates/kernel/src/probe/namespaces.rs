//! Namespaces, each by making a child in it.

use super::child::Child;
use super::{Area, Finding, Verdict};
use crate::cgroup::Hierarchies;
use crate::namespace::id_map;
use std::io;
use std::os::fd::OwnedFd;

const AREA: Area = Area("namespaces");

/// The first host id of the range that guests' ids are mapped to (the one that systemd sets aside for container
/// managers).
pub(super) const FIRST_ID: u32 = 0x0008_0000;

pub(super) fn find() -> Vec<Finding> {
    let new = |flags| Child::new(flags, None);
    // Where version 2 of control groups is mounted, guests see their part of it, or do not start.
    let version_2 = Hierarchies::detect().is_ok_and(|found| found.unified.is_some());
    let cgroup =
        AREA.wanted("cgroup namespace", "4.6", new(libc::CLONE_NEWCGROUP), "guests see the host's control groups");
    vec![
        AREA.needed("pid namespace", "2.6.24", new(libc::CLONE_NEWPID), "guests cannot have processes of their own"),
        AREA.needed("mount namespace", "2.4.19", new(libc::CLONE_NEWNS), "guests cannot have files of their own"),
        AREA.needed("uts namespace", "2.6.19", new(libc::CLONE_NEWUTS), "guests cannot have a host name of their own"),
        AREA.needed("ipc namespace", "2.6.19", new(libc::CLONE_NEWIPC), "guests would share System V IPC and queues"),
        AREA.wanted("user namespace", "3.8", new(libc::CLONE_NEWUSER), "the default fails: guests need --userns host"),
        AREA.wanted("id map of 65,536 ids", "3.8", map(), "the default fails: guests need --userns host"),
        AREA.wanted("net namespace", "2.6.29", new(libc::CLONE_NEWNET), "the default fails: guests need --net host"),
        Finding { needed: version_2, ..cgroup },
        AREA.wanted("time namespace", "5.6", new(libc::CLONE_NEWTIME), "guests' clocks since boot are the host's"),
    ]
}

/// Whether a user namespace takes guests' ids. The kernel has maps since it has user namespaces, so any error is a
/// refusal.
fn map() -> Verdict {
    mapped().map_or_else(|error| Verdict::refused(&error), |_| Verdict::Granted)
}

/// A user namespace with guests' ids, and the child that it lives in.
pub(super) fn mapped() -> io::Result<(Child, OwnedFd)> {
    let child = Child::new(libc::CLONE_NEWUSER, None)?;
    id_map::write(child.pid, FIRST_ID).map_err(|error| error.source)?;
    let namespace = id_map::open(child.pid).map_err(|error| error.source)?;
    Ok((child, namespace))
}
