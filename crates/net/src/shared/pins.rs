//! Names of programs, maps and links in a BPF file system: what keeps them when this process is gone.

use super::error::{Named, SharedError};
use pando_kernel::file::lock::FileLock;
use pando_kernel::{Context, bpf};
use rustix::fs::FsWord;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The number by which statfs(2) tells a BPF file system (linux/magic.h).
const BPF_FS_MAGIC: FsWord = 0xcafe_4a11;

/// What our names begin with.
const KINDS: [&str; 3] = ["map-", "program-", "link-"];

/// A directory that is a BPF file system of our own: nobody else's names are in it, and it goes when the last of ours
/// does.
#[derive(Clone, Debug)]
pub struct Pins {
    directory: PathBuf,
}

impl Pins {
    /// Those in `directory`, mounted or not.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Whether there are any.
    pub(super) fn exist(&self) -> bool {
        self.hold("pando_bind4")
    }

    /// Whether there is a program of that name.
    pub(crate) fn hold(&self, program: &str) -> bool {
        self.is_mounted() && self.program(program).exists()
    }

    /// Whether there is a directory for them.
    pub(crate) fn have_a_place(&self) -> bool {
        self.directory.exists()
    }

    /// Waits until nobody else makes or removes them: the lock is a file beside the directory.
    pub(crate) fn lock(&self) -> Result<FileLock, SharedError> {
        let path = self.directory.with_extension("lock");
        let what = || format!("locking {}", path.display());
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above).context(what)?;
        }
        Ok(FileLock::take(&path).context(what)?)
    }

    fn is_mounted(&self) -> bool {
        rustix::fs::statfs(&self.directory).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
    }

    /// Mounts the file system where that has not been done.
    pub(crate) fn mount(&self) -> Result<(), SharedError> {
        let what = || format!("mounting a BPF file system on {}", self.directory.display());
        std::fs::create_dir_all(&self.directory).context(what)?;
        if self.is_mounted() {
            return Ok(());
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let mode: &CStr = c"mode=700";
        rustix::mount::mount("pando", &self.directory, "bpf", flags, mode).context(what)?;
        Ok(())
    }

    /// Removes every name, which detaches every link, and the file system.
    pub(crate) fn remove(&self) -> Result<(), SharedError> {
        if self.is_mounted() {
            // Others may hold a copy of the mount, and with it the names: those have to go first.
            for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
                let path = entry.path();
                // The kernel puts names of its own there, which nobody can remove.
                if !KINDS.iter().any(|kind| entry.file_name().as_encoded_bytes().starts_with(kind.as_bytes())) {
                    continue;
                }
                std::fs::remove_file(&path).context(|| format!("removing {}", path.display()))?;
            }
            rustix::mount::unmount(&self.directory, UnmountFlags::DETACH)
                .context(|| format!("unmounting {}", self.directory.display()))?;
        }
        match std::fs::remove_dir(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).context(|| format!("removing {}", self.directory.display()))?
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.directory.join(format!("map-{name}"))
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.directory.join(format!("program-{name}"))
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.directory.join(format!("link-{name}"))
    }

    /// The names of the links that there are.
    pub(crate) fn links(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("link-").map(str::to_owned);
        entries.filter_map(name).collect()
    }

    pub(crate) fn open_program(&self, name: &str) -> Result<OwnedFd, SharedError> {
        libbpf_rs::Program::fd_from_pinned_path(self.program(name)).named(|| format!("opening program {name}"))
    }

    /// Keeps an object by a name; a name that is taken is taken over.
    pub(crate) fn keep(&self, object: BorrowedFd<'_>, path: &Path) -> Result<(), SharedError> {
        let _ = std::fs::remove_file(path);
        bpf::pin(object, path).context(|| format!("pinning {}", path.display()))?;
        Ok(())
    }
}
