//! Connections whose owner is away for a while: packets to it are dropped, so that the host does not answer them by a
//! reset. The other end sends them again until the owner is back, or for as long as it likes.
//!
//! Like all of this crate's it lies in the kernel, by names in a BPF file system, and does not depend on this process.

use crate::device;
use crate::shared::{Named, Pins, SharedError};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use pando_kernel::Context;
use pando_kernel::bpf::{self, Hook};
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// As compiled by the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/withhold.bpf.o"));

const PROGRAM: &str = "pando_withhold";
const MAP: &str = "withheld";

/// The two ends of a connection: the owner's, then the other's.
pub type Ends = (SocketAddr, SocketAddr);

/// The connections of this process's network namespace that are withheld.
#[derive(Debug)]
pub struct Withholding {
    pins: Pins,
}

impl Withholding {
    /// Those whose names lie in `pins`, if there are any.
    pub fn at(pins: Pins) -> Self {
        Self { pins }
    }

    /// Withholds what comes to the first end of these connections.
    ///
    /// # Errors
    ///
    /// The kernel lacks something (tcx, Linux 6.6), or this process the privilege. Nothing is withheld then that was
    /// not before.
    pub fn add(&self, connections: &[Ends]) -> Result<(), SharedError> {
        if connections.is_empty() {
            return Ok(());
        }
        let _alone = self.pins.lock()?;
        let added = self.load().and_then(|()| {
            let map = self.map()?;
            connections.iter().try_for_each(|ends| {
                map.update(&key(*ends), &[1], MapFlags::ANY).named(|| format!("withholding what comes from {}", ends.1))
            })
        });
        if added.is_err() {
            let _ = self.forget(connections);
        }
        added
    }

    /// Lets what comes to them through again. When nothing is withheld any more, nothing is left.
    ///
    /// # Errors
    ///
    /// The kernel's. One that is not withheld is no error.
    pub fn release(&self, connections: &[Ends]) -> Result<(), SharedError> {
        if connections.is_empty() || !self.pins.hold(PROGRAM) {
            return Ok(());
        }
        let _alone = self.pins.lock()?;
        self.forget(connections)
    }

    /// Lets everything through but what comes to these, whatever of it a process that was killed had made.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn keep_only(&self, connections: &[Ends]) -> Result<(), SharedError> {
        if !self.pins.have_a_place() {
            return Ok(());
        }
        let _alone = self.pins.lock()?;
        if !self.pins.hold(PROGRAM) {
            return self.pins.remove();
        }
        let kept: HashSet<_> = connections.iter().map(|ends| key(*ends)).collect();
        let map = self.map()?;
        self.remove(&map, map.keys().filter(|key| !kept.contains(key)).collect())
    }

    fn forget(&self, connections: &[Ends]) -> Result<(), SharedError> {
        self.remove(&self.map()?, connections.iter().map(|ends| key(*ends)).collect())
    }

    fn remove(&self, map: &MapHandle, keys: Vec<Vec<u8>>) -> Result<(), SharedError> {
        for key in keys {
            // It need not be there.
            let _ = map.delete(&key);
        }
        if map.keys().next().is_none() { self.pins.remove() } else { Ok(()) }
    }

    /// Whether what comes to a connection is withheld.
    pub fn holds(&self, ends: Ends) -> bool {
        let found = self.map().ok().and_then(|map| map.lookup(&key(ends), MapFlags::ANY).ok().flatten());
        found.is_some()
    }

    fn map(&self) -> Result<MapHandle, SharedError> {
        MapHandle::from_pinned_path(self.pins.map(MAP)).named(|| format!("opening map {MAP}"))
    }

    /// Loads the program where that has not been done, and covers every device.
    fn load(&self) -> Result<(), SharedError> {
        if !self.pins.hold(PROGRAM) {
            self.pins.mount()?;
            let open = ObjectBuilder::default().open_memory(OBJECT);
            let object = open.and_then(|open| open.load()).named(|| "loading what withholds packets".into())?;
            for map in object.maps() {
                self.pins.keep(map.as_fd(), &self.pins.map(&map.name().to_string_lossy()))?;
            }
            for program in object.progs() {
                self.pins.keep(program.as_fd(), &self.pins.program(&program.name().to_string_lossy()))?;
            }
        }
        let (program, covered) = (self.pins.open_program(PROGRAM)?, self.pins.links());
        for index in device::indexes()? {
            let name = format!("withhold-{index}");
            if !covered.contains(&name) {
                let link = bpf::link_to_device(program.as_fd(), index, Hook::TcxIngress);
                let link = link.context(|| format!("withholding packets that come in by device {index}"))?;
                self.pins.keep(link.as_fd(), &self.pins.link(&name))?;
            }
        }
        Ok(())
    }
}

/// A connection, as the program knows it.
fn key((owner, other): Ends) -> Vec<u8> {
    let address = |end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let mut bytes = address(owner).to_vec();
    bytes.extend(address(other));
    bytes.extend(owner.port().to_be_bytes());
    bytes.extend(other.port().to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_the_same_by_either_family() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        let plain = key((end("10.9.0.5:80"), end("10.9.0.6:4000")));
        assert_eq!(plain, key((end("[::ffff:10.9.0.5]:80"), end("[::ffff:10.9.0.6]:4000"))));
        assert_eq!(plain.len(), 36);
        assert_eq!(plain[8..16], [0, 0, 0xff, 0xff, 10, 9, 0, 5]);
        assert_eq!(plain[32..], [0, 80, 15, 160]);
        assert_ne!(plain, key((end("10.9.0.6:4000"), end("10.9.0.5:80"))));
    }
}
