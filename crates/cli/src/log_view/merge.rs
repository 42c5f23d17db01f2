//! The lines of one log or several, in the order in which they were printed.

use super::lines::{Line, Lines};
use super::paper::Paper;
use jiff::Timestamp;

/// What of lines is shown, and how.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// Nothing that was printed before: milliseconds since the epoch.
    pub(crate) since: Option<i64>,
    /// Nothing that was printed after.
    pub(crate) until: Option<i64>,
    /// With the time in front.
    pub(crate) times: bool,
}

impl Shown {
    fn has(&self, line: &Line) -> bool {
        // Lines without a time are older than all that have one.
        let time = line.time.unwrap_or(i64::MIN);
        self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time <= until)
    }
}

/// One of several logs.
struct Part {
    lines: Lines,
    /// What stands in front of each line.
    label: String,
    paper: Paper,
    next: Option<Line>,
}

/// Logs that are shown together.
pub(crate) struct Merge {
    parts: Vec<Part>,
    shown: Shown,
}

impl Merge {
    /// Of guests by name; with several each line begins with whose it is.
    pub(crate) fn new(logs: Vec<(String, Lines)>, shown: Shown, raw: bool) -> Self {
        let (several, width) = (logs.len() > 1, logs.iter().map(|(name, _)| name.len()).max().unwrap_or(0));
        let part = |(name, lines)| {
            let label = if several { format!("{name:width$} | ") } else { String::new() };
            Part { lines, label, paper: Paper::new(raw), next: None }
        };
        Self { parts: logs.into_iter().map(part).collect(), shown }
    }

    /// Prints what has come, in the order of time: what is not a line yet too, if `all` is wanted. Whether there was
    /// anything.
    pub(crate) fn print(&mut self, all: bool) -> anyhow::Result<bool> {
        let mut any = false;
        loop {
            for part in &mut self.parts {
                if part.next.is_none() {
                    part.next = part.lines.next(all)?;
                }
            }
            let waiting =
                self.parts.iter().enumerate().filter_map(|(index, part)| Some((part.next.as_ref()?.time, index)));
            let Some((_, first)) = waiting.min() else { return Ok(any) };
            any = true;
            let labelled = self.parts.len() > 1;
            let part = &mut self.parts[first];
            // The rest of a long line stays with its beginning.
            while let Some(line) = part.next.take() {
                if self.shown.has(&line) {
                    part.paper.print(&worded(&line, &part.label, self.shown.times, labelled && all))?;
                }
                if line.ends() {
                    break;
                }
                part.next = part.lines.next(all)?;
            }
        }
    }
}

/// A line with what stands in front of it. One that ends a log without an end gets one if another may follow.
fn worded(line: &Line, label: &str, times: bool, closed: bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(line.text.len() + label.len() + 32);
    if line.begins {
        text.extend(label.as_bytes());
        if times {
            let time = line.time.and_then(|time| Timestamp::from_millisecond(time).ok());
            // As long as one that is known.
            let shown = time.map_or_else(|| format!("{:24}", "-"), |time| format!("{time:.3}"));
            text.extend(format!("{shown} ").as_bytes());
        }
    }
    text.extend(&line.text);
    if closed && !line.ends() && line.begins {
        text.push(b'\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_begins_with_whose_it_is_and_when_it_came() {
        let line = Line { time: Some(1_700_000_000_123), text: b"hello\n".to_vec(), begins: true };
        assert_eq!(worded(&line, "web | ", true, true), b"web | 2023-11-14T22:13:20.123Z hello\n");
        let rest = Line { begins: false, ..line.clone() };
        assert_eq!(worded(&rest, "web | ", true, true), b"hello\n");
        let old = Line { time: None, ..line };
        assert_eq!(worded(&old, "", true, false).len(), b"2023-11-14T22:13:20.123Z hello\n".len());
        assert!(!Shown { since: Some(0), ..Shown::default() }.has(&old) && Shown::default().has(&old));
    }
}
