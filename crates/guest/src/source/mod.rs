//! Where a guest's files come from.
//!
//! A [`Source`] is a word that the user wrote; [`materialize`] turns it into a tree of files in an empty directory.
//! What is read is never trusted: an archive or an image may be hostile, and a live tree changes while it is copied. So
//! nothing here ever resolves a path on the destination by itself; each step goes through a directory file descriptor,
//! and the kernel (`openat2`) keeps it inside.
//!
//! ```text
//!  syntax   ── Source ─┬─ host ──────── host filter (secrets) ─┐
//!                      ├─ directory, guest ─ mounts ────┴─ copy (chain, content, attributes) ──┐
//!                      ├─ tarball ──────────┐                                                  ├─ into
//!                      ├─ oci (blobs, platform) ─ archive (pando-reader ▷ entry ▷ unpack) ─────┤
//!                      │   └─ registry (skopeo: an image becomes a layout)                      │
//!                      └─ debian (apt_settings) ─ mmdebstrap | debootstrap ────────────────────┘
//! ```
//!
//! After an error `into` is empty again, as far as the kernel allowed.

mod apt_settings;
mod archive;
mod copy;
mod debian;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod host;
mod host_filter;
mod meter;
mod mounts;
mod oci;
mod package_tool;
mod private;
pub mod registry;
mod root;
mod secrets;
mod shadow;
mod syntax;
mod tarball;
mod write_error;

#[cfg(test)]
mod tests;

pub use archive::ArchiveError;
pub use copy::CopyError;
pub use debian::DebianError;
pub use host_filter::{Hidden, HostFilter};
pub use meter::Cancelled;
pub use mounts::{MountsBelow, mounts_below};
pub use oci::OciError;
pub use private::{is_private, lacks};
pub use secrets::{Secret, Treatment, secrets};
pub use syntax::SyntaxError;
pub use write_error::WriteError;

use pando_api::HealthCheck;
use std::path::{Path, PathBuf};

/// Where a guest's files come from. Written and read by its `Display` and `FromStr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A copy of the host's own root, without its [`secrets`].
    Host,
    /// A copy of a directory.
    Directory(PathBuf),
    /// The content of a tar archive, plain or compressed with gzip, zstd or xz.
    Tarball(PathBuf),
    /// An image in an OCI layout (a directory, or a tar archive of one) or in an archive of `docker save`.
    Oci {
        /// The layout's directory, or the archive.
        path: PathBuf,
        /// Which of its images; needed when it holds several.
        tag: Option<String>,
    },
    /// An image of a registry, by its full name. It is pulled first; `materialize` takes the layout that it became.
    Docker(registry::Reference),
    /// A Debian system, installed by mmdebstrap or debootstrap from the mirrors that the host itself uses.
    Debian {
        /// The release, by its code name or its standing.
        suite: String,
        /// Packages beyond the minimal system.
        packages: Vec<String>,
    },
    /// A copy of another guest's files.
    Guest(String),
}

/// The content that a password file of the host has for guests: every account, locked. Empty for a file of another
/// format.
pub fn locked(path: &Path) -> std::io::Result<Vec<u8>> {
    let accounts = |name: &str| std::fs::read(path.with_file_name(name));
    match path.file_name().and_then(|name| name.to_str()) {
        Some("shadow") => Ok(shadow::locked_shadow(&accounts("passwd")?)),
        Some("gshadow") => Ok(shadow::locked_gshadow(&accounts("group")?)),
        _ => Ok(Vec::new()),
    }
}

/// What [`materialize`] must know beyond the source itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Absolute paths of the host that `host` shows although they are secret: as they were given, and where they lead.
    pub expose: Vec<PathBuf>,
    /// Absolute paths of the host that `host` never shows: the directories of Pando itself.
    pub leave_out: Vec<PathBuf>,
    /// The root directory of the guest that `guest:NAME` names; the caller finds it.
    pub guest_tree: Option<PathBuf>,
    /// The layout that an image of a registry was pulled into; the caller finds it.
    pub layout: Option<PathBuf>,
}

/// Hears how far the work is, and may stop it.
pub trait Progress: Send + Sync {
    /// A new stage begins: a short phrase for people.
    fn stage(&self, what: &str);
    /// `done` of `total` bytes of the current stage; without a total nobody knows how many there will be.
    fn advance(&self, done: u64, total: Option<u64>);
    /// Whether to stop. Asked every few megabytes and every few hundred files.
    fn cancelled(&self) -> bool {
        false
    }
}

/// What became of a source that was made a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Names made, of every kind but directories.
    pub files: u64,
    /// Bytes of regular files, holes included, each hard-linked file once.
    pub bytes: u64,
    /// What the source has and the tree has not.
    pub left: LeftBehind,
    /// How the source would like to be run.
    pub suggested: Suggested,
}

/// What the source has and the tree has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftBehind {
    /// Device nodes: every one in an archive; in a copy those that are overlay whiteouts, or that may not be made.
    pub devices: u64,
    /// Sockets: only their listener could give them meaning.
    pub sockets: u64,
    /// Files that went away between being listed and being read.
    pub vanished: u64,
    /// Files written to while they were copied, both times: the copy may mix old and new.
    pub changed: u64,
    /// Extended attributes that a guest must not have, or that the destination's file system cannot hold.
    pub attributes: u64,
    /// Entries of an archive of a type that means nothing here.
    pub unknown: u64,
    /// Mounts whose content was not copied, relative to the source's root.
    pub mounts: Vec<PathBuf>,
}

/// How an image would like to be run. Everything is empty for the other sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Suggested {
    /// What always runs; `command` is its arguments.
    pub entrypoint: Vec<String>,
    /// What runs when the user names no command.
    pub command: Vec<String>,
    /// Variables of the environment, each as `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The directory where the command starts.
    pub workdir: Option<String>,
    /// `USER`, `UID`, `USER:GROUP` or `UID:GID`.
    pub user: Option<String>,
    /// The signal that asks it to stop.
    pub stop_signal: Option<String>,
    /// The ports that it listens on, as `PORT` or `PORT/PROTOCOL`.
    pub exposed: Vec<String>,
    /// How is found out whether it is well.
    pub health: Option<HealthCheck>,
}

/// Why a source did not become a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The destination is not an empty directory.
    #[error("cannot put a guest's files into '{into}': {reason}; name an empty directory")]
    Destination {
        /// The directory that the tree is made in.
        into: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller gave no tree for `guest:NAME`.
    #[error(
        "cannot copy the files of guest '{0}': no guest of that name has files here; `pando ls` names those there are"
    )]
    NoGuestTree(String),
    /// The caller gave no layout for an image of a registry.
    #[error("the image '{0}' is not here; `pando pull {0}` fetches it")]
    NotPulled(String),
    /// A tree could not be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A tarball could not be unpacked.
    #[error(transparent)]
    Tarball(#[from] ArchiveError),
    /// An image could not be unpacked.
    #[error(transparent)]
    Oci(#[from] OciError),
    /// A Debian system could not be installed.
    #[error(transparent)]
    Debian(#[from] DebianError),
}

impl SourceError {
    /// Whether the work stopped because [`Progress::cancelled`] said so.
    pub fn is_cancelled(&self) -> bool {
        matches!(
            self,
            Self::Copy(CopyError::Cancelled(_))
                | Self::Tarball(ArchiveError::Cancelled(_))
                | Self::Oci(OciError::Cancelled(_) | OciError::Archive(ArchiveError::Cancelled(_)))
                | Self::Debian(DebianError::Cancelled(_))
        )
    }
}

/// Makes the files of `source` in `into`, an empty directory whose parent only root can enter.
///
/// The parent matters: while the work is under way, setuid programs stand in `into` with modes and owners half set.
/// After an error `into` has been emptied as far as possible; the caller removes it.
pub fn materialize(
    source: &Source,
    into: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Summary, SourceError> {
    // Programs that are started for it work in another directory.
    let into = &checked_destination(into)?;
    let done = make(source, into, options, progress);
    if done.is_err() {
        // The first error is the one to tell; what cannot be removed here the caller meets when it removes `into`.
        let _ = pando_kernel::file::tree_removal::empty_directory(into);
    }
    done
}

fn make(source: &Source, into: &Path, options: &Options, progress: &dyn Progress) -> Result<Summary, SourceError> {
    match source {
        Source::Host => Ok(host::copy_host(into, options, progress)?),
        Source::Directory(from) => Ok(copy::copy_directory(from, into, progress)?),
        Source::Guest(name) => {
            let tree = options.guest_tree.as_deref().ok_or_else(|| SourceError::NoGuestTree(name.clone()))?;
            Ok(copy::copy_detached(tree, into, progress)?)
        }
        Source::Tarball(file) => Ok(tarball::unpack_tarball(file, into, progress)?),
        Source::Oci { path, tag } => Ok(oci::unpack_image(path, tag.as_deref(), into, progress)?),
        Source::Docker(reference) => {
            let layout = options.layout.as_deref().ok_or_else(|| SourceError::NotPulled(reference.whole()))?;
            Ok(oci::unpack_layout(layout, &reference.whole(), into, progress)?)
        }
        Source::Debian { suite, packages } => Ok(debian::install(suite, packages, into, progress)?),
    }
}

/// The destination's real path; an error unless it is an empty directory.
fn checked_destination(into: &Path) -> Result<PathBuf, SourceError> {
    let wrong = |reason: String| SourceError::Destination { into: into.to_owned(), reason };
    let real = into.canonicalize().map_err(|error| wrong(error.to_string()))?;
    let mut entries = std::fs::read_dir(&real).map_err(|error| wrong(error.to_string()))?;
    match entries.next() {
        None => Ok(real),
        Some(_) => Err(wrong("it is not empty".to_owned())),
    }
}
