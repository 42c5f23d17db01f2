//! `host`: a copy of the machine's own root, without its secrets.

use super::copy::{CopyError, copy_tree};
use super::host_filter::HostFilter;
use super::root::{Root, new_file, read_file};
use super::shadow::{locked_gshadow, locked_shadow};
use super::write_error::WriteError;
use super::{Options, Progress, Summary};
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A passwd or group file larger than this is not one.
const MAX_ACCOUNTS: u64 = 16 << 20;

pub(crate) fn copy_host(into: &Path, options: &Options, progress: &dyn Progress) -> Result<Summary, CopyError> {
    copy_root(Path::new("/"), into, options, progress)
}

/// The same for any root: tests have one of their own.
pub(crate) fn copy_root(
    root: &Path,
    into: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Summary, CopyError> {
    let mut leave_out = options.leave_out.clone();
    leave_out.extend(into.strip_prefix(root).ok().map(|inside| Path::new("/").join(inside)));
    let host_filter = HostFilter::over(root, &options.expose, &leave_out);
    progress.stage("copying the host's files");
    let mut summary = copy_tree(root, into, &host_filter, progress)?;
    for (shadow, accounts, locked) in PASSWORDS {
        summary.files += u64::from(lock_passwords(root, into, shadow, accounts, *locked)?);
    }
    Ok(summary)
}

/// A password file, the file that names its accounts, and how the one is made from the other.
type Passwords = (&'static str, &'static str, fn(&[u8]) -> Vec<u8>);

const PASSWORDS: &[Passwords] = &[("shadow", "passwd", locked_shadow), ("gshadow", "group", locked_gshadow)];

/// Writes `etc/NAME` with every account of the copy locked, unless the copy has it (it was exposed) or the host does
/// not.
fn lock_passwords(
    root: &Path,
    into: &Path,
    name: &str,
    accounts: &str,
    locked: fn(&[u8]) -> Vec<u8>,
) -> Result<bool, CopyError> {
    let path = Path::new("etc").join(name);
    let failed = |error: io::Error| CopyError::from(WriteError::new("write", &path, into, error));
    let Ok(original) = root.join(&path).metadata() else { return Ok(false) };
    let tree = Root::open(into).map_err(|error| failed(error.into()))?;
    let Ok(source) = read_file(&tree, &Path::new("etc").join(accounts)) else { return Ok(false) };
    let mut known = Vec::new();
    source.take(MAX_ACCOUNTS).read_to_end(&mut known).map_err(failed)?;
    let etc = tree.strict_directory(Path::new("etc")).map_err(|error| failed(error.into()))?;
    let mut file = match new_file(etc.as_fd(), name.as_ref()) {
        Err(rustix::io::Errno::EXIST) => return Ok(false),
        made => made.map_err(|error| failed(error.into()))?,
    };
    file.write_all(&locked(&known)).map_err(failed)?;
    let owner = (Some(Uid::from_raw(original.uid())), Some(Gid::from_raw(original.gid())));
    rustix::fs::chownat(&file, "", owner.0, owner.1, AtFlags::EMPTY_PATH).map_err(|error| failed(error.into()))?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(original.mode() & 0o7777)).map_err(|error| failed(error.into()))?;
    Ok(true)
}
