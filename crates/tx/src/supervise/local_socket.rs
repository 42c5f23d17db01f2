//! Sockets of this machine that a transaction's process connects to: a server outside would do at once what it is
//! asked, and not undo it.

use super::named_path::{LastLink, Missed, Namer, Start};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, OwnedFd};

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

/// Where an address leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocalSocket {
    /// To nobody, or one of the transaction's own: what comes of it the kernel says.
    Own,
    /// To a server outside that only listens.
    Log(String),
    /// To any other server outside, or where that cannot be told.
    Server(String),
}

/// Who can be reached outside.
pub(super) struct Servers<'a> {
    /// The names without a file that somebody listens on, where they are known.
    pub(super) listening: Option<&'a BTreeSet<Vec<u8>>>,
    /// Those who only listen.
    pub(super) logs: &'a Logs,
}

/// The files of servers that only listen: they are known by their devices and inodes, since a command may call another
/// server so, by a link or a mount.
#[derive(Debug, Default)]
pub(super) struct Logs(HashSet<(u32, u32, u64)>);

impl Logs {
    /// Those that are below a root.
    pub(super) fn below(root: impl AsFd) -> Self {
        let (flags, within) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS);
        // One that is not found is none.
        let known = |log: &str| file(&openat2(&root, log, flags, Mode::empty(), within).ok()?);
        Self(LOGS.iter().filter_map(|log| known(log)).collect())
    }

    fn has(&self, place: &OwnedFd) -> bool {
        file(place).is_some_and(|file| self.0.contains(&file))
    }
}

fn file(place: &OwnedFd) -> Option<(u32, u32, u64)> {
    let found = statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}

impl LocalSocket {
    /// Where the name in an address of such a socket leads: what follows its family. `is_own` tells of a place whether
    /// it is the transaction's own.
    pub(super) fn at(name: &[u8], namer: &Namer<'_>, servers: &Servers<'_>, is_own: impl Fn(&OwnedFd) -> bool) -> Self {
        match name.split_first() {
            None => Self::Own,
            Some((0, name)) => match servers.listening.is_none_or(|all| all.contains(&as_listed(name))) {
                true => Self::Server(shown("@", name)),
                false => Self::Own,
            },
            Some(_) => Self::at_path(name.split(|byte| *byte == 0).next().unwrap_or(name), namer, servers, is_own),
        }
    }

    fn at_path(path: &[u8], namer: &Namer<'_>, servers: &Servers<'_>, is_own: impl Fn(&OwnedFd) -> bool) -> Self {
        match namer.find(Start::WorkingDirectory, path, LastLink::Followed) {
            Err(Missed::Absent) => Self::Own,
            Err(Missed::Elsewhere) => Self::Server(shown("", path)),
            Err(Missed::Unseen(errno)) => Self::Server(format!("{} (Pando cannot look: {errno})", shown("", path))),
            Ok(socket) if is_own(&socket) => Self::Own,
            Ok(socket) if servers.logs.has(&socket) => Self::Log(shown("", path)),
            Ok(_) => Self::Server(shown("", path)),
        }
    }
}

fn shown(before: &str, name: &[u8]) -> String {
    format!("{before}{}", String::from_utf8_lossy(name).escape_debug())
}

/// The names without a file that somebody of a process's network namespace can be reached by, [as the kernel lists
/// them](as_listed).
///
/// # Errors
///
/// ENOENT where the process has gone.
pub(super) fn names(process: &str) -> std::io::Result<BTreeSet<Vec<u8>>> {
    std::fs::read(format!("/proc/{process}/net/unix")).map(|text| listed(&text))
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

    fn at(name: &[u8], listening: Option<&BTreeSet<Vec<u8>>>, is_own: bool) -> LocalSocket {
        let namer = Namer { pid: std::process::id().cast_signed(), is_inside: &|_| true };
        LocalSocket::at(name, &namer, &Servers { listening, logs: &Logs::default() }, |_| is_own)
    }

    #[test]
    fn a_name_leads_to_whoever_listens_on_it_and_where_that_is_not_known_outside() {
        let listening = BTreeSet::from([b"server".to_vec()]);
        let server = LocalSocket::Server("@server".into());
        assert_eq!(at(b"\0server", Some(&listening), false), server);
        assert_eq!(at(b"\0serve", Some(&listening), false), LocalSocket::Own);
        assert_eq!((at(b"\0server", None, false), at(b"", None, false)), (server, LocalSocket::Own));
    }

    #[test]
    fn a_path_leads_outside_unless_what_is_there_is_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let name = path.to_str().unwrap().as_bytes();
        assert_eq!(at(name, None, false), LocalSocket::Own, "nobody is there");
        let _server = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!((at(name, None, true)), LocalSocket::Own);
        assert_eq!(at(&[name, b"\0rest"].concat(), None, false), LocalSocket::Server(path.display().to_string()));
    }
}
