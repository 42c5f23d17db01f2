//! Memory and time against the number of guests, separate and unified, as pictures.

use super::meminfo;
use super::tables::Sample;
use crate::line_chart::{self, BLUE, RED};
use std::path::{Path, PathBuf};

/// Draws both into a directory.
pub(super) fn draw(directory: &Path, separate: &[Sample], unified: &[Sample]) -> anyhow::Result<[PathBuf; 2]> {
    std::fs::create_dir_all(directory)?;
    let (in_memory, in_time) = (directory.join("unify-memory.svg"), directory.join("unify-time.svg"));
    let chart = |path: &Path, up: &str, value: fn(&Sample) -> f64| {
        let line = |samples: &[Sample]| samples.iter().map(value).collect();
        line_chart::draw(path, "guests", up, &[("separate", RED, line(separate)), ("unified", BLUE, line(unified))])
    };
    chart(&in_memory, "memory (MiB)", |sample| meminfo::all(&sample.row) as f64 / 1024.0)?;
    chart(&in_time, "time until all serve (s)", |sample| sample.seconds)?;
    Ok([in_memory, in_time])
}
