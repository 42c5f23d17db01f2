//! The programs as built, and where each belongs.

use super::error::{Named, SharedError};
use super::pins::Pins;
use libbpf_rs::{MapCore, ObjectBuilder};
use pando_kernel::bpf::Hook;
use std::os::fd::AsFd;

/// As compiled by the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shared.bpf.o"));

/// The programs that a guest's cgroup gets.
pub(super) const OF_GUESTS: [(&str, Hook); 15] = [
    ("pando_create", Hook::CgroupInetSockCreate),
    ("pando_listen", Hook::CgroupSockOps),
    ("pando_ingress", Hook::CgroupInetIngress),
    ("pando_bind4", Hook::CgroupInet4Bind),
    ("pando_bind6", Hook::CgroupInet6Bind),
    ("pando_connect4", Hook::CgroupInet4Connect),
    ("pando_connect6", Hook::CgroupInet6Connect),
    ("pando_sendmsg4", Hook::CgroupUdp4Sendmsg),
    ("pando_sendmsg6", Hook::CgroupUdp6Sendmsg),
    ("pando_recvmsg4", Hook::CgroupUdp4Recvmsg),
    ("pando_recvmsg6", Hook::CgroupUdp6Recvmsg),
    ("pando_getpeername4", Hook::CgroupInet4Getpeername),
    ("pando_getpeername6", Hook::CgroupInet6Getpeername),
    ("pando_getsockname4", Hook::CgroupInet4Getsockname),
    ("pando_getsockname6", Hook::CgroupInet6Getsockname),
];

/// The programs that the host's own control groups get in host mode.
pub(super) const OF_HOST: [(&str, Hook); 7] = [
    ("pando_h_listen", Hook::CgroupSockOps),
    ("pando_h_connect4", Hook::CgroupInet4Connect),
    ("pando_h_connect6", Hook::CgroupInet6Connect),
    ("pando_h_name4", Hook::CgroupInet4Getsockname),
    ("pando_h_name6", Hook::CgroupInet6Getsockname),
    ("pando_h_bind4", Hook::CgroupInet4Bind),
    ("pando_h_bind6", Hook::CgroupInet6Bind),
];

/// The program for packets that come in by a device.
pub(super) const STEER: &str = "pando_steer";

/// The program for lookups of listeners in the network namespace.
pub(super) const LOOKUP: &str = "pando_lookup";

/// The maps that are written to from here.
pub(super) const MAPS: [&str; 7] = ["self", "guests", "owners4", "owners6", "known", "home", "doors"];

/// Loads all programs and pins them, and the maps.
pub(super) fn load(pins: &Pins) -> Result<(), SharedError> {
    let open =
        ObjectBuilder::default().open_memory(OBJECT).named(|| "reading the programs for shared networks".into())?;
    let object = open
        .load()
        .named(|| "loading the programs for shared networks ('pando doctor' shows what this kernel grants)".into())?;
    for map in object.maps().filter(|map| MAPS.iter().any(|known| map.name() == *known)) {
        pins.keep(map.as_fd(), &pins.map(&map.name().to_string_lossy()))?;
    }
    for program in object.progs() {
        pins.keep(program.as_fd(), &pins.program(&program.name().to_string_lossy()))?;
    }
    Ok(())
}
