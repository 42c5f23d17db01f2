//! The directory at the root of a mount that parts of transactions lie in, where others may write beside it.
//!
//! A mount such as /dev/shm can be written to by everybody, and one such as /run/user/1000 belongs to somebody. What is
//! found there under the name that transactions use may be anybody's: a directory of his, or a link to where root would
//! then write. So the directory is made and looked at by descriptor: it is this user's own, closed to others, and
//! nobody else can put another in its place. Where that cannot be had there is no place
//! ([`io::ErrorKind::PermissionDenied`]), and the mount is shown read-only.

use pando_kernel::file::trusted_directory::TrustedDirectory;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The directory at the root of a mount that holds the parts of transactions there.
pub(crate) const HIDDEN: &str = ".pando-tx";

/// How often the directory is made anew, when whoever believed to be the last in it has just removed it.
const TIMES: u32 = 1000;

const MOST_PRIVATE: Mode = Mode::RWXU;

/// Makes a directory for a part, and the one that it lies in. One that is there already is taken if it is private, too.
///
/// # Errors
///
/// `PermissionDenied` where somebody else could reach what lies in it; `AlreadyExists` where there is a directory of
/// that name; what the calls say.
pub(crate) fn make(base: &Path) -> io::Result<()> {
    let Some((hidden, name)) = place(base) else { return private_directory(base) };
    let way = way(hidden)?;
    for _ in 0..TIMES {
        let made = match &way {
            Some(mount) => rustix::fs::mkdirat(mount, HIDDEN, MOST_PRIVATE),
            None => rustix::fs::mkdir(hidden, MOST_PRIVATE),
        };
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let directory = match open(hidden, way.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match rustix::fs::mkdirat(&directory, name, MOST_PRIVATE) {
            // It was removed meanwhile.
            Err(Errno::NOENT) => {}
            made => return Ok(made?),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// The same, where it may be there already.
pub(crate) fn make_all(base: &Path) -> io::Result<()> {
    match make(base) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Whether what lies at `base` was made by [`make`]: nobody else can have put it there. Also true where it lies in no
/// such directory.
pub(crate) fn is_private(base: &Path) -> bool {
    place(base).is_none_or(|(hidden, _)| way(hidden).and_then(|way| open(hidden, way.as_ref())).is_ok())
}

/// The directory that a part at the root of a mount lies in, and its name there.
fn place(base: &Path) -> Option<(&Path, &std::ffi::OsStr)> {
    let hidden = base.parent().filter(|hidden| hidden.file_name().is_some_and(|name| name == HIDDEN))?;
    Some((hidden, base.file_name()?))
}

/// Below the directory of all transactions, which is private.
fn private_directory(path: &Path) -> io::Result<()> {
    match rustix::fs::mkdir(path, MOST_PRIVATE) {
        Err(Errno::NOENT) => {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().mode(0o700).recursive(true).create(path)
        }
        made => Ok(made?),
    }
}

/// Opens the directory, if it is this user's own and nobody else's, and stays where it is.
fn open(hidden: &Path, way: Option<&TrustedDirectory>) -> io::Result<OwnedFd> {
    match way {
        Some(mount) => Ok(mount.private(HIDDEN.as_ref())?.into()),
        None => Ok(rustix::fs::open(hidden, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?),
    }
}

/// The mount's root, if nobody can put something else in the place of what root makes there; nothing where a test has
/// planted that this is not looked at.
fn way(hidden: &Path) -> io::Result<Option<TrustedDirectory>> {
    if crate::crash::planted("shared-place") {
        return Ok(None);
    }
    let mount = hidden.parent().ok_or(io::ErrorKind::NotFound)?;
    Ok(Some(TrustedDirectory::open(mount)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn it_is_made_closed_to_others_and_found_again() {
        let mount = tempfile::tempdir().unwrap();
        let base = mount.path().join(HIDDEN).join("1.t");
        make(&base).unwrap();
        assert!(is_private(&base));
        for path in [&base, base.parent().unwrap()] {
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert_eq!(make(&base).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_link_and_what_others_can_write_to_are_no_place() {
        let mount = tempfile::tempdir().unwrap();
        let hidden = mount.path().join(HIDDEN);
        let elsewhere = mount.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &hidden).unwrap();
        assert_eq!(make(&hidden.join("1.t")).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(!is_private(&hidden.join("1.t")));
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        std::fs::remove_file(&hidden).unwrap();
        std::fs::create_dir(&hidden).unwrap();
        std::fs::set_permissions(&hidden, PermissionsExt::from_mode(0o770)).unwrap();
        assert_eq!(make(&hidden.join("1.t")).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn where_others_may_write_the_sticky_bit_is_wanted() {
        let mount = tempfile::tempdir().unwrap();
        for (mode, is_one) in [(0o777, false), (0o1777, true), (0o775, false), (0o755, true)] {
            std::fs::set_permissions(mount.path(), PermissionsExt::from_mode(mode)).unwrap();
            let base = mount.path().join(HIDDEN).join(format!("{mode}.t"));
            assert_eq!(make(&base).is_ok(), is_one, "{mode:o}");
            assert!(is_one || !base.parent().unwrap().exists(), "nothing is made where it cannot stay");
            let _ = pando_kernel::file::tree_removal::remove_tree(base.parent().unwrap());
        }
    }
}
