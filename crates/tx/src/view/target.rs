//! The view of a transaction that is about a target: overlays over its root and over what it has mounted in memory, in
//! a mount namespace that belongs to its users.
//!
//! Whoever makes it begins with all rights over this machine and ends with those of the target's root user: the
//! overlays are made before, everything else after, so that no path that the target arranged leads anywhere but into
//! the target.

use super::in_reach::InReach;
use super::make::{View, attach, enter_root, keep_control_groups, over};
use super::memory;
use super::plan::{Fixture, How, Use, ViewPlan, control_groups};
use super::sockets;
use crate::state::begin_timestamp::Grain;
use crate::state::directory::StateDirectory;
use crate::state::mount_path;
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::target::Target;
use crate::transaction::StartError;
use crate::validate::read_set::Watch;
use nix::sched::{CloneFlags, setns, unshare};
use pando_kernel::file::handle::FileHandle;
use pando_kernel::mount::overlay;
use pando_kernel::mount::{Attributes, Tree, mounts, mounts_of};
use pando_kernel::{CallError, Context};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstatvfs, openat2};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

impl ViewPlan {
    /// Plans the view of a transaction over a target's mounts: its root gets an overlay, and so does what it has
    /// mounted in memory; what else can be written, but for the kernel's own, is read-only.
    pub(crate) fn of_target(home: &StateDirectory, name: &TxName, target: &Target) -> Result<Self, CallError> {
        let what = || "looking at the mounts".to_owned();
        let pid = target.process().context(what)?;
        let root = target.opened(|pid| File::open(format!("/proc/{pid}/root/."))).context(what)?;
        if FileHandle::of(&root).is_err() {
            let why = "its root file system does not tell its files apart: it is not one that lasts (`pando create`, `clone`, `restore`), or stands on several layers that an earlier version of Pando made";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why)).context(|| "laying an overlay over it".into());
        }
        let part = |number: usize, at: &Path, mount_path| OverlayPart {
            live: at.to_owned(),
            base: home.of(name).join(format!("part-{number}")),
            target: Some(target.clone()),
            mount_path,
            memory: None,
        };
        let how = How::Overlay(part(0, Path::new("/"), Vec::new()));
        let mut fixtures = vec![Fixture { at: "/".into(), how, device: None }];
        let all = mounts_of(pid)?;
        let in_reach = InReach::of(&all);
        let mut ways = memory::ways(&root, &in_reach, &mounts()?);
        let control_groups = control_groups(in_reach.mounts.iter().copied());
        for mount in in_reach.mounts.into_iter().filter(|mount| mount.at != Path::new("/")) {
            // What lies in a tree that is shown as it is comes along with it.
            let is_around = |fixture: &Fixture| !fixture.is_part() && mount.at.starts_with(&fixture.at);
            if fixtures.iter().any(is_around) {
                continue;
            }
            let is_bound = || mount.at == Path::new("/dev") || Self::is_bound(mount, Use::Other);
            let how = match ways.remove(&mount.id) {
                Some(mount_path) => How::Overlay(part(fixtures.len(), &mount.at, mount_path)),
                None if is_bound() => How::Bound,
                None => How::ReadOnly,
            };
            fixtures.push(Fixture { at: mount.at.clone(), how, device: None });
        }
        Ok(Self {
            fixtures,
            sockets: sockets::listening_in(pid, &root),
            control_groups,
            grain: Grain::Tick,
            for_user: false,
        })
    }
}

impl View {
    /// Makes the view and takes this process, which must have one thread, into it, and into the target's users.
    pub(crate) fn enter_target(
        plan: &ViewPlan,
        target: &Target,
        mut watch: Option<&mut Watch>,
    ) -> Result<Self, StartError> {
        let entering = || "entering its namespaces".to_owned();
        let open = |name: &str| target.opened(|pid| File::open(format!("/proc/{pid}/ns/{name}"))).context(entering);
        let (users, mount_namespace) = (open("user")?, open("mnt")?);
        let number = |file: &File| file.metadata().map(|metadata| metadata.ino()).context(entering);
        let same_users = number(&users)? == number(&File::open("/proc/self/ns/user").context(entering)?)?;
        let staging = staging().context(|| "making a namespace to lay files over each other in".into())?;
        let files = plan.parts().map(|part| Tree::clone_of(part.files(), false)).collect::<Result<Vec<_>, _>>()?;
        setns(&mount_namespace, CloneFlags::CLONE_NEWNS).context(entering)?;
        let mut overlays = Vec::new();
        let mut made_of = Vec::new();
        for (part, files) in plan.parts().zip(files) {
            let lower = lower(part)?;
            let (overlay, attributes) = (over(part, None, &lower, &files), attributes(&lower)?);
            let tree = match &staging {
                None => overlay.by_descriptors(attributes)?,
                Some(staging) => {
                    setns(staging, CloneFlags::CLONE_NEWNS).context(entering)?;
                    let made = overlay.by_paths(attributes, &part.base);
                    setns(&mount_namespace, CloneFlags::CLONE_NEWNS).context(entering)?;
                    made?
                }
            };
            if let Some(watch) = &mut watch {
                watch.add(part, &tree).context(|| format!("watching the view of {}", part.live.display()))?;
            }
            made_of.extend([lower, files]);
            overlays.push(tree);
        }
        // Nobody can enter the namespace that he is in.
        if !same_users {
            setns(&users, CloneFlags::CLONE_NEWUSER).context(entering)?;
        }
        // Objects of System V that it makes are its own, and gone with it.
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC).context(|| "making namespaces".into())?;
        let root = put_together(plan, overlays)?;
        enter_root(&root).context(|| "entering the view".into())?;
        Ok(Self { root: root.into(), _made_of: made_of })
    }
}

/// A copy of this machine's mounts, where the kernel takes no descriptors for layers: they are attached to be named,
/// and neither a target, which could be in their way, nor anybody else is to see that. This process is in it
/// afterwards.
fn staging() -> io::Result<Option<File>> {
    if overlay::takes_descriptors() {
        return Ok(None);
    }
    unshare(CloneFlags::CLONE_NEWNS)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    File::open("/proc/self/ns/mnt").map(Some)
}

/// Puts the view together of its overlays, one for each part; its root.
fn put_together(plan: &ViewPlan, overlays: Vec<Tree>) -> Result<Tree, StartError> {
    let mut overlays = overlays.into_iter();
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let root = overlays.next().ok_or_else(missing).context(|| "planning a view without a root".into())?;
    attach(&root, CWD, Path::new("/"))?;
    for fixture in plan.fixtures.iter().skip(1) {
        match fixture.is_part() {
            true => show_part(fixture, &overlays.next().ok_or(StartError::Shifted)?, &root)?,
            false => show(fixture, &root)?,
        }
    }
    for socket in &plan.sockets {
        // One that has gone since is left out.
        let _ = show_socket(socket, &root);
    }
    keep_control_groups(&root, plan)?;
    Ok(root)
}

/// What the target has where a part is, which is what was planned with or nothing.
fn lower(part: &OverlayPart) -> Result<Tree, StartError> {
    if part.mount_path.is_empty() {
        return Ok(Tree::clone_of(Path::new("/"), false)?);
    }
    let what = || format!("looking for what is mounted at {}", part.live.display());
    let root =
        rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).context(what)?;
    match mount_path::follow(root, &part.mount_path) {
        Err(error) if mount_path::is_gone(&error) => Err(StartError::Shifted),
        place => Ok(Tree::clone_at(place.context(what)?)?),
    }
}

/// What may be done on the mount that a view is made of may be done in the view. Devices are the host's to give.
fn attributes(lower: &Tree) -> Result<Attributes, CallError> {
    let flags = fstatvfs(lower).context(|| "looking at a mount".into())?.f_flag;
    let both = [
        (StatVfsMountFlags::NOSUID, Attributes::MOUNT_ATTR_NOSUID),
        (StatVfsMountFlags::NOEXEC, Attributes::MOUNT_ATTR_NOEXEC),
    ];
    let kept = both.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, attribute)| attribute);
    Ok(kept.fold(Attributes::MOUNT_ATTR_NODEV, Attributes::union))
}

/// Shows a server's socket where it is. All is done by descriptors: the /proc of a target does not know this process.
fn show_socket(path: &Path, root: &Tree) -> Result<(), CallError> {
    let what = || format!("showing the socket {}", path.display());
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = path.strip_prefix("/").unwrap_or(path);
    // No link was on the way when that was planned.
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let socket = openat2(CWD, below, flags, Mode::empty(), within).context(what)?;
    // Whoever put something else in its place meanwhile leads nobody to another file, which would be written to at
    // once.
    if FileType::from_raw_mode(rustix::fs::fstat(&socket).context(what)?.st_mode) != FileType::Socket {
        return Ok(());
    }
    let place = openat2(root, below, flags, Mode::empty(), within).context(what)?;
    Tree::clone_at(&socket)?.attach_over(&place)
}

/// Shows a part at its place in the view, which no link leads to.
fn show_part(fixture: &Fixture, overlay: &Tree, root: &Tree) -> Result<(), StartError> {
    let below = fixture.at.strip_prefix("/").unwrap_or(&fixture.at);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    // It was there when the overlay was made.
    let place = openat2(root, below, flags, Mode::empty(), within).map_err(|_| StartError::Shifted)?;
    Ok(overlay.attach_over(place)?)
}

fn show(fixture: &Fixture, root: &Tree) -> Result<(), CallError> {
    // The root has been mounted over: paths lead into the view, where nothing is mounted yet, and `..` of the root is
    // the root. What is to be shown is reached by the directory that the process is in, which is still the old root.
    let below = fixture.at.strip_prefix("/").unwrap_or(&fixture.at);
    let (flags, what) =
        (OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, || format!("showing {}", fixture.at.display()));
    let source = match openat2(CWD, below, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // A file that was mounted there has been removed since from where it came from: it is out of everybody's reach
        // but of those who have it open.
        Err(Errno::NOENT) => return Ok(()),
        source => source.context(what)?,
    };
    let tree = Tree::clone_below(source)?;
    if fixture.how == How::ReadOnly {
        tree.set_attributes(true, Attributes::MOUNT_ATTR_RDONLY)?;
    }
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let place = openat2(root, below, flags, Mode::empty(), within).context(what)?;
    tree.attach_over(place)
}
