//! Volumes that are known by their names: directories of Pando's own, which guests show.
//!
//! They lie in `volumes` below the state, where only root can look: what a guest writes is owned by the ids that it
//! writes as, set-user-id bits included. A guest's spec has the path of one. The name is what users say.

use crate::failure;
use crate::state::daemon::Daemon;
use pando_api::{Fault, FaultKind, NamedVolume, Reply, Spec, WrittenDirectory, is_volume_name};
use pando_guest::Places;
use pando_kernel::file::operator_path::{OperatorPath, Shared};
use pando_kernel::file::tree_removal::{nothing_is_mounted_in, remove_tree};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What others than root may do to all of them: nothing.
const CLOSED: u32 = 0o700;
const USUAL: u32 = 0o755;

/// Puts the paths of volumes in the place of their names, and makes those that are missing. A path that others lead
/// elsewhere is refused.
pub(crate) fn resolve(daemon: &Daemon, spec: &mut Spec) -> Result<(), Fault> {
    let shared = shared(daemon, spec);
    for volume in &mut spec.volumes {
        if !volume.source.starts_with('/') {
            let path = make(&daemon.places, &volume.source)?;
            volume.source = path.to_string_lossy().into_owned();
        }
        OperatorPath::open(Path::new(&volume.source), &shared)
            .map_err(|error| failure::bad(&volume.source, format!("volume {}: {error}", volume.source)))?;
    }
    Ok(())
}

/// The directories in which a guest can put a link on the way to a volume of this spec: what guests are shown to write
/// to, clones of images and this one too, and where Pando keeps what guests write. None for a spec without volumes.
pub(crate) fn shared(daemon: &Daemon, spec: &Spec) -> Vec<Shared> {
    if spec.volumes.is_empty() {
        return Vec::new();
    }
    written_by_guests(daemon, spec)
}

/// The directories that guests can write to as root.
pub(crate) fn written_by_guests(daemon: &Daemon, spec: &Spec) -> Vec<Shared> {
    let of = |by: String, spec: &Spec| -> Vec<Shared> {
        let written = spec.volumes.iter().filter(|one| !one.read_only && one.source.starts_with('/'));
        written.map(|one| Shared { by: by.clone(), path: PathBuf::from(&one.source) }).collect()
    };
    let guests = daemon.guests.borrow();
    let guests = guests.values().flat_map(|guest| of(format!("guest '{}'", guest.name), &guest.spec.borrow()));
    let images = daemon.images.borrow();
    let images = images.iter().flat_map(|(name, held)| of(format!("a clone of image '{name}'"), &held.record.spec));
    let places = [daemon.places.volumes(), daemon.places.guests(), daemon.places.ephemeral()];
    let kept = places.map(|path| Shared { by: "a guest".to_owned(), path });
    guests.chain(images).chain(of("the guest itself".to_owned(), spec)).chain(kept).collect()
}

/// The same as a client is told of them, for paths that it opens itself.
pub(crate) fn written_directories(daemon: &Daemon) -> Reply {
    let written = written_by_guests(daemon, &Spec::default()).into_iter();
    let told = |Shared { by, path }| WrittenDirectory { by, path: path.to_string_lossy().into_owned() };
    Reply::WrittenDirectories { directories: written.map(told).collect() }
}

/// Makes one, if it is missing; where it lies.
pub(crate) fn make(places: &Places, name: &str) -> Result<PathBuf, Fault> {
    if !is_volume_name(name) {
        let message = format!(
            "'{}' cannot be the name of a volume: 1 to 63 letters, digits, '-', '_' and '.', beginning with a letter or digit; a directory of the host is written as /PATH or ./PATH",
            name.escape_debug()
        );
        return Err(failure::bad(name, message));
    }
    let made = directory(places).and_then(|all| match rustix::fs::mkdirat(&all, name, Mode::from_raw_mode(USUAL)) {
        // Whatever this process's umask.
        Ok(()) => Ok(rustix::fs::chmodat(&all, name, Mode::from_raw_mode(USUAL), AtFlags::empty())?),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    });
    made.map_err(|error| failure::io(&format!("making the volume '{name}'"), name, &error))?;
    Ok(places.volumes().join(name))
}

/// The directory of all of them, made if it is missing.
fn directory(places: &Places) -> io::Result<OwnedFd> {
    let path = places.volumes();
    match rustix::fs::mkdir(&path, Mode::from_raw_mode(CLOSED)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let all = rustix::fs::open(&path, flags, Mode::empty())?;
    rustix::fs::fchmod(&all, Mode::from_raw_mode(CLOSED))?;
    Ok(all)
}

/// All of them, in the order of their names.
pub(crate) fn list(daemon: &Daemon) -> Result<Vec<NamedVolume>, Fault> {
    let path = daemon.places.volumes();
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failure::io("listing the volumes", "volumes", &error)),
    };
    let mut volumes: Vec<NamedVolume> = entries
        .flatten()
        .filter_map(|entry| {
            let (name, about) = (entry.file_name().into_string().ok()?, entry.metadata().ok()?);
            let known = about.is_dir() && is_volume_name(&name);
            let created = about.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            let created = created.map_or(about.ctime(), |since| i64::try_from(since.as_secs()).unwrap_or(0));
            let directory = entry.path();
            let guests = users(daemon, &directory);
            known.then(|| NamedVolume { name, directory: directory.to_string_lossy().into_owned(), created, guests })
        })
        .collect();
    volumes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(volumes)
}

/// The guests and images that show a volume, or something in it.
fn users(daemon: &Daemon, directory: &Path) -> Vec<String> {
    let shows = |spec: &Spec| spec.volumes.iter().any(|volume| Path::new(&volume.source).starts_with(directory));
    let guests = daemon.guests.borrow();
    let guests = guests.values().filter(|guest| shows(&guest.spec.borrow())).map(|guest| guest.name.to_string());
    let images = daemon.images.borrow();
    let images = images.iter().filter(|(_, held)| shows(&held.record.spec)).map(|(name, _)| format!("image {name}"));
    guests.chain(images).collect()
}

/// Removes one that nobody shows, with all that is in it.
pub(crate) async fn remove(daemon: &Rc<Daemon>, name: &str) -> Result<(), Fault> {
    let known = list(daemon)?.into_iter().find(|volume| volume.name == name);
    let Some(volume) = known else {
        let message = format!("there is no volume '{name}'; 'pando volume ls' lists them");
        return Err(failure::bad(name, message));
    };
    if !volume.guests.is_empty() {
        let message = format!(
            "volume '{name}' is shown by {}; remove these first, or nothing is left of what they keep there",
            volume.guests.join(", ")
        );
        return Err(Fault::new(FaultKind::Busy, name, message));
    }
    let path = PathBuf::from(volume.directory);
    let removed = tokio::task::spawn_blocking(move || {
        nothing_is_mounted_in(&path, &[])?;
        remove_tree(&path)
    });
    let doing = format!("removing the volume '{name}'");
    match removed.await {
        Ok(removed) => removed.map_err(|error| failure::io(&doing, name, &error.into())),
        Err(error) => Err(failure::bad(name, format!("{doing} failed inside Pando: {error}"))),
    }
}
