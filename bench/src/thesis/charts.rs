//! Figures 5.1 and 5.2, as pictures.

use super::browser::Lines;
use crate::line_chart::{self, BLUE, GREEN, RED, SIZE};
use anyhow::anyhow;
use plotters::prelude::*;
use std::path::{Path, PathBuf};

/// A guest's name, and the milliseconds in which it is frozen and goes on.
type Latency = (&'static str, f64, f64);

/// Draws both into a directory.
pub(super) fn draw(directory: &Path, latencies: &[Latency], lines: &Lines) -> anyhow::Result<[PathBuf; 2]> {
    std::fs::create_dir_all(directory)?;
    let drawn = [directory.join("thesis-latency.svg"), directory.join("thesis-memory.svg")];
    bars(&drawn[0], latencies).map_err(|error| anyhow!("drawing {} failed: {error}", drawn[0].display()))?;
    let memory = [
        ("n times its own memory", BLUE, lines.alone.clone()),
        ("each started in a clone", RED, lines.in_clones.clone()),
        ("clones of one that runs", GREEN, lines.warm.clone()),
    ];
    line_chart::draw(&drawn[1], "browsers", "memory (MiB)", &memory)?;
    Ok(drawn)
}

fn bars(path: &Path, latencies: &[Latency]) -> Result<(), Box<dyn std::error::Error>> {
    let top = latencies.iter().flat_map(|(_, freeze, resume)| [*freeze, *resume]).fold(1.0, f64::max) * 1.1;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..latencies.len() as f64, 0.0..top)?;
    let name = |at: &f64| latencies.get(at.floor() as usize).map_or(String::new(), |(name, ..)| (*name).to_owned());
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .disable_x_mesh()
        .x_labels(latencies.len() * 2 + 1)
        .x_label_formatter(&|at| if (at.fract() - 0.5).abs() < 0.01 { name(at) } else { String::new() })
        .y_desc("latency (ms)")
        .draw()?;
    for (what, color, shift) in [("freeze", BLUE, 0.2), ("resume", RED, 0.5)] {
        let bar = |(index, (_, freeze, resume)): (usize, &Latency)| {
            let left = index as f64 + shift;
            let height = if what == "freeze" { *freeze } else { *resume };
            Rectangle::new([(left, 0.0), (left + 0.3, height)], color.filled())
        };
        chart
            .draw_series(latencies.iter().enumerate().map(bar))?
            .label(what)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK.mix(0.3)).draw()?;
    Ok(area.present()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_figures_are_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let lines = Lines { alone: vec![100.0, 200.0], in_clones: vec![120.0, 180.0], warm: Vec::new() };
        let drawn = draw(directory.path(), &[("minimal", 2.0, 1.0), ("X11", 5.0, 4.0)], &lines).unwrap();
        let [latency, memory] = drawn.map(|path| std::fs::read_to_string(path).unwrap());
        assert!(["minimal", "X11", "freeze", "resume"].iter().all(|word| latency.contains(word)), "{latency}");
        assert!(memory.contains("n times its own memory") && !memory.contains("clones of one that runs"), "{memory}");
    }
}
