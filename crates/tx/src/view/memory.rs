//! File systems in memory that a target has mounted itself, such as /run and /tmp of a system that boots: each takes
//! part in a transaction by an overlay of its own.
//!
//! What is shown of this machine's own, a volume for example, is none of them: others use it, whom no gate keeps out.

use super::in_reach::InReach;
use super::plan::KERNELS;
use crate::state::mount_path::{self, Crossing};
use crate::tree::path::TreePath;
use pando_kernel::mount::MountEntry;
use rustix::fs::{FileType, StatVfsMountFlags, fstatvfs};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// No more of them take part. Each costs an overlay, and a target can mount without end.
const MOST: usize = 64;

/// A longer path is none of a system that boots. Every command is told a name in each of them, in messages of a fixed
/// size.
const LONGEST_PATH: usize = 256;

/// A mount that may be of one.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    /// The number of the mount.
    mount: u64,
    /// That of the one that it is on: the root's, or another candidate's.
    around: u64,
    /// Where it is on that.
    at: TreePath,
}

/// The ways to them, by the numbers of their mounts: what of these `mounts` of a target, whose root directory is open,
/// an overlay can lie over.
pub(super) fn ways(root: impl AsFd, mounts: &InReach<'_>, machines: &[MountEntry]) -> HashMap<u64, Vec<Crossing>> {
    let Ok(about) = mount_path::what_is_known(&root) else { return HashMap::new() };
    let machines: HashSet<&str> = machines.iter().map(|mount| mount.device.as_str()).collect();
    let mut ways: HashMap<u64, Vec<Crossing>> = HashMap::new();
    for candidate in candidates(about.stx_mnt_id, mounts, &machines) {
        if ways.len() == MOST {
            break;
        }
        let around = ways.get(&candidate.around).cloned().unwrap_or_default();
        // One that it is on is none, or it is on the root.
        if candidate.around != about.stx_mnt_id && around.is_empty() {
            continue;
        }
        if let Ok(Some(crossing)) = crossing(&root, &around, &candidate) {
            ways.insert(candidate.mount, [around, vec![crossing]].concat());
        }
    }
    ways
}

/// Those that may be, as the list of mounts has it, each after what it is on.
fn candidates(root: u64, in_reach: &InReach<'_>, machines: &HashSet<&str>) -> Vec<Candidate> {
    let mut places: HashMap<u64, &Path> = HashMap::from([(root, Path::new("/"))]);
    let mut devices: HashSet<&str> = HashSet::new();
    let mut found = Vec::new();
    for mount in &in_reach.mounts {
        let number = in_reach.around(mount);
        let Some(around) = places.get(&number) else { continue };
        let below = mount.at.strip_prefix(around).ok().and_then(|below| TreePath::new(below.as_os_str().as_bytes()));
        let Some(at) = below.filter(|at| *at != TreePath::ROOT) else { continue };
        // Of one that is mounted at several places the first takes part.
        if is_one(mount, machines) && devices.insert(&mount.device) {
            places.insert(mount.id, &mount.at);
            found.push(Candidate { mount: mount.id, around: number, at });
        }
    }
    found
}

fn is_one(mount: &MountEntry, machines: &HashSet<&str>) -> bool {
    let is_kernels = KERNELS.iter().chain(&["/dev"]).any(|tree| mount.at.starts_with(tree));
    mount.kind == "tmpfs"
        && mount.root == Path::new("/")
        && !mount.is_read_only()
        && !is_kernels
        && !machines.contains(mount.device.as_str())
        && mount.at.as_os_str().len() <= LONGEST_PATH
        // Over one that folds letters no overlay can be laid.
        && !mount.options.split(',').any(|option| option.starts_with("casefold"))
}

/// How a candidate is told from all others; nothing if it is not what its path leads to, or no overlay can lie over it.
fn crossing(root: impl AsFd, around: &[Crossing], candidate: &Candidate) -> io::Result<Option<Crossing>> {
    let around = mount_path::follow(root.as_fd().try_clone_to_owned()?, around)?;
    let found = mount_path::found(around, &candidate.at)?;
    let is_directory =
        FileType::from_raw_mode(mount_path::what_is_known(&found.place)?.stx_mode.into()) == FileType::Directory;
    if found.mount != candidate.mount || !is_directory {
        return Ok(None);
    }
    let can_be_written = !fstatvfs(&found.place)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    let root = mount_path::ident_of_root(&found.place)?;
    Ok(can_be_written.then(|| Crossing { at: candidate.at.clone(), device: found.device, root }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that has booted, in the order of depth: the root is mount 1.
    fn mounts() -> Vec<MountEntry> {
        let mount = |id: u64, parent: u64, device: &str, root: &str, at: &str, kind: &str| MountEntry {
            id,
            parent,
            device: device.into(),
            at: at.into(),
            root: root.into(),
            kind: kind.into(),
            attributes: "rw,nosuid".into(),
            options: "rw,size=1k".into(),
            ..MountEntry::default()
        };
        vec![
            mount(1, 0, "0:45", "/", "/", "overlay"),
            mount(2, 1, "0:39", "/", "/dev", "tmpfs"),
            mount(3, 1, "0:59", "/", "/run", "tmpfs"),
            mount(4, 1, "0:71", "/", "/tmp", "tmpfs"),
            mount(5, 1, "0:25", "/", "/volume", "tmpfs"),
            mount(6, 1, "0:26", "/in/it", "/bound", "tmpfs"),
            mount(7, 1, "0:90", "/", "/fuse", "fuse"),
            mount(8, 2, "0:58", "/", "/dev/shm", "tmpfs"),
            mount(9, 3, "0:60", "/", "/run/lock", "tmpfs"),
            mount(10, 1, "0:59", "/", "/srv/run", "tmpfs"),
            mount(11, 7, "0:91", "/", "/fuse/m", "tmpfs"),
            MountEntry { attributes: "ro".into(), ..mount(12, 3, "0:92", "/", "/run/credentials", "tmpfs") },
            mount(13, 9, "0:93", "/", "/run/lock/a/b", "tmpfs"),
            MountEntry { options: "rw,casefold".into(), ..mount(14, 1, "0:94", "/", "/srv/fold", "tmpfs") },
        ]
    }

    fn found(mounts: &[MountEntry]) -> Vec<(u64, u64, String)> {
        let machines = HashSet::from(["254:0", "0:25"]);
        let found = candidates(1, &InReach::of(mounts), &machines);
        found.into_iter().map(|one| (one.mount, one.around, one.at.to_string())).collect()
    }

    #[test]
    fn what_the_system_mounted_in_memory_takes_part_and_nothing_else() {
        let expected = [(3, 1, "/run"), (4, 1, "/tmp"), (9, 3, "/lock"), (13, 9, "/a/b")];
        assert_eq!(found(&mounts()), expected.map(|(mount, around, at)| (mount, around, at.to_owned())));
    }

    #[test]
    fn what_is_on_another_mount_is_out_of_reach() {
        let mut mounts = mounts();
        mounts.retain(|mount| mount.id != 3);
        assert_eq!(found(&mounts), [(4, 1, "/tmp".to_owned()), (10, 1, "/srv/run".to_owned())]);
        // Something is mounted over its whole place.
        mounts.push(MountEntry { id: 20, parent: 4, device: "0:99".into(), at: "/tmp".into(), ..mounts[2].clone() });
        assert_eq!(found(&mounts)[0], (20, 1, "/tmp".to_owned()));
    }
}
