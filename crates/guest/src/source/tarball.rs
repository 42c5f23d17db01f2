//! A tarball: a tar archive of a root file system, plain or compressed.

use super::archive::{ArchiveError, open_archive, unpack_stream, unpacked};
use super::meter::Meter;
use super::{Progress, Summary};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

pub(crate) fn unpack_tarball(file: &Path, into: &Path, progress: &dyn Progress) -> Result<Summary, ArchiveError> {
    let (packed, size) = open_archive(file)?;
    progress.stage(&format!("unpacking {}", file.display()));
    let mut meter = Meter::new(progress, Some(size));
    let position = Rc::new(Cell::new(0));
    let (_, plain) = unpacked(packed, file, Rc::clone(&position))?;
    let summary = unpack_stream(plain, file, into, &position, &mut meter)?;
    meter.report()?;
    Ok(summary)
}
