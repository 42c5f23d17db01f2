//! The smallest root file system that runs commands: one static busybox and links to it. Everybody who is compared
//! starts from it.

use anyhow::Context;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const APPLETS: [&str; 6] = ["cat", "echo", "ls", "sh", "sleep", "true"];

/// Directories that the OCI runtimes and bwrap mount over, and would otherwise make themselves at every start; the same
/// goes for the file that [`make`] adds, which Pando mounts over where the guest shares the host's network.
const DIRECTORIES: [&str; 7] = ["bin", "dev", "etc", "proc", "root", "sys", "tmp"];

/// Makes it at `root`, which must not exist.
pub(crate) fn make(root: &Path) -> anyhow::Result<()> {
    let busybox = find()?;
    let build = || -> std::io::Result<()> {
        for directory in DIRECTORIES {
            std::fs::create_dir_all(root.join(directory))?;
        }
        // A guest's root is another user of the host, who must be able to get here.
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?;
        std::fs::write(root.join("etc/resolv.conf"), "")?;
        std::fs::copy(&busybox, root.join("bin/busybox"))?;
        APPLETS.iter().try_for_each(|applet| symlink("busybox", root.join("bin").join(applet)))
    };
    build().with_context(|| format!("cannot make a root file system at {}", root.display()))
}

fn find() -> anyhow::Result<PathBuf> {
    let places = ["/bin/busybox", "/usr/bin/busybox", "/usr/local/bin/busybox"].map(PathBuf::from);
    places.into_iter().find(|path| path.is_file()).context("busybox is missing; install the package busybox-static")
}
