//! Open files that no clone could have, by what their descriptor shows.

use crate::inspect::descriptors::{Found, Outside, is_in_memory, is_link, is_name_alone, lease, supplied, usual_name};
use crate::inspect::terminal_ends;
use rustix::fs::{FileType, Mode, OFlags, RawDir};
use std::io;
use std::mem::MaybeUninit;

/// Whether it is memory that not even the kernel can read (memfd_secret(2)). On some kernels such a file counts a link,
/// and has no name all the same.
pub(crate) fn is_secret(target: &str) -> bool {
    target.starts_with("/secretmem")
}

/// Why a file without a name cannot be captured, if it cannot.
pub(crate) fn content_objection(found: &Found) -> Option<(String, &'static str)> {
    const HUGETLBFS: u64 = 0x9584_58f6;
    const LARGEST: i64 = 1 << 30;
    let named = |what: &str, advice| Some((format!("{what} ({})", found.target), advice));
    if is_secret(&found.target) {
        return named("secret memory", "make the program do without it");
    }
    if rustix::fs::statfs(&found.path).is_ok_and(|fs| fs.f_type as u64 == HUGETLBFS) {
        return named("huge pages of hugetlbfs", "use transparent huge pages");
    }
    // What was never written to is not copied; st_blocks counts in 512 bytes.
    let bytes = found.stat.st_size.min(found.stat.st_blocks.saturating_mul(512));
    if !found.target.starts_with("/memfd:") && bytes > LARGEST {
        return named("a deleted file of more than 1 GiB", "close it, or restart the program");
    }
    None
}

/// Why a descriptor cannot be captured, if it cannot: what it is, and what to do.
pub(crate) fn descriptor_objection(found: &Found, outside: &[Outside]) -> Option<(String, &'static str)> {
    if supplied(found, outside).is_some() {
        return None;
    }
    let target = found.target.as_str();
    let named = |what: &str, advice| Some((format!("{what} ({target})"), advice));
    let flags = found.lines.number("flags", 8).unwrap_or(0) as u32;
    if is_name_alone(found) {
        return if is_link(found) { None } else { named("a name of what cannot be opened (O_PATH)", "close it") };
    }
    if let Some(kind) = target.strip_prefix("anon_inode:") {
        return match kind {
            "[eventfd]" | "[eventpoll]" | "[timerfd]" | "[signalfd]" => None,
            // Whose it is: see `process_descriptors`.
            "[pidfd]" => None,
            "[io_uring]" => named("an io_uring instance", "make the program use epoll"),
            "[userfaultfd]" => named("a userfaultfd", "make the program do without it"),
            "[perf_event]" => named("a performance counter", "stop profiling"),
            "[fanotify]" => named("a fanotify group", "have the program use inotify, or close it"),
            // What it watches, nobody can tell by its number: see `inotify`.
            "inotify" => None,
            _ => named("a kernel object", "it cannot be captured; close it"),
        };
    }
    let deleted = found.stat.st_nlink == 0;
    match FileType::from_raw_mode(found.stat.st_mode) {
        // What kind of socket it is, nobody can tell by its number: see `sockets`.
        FileType::Socket => None,
        FileType::Fifo if target.starts_with("pipe:") && flags & libc::O_DIRECT as u32 != 0 => {
            named("a pipe of packets", "make the program use an ordinary pipe")
        }
        FileType::Fifo => None,
        FileType::RegularFile if lease_objection(&found.info).is_some() => lease_objection(&found.info),
        FileType::RegularFile if deleted || is_secret(target) => content_objection(found),
        FileType::Directory if is_half_listed(found).unwrap_or(false) => {
            named("a directory in memory, half of which is listed", "try again when the program has listed it")
        }
        FileType::RegularFile | FileType::Directory => None,
        // Whose other end it is, nobody can tell by one: see `terminals`.
        FileType::CharacterDevice if terminal_ends::is_terminal(found) => None,
        FileType::CharacterDevice => device_objection(found),
        _ => named("a device", "close it"),
    }
}

/// Whether somebody is in the middle of listing a directory in memory. Its position counts entries as they were made,
/// and a clone's are made in another order: some would come twice, as many never.
fn is_half_listed(found: &Found) -> io::Result<bool> {
    let position = found.lines.number("pos", 10).unwrap_or(0);
    if position == 0 || !is_in_memory(found) {
        return Ok(false);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&found.path, flags, Mode::empty())?;
    let mut room = [MaybeUninit::uninit(); 8192];
    let (mut entries, mut end) = (RawDir::new(directory, &mut room), 0);
    while let Some(entry) = entries.next() {
        end = entry?.next_entry_cookie();
    }
    Ok(position < end)
}

fn device_objection(found: &Found) -> Option<(String, &'static str)> {
    if usual_name(found).is_some() {
        return None;
    }
    let kind = match rustix::fs::major(found.stat.st_rdev) {
        5 | 136..=143 => "a terminal",
        _ => "a device",
    };
    Some((format!("{kind} ({})", found.target), "it cannot be captured; start the program without it"))
}

/// Why the lease of an open file cannot be had again, if it cannot.
pub(crate) fn lease_objection(info: &str) -> Option<(String, &'static str)> {
    let (state, kind) = lease(info)?;
    let breaks = state != "ACTIVE" || kind == libc::F_UNLCK;
    breaks.then(|| ("a file whose lease (F_SETLEASE) is being broken".into(), "let the program give it up first"))
}
