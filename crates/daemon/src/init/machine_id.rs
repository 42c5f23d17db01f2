//! The identity of a machine (machine-id(5)), written anew where a guest has one.

use pando_kernel::file::fs_owner::FsOwner;
use pando_kernel::{CallError, Context};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;

/// Gives a root file system another machine id, if it has one at the usual place. `owner` is its root on the host.
pub(crate) fn renew(root: BorrowedFd<'_>, owner: Option<u32>) -> Result<(), CallError> {
    let what = || "giving the clone a machine id".to_owned();
    let _as_owner = owner.map(FsOwner::assume).transpose().context(what)?;
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat2(root, "etc/machine-id", flags, Mode::empty(), confined) {
        // A guest without one, or one that keeps it elsewhere.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => return Ok(()),
        opened => opened.context(what)?,
    };
    if !rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file).context(what)?.st_mode).is_file() {
        return Ok(());
    }
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).context(what)?;
    let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    rustix::fs::ftruncate(&file, 0).context(what)?;
    File::from(file).write_all(format!("{id}\n").as_bytes()).context(what)
}
