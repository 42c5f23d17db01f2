//! Trees to import, and all there is to compare in two of them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

/// A file capability of version 2: effective, CAP_NET_RAW.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An access control list: owner rw, user 1234 r, group r, mask r, others nothing.
const LIST: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 210, 4, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 4, 0,
    255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

/// One of everything that a tree can hold, made by root.
pub(super) fn of_everything(at: &Path) {
    fs::create_dir_all(at.join("etc/empty")).unwrap();
    fs::create_dir_all(at.join("usr/bin")).unwrap();
    for (name, bytes) in
        [("empty-file", vec![]), ("small", b"ten bytes\n".to_vec()), ("exactly-64", vec![7; 64]), ("65", vec![8; 65])]
    {
        fs::write(at.join("etc").join(name), bytes).unwrap();
    }
    fs::write(at.join("usr/bin/tool"), vec![b'x'; 70_000]).unwrap();
    fs::hard_link(at.join("usr/bin/tool"), at.join("usr/bin/another-name")).unwrap();
    // The same content and attributes, but another file.
    fs::write(at.join("usr/bin/twin"), vec![b'x'; 70_000]).unwrap();
    fs::hard_link(at.join("etc/small"), at.join("etc/small-link")).unwrap();
    symlink("../usr/bin/tool", at.join("etc/link")).unwrap();
    symlink("x".repeat(4_000), at.join("etc/long-link")).unwrap();
    let sparse = fs::File::create_new(at.join("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 5 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    odd_names(at);
    nodes(at);
    dress(at);
}

fn odd_names(at: &Path) {
    let names: [&[u8]; 6] = [b"\xff\xfe\x80", b"new\nline", b"00", b"\\x41", b" ", &[b'n'; 255]];
    for name in names {
        fs::write(at.join(OsStr::from_bytes(name)), [name, &[b'.'; 100]].concat()).unwrap();
    }
    let mut deep = at.join("deep");
    for level in 0..300 {
        deep.push(format!("{level}"));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), vec![1; 500]).unwrap();
}

fn nodes(at: &Path) {
    let node = |name: &str, kind, device| {
        let mode = rustix::fs::Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(rustix::fs::CWD, at.join(name), kind, mode, device).unwrap();
    };
    node("fifo", rustix::fs::FileType::Fifo, 0);
    node("socket", rustix::fs::FileType::Socket, 0);
    node("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    node("disk", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 70_000));
}

fn dress(at: &Path) {
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::setxattr(at.join(name), key, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    lchown(at.join("usr/bin/twin"), Some(1_000), Some(65_534)).unwrap();
    lchown(at.join("etc/link"), Some(33), Some(33)).unwrap();
    lchown(at.join("sparse"), Some(70_000), Some(4_000_000_000)).unwrap();
    set("usr/bin/tool", "security.capability", &CAPABILITY);
    set("sparse", "system.posix_acl_access", &LIST);
    set("etc", "system.posix_acl_default", &LIST);
    set("etc/65", "user.comment", b"\0binary\xff");
    set("etc/65", "trusted.mark", &[b'v'; 3_000]);
    for (name, mode) in [("usr/bin/twin", 0o6755), ("etc/empty", 0o1777), ("etc/65", 0o000), ("fifo", 0o622)] {
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, seconds, nanoseconds) in [
        ("etc/65", -1_000_000_000, 999_999_999),
        ("usr/bin/twin", 4_102_444_800, 1),
        ("etc/link", 5, 6),
        ("usr", 946_684_800, 0),
    ] {
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, at.join(name), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Everything that a guest can see of a tree but inode numbers and times of access and change: a line by path.
pub(super) fn portrait(root: &Path, links: Links) -> BTreeMap<OsString, String> {
    let mut portrait = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    let mut todo = vec![OsString::new()];
    while let Some(relative) = todo.pop() {
        let path = root.join(&relative);
        let metadata = path.symlink_metadata().unwrap();
        let kind = metadata.file_type();
        let mut content = String::new();
        if kind.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            todo.extend(names.iter().rev().map(|name| Path::new(&relative).join(name).into_os_string()));
        } else {
            let first = first_names.entry((metadata.dev(), metadata.ino())).or_insert_with(|| relative.clone());
            content = format!("{first:?}");
            if links == Links::Counted {
                content += &format!(" {}", metadata.nlink());
            }
        }
        if kind.is_symlink() {
            content += &format!(" {:?}", fs::read_link(&path).unwrap());
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            let mut digest = std::hash::DefaultHasher::new();
            std::hash::Hasher::write(&mut digest, &bytes);
            content += &format!(" {} {}", bytes.len(), std::hash::Hasher::finish(&digest));
        } else if kind.is_block_device() || kind.is_char_device() {
            content += &format!(" {}", metadata.rdev());
        }
        let (mode, uid, gid) = (metadata.mode(), metadata.uid(), metadata.gid());
        let time = (metadata.mtime(), metadata.mtime_nsec());
        portrait.insert(relative, format!("{mode:o} {uid}:{gid} {time:?} {:?} {content}", attributes(&path)));
    }
    portrait
}

/// Whether the number of a file's links is compared too: in a farm it counts the links of other trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    Counted,
    Uncounted,
}

fn attributes(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut list = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut list).unwrap();
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
        value.truncate(length);
        value
    };
    names.map(|name| (OsString::from_vec(name.to_vec()), value(name))).collect()
}

/// Fails with the differences alone.
pub(super) fn assert_equal(one: &BTreeMap<OsString, String>, other: &BTreeMap<OsString, String>) {
    let differing = |name: &&OsString| one.get(*name) != other.get(*name);
    let names: Vec<_> = one.keys().chain(other.keys()).filter(differing).collect();
    let lines = names.iter().map(|name| format!("{name:?}\n  {:?}\n  {:?}\n", one.get(*name), other.get(*name)));
    assert!(names.is_empty(), "{}", lines.collect::<String>());
}
