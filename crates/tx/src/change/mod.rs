//! The change set: what a commit has to do to the live tree, as plain data.

mod diff;
mod op;
mod plan;

pub use diff::{Change, Sign, changes};
pub use op::{Op, Source, Steps, Target};
pub use plan::plan;
