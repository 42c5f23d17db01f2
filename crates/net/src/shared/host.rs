//! Host mode: servers of the host's that listen on ANY leave guests the same ports on theirs (`bpf/host.h`).

use super::error::{Named, SharedError};
use super::pins::Pins;
use super::{Stack, programs};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use pando_kernel::{Context, bpf, socket};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// What the names of its links begin with.
const LINK: &str = "host-";

/// The name of the link that makes servers of what binds ANY: without it those that are servers stay what they are.
fn link_name(program: &str) -> String {
    format!("{LINK}{program}")
}

fn binds(program: &str) -> bool {
    program.starts_with("pando_h_bind")
}

/// Whether servers that bind ANY from now on leave guests their port.
pub fn is_on(pins: &Pins) -> bool {
    pins.exist() && pins.links().iter().filter(|link| is_of_binding(link)).count() == 2
}

fn is_of_binding(link: &str) -> bool {
    link.strip_prefix(LINK).is_some_and(binds)
}

impl Stack {
    /// Turns host mode on for the processes of a control group of version 2, as far as they are in this network
    /// namespace. Sockets that are bound already stay what they are. It holds until it is turned off, whatever becomes
    /// of this process.
    ///
    /// # Errors
    ///
    /// The kernel's. What binds is attached last, so nothing waits where it cannot be found.
    pub fn turn_host_on(&self, cgroup: &Path) -> Result<(), SharedError> {
        let group = File::open(cgroup).context(|| format!("opening {}", cgroup.display()))?;
        self.home(cookie()?)?;
        let links = self.pins.links();
        for (program, hook) in programs::OF_HOST {
            if links.contains(&link_name(program)) {
                continue;
            }
            let opened = self.pins.open_program(program)?;
            let link = bpf::link_to_cgroup(opened.as_fd(), group.as_fd(), hook)
                .context(|| format!("attaching {hook:?} to {}", cgroup.display()))?;
            self.pins.keep(link.as_fd(), &self.pins.link(&link_name(program)))?;
        }
        Ok(())
    }

    /// Turns it off: a server that binds ANY from now on holds the port everywhere. Servers that are there already are
    /// found as before, until they end.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn turn_host_off(&self) -> Result<(), SharedError> {
        for link in self.pins.links().iter().filter(|link| is_of_binding(link)) {
            let path = self.pins.link(link);
            std::fs::remove_file(&path).context(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }

    /// Whether the programs serve the host, even where no guest needs them.
    pub fn serves_host(&self) -> bool {
        let has_doors =
            || MapHandle::from_pinned_path(self.pins.map("doors")).is_ok_and(|doors| doors.keys().next().is_some());
        is_on(&self.pins) || has_doors()
    }

    fn home(&self, cookie: u64) -> Result<(), SharedError> {
        let home = MapHandle::from_pinned_path(self.pins.map("home")).named(|| "opening map home".into())?;
        let written = home.update(&0_u32.to_ne_bytes(), &cookie.to_ne_bytes(), MapFlags::ANY);
        written.named(|| "telling the programs which network is the host's".into())
    }
}

/// The number of this thread's network namespace as the programs know it (SO_NETNS_COOKIE, Linux 5.14).
fn cookie() -> Result<u64, SharedError> {
    const SOL_SOCKET: i32 = 1;
    const SO_NETNS_COOKIE: i32 = 71;
    let what = || "asking for the number of the network namespace".to_owned();
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).context(what)?;
    Ok(socket::option::wide_number(&socket, SOL_SOCKET, SO_NETNS_COOKIE).context(what)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_binds_is_told_from_what_finds() {
        let binding: Vec<_> = programs::OF_HOST.iter().filter(|(program, _)| binds(program)).collect();
        assert_eq!(binding.len(), 2);
        assert!(binding.iter().all(|(program, _)| is_of_binding(&link_name(program))));
        assert!(!is_of_binding("lookup") && !is_of_binding("host-pando_h_listen") && !is_of_binding("steer-2"));
        assert!(programs::OF_HOST.iter().rev().take(2).all(|(program, _)| binds(program)), "they are attached last");
    }

    #[test]
    fn every_network_namespace_has_a_number() {
        assert_ne!(cookie().unwrap(), 0);
    }
}
