//! Everything that can be seen of a tree, as lines to compare: kinds, modes, owners, times, contents, extended
//! attributes, devices, and which names are the same file.

use rustix::fs::{AtFlags, CWD, FileType, IFlags, Stat, StatxAttributes, StatxFlags, ioctl_getflags, statat, statx};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// The lines of the tree at `root`, the root itself first.
pub(crate) fn lines(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    collect(root, Path::new(""), &mut found);
    // In an overlay over another file system than its own two objects may have the same number.
    let mut names: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    for (path, stat, _) in &found {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            names.entry((stat.st_dev, stat.st_ino)).or_default().push(path.display().to_string());
        }
    }
    let line = |(path, stat, more): &(PathBuf, Stat, String)| {
        let same = names.get(&(stat.st_dev, stat.st_ino)).map(|names| names.join("=")).unwrap_or_default();
        let kind = FileType::from_raw_mode(stat.st_mode);
        let size = if kind == FileType::Directory { 0 } else { stat.st_size };
        let (path, mode, uid, gid) = (path.display(), stat.st_mode, stat.st_uid, stat.st_gid);
        let (seconds, nanoseconds) = (stat.st_mtime, stat.st_mtime_nsec);
        format!("/{path} {mode:o} {uid}:{gid} {size} {seconds}.{nanoseconds:09} {more} {same}")
    };
    found.iter().map(line).collect()
}

/// The same, and of each file which it is and when anything of it last changed.
pub(crate) fn exact(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    collect(root, Path::new(""), &mut found);
    let touched = |(path, stat, _): &(PathBuf, Stat, String)| {
        format!("/{} {} {}.{:09}", path.display(), stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
    };
    lines(root).into_iter().chain(found.iter().map(touched)).collect()
}

fn collect(root: &Path, path: &Path, into: &mut Vec<(PathBuf, Stat, String)>) {
    let at = root.join(path);
    let stat = statat(CWD, &at, AtFlags::SYMLINK_NOFOLLOW).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    let kind = FileType::from_raw_mode(stat.st_mode);
    into.push((path.to_owned(), stat, format!("{} {}{}", content(&at, kind, &stat), xattrs(&at), protection(&at))));
    if kind == FileType::Directory {
        let entries = std::fs::read_dir(&at).expect("a directory can be listed");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry can be read").file_name()).collect();
        names.sort();
        for name in names {
            collect(root, &path.join(name), into);
        }
    }
}

fn content(path: &Path, kind: FileType, stat: &Stat) -> String {
    match kind {
        FileType::RegularFile => {
            let mut hasher = DefaultHasher::new();
            std::fs::read(path).expect("a file can be read").hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        }
        FileType::Symlink => format!("->{}", std::fs::read_link(path).expect("a link can be read").display()),
        FileType::CharacterDevice | FileType::BlockDevice => format!("{:x}", stat.st_rdev),
        _ => String::new(),
    }
}

/// What chattr(1) protects it by.
pub(crate) fn protection(path: &Path) -> &'static str {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let found = statx(CWD, path, flags, StatxFlags::empty()).expect("what is there can be looked at");
    let is_said = found.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND);
    // What cannot be written to at all says so too, and has no flags.
    let can = || path.symlink_metadata().is_ok_and(|found| found.is_file() || found.is_dir());
    let said = (is_said && can()).then(|| std::fs::File::open(path).ok()).flatten();
    let said = said.and_then(|file| ioctl_getflags(file).ok());
    let has = |flag| said.is_some_and(|flags| flags.contains(flag));
    match (has(IFlags::IMMUTABLE), has(IFlags::APPEND)) {
        (false, false) => "",
        (true, false) => "+i",
        (false, true) => "+a",
        (true, true) => "+ia",
    }
}

fn xattrs(path: &Path) -> String {
    let mut list = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut list).expect("attributes can be listed");
    let mut shown = Vec::new();
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        // An access list once more, on xfs alone.
        if name.starts_with("trusted.SGI_ACL_") {
            continue;
        }
        // An overlay does not show its own; in the live tree there must be none.
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name.as_str(), &mut value).expect("an attribute can be read");
        shown.push(format!("{name}={:?}", &value[..length]));
    }
    shown.sort();
    shown.join(",")
}
