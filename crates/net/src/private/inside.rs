//! Inside a guest's namespace: its device gets addresses and routes.

use super::lease::Lease;
use super::link::{GUEST_DEVICE, set_up};
use crate::device;
use crate::placement::Network;
use pando_kernel::{CallError, Context};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

/// Where a guest is on its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The guest's own addresses on it.
    pub own: Vec<Network>,
    /// The routers by which it reaches everything else.
    pub gateways: Vec<IpAddr>,
}

impl Place {
    pub(super) fn behind(lease: &Lease, lengths: (u8, u8), gateway: (Ipv4Addr, Option<Ipv6Addr>)) -> Self {
        let four = Network { ip: lease.four.into(), prefix: lengths.0 };
        let six = lease.six.map(|six| Network { ip: six.into(), prefix: lengths.1 });
        let gateways = std::iter::once(IpAddr::from(gateway.0)).chain(gateway.1.map(IpAddr::from)).collect();
        Self { own: std::iter::once(four).chain(six).collect(), gateways }
    }
}

pub(super) fn settle(namespace: BorrowedFd<'_>, place: &Place) -> Result<(), CallError> {
    within(namespace, || {
        let index = device::named(GUEST_DEVICE)?;
        for own in &place.own {
            device::assign(index, own.ip, own.prefix)?;
        }
        set_up(index)?;
        place.gateways.iter().try_for_each(|gateway| device::route_by(index, *gateway))
    })?
}

/// Does something in another network namespace: on a thread of its own, which ends there.
pub(crate) fn within<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T, CallError> {
    let enter_and_work = || -> io::Result<T> {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    let outcome = std::thread::scope(|scope| scope.spawn(enter_and_work).join());
    let outcome = outcome.unwrap_or_else(|_| Err(io::Error::other("the thread that was to do it has died")));
    outcome.context(|| "entering a guest's network namespace".into())
}
