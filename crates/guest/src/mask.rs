//! What no guest may see of the host's own root when it runs on it: in the guest's own files, hidden directories are
//! *opaque* and hidden files are *whiteouts* from the start (Documentation/filesystems/overlayfs.rst).
//!
//! It cannot be a layer of its own between the two: the kernel refuses a stack of several lower directories of which
//! one contains another (ELOOP), and the host's root contains everything. So it is made in each guest's upper
//! directory, ahead of its start.

use crate::source::{Hidden, HostFilter, Treatment, is_private, lacks};
use pando_kernel::{CallError, Context};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How deep the skeleton of a hidden directory is followed.
const DEEPEST: usize = 16;

/// Makes the mask over the root of this host in `into`, an empty upper directory.
pub fn make(into: &Path, expose: &[PathBuf], leave_out: &[PathBuf]) -> Result<(), CallError> {
    let host = Path::new("/");
    let top = host.metadata().context(|| "looking at /".into())?;
    own(into, &top).context(|| format!("making the mask at {}", into.display()))?;
    let host_filter = HostFilter::over(host, expose, leave_out);
    let private =
        if shows_private(expose) { host_filter.private() } else { lately_private(&host_filter, expose, leave_out) };
    for hidden in host_filter.hidden().into_iter().chain(private) {
        hide(into, &hidden).context(|| format!("hiding {} from guests", hidden.path.display()))?;
    }
    Ok(())
}

/// What was private a moment ago and still is. Where the kernel keeps a guest from such files it is for convenience
/// that they are out of the way, and a walk through /etc and /var is too dear for each guest.
fn lately_private(host_filter: &HostFilter, expose: &[PathBuf], leave_out: &[PathBuf]) -> Vec<Hidden> {
    const MOMENT: Duration = Duration::from_secs(60);
    type Walk = (Instant, [Vec<PathBuf>; 2], Vec<Hidden>);
    static LAST: Mutex<Option<Walk>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = [expose.to_vec(), leave_out.to_vec()];
    let (_, _, found) = match last.take().filter(|(at, of, _)| at.elapsed() < MOMENT && *of == asked) {
        Some(walk) => last.insert(walk),
        None => last.insert((Instant::now(), asked, host_filter.private())),
    };
    found.iter().filter(|hidden| is_private(&hidden.path)).cloned().collect()
}

/// Whether something is exposed that a stranger to the host cannot read, so that the guest has to see with root's eyes.
/// `expose` has paths as they were given, and where they lead.
pub fn shows_private(expose: &[PathBuf]) -> bool {
    let closed = |path: &Path| {
        // To get to it takes leave to search each directory above. Where a link leads is among them as well.
        let on_the_way = path.ancestors().skip(1).any(|above| lacks(above, 0o001));
        path.symlink_metadata().is_ok() && (on_the_way || is_private(path))
    };
    // What lies below something hidden is mounted on top, from the host itself.
    let on_top = on_top(expose, &[]);
    expose.iter().filter(|path| !on_top.contains(path)).any(|path| path.as_path() == Path::new("/") || closed(path))
}

/// Those of the exposed paths that lie below something hidden: they have to be mounted on top of the mask.
pub fn on_top(expose: &[PathBuf], leave_out: &[PathBuf]) -> Vec<PathBuf> {
    if expose.is_empty() {
        return Vec::new();
    }
    let hidden = HostFilter::over(Path::new("/"), expose, leave_out).hidden();
    let below = |path: &&PathBuf| hidden.iter().any(|one| path.starts_with(&one.path) && **path != one.path);
    expose.iter().filter(below).cloned().collect()
}

fn hide(into: &Path, hidden: &Hidden) -> io::Result<()> {
    let Ok(inside) = hidden.path.strip_prefix("/") else { return Ok(()) };
    let metadata = match hidden.path.symlink_metadata() {
        Ok(metadata) => metadata,
        // It went away since it was found: nothing to hide.
        Err(_) => return Ok(()),
    };
    if !parents(into, inside)? {
        return Ok(());
    }
    let place = into.join(inside);
    if place.symlink_metadata().is_ok() {
        return Ok(());
    }
    match hidden.treatment {
        Treatment::Absent => whiteout(&place),
        Treatment::Locked => crate::source::locked(&hidden.path).and_then(|text| file(&place, &text, &metadata)),
        Treatment::Hollow if metadata.is_dir() => directory(&place, &metadata),
        Treatment::Skeleton if metadata.is_dir() => skeleton(&hidden.path, &place, 0),
        // A link leads to what is hidden where it really lies.
        Treatment::Hollow | Treatment::Skeleton if metadata.is_symlink() => Ok(()),
        Treatment::Hollow | Treatment::Skeleton => file(&place, b"", &metadata),
    }
}

/// Makes the directories above a place, as the host has them. `false` where one of them is hidden already, and the
/// place with it.
fn parents(into: &Path, inside: &Path) -> io::Result<bool> {
    let mut here = into.to_owned();
    let mut host = PathBuf::from("/");
    for name in inside.parent().into_iter().flat_map(Path::components) {
        here.push(name);
        host.push(name);
        match here.symlink_metadata() {
            Ok(found) if !found.is_dir() || is_opaque(&here) => return Ok(false),
            Ok(_) => {}
            Err(_) => {
                std::fs::create_dir(&here)?;
                own(&here, &host.symlink_metadata()?)?;
            }
        }
    }
    Ok(true)
}

const OPAQUE: &str = "trusted.overlay.opaque";

fn is_opaque(path: &Path) -> bool {
    let mut value = [0; 8];
    rustix::fs::lgetxattr(path, OPAQUE, &mut value).is_ok()
}

fn directory(place: &Path, metadata: &Metadata) -> io::Result<()> {
    std::fs::create_dir(place)?;
    rustix::fs::lsetxattr(place, OPAQUE, b"y", XattrFlags::empty())?;
    own(place, metadata)
}

fn skeleton(host: &Path, place: &Path, depth: usize) -> io::Result<()> {
    directory(place, &host.symlink_metadata()?)?;
    for entry in std::fs::read_dir(host)?.flatten() {
        if depth < DEEPEST && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            skeleton(&entry.path(), &place.join(entry.file_name()), depth + 1)?;
        }
    }
    Ok(())
}

fn whiteout(place: &Path) -> io::Result<()> {
    let none = rustix::fs::makedev(0, 0);
    Ok(rustix::fs::mknodat(CWD, place, FileType::CharacterDevice, Mode::empty(), none)?)
}

fn file(place: &Path, content: &[u8], metadata: &Metadata) -> io::Result<()> {
    std::fs::write(place, content)?;
    own(place, metadata)
}

fn own(place: &Path, like: &Metadata) -> io::Result<()> {
    chown(place, Some(like.uid()), Some(like.gid()))?;
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(like.mode() & 0o7777))
}
