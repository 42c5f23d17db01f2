//! Columns for people.

use crate::complaint::NoReader;
use crate::printable::{printable, printable_json};
use std::io::{ErrorKind, Write};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const GAP: usize = 2;

/// Which side of its column a cell leans to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lean {
    Left,
    Right,
}

/// Rows under a heading. The last column takes what is left of the line, and is cut there.
pub(crate) struct Table {
    heading: Vec<(&'static str, Lean)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[(&'static str, Lean)]) -> Self {
        assert!(!heading.is_empty(), "a table has a column");
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; control characters in it lose their power.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.heading.len(), "a row has a cell for each column");
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// The table as text, no line wider than `width` where that is given.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let heading: Vec<String> = self.heading.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let widths: Vec<usize> =
            (0..heading.len()).map(|column| lines.iter().map(|line| line[column].width()).max().unwrap_or(0)).collect();
        lines.iter().map(|line| self.line(line, &widths, width)).collect()
    }

    fn line(&self, cells: &[String], widths: &[usize], width: Option<usize>) -> String {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(widths[column].saturating_sub(cell.width()));
            match self.heading[column].1 {
                Lean::Left => text.extend([cell, padding.as_str()]),
                Lean::Right => text.extend([padding.as_str(), cell]),
            }
            text.push_str(&" ".repeat(GAP));
        }
        let text = text.trim_end();
        let mut line = width.map_or_else(|| text.to_owned(), |width| cut(text, width));
        line.push('\n');
        line
    }

    /// Prints it, cut to the terminal's width if it goes to one.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let width = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok();
        print(&self.text(width.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0)))
    }
}

/// `text` no wider than `width`, with a sign that some of it is missing.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = text.chars().take_while(|c| {
        used += c.width().unwrap_or(0);
        used <= width
    });
    fits.collect::<String>() + "…"
}

/// Writes to standard output. A reader that went away is no failure.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(NoReader.into()),
        other => anyhow::Context::context(other, "cannot write to standard output"),
    }
}

/// Prints a listing for programs.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = printable_json(&serde_json::to_string_pretty(value)?);
    text.push('\n');
    print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("NAME", Lean::Left), ("PID", Lean::Right), ("COMMAND", Lean::Left)]);
        table.row(["web".into(), "12345".into(), "nginx -g".into()]);
        table.row(["日本".into(), "7".into(), "sh\u{1b}[2J".into()]);
        table
    }

    #[test]
    fn columns_line_up_also_under_wide_characters() {
        assert_eq!(table().text(None), "NAME    PID  COMMAND\nweb   12345  nginx -g\n日本      7  sh\u{fffd}[2J\n");
    }

    #[test]
    fn lines_are_cut_to_the_terminal() {
        assert_eq!(table().text(Some(15)), "NAME    PID  C…\nweb   12345  n…\n日本      7  s…\n");
    }

    #[test]
    fn an_empty_table_is_its_heading() {
        assert_eq!(Table::new(&[("NAME", Lean::Left)]).text(None), "NAME\n");
    }
}
