//! What is set of a network namespace below /proc/sys/net (sysctl(8)). A thread sees there what its own namespace has.

use crate::namespace::inside_network;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The directory below which the kernel keeps a network namespace's settings.
pub const NETWORK_SETTINGS: &str = "/proc/sys/net";

/// The path of each setting that can be written, and what it is.
pub type NetworkSettings = BTreeMap<String, String>;

/// The settings of a network namespace, and those of one of its devices. Needs CAP_SYS_ADMIN over it.
///
/// # Errors
///
/// EPERM without that capability.
pub fn of(namespace: BorrowedFd<'_>, device: Option<&str>) -> io::Result<NetworkSettings> {
    inside_network(namespace, || Ok(read(device)))
}

/// The settings of a network namespace that is made for that, and has nothing set. Needs CAP_SYS_ADMIN.
///
/// # Errors
///
/// EPERM without that capability; ENOSPC where there are as many network namespaces as there may be.
pub fn of_a_new_one() -> io::Result<NetworkSettings> {
    let enter = || {
        // SAFETY: it changes which network this thread sees, which ends after it has read.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(read(None))
    };
    std::thread::scope(|scope| scope.spawn(enter).join()).map_err(|_| io::Error::other("a thread failed"))?
}

fn read(device: Option<&str>) -> NetworkSettings {
    let mut found = NetworkSettings::new();
    walk(Path::new(NETWORK_SETTINGS), device, &mut found);
    found
}

/// The setting of a new namespace that is what a device's is until somebody sets that; none where it is no setting of
/// the device. Of neighbours a new namespace has those of its loopback device alone.
pub fn default_of(path: &str, device: &str) -> Option<String> {
    const USUAL: [(&str, &str); 2] = [(EACH[0], "default"), (EACH[1], "lo")];
    USUAL.into_iter().find_map(|(each, usual)| {
        let (before, after) = path.split_once(&format!("/{each}/{device}/"))?;
        Some(format!("{before}/{each}/{usual}/{after}"))
    })
}

/// The directories that have a directory for each device.
const EACH: [&str; 2] = ["conf", "neigh"];

/// What is set of single devices goes with them, but for the loopback device, which every namespace has, and one that
/// is asked for.
fn walk(directory: &Path, device: Option<&str>, found: &mut NetworkSettings) {
    const KEPT: [&str; 3] = ["all", "default", "lo"];
    let by_device = directory.file_name().is_some_and(|name| EACH.iter().any(|each| name == *each));
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, Ok(about)) = (entry.path(), entry.metadata()) else { continue };
        if about.is_dir() {
            let name = entry.file_name();
            if !by_device || KEPT.into_iter().chain(device).any(|kept| name == *kept) {
                walk(&path, device, found);
            }
        } else if about.permissions().mode() & 0o644 == 0o644 {
            // Secrets are drawn for each namespace; a process that may only read them may not be told of them.
            let mut text = String::new();
            let read = File::open(&path).and_then(|file| file.take(4096).read_to_string(&mut text));
            if read.is_ok() {
                found.insert(path.to_string_lossy().into_owned(), text.trim_end().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_of_a_device_has_a_default() {
        let of = |path| default_of(path, "eth0");
        assert_eq!(of("/proc/sys/net/ipv4/conf/eth0/rp_filter").unwrap(), "/proc/sys/net/ipv4/conf/default/rp_filter");
        assert_eq!(of("/proc/sys/net/ipv6/neigh/eth0/delay").unwrap(), "/proc/sys/net/ipv6/neigh/lo/delay");
        assert_eq!(of("/proc/sys/net/ipv4/conf/lo/rp_filter"), None);
        assert_eq!(of("/proc/sys/net/ipv4/ip_forward"), None);
    }

    #[test]
    fn a_new_namespace_has_settings_of_its_own() {
        let Ok(settings) = of_a_new_one() else { return eprintln!("skipped: no network namespace can be made") };
        assert!(settings.contains_key("/proc/sys/net/ipv4/ip_forward"), "{:?}", settings.keys().next());
        let devices = settings.keys().filter_map(|path| path.split("/conf/").nth(1)?.split('/').next());
        assert!(devices.into_iter().all(|device| ["all", "default", "lo"].contains(&device)));
    }
}
