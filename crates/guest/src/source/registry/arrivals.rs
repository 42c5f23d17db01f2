//! Parts of images that arrived whole before their pull broke off: the next pull does not fetch them again.
//!
//! ```text
//!   arrived/HEX         a part by its SHA-256, root's, which has that digest
//!   arrived/.broken-*   the directory of a client whose daemon was killed: not looked at yet
//! ```
//!
//! A client's directory is looked at as adoption does it: by descriptor, through no link, and only plain files of that
//! user's with no other name are taken. What such a file has to contain its name says. Parts of a registry that lied
//! are not kept. A part goes when a pull has used it, after a day, when there is no room, and with `image prune`.

use super::RegistryError;
use super::adoption::take;
use crate::source::oci::Part;
use crate::source::root::{Root, open_below, read_file};
use pando_kernel::file::tree_removal::{TemporaryDirectory, remove_tree};
use pando_reader::ContentDigest;
use rustix::fs::{Dir, Mode, OFlags, openat};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where in its directory a client has blobs that arrived whole.
const BLOBS: &str = "layout/blobs/sha256";

const BROKEN: &str = ".broken-";
const UNCHECKED: &str = ".unchecked-";

/// For how long a part is kept that nobody comes for.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// More blobs than any image has.
const MOST: usize = 1000;

/// How many pulls there are, which may have parts of here in hand. Nothing is removed while there are several.
static PULLS: Mutex<usize> = Mutex::new(0);

fn pulls() -> MutexGuard<'static, usize> {
    PULLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directory of parts that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals<'a> {
    directory: &'a Path,
}

/// A pull that may use parts of there.
#[derive(Debug)]
pub(super) struct Using(());

impl Drop for Using {
    fn drop(&mut self) {
        *pulls() -= 1;
    }
}

impl<'a> Arrivals<'a> {
    /// Those in a directory, which only root can enter.
    pub fn of(directory: &'a Path) -> Self {
        Self { directory }
    }

    /// Takes the directory of a client that was not done, of a daemon that is no more.
    ///
    /// # Errors
    ///
    /// It stays where it is.
    pub fn abandoned(&self, client: &Path) -> io::Result<()> {
        let name = client.file_name().unwrap_or_default().to_string_lossy();
        fs::rename(client, self.directory.join(format!("{BROKEN}{}", name.trim_start_matches('.'))))
    }

    /// Takes what arrived out of such directories, and removes what is too old. Blocking.
    pub fn recover(&self) {
        let pulls = pulls();
        for entry in fs::read_dir(self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(UNCHECKED.as_bytes()) {
                // Of a daemon that was killed: whoever checks one holds the lock.
                let _ = fs::remove_file(&path);
            } else if name.as_encoded_bytes().starts_with(BROKEN.as_bytes()) {
                if let Ok(root) = Root::open(&path) {
                    self.take_from(&root);
                }
                // Of one that cannot be removed now the next pull takes nothing more, and tries again.
                drop(TemporaryDirectory::of(path));
            } else if *pulls == 0 && is_old(&path) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Removes all of them. While an image is pulled nothing is removed.
    pub fn clear(&self) {
        if *pulls() == 0 {
            self.remove(|_| true);
        }
    }

    /// Begins a pull, during which nothing is removed but by that pull alone.
    pub(super) fn begin(&self) -> Using {
        self.recover();
        *pulls() += 1;
        Using(())
    }

    /// The file of a part, if it arrived.
    pub(super) fn find(&self, part: &Part) -> Option<PathBuf> {
        let member = part.member();
        let path = self.directory.join(member.strip_prefix("blobs/sha256/")?);
        let found = path.symlink_metadata().ok()?;
        (found.is_file() && found.len() == part.size).then_some(path)
    }

    /// Removes the parts of an image that is here by now, and its manifest, which a client writes among them.
    pub(super) fn used(&self, _by: &Using, parts: &[Part], manifest: &str) {
        if *pulls() == 1 {
            let manifest = self.directory.join(manifest.trim_start_matches("sha256:"));
            let used = parts.iter().filter_map(|part| self.find(part)).chain([manifest]);
            used.for_each(|path| drop(fs::remove_file(path)));
        }
    }

    /// Makes room: removes all but the parts of the image that is pulled.
    pub(super) fn make_room(&self, _by: &Using, parts: &[Part]) {
        if *pulls() == 1 {
            let kept: BTreeSet<PathBuf> = parts.iter().filter_map(|part| self.find(part)).collect();
            self.remove(|path| !kept.contains(path));
        }
    }

    fn remove(&self, is_to_go: impl Fn(&Path) -> bool) {
        for entry in fs::read_dir(self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if !is_to_go(&path) {
                continue;
            }
            let removed = if path.is_dir() { remove_tree(&path).is_ok() } else { fs::remove_file(&path).is_ok() };
            if !removed {
                tracing::warn!(path = %path.display(), "what is left of a pull cannot be removed");
            }
        }
    }

    /// Keeps what a client has whole, whose pull ended so. Nothing of a registry that lied.
    pub(super) fn keep(&self, client: &Root, ending: &RegistryError) {
        let is_break = match ending {
            RegistryError::Silent { .. } | RegistryError::Cancelled(_) | RegistryError::Late { .. } => true,
            RegistryError::Refused { reason, .. } => !reason.contains("igest did not match"),
            _ => false,
        };
        if is_break {
            let _pulls = pulls();
            self.take_from(client);
        }
    }

    /// Takes what arrived whole; of one that cannot be taken nothing is said: it is fetched again.
    fn take_from(&self, client: &Root) {
        for name in names(client).unwrap_or_default() {
            if let Err(error) = self.take_one(client, &name) {
                tracing::debug!(%error, name, "it is not kept for the next pull");
            }
        }
    }

    fn take_one(&self, client: &Root, name: &str) -> io::Result<()> {
        let to = self.directory.join(name);
        if to.exists() {
            return Ok(());
        }
        let file = read_file(client, &Path::new(BLOBS).join(name))?;
        let unchecked = self.directory.join(format!("{UNCHECKED}{name}"));
        let _ = fs::remove_file(&unchecked);
        take(&file, &unchecked)?;
        if digest(fs::File::open(&unchecked)?)? != format!("sha256:{name}") {
            return fs::remove_file(&unchecked);
        }
        fs::rename(unchecked, to)
    }
}

/// The names among a client's blobs that are digests.
fn names(client: &Root) -> io::Result<Vec<String>> {
    let blobs = open_below(client.as_fd(), Path::new(BLOBS))?;
    // A handle of a directory cannot be read itself.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::new(openat(&blobs, ".", flags, Mode::empty())?)?.take(MOST) {
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.len() == 64 && name.iter().all(is_digit) {
            names.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(names)
}

fn digest(mut file: fs::File) -> io::Result<String> {
    let mut digest = ContentDigest::default();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest.text()),
            count => digest.update(&buffer[..count]),
        }
    }
}

fn is_old(path: &Path) -> bool {
    let changed = path.symlink_metadata().and_then(|found| found.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|since| since > LONGEST))
}
