//! Open files and shared mappings by names that are gone while the files have others. A file that is published in one
//! step is made so: under a temporary name, mapped, linked or renamed to the name that others open, and the first name
//! unlinked (sem_open(3) does). /proc tells of the first name alone.
//!
//! It is the file that counts: whoever maps it by its other name shares it. So that is looked for, where it is as a
//! rule: in the same directory.

use crate::image::{Area, AreaKind};
use crate::inspect::areas;
use crate::inspect::descriptors::{self, Found};
use crate::inspect::proc_file::DELETED;
use pando_kernel::file::confined::{Links, Place, Root};
use rustix::fs::FileType;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// No more names than this are looked at.
const MOST: usize = 20_000;

pub(crate) type Objection = (String, &'static str);

/// What an open file or a shared mapping is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// Of what /proc says, or of a file that has no name at all.
    AsTold,
    /// Of a file that has another name now: that.
    Other(String),
    /// Of a file that has another name, and nobody knows which.
    Unknown,
}

/// What a shared mapping of a process is of.
pub(crate) fn of(outer: i32, area: &Area) -> Name {
    let AreaKind::Shared { path, .. } = &area.kind else { return Name::AsTold };
    let Some(lost) = path.strip_suffix(DELETED).filter(|lost| !is_memory(lost)) else { return Name::AsTold };
    let Ok(about) = std::fs::metadata(format!("/proc/{outer}/{}", areas::map_file(area))) else {
        return Name::AsTold;
    };
    if about.nlink() == 0 {
        return Name::AsTold;
    }
    other(outer, lost, (about.dev(), about.ino()))
}

/// What an open file is of: one that was opened by a name that is gone may have another. `init` is the first process of
/// the guest.
pub(crate) fn of_open(init: i32, found: &Found) -> Name {
    let Some(lost) = found.target.strip_suffix(DELETED).filter(|_| found.stat.st_nlink > 0) else {
        return Name::AsTold;
    };
    if !descriptors::is(found, FileType::RegularFile) || descriptors::is_name_alone(found) || is_memory(lost) {
        return Name::AsTold;
    }
    other(init, lost, (found.stat.st_dev, found.stat.st_ino))
}

/// Another name of a file, as a process sees it, in the directory of one that is gone.
fn other(outer: i32, lost: &str, identity: (u64, u64)) -> Name {
    let directory = lost.rsplit_once('/').map_or("", |(directory, _)| directory);
    let root = Root::of_process(outer).ok();
    match root.and_then(|root| find(&root, directory, identity)) {
        Some(name) => Name::Other(format!("{directory}/{name}")),
        None => Name::Unknown,
    }
}

/// Files that never have a name.
fn is_memory(name: &str) -> bool {
    name.starts_with("/memfd:") || name.starts_with("/secretmem") || name == "/dev/zero"
}

/// The name that a file has in a directory, to which no link leads.
pub(crate) fn find(root: &Root, directory: &str, (device, inode): (u64, u64)) -> Option<String> {
    let directory = root.place(if directory.is_empty() { "/" } else { directory }, Links::Refused).ok()?;
    let entries = directory.entries().ok()?.flatten().take(MOST);
    let is_it = |name: &CStr| {
        let about = Place::in_directory(directory.as_fd(), name).and_then(|place| place.about());
        about.is_ok_and(|about| (about.st_dev, about.st_ino) == (device, inode))
    };
    // A directory may tell other numbers than its files have, as that of an overlay may.
    let (same, others): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.ino() == inode);
    let mut all = same.into_iter().chain(others).filter(|entry| is_it(entry.file_name()));
    all.find_map(|entry| entry.file_name().to_str().ok().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    #[test]
    fn a_file_is_found_by_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("temporary"), "x").unwrap();
        std::fs::write(path("beside"), "x").unwrap();
        let about = std::fs::metadata(path("temporary")).unwrap();
        std::fs::hard_link(path("temporary"), path("published")).unwrap();
        std::fs::remove_file(path("temporary")).unwrap();
        let root = Root::from(OwnedFd::from(File::open(directory.path()).unwrap()));
        let find = |device: u64| find(&root, "", (device, about.ino()));
        assert_eq!(find(about.dev()).as_deref(), Some("published"));
        assert_eq!(find(about.dev() + 1), None);
    }

    #[test]
    fn what_is_told_stands_where_there_is_no_other_name() {
        let own = std::process::id() as i32;
        let of = |path: &str| {
            let kind = AreaKind::Shared { path: path.into(), offset: 0, writable: true };
            of(own, &Area::new(0x1000, 0x2000, 3, kind))
        };
        for path in ["/etc/passwd", "/memfd:x (deleted)", "/dev/zero (deleted)", "/gone (deleted)"] {
            assert_eq!(of(path), Name::AsTold, "{path}");
        }
    }
}
