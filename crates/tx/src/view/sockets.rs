//! Sockets that servers outside listen on. Through an overlay a socket's file is another inode, which nobody listens
//! on, so each is bound in.

use pando_kernel::file::proc_file;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// `__SO_ACCEPTCON`: somebody listens.
const LISTENING: u64 = 0x1_0000;

/// The type of a datagram socket, which needs nobody to listen.
const DATAGRAM: u64 = 2;

/// The paths of sockets that can be connected to, in this network namespace. No link is on the way to them: what making
/// the view looks up is what it is told to.
pub(crate) fn listening() -> Vec<PathBuf> {
    let paths = listed(&table("/proc/net/unix"));
    resolved(paths, |directory| directory.canonicalize().ok())
}

/// The same of a target, by a process of it and its root: paths in it. Whoever shares its network without being in it
/// has bound paths that are not the target's; what they lead to there is shown as it is, as to everybody in it.
pub(super) fn listening_in(process: i32, root: &File) -> Vec<PathBuf> {
    let paths = listed(&table(&format!("/proc/{process}/net/unix")));
    let link = |fd: &dyn AsRawFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok();
    let Some(around) = link(root) else { return Vec::new() };
    let real = |directory: &Path| {
        let below = directory.strip_prefix("/").ok().filter(|below| !below.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let below = below.unwrap_or(Path::new("."));
        let found = openat2(root, below, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        Some(Path::new("/").join(link(&found)?.strip_prefix(&around).ok()?))
    };
    resolved(paths, real)
}

/// All sockets of a network namespace. One whose path is no text does not keep the others from being known.
fn table(path: &str) -> String {
    proc_file::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The same without links, and without those whose directories are gone: `real` tells a directory's path.
fn resolved(paths: Vec<PathBuf>, real: impl Fn(&Path) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut directories: HashMap<PathBuf, Option<PathBuf>> = HashMap::new();
    let resolve = |path: PathBuf| {
        let (directory, name) = (path.parent()?.to_owned(), path.file_name()?);
        let real = directories.entry(directory).or_insert_with_key(|directory| real(directory));
        real.as_ref().map(|real| real.join(name))
    };
    let unique: BTreeSet<PathBuf> = paths.into_iter().filter_map(resolve).collect();
    unique.into_iter().collect()
}

fn listed(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split_ascii_whitespace().skip(3);
        let flags = u64::from_str_radix(fields.next()?, 16).ok()?;
        let kind = u64::from_str_radix(fields.next()?, 16).ok()?;
        let path = fields.nth(2).filter(|path| path.starts_with('/'))?;
        (flags & LISTENING != 0 || kind == DATAGRAM).then(|| PathBuf::from(path))
    };
    let unique: BTreeSet<PathBuf> = text.lines().skip(1).filter_map(path).collect();
    unique.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_on_the_way_are_followed_and_what_is_gone_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("run")).unwrap();
        std::os::unix::fs::symlink("run", real.join("link")).unwrap();
        let paths = ["link/a", "run/a", "gone/b"].map(|name| real.join(name));
        assert_eq!(resolved(paths.into(), |directory| directory.canonicalize().ok()), [real.join("run/a")]);
    }

    #[test]
    fn only_what_can_be_connected_to_by_path() {
        let text = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000: 00000002 00000000 00010000 0001 01 100 /run/b.sock
0000: 00000002 00000000 00010000 0001 01 101 @abstract
0000: 00000003 00000000 00000000 0001 03 102 /run/connected.sock
0000: 00000002 00000000 00000000 0002 01 103 /dev/log
0000: 00000003 00000000 00000000 0001 03 104
";
        assert_eq!(listed(text), [PathBuf::from("/dev/log"), PathBuf::from("/run/b.sock")]);
    }
}
