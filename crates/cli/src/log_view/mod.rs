//! A guest's log as a client reads it: the file, when its pieces were printed, its lines with their times, and how they
//! look on paper.
//!
//! ```text
//!   file ─┬────────────▶ raw bytes ─▶ paper
//!   times ┴▶ lines ─▶ merged by time ─▶ paper
//! ```

mod file;
mod lines;
mod merge;
mod moment;
mod paper;
mod times;

pub(crate) use file::{LogFile, start_of_last};
pub(crate) use lines::Lines;
pub(crate) use merge::{Merge, Shown};
pub(crate) use moment::moment;
pub(crate) use paper::Paper;
