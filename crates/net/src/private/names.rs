//! What guests of a private network know by name: a hosts file and a resolver configuration, shown inside by mounts.
//!
//! The hosts file is one for all guests and changes in place as they come and go, so a guest that looks a name up sees
//! which are there now. It needs no process: a resolver of the daemon's would fall silent with it.

use super::lease::Lease;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// What stands in it for every guest.
const EVERYBODYS: [&str; 4] = ["localhost", "ip6-localhost", "ip6-loopback", "host.pando.internal"];

/// The text of a hosts file. A guest is known by its own name, and by the further ones that are nobody else's: those
/// are its own choice.
pub fn hosts<'a>(gateway: Ipv4Addr, leases: impl IntoIterator<Item = &'a Lease>) -> String {
    let mut text =
        format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{gateway} host.pando.internal\n");
    let leases: Vec<&Lease> = leases.into_iter().collect();
    let own = leases.iter().filter_map(|lease| lease.names.first()).map(|name| name.to_ascii_lowercase());
    let mut taken: BTreeSet<String> = own.chain(EVERYBODYS.map(str::to_owned)).collect();
    for lease in leases {
        let further = lease.names.iter().skip(1).filter(|name| taken.insert(name.to_ascii_lowercase()));
        let names: Vec<&str> = lease.names.iter().take(1).chain(further).map(String::as_str).collect();
        let names = names.join(" ");
        let _ = writeln!(text, "{} {names}", lease.four);
        if let Some(six) = lease.six {
            let _ = writeln!(text, "{six} {names}");
        }
    }
    text
}

/// The text of a resolver configuration. `host` is the host's own: its name servers are asked, but for those that are
/// the host's own loopback, which a guest cannot reach.
pub fn resolver(host: &str, servers: &[IpAddr]) -> String {
    let is_usable = |line: &&str| {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next().map(str::parse::<IpAddr>)) {
            (Some("nameserver"), Some(Ok(ip))) => servers.is_empty() && !ip.is_loopback(),
            (Some("search" | "domain" | "options"), _) => true,
            _ => false,
        }
    };
    let given = servers.iter().map(|ip| format!("nameserver {ip}\n"));
    let taken = host.lines().filter(is_usable).map(|line| format!("{line}\n"));
    let text: String = given.chain(taken).collect();
    if text.contains("nameserver") {
        return text;
    }
    format!("{text}# The host's name servers cannot be reached from here; --dns IP names others.\n")
}

/// Changes a file in place, since what is mounted is the file and not its name. A program that reads meanwhile sees
/// whole lines: a shorter text is filled up with empty ones before the rest is cut off.
///
/// # Errors
///
/// The file system's.
pub fn rewrite(path: &Path, text: &str) -> io::Result<()> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o644).open(path)?;
    let mut bytes = text.as_bytes().to_vec();
    let before = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    bytes.resize(bytes.len().max(before), b'\n');
    file.write_all_at(&bytes, 0)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::Connection;

    fn lease(names: &[&str]) -> Lease {
        Lease {
            number: 1,
            names: names.iter().map(ToString::to_string).collect(),
            connection: Connection::Veth,
            four: "10.1.0.2".parse().unwrap(),
            six: Some("fd00::2".parse().unwrap()),
            knows: Vec::new(),
            published: Vec::new(),
            class: 0,
            held: false,
        }
    }

    #[test]
    fn every_guest_has_a_line_of_each_family() {
        let text = hosts("10.1.0.1".parse().unwrap(), [&lease(&["web", "www"])]);
        assert!(text.contains("\n10.1.0.2 web www\nfd00::2 web www\n"), "{text}");
    }

    #[test]
    fn a_name_is_one_guests() {
        let leases = [&["web", "DB", "www"][..], &["other", "www", "Localhost"], &["db"]].map(lease);
        let text = hosts("10.1.0.1".parse().unwrap(), &leases);
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("10.1.0.2 ")).collect();
        assert_eq!(lines, ["web www", "other", "db"]);
    }

    #[test]
    fn servers_that_cannot_be_reached_are_left_out() {
        let host = "# x\nnameserver 127.0.0.53\nnameserver 9.9.9.9\nsearch example.org\n";
        assert_eq!(resolver(host, &[]), "nameserver 9.9.9.9\nsearch example.org\n");
        assert_eq!(resolver(host, &["10.0.0.1".parse().unwrap()]), "nameserver 10.0.0.1\nsearch example.org\n");
        assert!(resolver("nameserver ::1\n", &[]).contains("--dns"));
    }

    #[test]
    fn a_file_is_changed_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        rewrite(&path, "one\ntwo\nthree\n").unwrap();
        let open = File::open(&path).unwrap();
        rewrite(&path, "four\n").unwrap();
        assert_eq!(io::read_to_string(open).unwrap(), "four\n");
    }
}
