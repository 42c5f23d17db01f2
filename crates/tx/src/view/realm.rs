//! The view of a transaction that is about a realm: one overlay over its root, in a mount namespace that belongs to its users.
//!
//! Whoever makes it begins with all rights over this machine and ends with those of the realm's root user: the overlay is made before, everything
//! else after, so that no path that the realm arranged leads anywhere but into the realm.

use super::make::{View, attach, enter_root, over};
use super::plan::{Fixture, How, Use, ViewPlan};
use super::sockets;
use crate::home::Home;
use crate::name::TxName;
use crate::part::Part;
use crate::read_set::Watch;
use crate::realm::Realm;
use nix::sched::{CloneFlags, setns, unshare};
use pando_kernel::file_handle::FileHandle;
use pando_kernel::mount::{Attributes, Tree, mounts_of};
use pando_kernel::{CallError, Context};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

impl ViewPlan {
    /// Plans the view of a transaction over a realm's mounts: its root gets an overlay; what else can be written, but for the kernel's own, is read-only.
    pub(crate) fn of_realm(home: &Home, name: &TxName, realm: &Realm) -> Result<Self, CallError> {
        let what = || "looking at the mounts".to_owned();
        let pid = realm.process().context(what)?;
        let root = File::open(format!("/proc/{pid}/root/.")).context(what)?;
        if FileHandle::of(&root).is_err() {
            let why = "its root file system does not tell its files apart; only one that was made to last (`pando create`) does";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why)).context(|| "laying an overlay over it".into());
        }
        let part = Part { live: "/".into(), base: home.of(name).join("part-0"), realm: Some(realm.clone()) };
        let mut fixtures = vec![Fixture { at: "/".into(), how: How::Overlay(part) }];
        let mut mounts = mounts_of(pid)?;
        mounts.sort_by_key(|mount| mount.at.components().count());
        for mount in mounts.iter().filter(|mount| mount.at != Path::new("/")) {
            // What lies in a tree that is bound comes along with it.
            let around = fixtures.iter().skip(1).any(|fixture| mount.at.starts_with(&fixture.at));
            if !around {
                let bound = mount.at == Path::new("/dev") || Self::is_bound(mount, Use::Other);
                let how = if bound { How::Bound } else { How::ReadOnly };
                fixtures.push(Fixture { at: mount.at.clone(), how });
            }
        }
        Ok(Self { fixtures, sockets: sockets::listening_in(pid, &root), fine_times: false })
    }
}

impl View {
    /// Makes the view and takes this process, which must have one thread, into it, and into the realm's users.
    pub(crate) fn enter_realm(plan: &ViewPlan, realm: &Realm, watch: Option<&mut Watch>) -> Result<Self, CallError> {
        let entering = || "entering its namespaces".to_owned();
        let pid = realm.process().context(entering)?;
        let open = |name: &str| File::open(format!("/proc/{pid}/ns/{name}")).context(entering);
        let (users, mount_namespace) = (open("user")?, open("mnt")?);
        let number = |file: &File| file.metadata().map(|metadata| metadata.ino()).context(entering);
        let same_users = number(&users)? == number(&File::open("/proc/self/ns/user").context(entering)?)?;
        let part = plan.parts().next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput)).context(entering)?;
        let files = Tree::clone_of(&part.base, false)?;
        setns(&mount_namespace, CloneFlags::CLONE_NEWNS).context(entering)?;
        let lower = Tree::clone_of(Path::new("/"), false)?;
        let tree = over(&lower, &files).by_descriptors(Attributes::MOUNT_ATTR_NODEV)?;
        if let Some(watch) = watch {
            watch.add(part, &tree).context(|| "watching the view".into())?;
        }
        // Nobody can enter the namespace that he is in.
        if !same_users {
            setns(&users, CloneFlags::CLONE_NEWUSER).context(entering)?;
        }
        // Objects of System V that it makes are its own, and gone with it.
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC).context(|| "making namespaces".into())?;
        attach(&tree, CWD, Path::new("/"))?;
        for fixture in plan.fixtures.iter().skip(1) {
            show(fixture, &tree)?;
        }
        for socket in &plan.sockets {
            // One that has gone since is left out.
            let _ = show_socket(socket, &tree);
        }
        enter_root(&tree).context(|| "entering the view".into())?;
        Ok(Self { root: tree.into(), _made_of: vec![lower, files] })
    }
}

/// Shows a server's socket where it is. All is done by descriptors: the /proc of a realm does not know this process.
fn show_socket(path: &Path, root: &Tree) -> Result<(), CallError> {
    let what = || format!("showing the socket {}", path.display());
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = path.strip_prefix("/").unwrap_or(path);
    let socket = openat2(CWD, below, flags, Mode::empty(), ResolveFlags::IN_ROOT).context(what)?;
    // Whoever put something else in its place meanwhile leads nobody to another file, which would be written to at once.
    if FileType::from_raw_mode(rustix::fs::fstat(&socket).context(what)?.st_mode) != FileType::Socket {
        return Ok(());
    }
    let place = openat2(root, below, flags, Mode::empty(), ResolveFlags::IN_ROOT).context(what)?;
    Tree::clone_at(&socket)?.attach_over(&place)
}

fn show(fixture: &Fixture, root: &Tree) -> Result<(), CallError> {
    // The root has been mounted over: paths lead into the view, where nothing is mounted yet, and `..` of the root is the root. What is to be shown is
    // reached by the directory that the process is in, which is still the old root.
    let below = fixture.at.strip_prefix("/").unwrap_or(&fixture.at);
    let tree = match Tree::clone_of(below, true) {
        // A file that was mounted there has been removed since from where it came from: it is out of everybody's reach but of those who have it open.
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(()),
        tree => tree?,
    };
    if fixture.how == How::ReadOnly {
        tree.set_attributes(true, Attributes::MOUNT_ATTR_RDONLY)?;
    }
    attach(&tree, root.as_fd(), below)
}
