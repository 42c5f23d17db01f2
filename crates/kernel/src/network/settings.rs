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

/// The settings of a network namespace. Needs CAP_SYS_ADMIN over it.
///
/// # Errors
///
/// EPERM without that capability.
pub fn of(namespace: BorrowedFd<'_>) -> io::Result<NetworkSettings> {
    inside_network(namespace, || Ok(read()))
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
        Ok(read())
    };
    std::thread::scope(|scope| scope.spawn(enter).join()).map_err(|_| io::Error::other("a thread failed"))?
}

fn read() -> NetworkSettings {
    let mut found = NetworkSettings::new();
    walk(Path::new(NETWORK_SETTINGS), &mut found);
    found
}

/// What is set of single devices goes with them, but for the loopback device, which every namespace has.
fn walk(directory: &Path, found: &mut NetworkSettings) {
    const EACH: [&str; 2] = ["conf", "neigh"];
    const KEPT: [&str; 3] = ["all", "default", "lo"];
    let by_device = directory.file_name().is_some_and(|name| EACH.iter().any(|each| name == *each));
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, Ok(about)) = (entry.path(), entry.metadata()) else { continue };
        if about.is_dir() {
            if !by_device || KEPT.iter().any(|kept| entry.file_name() == *kept) {
                walk(&path, found);
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
    fn a_new_namespace_has_settings_of_its_own() {
        let Ok(settings) = of_a_new_one() else { return eprintln!("skipped: no network namespace can be made") };
        assert!(settings.contains_key("/proc/sys/net/ipv4/ip_forward"), "{:?}", settings.keys().next());
        let devices = settings.keys().filter_map(|path| path.split("/conf/").nth(1)?.split('/').next());
        assert!(devices.into_iter().all(|device| ["all", "default", "lo"].contains(&device)));
    }
}
