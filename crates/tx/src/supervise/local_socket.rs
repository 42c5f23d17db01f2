//! Sockets of this machine that a transaction's process connects to: a server outside would do at once what it is
//! asked, and not undo it.

use pando_kernel::file::confined::Root;
use pando_kernel::trace::foreign_memory;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, fstat, fstatfs, openat2};
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
    /// The server behind an address in a process's memory; `None` for none, one of the transaction's own, and the
    /// address of another kind of socket. `is_own` tells of a device whether the transaction itself has made and
    /// mounted what lies there.
    pub(super) fn at(
        pid: i32,
        address: u64,
        length: u64,
        listening: &BTreeSet<Vec<u8>>,
        is_own: impl FnOnce((u32, u32)) -> bool,
    ) -> Option<Self> {
        let name = name(pid, address, length)?;
        match name.split_first()? {
            (0, name) => listening.contains(&as_listed(name)).then(|| Self::Server(shown("@", name))),
            _ => Self::at_path(pid, name.split(|byte| *byte == 0).next()?, is_own),
        }
    }

    fn at_path(pid: i32, path: &[u8], is_own: impl FnOnce((u32, u32)) -> bool) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(path));
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = Root::of_process(pid).ok()?;
        // Not from the directory itself: a link on the way, or `..`, would lead out of the process's root and into this
        // one's.
        let from_root = if path.is_absolute() { path.to_owned() } else { directory(pid)?.join(path) };
        let socket = openat2(root, &from_root, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        // Through an overlay nobody outside can be reached; those who can be are bound in, each as a mount of its own,
        // also from a target's overlay.
        if fstatfs(&socket).ok()?.f_type == libc::OVERLAYFS_SUPER_MAGIC && !is_mount(&socket) {
            return None;
        }
        let device = fstat(&socket).ok()?.st_dev;
        if is_own((rustix::fs::major(device), rustix::fs::minor(device))) {
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

/// The names without a file that somebody of a process's network namespace can be reached by, [as the kernel lists
/// them](as_listed).
pub(super) fn names(process: &str) -> BTreeSet<Vec<u8>> {
    listed(&std::fs::read(format!("/proc/{process}/net/unix")).unwrap_or_default())
}

/// A name as the kernel lists it: any bytes may be in one, and of those 0 is shown as `@`.
fn as_listed(name: &[u8]) -> Vec<u8> {
    name.iter().map(|byte| if *byte == 0 { b'@' } else { *byte }).collect()
}

fn listed(text: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    // A line, and whether it goes on in the next: a name may hold a new line, too.
    let mut entry: Vec<u8> = Vec::new();
    for line in text.split(|byte| *byte == b'\n').skip(1) {
        if begins_entry(line) {
            names.extend(name_listed(&entry));
            entry = line.to_vec();
        } else {
            entry.push(b'\n');
            entry.extend_from_slice(line);
        }
    }
    names.extend(name_listed(entry.strip_suffix(b"\n").unwrap_or(&entry)));
    names
}

/// Whether a line begins with the number of a socket: `Num: `, in hexadecimal digits.
fn begins_entry(line: &[u8]) -> bool {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    digits >= 4 && line[digits..].starts_with(b": ")
}

/// The name in a line: `Num: RefCount Protocol Flags Type St Inode Path`. The path is all that follows one space after
/// the inode.
fn name_listed(line: &[u8]) -> Option<Vec<u8>> {
    let mut rest = line;
    let mut field = || {
        let from = rest.iter().position(|byte| *byte != b' ')?;
        let length = rest[from..].iter().position(|byte| *byte == b' ')?;
        let (field, after) = rest[from..].split_at(length);
        rest = after;
        std::str::from_utf8(field).ok()
    };
    let flags = u64::from_str_radix((field(), field(), field(), field()).3?, 16).ok()?;
    let kind = u64::from_str_radix(field()?, 16).ok()?;
    let (_state, _inode) = (field()?, field()?);
    let name = rest.strip_prefix(b" @")?;
    (flags & LISTENING != 0 || kind == DATAGRAM).then(|| name.to_vec())
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
        assert_eq!(listed(text.as_bytes()), BTreeSet::from([b"server".to_vec()]));
    }

    #[test]
    fn a_name_may_hold_any_bytes() {
        let mut text = b"Num       RefCount Protocol Flags    Type St Inode Path\n".to_vec();
        for name in [b"a b ".as_slice(), b"two\nlines", b"\xff\xfe", b"padded\0\0"] {
            text.extend(b"00000000f0a1b2c3: 00000002 00000000 00010000 0001 01   101 @");
            text.extend(as_listed(name));
            text.push(b'\n');
        }
        let found = listed(&text);
        let wanted = [b"a b ".as_slice(), b"two\nlines", b"\xff\xfe", b"padded@@"];
        assert_eq!(found, wanted.iter().map(|name| name.to_vec()).collect());
    }

    #[test]
    fn an_address_is_read_with_bounds() {
        let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        address.extend(b"\0server");
        let (me, at) = (std::process::id().cast_signed(), address.as_ptr() as u64);
        let listening = BTreeSet::from([b"server".to_vec()]);
        let found = |length| LocalSocket::at(me, at, length, &listening, |_| false);
        assert_eq!(found(address.len() as u64), Some(LocalSocket::Server("@server".into())));
        assert_eq!((found(5), found(2), found(0)), (None, None, None));
        assert_eq!(LocalSocket::at(me, 8, u64::MAX, &listening, |_| false), None);
    }
}
