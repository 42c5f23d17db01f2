//! Paths of the host's that somebody has typed, opened by this program itself.
//!
//! A guest's root writes as root to what it is shown, and a user of the host to what is his: a link there would have
//! root read or write what it leads to. The daemon says which directories guests can write to; it is asked only where
//! there is a link on the way.

use crate::replies::WrittenDirectories;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;
use pando_kernel::file::operator_path::{Misled, OperatorPath, Shared};
use rustix::fs::{Mode, OFlags, openat};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How the links of a path are followed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Links<'a> {
    /// All of them: inside a guest, by a process of its own.
    Followed,
    /// Those that nobody else can have put there, guests of this state root among them.
    OfNobodyElse(&'a StateRoot),
}

/// What a path leads to.
#[derive(Debug)]
pub(crate) struct Found {
    /// As a mere place (O_PATH).
    object: OwnedFd,
    /// Where it lies, links resolved.
    path: PathBuf,
}

impl Links<'_> {
    /// Finds what a path leads to.
    pub(crate) fn find(self, path: &Path) -> anyhow::Result<Found> {
        let root = match self {
            Self::Followed => return Found::plainly(path),
            Self::OfNobodyElse(root) => root,
        };
        let found = match OperatorPath::open_again(&std::path::absolute(path)?) {
            Err(Misled::Appeared { .. }) => OperatorPath::open(path, &written(root)?),
            found => found,
        };
        // What the kernel says is told as of any other call.
        let found = found.map_err(|error| match error {
            Misled::Call { source, .. } => anyhow::Error::from(source),
            error => error.into(),
        })?;
        Ok(Found { object: found.as_fd().try_clone_to_owned()?, path: found.path().to_owned() })
    }

    /// Finds the directory that the last name of a path is in, or would be.
    pub(crate) fn find_parent(self, path: &Path) -> anyhow::Result<Found> {
        self.find(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
    }
}

impl Found {
    fn plainly(path: &Path) -> anyhow::Result<Self> {
        let object = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from)?;
        Ok(Self { object, path: path.canonicalize()? })
    }

    pub(crate) fn is_directory(&self) -> io::Result<bool> {
        Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&self.object)?.st_mode).is_dir())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory for reading.
    pub(crate) fn listed(&self) -> io::Result<OwnedFd> {
        Ok(openat(&self.object, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    pub(crate) fn into_place(self) -> OwnedFd {
        self.object
    }
}

/// Opens a file for reading. It waits for nobody: a pipe that has no writer is read as an empty file.
pub(crate) fn read(root: &StateRoot, path: &Path) -> anyhow::Result<File> {
    if is_own_descriptor(path) {
        return Ok(File::open(path)?);
    }
    let found = Links::OfNobodyElse(root).find(path)?;
    let file = pando_kernel::file::confined::open_again(found.object.as_fd(), OFlags::RDONLY);
    let file = file.map_err(io::Error::from)?;
    rustix::io::ioctl_fionbio(&file, false).map_err(io::Error::from)?;
    Ok(file.into())
}

/// Whether a path means what this program was started with, as shells write it for the output of a command: no link on
/// the way there is anybody's.
fn is_own_descriptor(path: &Path) -> bool {
    let is_number = |name: &OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    path == Path::new("/dev/stdin")
        || ["/dev/fd", "/proc/self/fd"].iter().any(|above| path.parent() == Some(Path::new(above)))
            && path.file_name().is_some_and(is_number)
}

/// A file that is written beside its place, and takes its name when it is whole.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    directory: OwnedFd,
    name: &'a OsStr,
    beside: String,
    /// For writing; only its owner may read it.
    pub(crate) file: File,
}

impl<'a> NewFile<'a> {
    /// Begins one, where there is none of that name.
    pub(crate) fn begin(root: &StateRoot, path: &'a Path) -> anyhow::Result<Self> {
        let name = path.file_name().context("it has no name")?;
        let directory = Links::OfNobodyElse(root).find_parent(path)?.into_place();
        let beside = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, &beside, flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
        Ok(Self { directory, name, beside, file: file.into() })
    }

    /// Gives it its name, once the disk has all of it.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(&self.directory, &self.beside, &self.directory, self.name, flags)?)
    }
}

impl Drop for NewFile<'_> {
    /// One that has its name is not there any more under the other.
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.directory, &self.beside, rustix::fs::AtFlags::empty());
    }
}

fn written(root: &StateRoot) -> anyhow::Result<Vec<Shared>> {
    let mut client = crate::daemon_start::connected(root)?;
    let asked = client.call::<WrittenDirectories>(Method::WrittenDirectories {});
    let told = asked.context("cannot ask which directories guests write to")?.directories;
    Ok(told.into_iter().map(|one| Shared { by: one.by, path: one.path.into() }).collect())
}
