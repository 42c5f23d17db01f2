//! The name in /etc/hostname of a guest with an init of its own: that init sets the kernel's host name by it, whatever
//! was set before. A fresh tree has the name of the machine that it was made on.

use pando_kernel::file::fs_owner::FsOwner;
use pando_kernel::{CallError, Context};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;

/// The most that is read of it.
const LONGEST: u64 = 4096;

/// Has the file of a root file system say `name`, if it is there as a plain file: without one an init leaves the name
/// that is set. `owner` is the guest's root on the host.
pub(crate) fn write(root: BorrowedFd<'_>, owner: Option<u32>, name: &str) -> Result<(), CallError> {
    let what = || "writing the guest's /etc/hostname".to_owned();
    let _as_owner = owner.map(FsOwner::assume).transpose().context(what)?;
    let open = |access: OFlags| {
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat2(root, "etc/hostname", flags, Mode::empty(), confined)
    };
    // Not for writing before it is known what it is and that it has to change: that would copy it up.
    let Ok(file) = open(OFlags::RDONLY) else { return Ok(()) };
    if !FileType::from_raw_mode(rustix::fs::fstat(&file).context(what)?.st_mode).is_file() {
        return Ok(());
    }
    let mut said = Vec::new();
    File::from(file).take(LONGEST).read_to_end(&mut said).context(what)?;
    if said.trim_ascii() == name.as_bytes() {
        return Ok(());
    }
    let mut file = File::from(open(OFlags::WRONLY | OFlags::TRUNC).context(what)?);
    file.write_all(format!("{name}\n").as_bytes()).context(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_plain_file_says_the_name_and_nothing_else_is_touched() {
        let root = tempfile::tempdir().unwrap();
        let directory = File::open(root.path()).unwrap();
        let give = || write(directory.as_fd(), None, "web").unwrap();
        give();
        assert!(!root.path().join("etc").exists());
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let path = root.path().join("etc/hostname");
        std::fs::write(&path, "builder.example.org\n").unwrap();
        give();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "web\n");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(root.path().join("outside"), "theirs\n").unwrap();
        std::os::unix::fs::symlink("/outside", &path).unwrap();
        give();
        assert_eq!(std::fs::read_to_string(root.path().join("outside")).unwrap(), "theirs\n");
    }
}
