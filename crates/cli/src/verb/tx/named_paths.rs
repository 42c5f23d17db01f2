//! Paths that a transaction's reads or changes are told apart by, as the user names them.
//!
//! What a transaction reads and changes is known by paths without links; those that are named may lead through some.

use crate::complaint::Usage;
use pando_tx::Target;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};

/// The root that paths are looked up in: this machine's, or a guest's.
pub(super) struct Named {
    root: File,
    in_guest: bool,
}

impl Named {
    pub(super) fn on_host() -> anyhow::Result<Self> {
        Ok(Self { root: File::open("/")?, in_guest: false })
    }

    pub(super) fn in_guest(target: &Target) -> anyhow::Result<Self> {
        Ok(Self { root: File::open(target.root()?)?, in_guest: true })
    }

    /// What reads are known by at these paths: links are followed, and the link itself counts as well.
    pub(super) fn with_links(&self, paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        for path in self.without_links(paths)? {
            all.extend(self.followed(&path).filter(|followed| *followed != path));
            all.push(path);
        }
        Ok(all)
    }

    /// What changes are known by at these paths: a link at the end stands for itself.
    pub(super) fn without_links(&self, paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
        paths.iter().map(|path| self.without_link(path)).collect()
    }

    fn without_link(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let path = match (path.is_absolute(), self.in_guest) {
            (true, _) => path.to_owned(),
            (false, false) => std::path::absolute(path)?,
            (false, true) => {
                let sentence = format!("'{}' is no path of the guest: write it from '/' on", path.display());
                return Err(Usage::sentence(sentence).into());
            }
        };
        // The longest directory on the way that is there; what comes behind it is only in the transaction.
        let parts: Vec<Component<'_>> = path.components().collect();
        for there in (1..parts.len()).rev() {
            let directory: PathBuf = parts[..there].iter().collect();
            if let Some(found) = self.followed(&directory) {
                return Ok(found.join(parts[there..].iter().collect::<PathBuf>()));
            }
        }
        Ok(path)
    }

    /// Where a path leads.
    fn followed(&self, path: &Path) -> Option<PathBuf> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        std::fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_on_the_way_are_followed_and_what_is_missing_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().canonicalize().unwrap();
        std::fs::create_dir(at.join("real")).unwrap();
        std::os::unix::fs::symlink("real", at.join("link")).unwrap();
        let named = Named::on_host().unwrap();
        let one = |path: &str| named.without_links(&[at.join(path)]).unwrap();
        assert_eq!(one("link/new/deep"), [at.join("real/new/deep")]);
        assert_eq!(one("link"), [at.join("link")]);
        assert_eq!(named.with_links(&[at.join("link")]).unwrap(), [at.join("real"), at.join("link")]);
        assert_eq!(named.with_links(&[at.join("real")]).unwrap(), [at.join("real")]);
    }
}
