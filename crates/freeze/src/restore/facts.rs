//! What a script depends on besides the image.

use crate::origin::Origin;

/// What a script depends on besides the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Where memory is copied from.
    pub(crate) origin: Origin,
    /// The highest pid that somebody else has where it is to live; 0 where nobody does.
    pub(crate) taken: i32,
    /// The kernel's own mappings in the holder: name, start, length.
    pub(crate) kernel: Vec<(String, u64, u64)>,
    /// Whether one mremap(2) moves several areas (Linux 6.17).
    pub(crate) moves_many: bool,
    /// Whether timers can be made with a number (Linux 6.15).
    pub(crate) ids_chosen: bool,
}
