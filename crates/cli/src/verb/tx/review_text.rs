//! A review for people: a line a path, and below it, indented, what changes beside content.

use super::{attribute_text, quoted};
use pando_tx::{Look, Moment, PartReview, Reviewed, Sign};
use rustix::fs::FileType;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;

/// What stands in front of a detail, and of no path.
const INDENT: &str = "    ";

/// What is new has these modes, if nothing is said.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// The bytes of the path of an entry, or of another path on its mount.
pub(super) fn path_of(part: &PartReview, path: &pando_tx::TreePath) -> Vec<u8> {
    let joined = part.part.live.join(path.as_path());
    let bytes = joined.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b"/.").unwrap_or(bytes);
    if bytes.is_empty() { b"/".to_vec() } else { bytes.to_vec() }
}

/// An entry: its line, and its details.
pub(super) fn entry(part: &PartReview, entry: &Reviewed) -> String {
    let mut bytes = path_of(part, &entry.path);
    if entry.is_directory() && bytes != b"/" {
        bytes.push(b'/');
    }
    let mut text = format!("{} {}\n", entry.sign, quoted::path(&bytes));
    for detail in details(part, entry) {
        let _ = writeln!(text, "{INDENT}{detail}");
    }
    text
}

/// A word of the kind of an object.
pub(super) fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Unknown => "unknown",
    }
}

/// A moment in UTC, as precise as it is.
pub(super) fn time(moment: Moment) -> String {
    let nanoseconds = i32::try_from(moment.nanoseconds).unwrap_or(0);
    let known = jiff::Timestamp::new(moment.seconds, nanoseconds);
    known.map_or_else(|_| format!("@{}.{:09}", moment.seconds, moment.nanoseconds), |time| time.to_string())
}

fn details(part: &PartReview, entry: &Reviewed) -> Vec<String> {
    let mut found = Vec::new();
    let path = |path| quoted::path(&path_of(part, path));
    if let Some(from) = &entry.moved_from {
        found.push(format!("moved from {}", path(from)));
    }
    if let Some(to) = &entry.moved_to {
        found.push(format!("moved to {}", path(to)));
    }
    if let Some(other) = &entry.linked_to {
        found.push(format!("another name of {}", path(other)));
    }
    if entry.by_other_names {
        found.push("by its other names; this one goes".to_owned());
    }
    match (&entry.old, &entry.new) {
        (Some(_), None) if entry.below > 0 && entry.moved_to.is_none() => {
            found.push(format!("with {} below", counted(entry.below)))
        }
        (None, Some(new)) => added(new, &mut found),
        (Some(old), Some(new)) => changed(entry, old, new, &mut found),
        _ => {}
    }
    found
}

fn counted(below: usize) -> String {
    const MOST: usize = 100_000;
    if below < MOST { below.to_string() } else { format!("{MOST} or more") }
}

/// What comes, as far as it is not what anybody would expect.
fn added(look: &Look, into: &mut Vec<String>) {
    let usual = match look.kind {
        FileType::RegularFile => FILE_MODE,
        FileType::Directory => DIRECTORY_MODE,
        // A link's is never looked at.
        FileType::Symlink => look.mode,
        _ => u32::MAX,
    };
    into.extend(nature(look));
    if look.mode != usual {
        into.push(format!("mode {:04o}", look.mode));
    }
    if (look.uid, look.gid) != (0, 0) {
        into.push(format!("owner {}:{}", look.uid, look.gid));
    }
    if !look.protection().is_empty() {
        into.push(format!("chattr +{}", look.protection()));
    }
    for (name, value) in &look.xattrs {
        into.push(format!("{} {}", quoted::path(name), attribute_text::value(name, value)));
    }
}

/// What an object is that is neither a plain file nor a directory.
fn nature(look: &Look) -> Option<String> {
    match (&look.target, look.device, look.kind) {
        (Some(target), ..) => Some(format!("link to {}", quoted::value(target))),
        (_, Some((major, minor)), _) => Some(format!("{} {major}:{minor}", kind(look.kind))),
        (.., FileType::RegularFile | FileType::Directory) => None,
        _ => Some(kind(look.kind).to_owned()),
    }
}

/// What becomes of something that is there.
fn changed(entry: &Reviewed, old: &Look, new: &Look, into: &mut Vec<String>) {
    let start = into.len();
    let is_other_name = entry.moved_from.is_some() || entry.linked_to.is_some();
    if entry.replaced && new.is_directory() {
        into.push("another directory; of the old one everything goes that is not made again below".to_owned());
    } else if entry.replaced && old.names > 1 && !is_other_name {
        into.push("another file; the old one's other names keep what it has".to_owned());
    }
    if old.kind != new.kind || old.target != new.target || old.device != new.device {
        let words = |look: &Look| nature(look).unwrap_or_else(|| kind(look.kind).to_owned());
        into.push(format!("{} → {}", words(old), words(new)));
    }
    if old.mode != new.mode && !(old.kind == new.kind && old.kind == FileType::Symlink) {
        into.push(format!("mode {:04o} → {:04o}", old.mode, new.mode));
    }
    if (old.uid, old.gid) != (new.uid, new.gid) {
        into.push(format!("owner {}:{} → {}:{}", old.uid, old.gid, new.uid, new.gid));
    }
    if old.protection() != new.protection() {
        let words = |look: &Look| {
            if look.protection().is_empty() { "none".to_owned() } else { format!("+{}", look.protection()) }
        };
        into.push(format!("chattr {} → {}", words(old), words(new)));
    }
    attributes(old, new, into);
    if entry.is_time_set {
        into.push(format!("time {} → {}", time(old.modified), time(new.modified)));
    }
    if !entry.replaced && entry.content && old.names > 1 {
        into.push(format!("{} names have it", old.names));
    }
    // Where nothing else is said it is the content that changes.
    let is_renamed = entry.sign == Sign::Added;
    if entry.content && (into.len() > start || is_other_name || is_renamed || entry.by_other_names) {
        into.push(format!("content {} → {} bytes", old.size, new.size));
    }
}

fn attributes(old: &Look, new: &Look, into: &mut Vec<String>) {
    let mut names: Vec<&Vec<u8>> = old.xattrs.keys().chain(new.xattrs.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (before, after) = (old.xattrs.get(name), new.xattrs.get(name));
        if before != after {
            let shown = |value: Option<&Vec<u8>>| Shown(value.map(|value| attribute_text::value(name, value)));
            into.push(format!("{} {} → {}", quoted::path(name), shown(before), shown(after)));
        }
    }
}

/// A value, or that there is none.
struct Shown(Option<String>);

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0.as_deref().unwrap_or("none"))
    }
}
