//! Sockets of this machine that a transaction's process connects to: a server outside would do at once what it is asked, and not undo it.

use pando_kernel::foreign_memory;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, fstatfs, openat2};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The longest address: `struct sockaddr_un`.
const LONGEST: usize = 110;

/// Bytes of it before the path.
const FAMILY: usize = 2;

/// Servers that are told something, or asked for a name, and change nothing for anybody.
const LOGS: [&str; 7] = [
    "/dev/log",
    "/run/systemd/journal/dev-log",
    "/run/systemd/journal/socket",
    "/run/systemd/journal/stdout",
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
];

/// `__SO_ACCEPTCON`: somebody listens. The type of a datagram socket, which needs nobody to.
const LISTENING: u64 = 0x1_0000;
const DATAGRAM: u64 = 2;

/// A server outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocalSocket {
    /// One that only listens.
    Log(String),
    /// Any other.
    Server(String),
}

impl LocalSocket {
    /// The server behind an address in a process's memory; `None` for none, one of the transaction's own, and the address of another kind of socket.
    pub(super) fn at(pid: i32, address: u64, length: u64, listening: &BTreeSet<Vec<u8>>) -> Option<Self> {
        let name = name(pid, address, length)?;
        match name.split_first()? {
            (0, name) => listening.contains(name).then(|| Self::Server(shown("@", name))),
            _ => Self::at_path(pid, name.split(|byte| *byte == 0).next()?),
        }
    }

    fn at_path(pid: i32, path: &[u8]) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(path));
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{pid}/root"), flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
        // Not from the directory itself: a link on the way, or `..`, would lead out of the process's root and into this one's.
        let from_root = if path.is_absolute() { path.to_owned() } else { directory(pid)?.join(path) };
        let socket = openat2(root, &from_root, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        // Through an overlay nobody outside can be reached; those who can be are bound in, each as a mount of its own, also from a realm's overlay.
        if fstatfs(&socket).ok()?.f_type == libc::OVERLAYFS_SUPER_MAGIC && !is_mount(&socket) {
            return None;
        }
        let found = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).ok()?;
        let is_log = LOGS.iter().any(|log| found == Path::new(log) || path == Path::new(log));
        let shown = shown("", path.as_os_str().as_bytes());
        Some(if is_log { Self::Log(shown) } else { Self::Server(shown) })
    }
}

/// Whether something is where a mount begins (STATX_ATTR_MOUNT_ROOT, since Linux 5.8).
fn is_mount(place: &OwnedFd) -> bool {
    let found = rustix::fs::statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The directory that a process is in, by its path from the process's root.
fn directory(pid: i32) -> Option<PathBuf> {
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).ok();
    let (root, at) = (link("root")?, link("cwd")?);
    // One outside its root has no path from there.
    at.strip_prefix(root).map(Path::to_owned).ok()
}

fn shown(before: &str, name: &[u8]) -> String {
    format!("{before}{}", String::from_utf8_lossy(name).escape_debug())
}

/// The name in an address of such a socket.
fn name(pid: i32, address: u64, length: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(length).ok()?.min(LONGEST);
    let mut bytes = vec![0; length];
    foreign_memory::read(pid, address, &mut bytes).ok()?;
    let (family, name) = bytes.split_at_checked(FAMILY)?;
    (family == (libc::AF_UNIX as u16).to_ne_bytes()).then(|| name.to_vec())
}

/// The names without a file that somebody of a process's network namespace can be reached by.
pub(super) fn names(process: &str) -> BTreeSet<Vec<u8>> {
    listed(&std::fs::read_to_string(format!("/proc/{process}/net/unix")).unwrap_or_default())
}

fn listed(text: &str) -> BTreeSet<Vec<u8>> {
    let name = |line: &str| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split_ascii_whitespace().skip(3);
        let flags = u64::from_str_radix(fields.next()?, 16).ok()?;
        let kind = u64::from_str_radix(fields.next()?, 16).ok()?;
        let name = fields.nth(2)?.strip_prefix('@')?;
        (flags & LISTENING != 0 || kind == DATAGRAM).then(|| name.as_bytes().to_vec())
    };
    text.lines().skip(1).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_somebody_listens_on() {
        let text = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000: 00000002 00000000 00010000 0001 01 100 /run/b.sock
0000: 00000002 00000000 00010000 0001 01 101 @server
0000: 00000003 00000000 00000000 0001 03 102 @client
";
        assert_eq!(listed(text), BTreeSet::from([b"server".to_vec()]));
    }

    #[test]
    fn an_address_is_read_with_bounds() {
        let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        address.extend(b"\0server");
        let (me, at) = (std::process::id().cast_signed(), address.as_ptr() as u64);
        let listening = BTreeSet::from([b"server".to_vec()]);
        let found = |length| LocalSocket::at(me, at, length, &listening);
        assert_eq!(found(address.len() as u64), Some(LocalSocket::Server("@server".into())));
        assert_eq!((found(5), found(2), found(0)), (None, None, None));
        assert_eq!(LocalSocket::at(me, 8, u64::MAX, &listening), None);
    }
}
