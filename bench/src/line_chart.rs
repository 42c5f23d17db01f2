//! Values against a number of guests or programs, as lines in a picture.

use anyhow::anyhow;
use plotters::prelude::*;
use std::path::Path;

/// How large a picture is.
pub(crate) const SIZE: (u32, u32) = (760, 420);

pub(crate) const BLUE: RGBColor = RGBColor(46, 110, 164);
pub(crate) const RED: RGBColor = RGBColor(196, 78, 58);
pub(crate) const GREEN: RGBColor = RGBColor(88, 148, 84);

/// One line: what it is called, and its values at 1, 2, 3, …
pub(crate) type Line<'a> = (&'a str, RGBColor, Vec<f64>);

/// Draws lines into a file; those without values are left out.
pub(crate) fn draw(path: &Path, across: &str, up: &str, lines: &[Line<'_>]) -> anyhow::Result<()> {
    let all = || lines.iter().flat_map(|(.., values)| values.iter().copied());
    let right = lines.iter().map(|(.., values)| values.len()).max().unwrap_or(0).max(1) as f64;
    let (bottom, top) = (all().fold(0.0, f64::min), all().fold(1.0, f64::max));
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
            .x_desc(across)
            .y_desc(up)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .draw()?;
        for (name, color, values) in lines.iter().filter(|(.., values)| !values.is_empty()) {
            let color = *color;
            let points = values.iter().enumerate().map(|(index, value)| ((index + 1) as f64, *value));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK.mix(0.3)).draw()?;
        Ok(area.present()?)
    };
    paint().map_err(|error| anyhow!("drawing {} failed: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_values_are_drawn_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chart.svg");
        let lines = [("one", BLUE, vec![1.0, 5.0]), ("other", RED, vec![2.0, 2.5, 3.0]), ("absent", GREEN, Vec::new())];
        draw(&path, "guests", "memory (MiB)", &lines).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(["one", "other", "guests", "memory (MiB)"].iter().all(|word| text.contains(word)), "{text}");
        assert!(!text.contains("absent"), "{text}");
        assert_eq!(text.matches("stroke-width=\"2\"").count(), 4, "two lines, and two in the legend");
    }
}
