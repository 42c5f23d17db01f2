//! What a command has written to files of the kernel's, under /proc and /sys: that takes effect at once, and is not
//! undone.

use super::bystanders::place;
use pando_kernel::file::fanotify::Writes;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where the mounts are that they lie on. In a container some are mounts of their own.
const MOUNTS: [&str; 3] = ["proc", "proc/sys", "sys"];

/// So many are kept.
const MOST: usize = 100;

/// What stands for those whose names cannot be told.
const NAMELESS: &str = "files of the kernel's that can only be written to";

/// Hears of what is written.
#[derive(Debug)]
pub(super) struct KernelWrites(Writes);

impl From<KernelWrites> for OwnedFd {
    fn from(writes: KernelWrites) -> Self {
        writes.0.into()
    }
}

impl KernelWrites {
    /// In a view, by a path that leads into it. Mounts that the command makes itself are not heard of.
    pub(super) fn in_view(view: &Path) -> io::Result<Self> {
        let root = rustix::fs::open(view, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let writes = Writes::new()?;
        for mount in MOUNTS {
            // There need be none.
            if let Ok(directory) = place(&root, Path::new(mount)) {
                writes.watch(directory)?;
            }
        }
        Ok(Self(writes))
    }

    /// Which were written to since, by their paths.
    pub(super) fn read(&self) -> BTreeSet<String> {
        let me = std::process::id().cast_signed();
        let written = self.0.read().unwrap_or_default().into_iter().filter(|one| one.pid != me);
        let path = |object: Option<OwnedFd>| match object {
            None => Some(NAMELESS.to_owned()),
            Some(object) => {
                let path = std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())).ok()?;
                is_the_machines(&path).then(|| path.to_string_lossy().escape_debug().to_string())
            }
        };
        written.filter_map(|one| path(one.object)).take(MOST).collect()
    }
}

/// Whether a file is about more than one process, which would be one of the transaction's own as a rule.
fn is_the_machines(path: &Path) -> bool {
    let in_proc = path.strip_prefix("/proc").ok().and_then(|below| below.components().next());
    in_proc.is_none_or(|first| !first.as_os_str().as_bytes().iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_one_processs_is_left_out() {
        for (path, is) in [
            ("/proc/sys/kernel/hostname", true),
            ("/proc/sysrq-trigger", true),
            ("/sys/block/sda/queue/scheduler", true),
            ("/proc/17/oom_score_adj", false),
        ] {
            assert_eq!(is_the_machines(Path::new(path)), is, "{path}");
        }
    }
}
