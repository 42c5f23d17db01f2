//! Private files: what of the host's files an unprivileged user that owns nothing could not read.

use super::host_filter::{Hidden, HostFilter};
use super::secrets::Treatment;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where services keep what is theirs alone. Elsewhere the kernel keeps a guest from it just as well; here it is taken
/// out of the way too, since programs find it easier to live with a file that is not there than with one that root may
/// not read.
const PLACES: [&str; 4] = ["boot", "etc", "usr/local", "var"];

const SEARCH: u32 = 0o001;
const READ: u32 = 0o004;

/// Whether others lack any of some permissions. What cannot be looked at is lacking all.
pub fn lacks(path: &Path, permissions: u32) -> bool {
    path.symlink_metadata().map_or(true, |found| found.mode() & permissions != permissions)
}

/// Whether others may not read a file, or not list or not search a directory. What is not there is not private.
pub fn is_private(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| is_closed(&found))
}

fn is_closed(found: &Metadata) -> bool {
    let needed = if found.is_dir() { READ | SEARCH } else { READ };
    (found.is_dir() || found.is_file()) && found.mode() & needed != needed
}

impl HostFilter {
    /// What is private and not hidden for another reason nor exposed: directories are emptied, files are not there. As
    /// of now: what is private later is for the kernel to keep.
    pub fn private(&self) -> Vec<Hidden> {
        let mut found = Vec::new();
        let Ok(device) = self.root().metadata().map(|root| root.dev()) else { return found };
        for place in PLACES {
            self.walk(Path::new(place), device, &mut found);
        }
        found
    }

    fn walk(&self, place: &Path, device: u64, found: &mut Vec<Hidden>) {
        let path = self.root().join(place);
        // What is mounted below is not part of a guest's root.
        let Some(metadata) = path.symlink_metadata().ok().filter(|one| one.dev() == device) else { return };
        let closed = is_closed(&metadata);
        // Most are files that everybody reads, of which nothing more is asked.
        if !closed && !metadata.is_dir() || self.hides(place) {
            return;
        }
        let closed = closed && !self.exposes(place);
        if closed {
            let treatment = if metadata.is_dir() { Treatment::Hollow } else { Treatment::Absent };
            found.push(Hidden { path: Path::new("/").join(place), treatment });
        }
        if closed || !metadata.is_dir() {
            return;
        }
        for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir()) {
                self.walk(&place.join(entry.file_name()), device, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::copy::{Chooser, Verdict};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    fn host() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let make = |path: &str, mode: u32| {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        make("etc/munge/munge.key", 0o400);
        make("etc/bind/rndc.key", 0o640);
        make("etc/bind/named.conf", 0o644);
        make("etc/systemd/system/a.service", 0o600);
        make("var/cache/debconf/passwords.dat", 0o600);
        make("var/lib/x/private/data", 0o644);
        std::fs::set_permissions(place.path().join("var/lib/x/private"), PermissionsExt::from_mode(0o750)).unwrap();
        place
    }

    fn private(root: &Path, expose: &[&str]) -> Vec<String> {
        let expose: Vec<_> = expose.iter().map(PathBuf::from).collect();
        let found = HostFilter::over(root, &expose, &[]).private();
        let mut paths: Vec<_> = found.iter().map(|hidden| hidden.path.display().to_string()).collect();
        paths.sort();
        paths
    }

    #[test]
    fn what_others_cannot_read_is_found_whatever_its_name_unless_it_is_exposed() {
        let place = host();
        let root = place.path().canonicalize().unwrap();
        let all = [
            "/etc/bind/rndc.key",
            "/etc/munge/munge.key",
            "/etc/systemd/system/a.service",
            "/var/cache/debconf/passwords.dat",
            "/var/lib/x/private",
        ];
        assert_eq!(private(&root, &[]), all);
        assert_eq!(private(&root, &["/etc/munge", "/var"]), [all[0], all[2]]);
        let host_filter = HostFilter::over(&root, &[], &[]);
        for path in all {
            assert_ne!(host_filter.verdict(Path::new(&path[1..])), Verdict::Copy, "a copy leaves {path} out too");
        }
        assert_eq!(host_filter.verdict(Path::new("etc/bind/named.conf")), Verdict::Copy);
    }
}
