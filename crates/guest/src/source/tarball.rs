//! A tarball: a tar archive of a root file system, plain or compressed.

use super::archive::{ArchiveError, open_archive, unpack_archive};
use super::meter::Meter;
use super::{Progress, Summary};
use std::path::Path;

pub(crate) fn unpack_tarball(file: &Path, into: &Path, progress: &dyn Progress) -> Result<Summary, ArchiveError> {
    let (packed, size) = open_archive(file)?;
    progress.stage(&format!("unpacking {}", file.display()));
    let mut meter = Meter::new(progress, Some(size));
    let summary = unpack_archive(packed, file, into, &mut meter)?;
    meter.report()?;
    Ok(summary)
}
