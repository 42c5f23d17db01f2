//! Trees to copy, and all there is to compare in two of them.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Runs of data as (kilobyte, byte, length), and the size of the whole.
    File(Vec<(u64, u8, usize)>, u64),
    Directory(Vec<(OsString, Node)>),
    Symlink(OsString),
    Fifo,
    Socket,
    /// Another name of the first file.
    Link,
    /// Any node with attributes: mode, owner, time, extended attribute.
    With(u32, u32, (i64, u32), Option<(String, Vec<u8>)>, Box<Node>),
}

fn name() -> impl Strategy<Value = OsString> {
    let byte = any::<u8>().prop_filter("neither zero nor slash", |byte| *byte != 0 && *byte != b'/');
    prop_oneof![
        9 => proptest::collection::vec(byte.clone(), 1..12),
        1 => proptest::collection::vec(byte, 255..=255),
    ]
    .prop_filter("not a dot", |name| name != b"." && name != b"..")
    .prop_map(OsString::from_vec)
}

pub(super) fn node() -> impl Strategy<Value = Node> {
    let runs = proptest::collection::vec((0_u64..2_000, any::<u8>(), 0_usize..5_000), 0..4);
    let leaf = prop_oneof![
        4 => (runs, 0_u64..3_000_000).prop_map(|(runs, size)| Node::File(runs, size)),
        2 => name().prop_map(Node::Symlink),
        1 => Just(Node::Fifo),
        1 => Just(Node::Socket),
        1 => Just(Node::Link),
    ];
    let tree = leaf.prop_recursive(5, 40, 6, |inner| {
        let with = (0_u32..0o10000, 0_u32..70_000, (-1_000_000_000_i64..4_000_000_000, 0_u32..1_000_000_000));
        let xattr = proptest::option::of(("user\\.[a-z]{1,8}", proptest::collection::vec(any::<u8>(), 0..60)));
        prop_oneof![
            2 => proptest::collection::vec((name(), inner.clone()), 0..6).prop_map(Node::Directory),
            1 => (with, xattr, inner).prop_map(|((mode, owner, time), xattr, node)| Node::With(mode, owner, time, xattr, Box::new(node))),
        ]
    });
    proptest::collection::vec((name(), tree), 0..8).prop_map(Node::Directory)
}

/// Makes the node at `path`. Without root it keeps what an ordinary user can set.
pub(super) fn grow(path: &Path, node: &Node, first: &mut Option<PathBuf>) {
    match node {
        Node::File(runs, size) => {
            let file = fs::File::create_new(path).unwrap();
            for (kilobyte, byte, length) in runs {
                file.write_all_at(&vec![*byte; *length], kilobyte * 1_024).unwrap();
            }
            file.set_len(*size).unwrap();
            first.get_or_insert_with(|| path.to_owned());
        }
        Node::Directory(entries) => {
            fs::create_dir(path).unwrap();
            let distinct: BTreeMap<_, _> = entries.iter().map(|(name, node)| (name, node)).collect();
            for (name, node) in distinct {
                grow(&path.join(name), node, first);
            }
        }
        Node::Symlink(to) => symlink(to, path).unwrap(),
        Node::Fifo => {
            let mode = rustix::fs::Mode::from_raw_mode(0o640);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }
        Node::Socket => {
            // Its path may be too long for an address.
            let _ = std::os::unix::net::UnixListener::bind(path);
        }
        Node::Link => {
            if let Some(first) = first {
                fs::hard_link(first, path).unwrap();
            }
        }
        Node::With(mode, owner, time, xattr, inner) => {
            grow(path, inner, first);
            dress(path, *mode, *owner, *time, xattr.as_ref());
        }
    }
}

fn dress(path: &Path, mode: u32, owner: u32, time: (i64, u32), xattr: Option<&(String, Vec<u8>)>) {
    let root = rustix::process::geteuid().is_root();
    let Ok(metadata) = path.symlink_metadata() else { return };
    if root {
        lchown(path, Some(owner), Some(owner / 2)).unwrap();
    }
    if metadata.is_symlink() {
        return;
    }
    if let Some((name, value)) = xattr.filter(|_| metadata.is_file() || metadata.is_dir()) {
        rustix::fs::setxattr(path, name.as_str(), value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    // Others than root must still be able to read what they made.
    let mode = if root { mode } else { mode & 0o777 | 0o700 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let spec = rustix::fs::Timespec { tv_sec: time.0, tv_nsec: time.1.into() };
    let times = rustix::fs::Timestamps { last_access: spec, last_modification: spec };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
}

/// Everything that can be compared, by path.
pub(super) fn portrait(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut portrait = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let kind = metadata.file_type();
        if kind.is_socket() {
            continue;
        }
        let relative = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let mut content = String::new();
        if kind.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
            names.sort();
            todo.extend(names.into_iter().rev());
        } else if kind.is_symlink() {
            content = format!("{:?}", fs::read_link(&path).unwrap());
        } else if kind.is_file() {
            let first: &mut Vec<u8> = first_names.entry(metadata.ino()).or_insert_with(|| relative.clone());
            let (mut digest, bytes) = (std::hash::DefaultHasher::new(), fs::read(&path).unwrap());
            std::hash::Hasher::write(&mut digest, &bytes);
            content = format!("{first:?} {} {}", bytes.len(), std::hash::Hasher::finish(&digest));
        }
        let line = format!(
            "{:o} {}:{} {}.{} {:?} {content}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            xattrs(&path),
        );
        portrait.insert(relative, line);
    }
    portrait
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = [0; 4_096];
    let length = rustix::fs::llistxattr(path, &mut list).unwrap();
    let names = String::from_utf8(list[..length].to_vec()).unwrap();
    let names = names.split('\0').filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = [0; 4_096];
            let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
            (name.to_owned(), value[..length].to_vec())
        })
        .collect()
}
