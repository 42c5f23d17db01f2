//! Sockets of the host's that hold their port on every address: what `doctor` warns of, since no guest on the shared
//! network can bind such a port.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A port that is held on every address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The protocol, `tcp` or `udp`.
    pub protocol: &'static str,
    /// The number of the port.
    pub port: u16,
    /// The program that holds it, as far as this user may know.
    pub process: Option<String>,
}

/// The tables of sockets, and the state in which one of them waits for clients.
const TABLES: [(&str, &str, &str); 4] =
    [("tcp", "tcp", "0A"), ("tcp6", "tcp", "0A"), ("udp", "udp", "07"), ("udp6", "udp", "07")];

/// All of them in this process's network namespace.
pub fn holders() -> Vec<Holder> {
    let mut found = BTreeMap::new();
    for (table, protocol, state) in TABLES {
        let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        found.extend(
            text.lines().filter_map(|line| waiting(line, state)).map(|(port, inode)| (inode, (protocol, port))),
        );
    }
    let processes = if found.is_empty() { BTreeMap::new() } else { processes() };
    let holder = |(inode, (protocol, port)): (u64, (&'static str, u16))| Holder {
        protocol,
        port,
        process: processes.get(&inode).cloned(),
    };
    // One server often has a socket of each family.
    found.into_iter().map(holder).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Port and inode of a socket on ANY.
fn waiting(line: &str, state: &str) -> Option<(u16, u64)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    let (its_state, inode) = (words.nth(1)?, words.nth(5)?);
    let is_any = address.bytes().all(|digit| digit == b'0');
    (is_any && its_state == state).then_some((u16::from_str_radix(port, 16).ok()?, inode.parse().ok()?))
}

/// Whose socket an inode is, by the names of processes.
fn processes() -> BTreeMap<u64, String> {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut all = BTreeMap::new();
    for process in entries(Path::new("/proc")) {
        if !process.file_name().to_string_lossy().bytes().all(|digit| digit.is_ascii_digit()) {
            continue;
        }
        let name = pando_kernel::file::proc_file::text(process.path().join("comm")).unwrap_or_default();
        // A program chooses its own name: nothing of it drives a terminal.
        let name = name.trim().escape_debug().to_string();
        let links = entries(&process.path().join("fd")).filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let inodes = links.filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        all.extend(inodes.map(|inode: u64| (inode, name.clone())));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_any_are_told_from_others() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        let any = "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1234 1 0";
        let near = any.replace("00000000:0016", "0100007F:0016");
        let open = any.replace(" 0A ", " 01 ");
        assert_eq!(waiting(any, "0A"), Some((22, 1234)));
        for other in [head, &near, &open, ""] {
            assert_eq!(waiting(other, "0A"), None, "{other}");
        }
    }

    #[test]
    fn a_server_of_ones_own_is_found() {
        let server = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let port = server.local_addr().unwrap().port();
        assert!(holders().iter().any(|one| one.protocol == "tcp" && one.port == port && one.process.is_some()));
    }
}
