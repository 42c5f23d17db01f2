//! The change set: what a commit has to do to the live tree, as plain data.

mod diff;
pub(crate) mod kept;
pub(crate) mod listing;
mod op;
pub(crate) mod partial;
mod plan;
pub(crate) mod review;
pub(crate) mod selection;
pub(crate) mod split_attribution;
pub(crate) mod sync_ahead;
pub(crate) mod upper;

pub(crate) use diff::changes;
pub use diff::{Change, Sign};
pub(crate) use op::{Op, OpTarget, Replaced, Source, Steps};
pub(crate) use plan::plan;
