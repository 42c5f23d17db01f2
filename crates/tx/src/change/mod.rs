//! The change set: what a commit has to do to the live tree, as plain data.

mod diff;
mod op;
mod plan;

pub(crate) use diff::changes;
pub use diff::{Change, Sign};
pub(crate) use op::{Op, Replaced, Source, Steps, Target};
pub(crate) use plan::plan;
