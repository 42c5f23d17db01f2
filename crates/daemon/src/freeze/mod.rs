//! Freezing a running guest into an image.

pub(crate) mod capacity_check;
pub(crate) mod files_ahead;
pub(crate) mod files_recheck;
pub(crate) mod freeze_guest;
pub(crate) mod migrate;
pub(crate) mod self_freeze;
pub(crate) mod trial;
