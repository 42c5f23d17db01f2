//! Groups and all below them, whoever made those: by descriptors, one name at a time. Root of a guest makes groups
//! whose paths are longer than any call takes, and as deep as it likes in version 1.

use crate::process::{held::HeldProcess, pidfd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// How far a group is looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many groups are looked into at most.
    pub groups: usize,
    /// How many ids are of interest.
    pub ids: usize,
}

impl Bounds {
    /// Everybody is to be found. The groups that a guest may make are fewer than these.
    pub const ALL: Self = Self { groups: 1 << 17, ids: usize::MAX };
}

/// The ids in a group and in those below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Processes or threads, as the file that was read lists them: some may be there twice, and some may have ended.
    pub ids: Vec<i32>,
    /// Whether every group could be read. One that was removed meanwhile could.
    pub is_whole: bool,
}

/// What a group and those below it list in `file`: `cgroup.procs`, or the threads in `cgroup.threads` or `tasks`.
/// Nobody is in a group that is not there.
pub fn members(group: &Path, file: &str, bounds: Bounds) -> Members {
    let mut members = Members { ids: Vec::new(), is_whole: true };
    let walked = Walk::below(group, bounds.groups, |group| {
        match list(group, file) {
            Ok(ids) => members.ids.extend(ids),
            Err(error) => members.is_whole &= is_no_loss(&error),
        }
        members.ids.len() < bounds.ids
    });
    members.ids.truncate(bounds.ids);
    members.is_whole &= walked.as_ref().map_or_else(is_no_loss, |()| true);
    members
}

/// Those of some processes, by their pids, that are in a group or in those below, held by descriptors. A pid that has
/// become another's since it was listed is not taken for it: who has it now is not in the group.
pub fn held(group: &Path, pids: &[i32]) -> Vec<HeldProcess> {
    let open = |pid: &i32| Some(HeldProcess::new(*pid, pidfd::open(*pid).ok()?));
    let opened: Vec<HeldProcess> = pids.iter().filter_map(open).collect();
    // Listed afterwards: who has not ended by then was there under its pid.
    let there: HashSet<i32> = members(group, "cgroup.procs", Bounds::ALL).ids.into_iter().collect();
    opened.into_iter().filter(|process| there.contains(&process.pid()) && !process.has_ended()).collect()
}

/// Removes a group and those below it. One that is not there is fine.
///
/// # Errors
///
/// EBUSY while a process is in one of them.
pub fn remove_groups(group: &Path) -> io::Result<()> {
    let removed = Walk::removing(group).and_then(|()| std::fs::remove_dir(group));
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !group.exists() => Ok(()),
        done => done,
    }
}

/// Whether nothing is missed: the group has gone, or its processes stand in the one above (a group of threads).
fn is_no_loss(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || code == Some(libc::ENODEV) || code == Some(libc::EOPNOTSUPP)
}

/// What a file of a group lists, but for what is not seen from here (0).
fn list(group: BorrowedFd<'_>, file: &str) -> io::Result<Vec<i32>> {
    let file = openat(group, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text)?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|id| *id > 0).collect())
}

fn open(at: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

/// The names of the groups right below.
fn names(group: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(group)? {
        let entry = entry?;
        let is_group = entry.file_type() == FileType::Directory;
        if is_group && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// A way through a tree that holds one descriptor, however deep that is.
struct Walk {
    here: OwnedFd,
    /// Of each group on the way down, which it is, and those right below it that are still to be visited.
    above: Vec<Level>,
}

struct Level {
    ino: u64,
    left: Vec<CString>,
}

impl Walk {
    fn at(group: &Path) -> io::Result<Self> {
        let here = std::fs::File::open(group)?.into();
        let mut walk = Self { here, above: Vec::new() };
        walk.enter()?;
        Ok(walk)
    }

    /// Visits a group and all below, as long as it is told to go on.
    fn below(group: &Path, most: usize, mut visit: impl FnMut(BorrowedFd<'_>) -> bool) -> io::Result<()> {
        let mut walk = Self::at(group)?;
        let (mut seen, mut goes_on) = (1, visit(walk.here.as_fd()));
        let mut missed = Ok(());
        while goes_on && let Some(level) = walk.above.last_mut() {
            let Some(name) = level.left.pop() else {
                walk.leave()?;
                continue;
            };
            match walk.descend(&name) {
                Ok(()) => goes_on = visit(walk.here.as_fd()),
                Err(error) if is_no_loss(&error) => {}
                Err(error) => missed = Err(error),
            }
            seen += 1;
            if seen > most {
                return Err(Errno::TOOBIG.into());
            }
        }
        missed
    }

    /// Removes all groups below one.
    fn removing(group: &Path) -> io::Result<()> {
        let mut walk = Self::at(group)?;
        let mut way = Vec::new();
        while let Some(level) = walk.above.last() {
            if let Some(name) = level.left.last().cloned() {
                match walk.descend(&name) {
                    Ok(()) => way.push(name),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => walk.done(),
                    Err(error) => return Err(error),
                }
                continue;
            }
            walk.leave()?;
            let Some(name) = way.pop() else { break };
            match unlinkat(&walk.here, &name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => walk.done(),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// The last of those right below is done with.
    fn done(&mut self) {
        if let Some(level) = self.above.last_mut() {
            level.left.pop();
        }
    }

    fn descend(&mut self, name: &std::ffi::CStr) -> io::Result<()> {
        let below = open(self.here.as_fd(), name)?;
        let former = std::mem::replace(&mut self.here, below);
        self.enter().inspect_err(|_| self.here = former)
    }

    fn enter(&mut self) -> io::Result<()> {
        let ino = rustix::fs::fstat(&self.here)?.st_ino;
        let left = names(self.here.as_fd())?;
        self.above.push(Level { ino, left });
        Ok(())
    }

    /// Goes back to the group above, unless that was the first.
    fn leave(&mut self) -> io::Result<()> {
        self.above.pop();
        let Some(level) = self.above.last() else { return Ok(()) };
        self.here = open(self.here.as_fd(), c"..")?;
        if rustix::fs::fstat(&self.here)?.st_ino != level.ino {
            return Err(Errno::STALE.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    /// A directory in a group's place, with others in it, one in the other, whose path no call takes.
    fn deep(depth: usize) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let name = "x".repeat(255);
        let mut here: OwnedFd = std::fs::File::open(directory.path()).unwrap().into();
        for number in 0..depth {
            let mode = Mode::from_raw_mode(0o755);
            rustix::fs::mkdirat(&here, &name, mode).unwrap();
            rustix::fs::mkdirat(&here, std::ffi::OsStr::from_bytes(b"beside\xff"), mode).unwrap();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            here = openat(&here, &name, flags, Mode::empty()).unwrap();
            let file = openat(&here, "list", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644)).unwrap();
            rustix::io::write(&file, format!("{}\n", number + 1).as_bytes()).unwrap();
        }
        directory
    }

    #[test]
    fn whoever_is_in_a_group_is_found_however_deep_that_is() {
        let directory = deep(40);
        let all = members(directory.path(), "list", Bounds::ALL);
        assert_eq!(all, Members { ids: (1..=40).collect(), is_whole: true });
        assert_eq!(members(directory.path(), "list", Bounds { ids: 3, ..Bounds::ALL }).ids, [1, 2, 3]);
        let none = members(&directory.path().join("none"), "list", Bounds::ALL);
        assert_eq!(none, Members { ids: Vec::new(), is_whole: true });
        crate::file::tree_removal::remove_tree(directory.path()).unwrap();
    }

    #[test]
    fn groups_are_removed_however_deep_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let mut here: OwnedFd = std::fs::File::open(directory.path()).unwrap().into();
        for _ in 0..40 {
            let (name, mode) = ("y".repeat(255), Mode::from_raw_mode(0o755));
            rustix::fs::mkdirat(&here, "a", mode).unwrap();
            rustix::fs::mkdirat(&here, &name, mode).unwrap();
            here = openat(&here, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        remove_groups(directory.path()).unwrap();
        assert!(!directory.path().exists());
        remove_groups(directory.path()).unwrap();
    }
}
