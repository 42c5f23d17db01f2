//! The way of a change set into the live tree: prepared, written to the journal and applied.

pub(crate) mod apply;
pub(crate) mod commit;
pub(crate) mod commit_error;
pub(crate) mod file;
pub(crate) mod keep;
pub(crate) mod meeting;
mod names_left;
pub(crate) mod order;
pub(crate) mod prepare;
mod privileged;
pub(crate) mod progress;
pub(crate) mod staging;
