//! Open files of an image that are descriptors of processes (pidfd_open(2)).

use crate::image::Image;
use crate::image::file::FileKind;

/// The process that an open file is a descriptor of.
pub(crate) fn of(image: &Image, file: usize) -> Option<i32> {
    match image.files.get(file)?.kind {
        FileKind::Process { pid } => Some(pid),
        _ => None,
    }
}
