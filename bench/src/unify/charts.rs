//! Memory and time against the number of guests, separate and unified, as pictures.

use super::meminfo;
use super::tables::Sample;
use anyhow::anyhow;
use plotters::prelude::*;
use std::path::{Path, PathBuf};

const SIZE: (u32, u32) = (760, 420);
const SEPARATE: RGBColor = RGBColor(196, 78, 58);
const UNIFIED: RGBColor = RGBColor(46, 110, 164);

/// Draws both into a directory.
pub(super) fn draw(directory: &Path, separate: &[Sample], unified: &[Sample]) -> anyhow::Result<[PathBuf; 2]> {
    std::fs::create_dir_all(directory)?;
    let memory = |sample: &Sample| meminfo::all(&sample.row) as f64 / 1024.0;
    let (in_memory, in_time) = (directory.join("unify-memory.svg"), directory.join("unify-time.svg"));
    chart(&in_memory, "memory (MiB)", &[separate, unified].map(|samples| points(samples, &memory)))?;
    chart(&in_time, "time until all serve (s)", &[separate, unified].map(|samples| points(samples, &|it| it.seconds)))?;
    Ok([in_memory, in_time])
}

type Points = Vec<(f64, f64)>;

fn points(samples: &[Sample], value: &dyn Fn(&Sample) -> f64) -> Points {
    samples.iter().enumerate().map(|(number, sample)| ((number + 1) as f64, value(sample))).collect()
}

fn chart(path: &Path, what: &str, [separate, unified]: &[Points; 2]) -> anyhow::Result<()> {
    let all = || separate.iter().chain(unified);
    let right = all().map(|(x, _)| *x).fold(1.0, f64::max);
    let (bottom, top) = (all().map(|(_, y)| *y).fold(0.0, f64::min), all().map(|(_, y)| *y).fold(1.0, f64::max));
    let paint = || -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right, bottom..top * 1.05)?;
        let label = |value: &f64| format!("{value:.0}");
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("guests")
            .y_desc(what)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .draw()?;
        for (points, color, name) in [(separate, SEPARATE, "separate"), (unified, UNIFIED, "unified")] {
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK.mix(0.3)).draw()?;
        area.present()?;
        Ok(())
    };
    paint().map_err(|error| anyhow!("drawing {} failed: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let line = |slope: f64| -> Vec<Sample> {
            (1..20)
                .map(|n| Sample { seconds: slope * f64::from(n), row: [(slope * 1e5) as i64 * i64::from(n); 8] })
                .collect()
        };
        for path in draw(directory.path(), &line(2.0), &line(1.0)).unwrap() {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains("unified") && text.contains("separate") && text.contains("guests"), "{text}");
            assert_eq!(text.matches("stroke-width=\"2\"").count(), 4, "two lines, and two in the legend");
        }
    }
}
