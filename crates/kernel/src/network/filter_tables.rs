//! The tables of the packet filter (nftables): which there are, and word of one that goes.

use crate::network::netlink_dump::{self, attributes, kinds};
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{RecvFlags, recv};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// `NFNL_SUBSYS_NFTABLES << 8`, with `NFT_MSG_GETTABLE` and `NFT_MSG_DELTABLE` (linux/netfilter/nf_tables.h).
const GET: u16 = 0xa01;
const GONE: u16 = 0xa02;

/// `NFTA_TABLE_NAME`.
const NAME: u16 = 1;

/// The length of `struct nfgenmsg`.
const HEAD: usize = 4;

/// What packets a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Those of IPv4 and IPv6 (`NFPROTO_INET`).
    Inet,
    /// Those that come in by one device (`NFPROTO_NETDEV`).
    Netdev,
    /// Those on a bridge (`NFPROTO_BRIDGE`).
    Bridge,
}

/// The names of the tables of this thread's network namespace, of the families that [`Family`] knows.
///
/// # Errors
///
/// The kernel's; none where it has no nftables, and so no tables.
pub fn tables() -> io::Result<Vec<(Family, String)>> {
    let socket = netlink_dump::open(Some(NETFILTER))?;
    let mut all = Vec::new();
    match netlink_dump::ask(&socket, GET, &[0; HEAD], |body| all.extend(table(body))) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(Vec::new()),
        asked => asked.map(|()| all),
    }
}

fn table(body: &[u8]) -> Option<(Family, String)> {
    let family = match i32::from(*body.first()?) {
        libc::NFPROTO_INET => Family::Inet,
        libc::NFPROTO_NETDEV => Family::Netdev,
        libc::NFPROTO_BRIDGE => Family::Bridge,
        _ => return None,
    };
    let (_, name) = attributes(body, HEAD).find(|(number, _)| *number == NAME)?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some((family, String::from_utf8_lossy(name).into_owned()))
}

/// What hears of tables that go, whoever removes them. It can be read when there is something to hear.
#[derive(Debug)]
pub struct Departures(OwnedFd);

impl Departures {
    /// Hears from now on what happens in this thread's network namespace.
    ///
    /// # Errors
    ///
    /// EPROTONOSUPPORT where the kernel has no packet filter.
    pub fn hear() -> io::Result<Self> {
        /// A bit for `NFNLGRP_NFTABLES`.
        const GROUP: u32 = 1 << 6;
        let socket = netlink_dump::open(Some(NETFILTER))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
        Ok(Self(socket))
    }

    /// Whether a table has gone since it was last asked. More than the kernel keeps may have been one.
    ///
    /// # Errors
    ///
    /// The kernel's, from recv(2).
    pub fn heard(&self) -> io::Result<bool> {
        let mut buffer = vec![0_u8; 64 * 1024];
        let mut gone = false;
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) => gone |= kinds(&buffer[..count]).any(|kind| kind == GONE),
                Err(rustix::io::Errno::NOBUFS) => gone = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(gone),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Departures {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Departures {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_known_by_its_family_and_name() {
        let body = |family: i32, name: &[u8]| {
            let mut bytes = vec![family as u8, 0, 0, 0];
            bytes.extend((name.len() as u16 + 4).to_ne_bytes());
            bytes.extend(NAME.to_ne_bytes());
            bytes.extend(name);
            bytes
        };
        assert_eq!(table(&body(libc::NFPROTO_BRIDGE, b"pando_x\0")), Some((Family::Bridge, "pando_x".into())));
        assert_eq!(table(&body(libc::NFPROTO_ARP, b"x\0")), None);
        assert_eq!(table(&[1, 0]), None);
        assert_eq!(table(&[]), None);
    }
}
