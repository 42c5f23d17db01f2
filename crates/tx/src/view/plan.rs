//! What becomes of each mount in a view.

use super::make::is_fit;
use crate::state::begin_timestamp::Grain;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::overlay_part::{LiveRoot, OverlayPart};
use crate::state::private_place::HIDDEN;
use crate::state::trash;
use pando_kernel::mount::MountEntry;
use pando_kernel::{CallError, Context};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// File systems that show or steer the kernel: nothing in them can be put off until a commit.
const VIRTUAL: [&str; 20] = [
    "proc",
    "sysfs",
    "devtmpfs",
    "devpts",
    "cgroup",
    "cgroup2",
    "mqueue",
    "debugfs",
    "tracefs",
    "securityfs",
    "bpf",
    "pstore",
    "hugetlbfs",
    "binfmt_misc",
    "fusectl",
    "configfs",
    "autofs",
    "efivarfs",
    "nsfs",
    "rpc_pipefs",
];

/// File systems that an upper directory cannot lie on: they keep no extended attributes of the kernel's, cannot rename
/// as it takes, or are changed by other machines too. What is neither here nor [known to be fit](super::make::is_fit)
/// is tried, which is not for what others may see or may have to wait for.
const UNFIT: [&str; 22] = [
    "vfat", "msdos", "exfat", "ntfs3", "hfsplus", "udf", "fuse", "fuseblk", "virtiofs", "nfs", "nfs4", "cifs", "smb3",
    "9p", "ceph", "afs", "lustre", "gfs2", "ocfs2", "orangefs", "vboxsf", "ecryptfs",
];

/// Whether an upper directory cannot lie on a kind of file systems. What stands behind a point is a program's own name
/// for it: `fuse.sshfs`.
pub(super) fn is_unfit(kind: &str) -> bool {
    kind.split('.').next().is_some_and(|kind| UNFIT.contains(&kind))
}

/// Trees of the kernel's; whatever is mounted in them belongs to them.
pub(super) const KERNELS: [&str; 2] = ["/proc", "/sys"];

/// Where control groups are shown, of mounts of which those that others lie in come first: several below one directory,
/// as systemd has them on a machine with the first version, are one tree.
pub(super) fn control_groups<'a>(mounts: impl Iterator<Item = &'a MountEntry>) -> Vec<PathBuf> {
    const USUAL: &str = "/sys/fs/cgroup";
    let mut trees: Vec<PathBuf> = Vec::new();
    for mount in mounts.filter(|mount| ["cgroup", "cgroup2"].contains(&mount.kind.as_str())) {
        let tree = if mount.at.starts_with(USUAL) { Path::new(USUAL) } else { &mount.at };
        if !trees.iter().any(|other| tree.starts_with(other)) {
            trees.push(tree.to_owned());
        }
    }
    trees
}

/// A mount of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixture {
    /// The place of the mount.
    pub at: PathBuf,
    /// How the view shows the mount.
    pub how: How,
    /// The device that its file system lies on, where there is one: whoever looks for that (grub-probe, mkinitramfs)
    /// goes by the list of mounts.
    pub(super) device: Option<String>,
}

impl Fixture {
    /// Whether a part of the transaction is there.
    pub(super) fn is_part(&self) -> bool {
        matches!(self.how, How::Overlay(_))
    }
}

/// How a mount is shown in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// With changes of the transaction's own.
    Overlay(OverlayPart),
    /// As it is, with everything below it.
    Bound,
    /// As it is, but read-only: what is written to it could not be undone.
    ReadOnly,
    /// As an empty directory: transactions do not see each other's files, nor their own from behind.
    Hidden,
}

/// The mounts of a view, those that others lie in first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewPlan {
    /// The mounts. The first is the root.
    pub fixtures: Vec<Fixture>,
    /// Sockets that somebody outside can be reached by.
    pub sockets: Vec<PathBuf>,
    /// Trees of control groups. They are shown, but nothing in them can be changed: a process in another group is not
    /// stopped with the transaction, and what it reads is forgotten with that group.
    pub control_groups: Vec<PathBuf>,
    /// How fine the times are of all the file systems under its overlays.
    pub(crate) grain: Grain,
    /// Whether it is for a user who is not root: no program gets anybody's rights there, and no device is one.
    #[serde(default)]
    pub(crate) for_user: bool,
}

impl ViewPlan {
    /// Plans the view of a transaction over `mounts`: those of the live system that can be reached, with what each can
    /// be used for. `unique` tells it from every other transaction that has its name, or had it.
    pub(super) fn new(home: &StateDirectory, name: &TxName, unique: &str, mounts: &[(MountEntry, Use)]) -> Self {
        // What was mounted in what a commit has thrown away is nobody's to see.
        let is_seen =
            |at: &Path| !at.starts_with(home.directory()) && !at.components().any(|name| name.as_os_str() == HIDDEN);
        let mut sorted: Vec<_> = mounts.iter().filter(|(mount, _)| is_seen(&mount.at)).collect();
        sorted.sort_by_key(|(mount, _)| mount.at.components().count());
        let mut fixtures: Vec<Fixture> = Vec::new();
        let own = home_mount(home, mounts);
        for (number, (mount, usable)) in sorted.iter().enumerate() {
            let at = mount.at.clone();
            let how = match Self::kind(mount, *usable) {
                Kind::Overlay if own == Some(at.as_path()) => {
                    How::Overlay(OverlayPart::new(at, home.of(name).join(format!("part-{number}"))))
                }
                // Numbered, since one file system may be mounted at several places.
                Kind::Overlay => {
                    let part = format!("{number}.{}", home.part_name(name, unique));
                    let base = at.join(HIDDEN).join(part);
                    How::Overlay(OverlayPart::new(at, base))
                }
                Kind::Bound => How::Bound,
                Kind::ReadOnly => How::ReadOnly,
            };
            let bound = |fixture: &Fixture| fixture.how == How::Bound && mount.at.starts_with(&fixture.at);
            // What lies in a tree that is bound with everything below comes along with it.
            if how != How::Bound || !fixtures.iter().any(bound) {
                let device = Some(mount.source.clone()).filter(|source| source.starts_with('/'));
                fixtures.push(Fixture { at: mount.at.clone(), how, device });
            }
        }
        let hidden: Vec<_> = fixtures.iter().filter_map(|fixture| Self::hidden(home, fixture)).collect();
        let hide = |at| Fixture { at, how: How::Hidden, device: None };
        fixtures.extend(hidden.into_iter().map(hide));
        fixtures.push(hide(home.directory().to_owned()));
        fixtures.dedup();
        let has_part = |(mount, usable): &&(MountEntry, Use)| matches!(Self::kind(mount, *usable), Kind::Overlay);
        let grains = mounts.iter().filter(has_part).map(|(mount, _)| Grain::of_kind(&mount.kind));
        let grain = grains.max().unwrap_or(Grain::Fine);
        let control_groups = control_groups(sorted.iter().map(|(mount, _)| mount));
        Self { fixtures, sockets: Vec::new(), control_groups, grain, for_user: false }
    }

    fn hidden(home: &StateDirectory, fixture: &Fixture) -> Option<PathBuf> {
        match &fixture.how {
            How::Overlay(part) if !part.base.starts_with(home.directory()) => Some(part.live.join(HIDDEN)),
            _ => None,
        }
    }

    /// Whether a mount is shown as it is.
    pub(super) fn is_bound(mount: &MountEntry, usable: Use) -> bool {
        matches!(Self::kind(mount, usable), Kind::Bound)
    }

    fn kind(mount: &MountEntry, usable: Use) -> Kind {
        let kernels = KERNELS.iter().any(|tree| mount.at != Path::new(tree) && mount.at.starts_with(tree));
        if VIRTUAL.contains(&mount.kind.as_str()) || kernels || mount.is_read_only() {
            return Kind::Bound;
        }
        match usable {
            Use::Overlay if is_unfit(&mount.kind) => Kind::ReadOnly,
            Use::Overlay => Kind::Overlay,
            Use::Other => Kind::ReadOnly,
        }
    }

    /// Every path that making the view looks up in it: the transaction itself may never do so.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        self.fixtures.iter().map(|fixture| &fixture.at).chain(&self.sockets).cloned().collect()
    }

    /// The parts that hold what the transaction changes.
    pub fn parts(&self) -> impl Iterator<Item = &OverlayPart> {
        self.fixtures.iter().filter_map(|fixture| match &fixture.how {
            How::Overlay(part) => Some(part),
            _ => None,
        })
    }

    /// The same, to be changed.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut OverlayPart> {
        self.fixtures.iter_mut().filter_map(|fixture| match &mut fixture.how {
            How::Overlay(part) => Some(part),
            _ => None,
        })
    }

    /// The same for a transaction whose directory is `to` and was `from`.
    pub(crate) fn move_parts(&mut self, from: &Path, to: &Path) {
        self.parts_mut().for_each(|part| part.moved(from, to));
    }

    /// Makes the directories of the parts. A mount on which they cannot be made, for it is full perhaps, cannot serve,
    /// or is not safe from others, is shown read-only: a transaction that writes nothing there need not care. The
    /// root's must be made. What the live tree's root of each that was made was like.
    pub(crate) fn make_parts(&mut self) -> Result<Vec<LiveRoot>, CallError> {
        let mut roots = Vec::new();
        for (number, fixture) in self.fixtures.iter_mut().enumerate() {
            let How::Overlay(part) = &fixture.how else { continue };
            let fit =
                |made| if number == 0 || is_fit(part) { Ok(made) } else { Err(io::ErrorKind::Unsupported.into()) };
            let made = match part.make() {
                // Left by one of the same name, of which nothing else is known any more.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && trash::remove(part) => part.make(),
                made => made,
            };
            match made.and_then(fit) {
                Ok(made) => {
                    roots.push(made.live);
                    self.grain = self.grain.with(made.base);
                }
                Err(error) if number > 0 => {
                    // What lies in a place that is not private was not made here.
                    if error.kind() != io::ErrorKind::PermissionDenied {
                        trash::remove(part);
                    }
                    fixture.how = How::ReadOnly;
                }
                Err(error) => return Err(error).context(|| format!("making {}", part.base.display())),
            }
        }
        // Nothing need be hidden where nothing could be made: what somebody else has put there is no directory, or not
        // worth hiding.
        let made: Vec<PathBuf> = self.parts().filter_map(|part| Some(part.base.parent()?.to_owned())).collect();
        self.fixtures
            .retain(|fixture| fixture.how != How::Hidden || made.contains(&fixture.at) || !is_beside(&fixture.at));
        Ok(roots)
    }

    /// Makes it a user's: what cannot be kept in memory is read-only, since there he could reach what is being
    /// committed; and what a program serves, his own perhaps, which never answers, is hidden.
    pub(crate) fn give_to_user(&mut self, mounts: &[MountEntry]) {
        self.for_user = true;
        let is_served = |mount: &&MountEntry| mount.kind.starts_with("fuse") && mount.kind != "fusectl";
        let served: Vec<&Path> = mounts.iter().filter(is_served).map(|mount| mount.at.as_path()).collect();
        for fixture in &mut self.fixtures {
            if served.contains(&fixture.at.as_path()) {
                fixture.how = How::Hidden;
            } else if matches!(&fixture.how, How::Overlay(part) if part.memory.is_none()) {
                fixture.how = How::ReadOnly;
            }
        }
    }

    /// Mounts that can be written outside and not in the transaction.
    pub fn read_only(&self) -> impl Iterator<Item = &Path> {
        self.fixtures.iter().filter(|fixture| fixture.how == How::ReadOnly).map(|fixture| fixture.at.as_path())
    }
}

enum Kind {
    Overlay,
    Bound,
    ReadOnly,
}

/// What a mount can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// An overlay can lie over it, whose files know which files they were copied from.
    Overlay,
    /// It cannot: it is a file, or its file system knows no file handles or extended attributes.
    Other,
}

/// Whether a directory is one at the root of a mount that parts lie in.
fn is_beside(directory: &Path) -> bool {
    directory.file_name().is_some_and(|name| name == HIDDEN)
}

/// The mount that the transactions' directory lies on; none if it lies in another subvolume of that (btrfs), between
/// which nothing can be moved.
fn home_mount<'a>(home: &StateDirectory, mounts: &'a [(MountEntry, Use)]) -> Option<&'a Path> {
    let around = mounts.iter().map(|(mount, _)| mount.at.as_path()).filter(|at| home.directory().starts_with(at));
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let mount = around.max_by_key(|at| at.components().count());
    mount.filter(|at| device(at) == device(home.directory()) || !home.directory().exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(at: &str, kind: &str, attributes: &str) -> (MountEntry, Use) {
        let (at, root, attributes) = (at.into(), "/".into(), attributes.into());
        (MountEntry { at, root, kind: kind.into(), attributes, ..MountEntry::default() }, Use::Overlay)
    }

    fn planned(mounts: &[(MountEntry, Use)]) -> Vec<String> {
        let plan = ViewPlan::new(&StateDirectory::new(Path::new("/")), &"t".parse().unwrap(), "7-9", mounts);
        let word = |how: &How| match how {
            How::Overlay(part) => format!("over {}", part.base.display()),
            other => format!("{other:?}"),
        };
        plan.fixtures.iter().map(|fixture| format!("{} {}", fixture.at.display(), word(&fixture.how))).collect()
    }

    #[test]
    fn what_can_be_written_gets_an_overlay_and_the_kernels_own_is_bound() {
        let mounts = [
            mount("/proc", "proc", "rw"),
            mount("/dev/shm", "tmpfs", "rw"),
            mount("/dev", "devtmpfs", "rw"),
            mount("/dev/pts", "devpts", "rw"),
            mount("/sys", "sysfs", "rw"),
            mount("/sys/fs/cgroup", "tmpfs", "rw"),
            mount("/", "ext4", "rw"),
            mount("/srv", "xfs", "rw,noatime"),
            mount("/cd", "iso9660", "ro"),
            mount("/boot/efi", "vfat", "rw"),
            mount("/far", "fuse.sshfs", "rw"),
            mount("/srv/.pando-tx/4.t/trash/0/lost", "ext4", "rw"),
            mount("/var/lib/pando/tx/t/part-0/trash/0/lost", "ext4", "rw"),
        ];
        assert_eq!(
            planned(&mounts),
            [
                "/ over /var/lib/pando/tx/t/part-0",
                "/proc Bound",
                "/dev Bound",
                "/sys Bound",
                "/srv over /srv/.pando-tx/4.t.7-9",
                "/cd Bound",
                "/far ReadOnly",
                "/dev/shm over /dev/shm/.pando-tx/7.t.7-9",
                "/boot/efi ReadOnly",
                "/srv/.pando-tx Hidden",
                "/dev/shm/.pando-tx Hidden",
                "/var/lib/pando/tx Hidden",
            ]
        );
    }

    #[test]
    fn what_cannot_be_undone_is_read_only() {
        let mut file = mount("/etc/resolv.conf", "ext4", "rw");
        file.1 = Use::Other;
        assert_eq!(planned(&[mount("/", "ext4", "rw"), file])[1], "/etc/resolv.conf ReadOnly");
    }

    #[test]
    fn the_state_may_lie_on_a_mount_of_its_own() {
        let mounts = [mount("/", "ext4", "rw"), mount("/var", "xfs", "rw")];
        assert_eq!(planned(&mounts)[..2], ["/ over /.pando-tx/0.t.7-9", "/var over /var/lib/pando/tx/t/part-1"]);
    }
}
