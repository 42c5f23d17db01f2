//! The steering program on every device.

use super::error::SharedError;
use super::pins::Pins;
use crate::device::Devices;
use pando_kernel::Context;
use pando_kernel::bpf::{self, Hook};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// Attaches it to those that have none, and forgets the links of those that are gone.
pub(super) fn cover(pins: &Pins, program: BorrowedFd<'_>, devices: &Devices) -> Result<(), SharedError> {
    let devices: Vec<u32> = devices.all().iter().map(|device| device.index).collect();
    let covered = pins.links();
    for index in &devices {
        let name = link_name(*index);
        if covered.contains(&name) {
            continue;
        }
        let link = match bpf::link_to_device(program, *index, Hook::TcxIngress) {
            // It has gone since it was looked at, as those of other guests do at any time.
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => continue,
            link => link.context(|| format!("steering packets that come in by device {index}"))?,
        };
        pins.keep(link.as_fd(), &pins.link(&name))?;
    }
    for name in covered.iter().filter(|name| is_of_none(name, &devices)) {
        // An index may be used again, by a device that then would seem covered.
        let _ = std::fs::remove_file(pins.link(name));
    }
    Ok(())
}

fn link_name(device: u32) -> String {
    format!("steer-{device}")
}

fn is_of_none(name: &str, devices: &[u32]) -> bool {
    let device = name.strip_prefix("steer-").and_then(|number| number.parse().ok());
    device.is_some_and(|device| !devices.contains(&device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_devices_that_are_gone_are_told_from_others() {
        assert!(is_of_none(&link_name(7), &[1, 2]));
        assert!(!is_of_none(&link_name(2), &[1, 2]));
        assert!(!is_of_none("lookup", &[]));
    }
}
