//! Looking for files by their handles, from a mount's root down: where a file system tells handles that it does not
//! open itself, as an overlay does whose lower trees have no identities of their own. What is watched lies near the
//! root more often than not, so directories are looked through level by level.

use pando_kernel::file::handle::FileHandle;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// More names than this are not looked at.
const MOST: usize = 1 << 20;

/// The paths of files on the mount at `place`, seen from `root`, as far as they are found. What is mounted below is
/// left out.
pub(crate) fn find(
    root: BorrowedFd<'_>,
    place: &str,
    mut wanted: HashSet<FileHandle>,
) -> io::Result<HashMap<FileHandle, String>> {
    let mut found = HashMap::new();
    let (handle, mount) = FileHandle::identifier(open(root, place)?, "")?;
    if wanted.remove(&handle) {
        found.insert(handle, place.to_owned());
    }
    let mut next = VecDeque::from([place.trim_end_matches('/').to_owned()]);
    let mut left = MOST;
    while let Some(path) = next.pop_front() {
        // One that has gone, or become something else, has nothing in it.
        let Ok(directory) = open(root, if path.is_empty() { "/" } else { &path }) else { continue };
        for entry in Dir::read_from(&directory)?.flatten() {
            if wanted.is_empty() || left == 0 {
                return Ok(found);
            }
            left -= 1;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| !matches!(*name, "." | "..")) else {
                continue;
            };
            let Ok((handle, on)) = FileHandle::identifier(&directory, name) else { continue };
            if on != mount {
                continue;
            }
            let path = format!("{path}/{name}");
            if entry.file_type() == FileType::Directory {
                next.push_back(path.clone());
            }
            if wanted.remove(&handle) {
                found.insert(handle, path);
            }
        }
    }
    Ok(found)
}

/// Opens a directory inside.
fn open(root: BorrowedFd<'_>, path: &str) -> io::Result<OwnedFd> {
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), confined)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn files_and_directories_are_found_where_they_are() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("one/two/three")).unwrap();
        std::fs::write(top.path().join("one/two/file"), "x").unwrap();
        std::fs::write(top.path().join("other"), "x").unwrap();
        let root = std::fs::File::open(top.path()).unwrap();
        let names = ["", "one/two", "one/two/file", "other"];
        let handles = names.map(|name| FileHandle::identifier(&root, name).map(|(handle, _)| handle));
        let [Ok(top_one), Ok(directory), Ok(file), Ok(other)] = handles else {
            eprintln!("skipped: this file system tells no handles");
            return;
        };
        std::fs::remove_file(top.path().join("other")).unwrap();
        let wanted = HashSet::from([top_one.clone(), directory.clone(), file.clone(), other]);
        let found = find(root.as_fd(), "/", wanted).unwrap();
        let expected = [(top_one, "/"), (directory, "/one/two"), (file, "/one/two/file")];
        assert_eq!(found, expected.map(|(handle, path)| (handle, path.to_owned())).into());
    }
}
