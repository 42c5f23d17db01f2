//! How it is drawn.

use super::rows::{Order, Row, View};
use crate::verb::stats::bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, StatefulWidget, Table, TableState, Widget};

/// Cells of a bar.
const BAR: usize = 10;

/// What the bottom line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// Which keys there are.
    Keys,
    /// A filter is being typed.
    Filter,
    /// Whether this guest is really to be killed.
    Kill(String),
    /// Something went wrong.
    Trouble(String),
}

/// A bar of what is used of `whole`, with a mark where something is reserved.
fn bar(used: f64, reserve: Option<f64>, whole: f64) -> Vec<Span<'static>> {
    let cells = |part: f64| ((part / whole.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let (full, mark) = (cells(used), reserve.map(|reserve| cells(reserve).clamp(1, BAR) - 1));
    let colour = if used >= whole * 0.9 { Color::Red } else { Color::Green };
    let cell = |number: usize| match (number < full, mark == Some(number)) {
        (true, true) => Span::styled("▓", Style::new().fg(Color::Cyan)),
        (false, true) => Span::styled("▏", Style::new().fg(Color::Cyan)),
        (true, false) => Span::styled("█", Style::new().fg(colour)),
        (false, false) => Span::styled("·", Style::new().fg(Color::DarkGray)),
    };
    (0..BAR).map(cell).collect()
}

fn with_bar(mut spans: Vec<Span<'static>>, text: String) -> Cell<'static> {
    spans.push(Span::raw(text));
    Cell::from(Line::from(spans))
}

/// The columns behind the name: what is wanted first stands first, and what finds no room is left out.
const BEHIND: [u16; 7] = [21, 22, 9, 13, 13, 6, 3];

/// The least that is left for names.
const LEAST_NAME: u16 = 16;

/// The widths of the columns that there is room for. A name that is squeezed to nothing by what stands behind it would
/// leave rows of nobody.
fn widths(screen: u16) -> Vec<Constraint> {
    let mut left = screen.saturating_sub(LEAST_NAME);
    let fits = |width: &&u16| {
        // One cell stands between columns.
        let enough = left > **width;
        left = left.saturating_sub(**width + 1);
        enough
    };
    let behind = BEHIND.iter().take_while(fits).map(|width| Constraint::Length(*width));
    std::iter::once(Constraint::Fill(1)).chain(behind).collect()
}

/// A name in so many cells; one that was cut says so.
fn fitted(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.to_owned();
    }
    name.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn row(row: &Row, machine_memory: i64, screen: u16) -> TableRow<'static> {
    let rate = |value: f64| if value < 1.0 { "-".to_owned() } else { bytes(value as i64) };
    let of = |used: String, most: Option<String>| most.map_or(used.clone(), |most| format!("{used}/{most}"));
    let whole = row.limit.unwrap_or(100.0);
    let memory = row.memory_limit.unwrap_or(machine_memory).max(1) as f64;
    let reserved = row.memory_reserve.map(|bytes| bytes as f64);
    let cpu = of(format!(" {:5.1}", row.cpu), row.limit.map(|limit| format!("{limit:.0}")));
    let columns = widths(screen).len();
    let behind: u16 = BEHIND[..columns - 1].iter().map(|width| width + 1).sum();
    let cells = [
        Cell::from(fitted(&crate::printable::printable(&row.name), usize::from(screen.saturating_sub(behind)))),
        with_bar(bar(row.cpu, row.reserve, whole), cpu),
        with_bar(
            bar(row.memory as f64, reserved, memory),
            format!(" {}", of(bytes(row.memory), row.memory_limit.map(bytes))),
        ),
        Cell::from(of(row.pids.to_string(), row.pids_limit.map(|most| most.to_string()))),
        Cell::from(format!("{} {}", rate(row.read), rate(row.written))),
        Cell::from(format!("{} {}", rate(row.received), rate(row.sent))),
        Cell::from(if row.swap > 0 { bytes(row.swap) } else { "-".to_owned() }),
        Cell::from(if row.oom_kills > 0 { row.oom_kills.to_string() } else { String::new() }),
    ];
    TableRow::new(cells.into_iter().take(columns)).style(if row.live {
        Style::new()
    } else {
        Style::new().fg(Color::Gray)
    })
}

fn heading(view: &View) -> Paragraph<'static> {
    let machine = &view.machine;
    // Of nobody the standard library's sum is -0, and would be shown as that.
    let cpu = view.rows.iter().fold(0.0, |sum, row| sum + row.cpu);
    let reserved = view.rows.iter().fold(0.0, |sum, row| sum + row.reserve.unwrap_or(0.0));
    let live = view.rows.iter().filter(|row| row.live).count();
    let first = format!(
        "{} guests, {live} live · {} processors {cpu:.0}% by guests, {reserved:.0}% reserved · memory {} of {} free · swap {}",
        view.rows.len(),
        machine.processors,
        bytes(machine.memory_free),
        bytes(machine.memory),
        if machine.swap > 0 {
            format!("{} of {} free", bytes(machine.swap_free), bytes(machine.swap))
        } else {
            "none".into()
        },
    );
    Paragraph::new(first).style(Style::new().add_modifier(Modifier::BOLD))
}

fn bottom(view: &View, prompt: &Prompt) -> Paragraph<'static> {
    let text = match prompt {
        Prompt::Keys => "[c]pu [m]emory [i]/o [n]et n[a]me · [/] filter · [↑↓] choose · [k]ill · [q]uit".to_owned(),
        Prompt::Filter => format!("filter: {}▏", view.filter),
        Prompt::Kill(name) => format!("kill every process of guest '{name}'? [y]es, any other key: no"),
        Prompt::Trouble(text) => crate::printable::printable(text),
    };
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Draws everything.
pub(super) fn draw(view: &View, prompt: &Prompt, area: Rect, buffer: &mut Buffer) {
    let [top, middle, below] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    heading(view).render(top, buffer);
    let title = |name: &'static str, order: Order| {
        let style = Style::new().add_modifier(Modifier::UNDERLINED);
        Cell::from(name).style(if view.order == order { style.add_modifier(Modifier::BOLD) } else { style })
    };
    let plain = |name: &'static str| Cell::from(name).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let titles = [
        title("GUEST", Order::Name),
        title("CPU % of the machine", Order::Cpu),
        title("MEMORY", Order::Memory),
        plain("PIDS"),
        title("READ WRITE /s", Order::Io),
        title("IN OUT /s", Order::Net),
        plain("SWAP"),
        plain("OOM"),
    ];
    let widths = widths(area.width);
    let titles = TableRow::new(titles.into_iter().take(widths.len()));
    let rows = view.shown().into_iter().map(|one| row(one, view.machine.memory, area.width)).collect::<Vec<_>>();
    let table =
        Table::new(rows, widths).header(titles).row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(view.chosen));
    StatefulWidget::render(table, middle, buffer, &mut state);
    bottom(view, prompt).render(below, buffer);
}

/// One look as text, for those who have no terminal.
pub(crate) fn text(view: &View, width: u16) -> String {
    let height = u16::try_from(view.shown().len()).unwrap_or(u16::MAX - 3) + 3;
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(view, &Prompt::Keys, area, &mut buffer);
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    // The last line tells of keys, which nobody can press here.
    (0..height - 1).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::guest;
    use super::*;
    use pando_api::MachineUse;

    #[test]
    fn a_look_is_a_line_a_guest_with_bars() {
        let mut view = View::new(Order::Cpu);
        let mut web = guest("web", 50.0, 32 << 20, 0, 0);
        (web.cpu_reserve, web.memory_limit) = (Some(25.0), Some(64 << 20));
        view.take(
            MachineUse { processors: 2, memory: 1 << 30, ..MachineUse::default() },
            &[web, guest("db", 0.0, 0, 0, 0)],
        );
        let text = text(&view, 110);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("2 guests, 0 live") && lines[1].contains("GUEST"), "{text}");
        assert!(
            lines[2].starts_with("web") && lines[2].contains("██▓██·····") && lines[2].contains("32M/64M"),
            "{text}"
        );
        assert_eq!(lines.len(), 4, "{text}");
    }

    #[test]
    fn nobody_takes_nothing() {
        let text = text(&View::new(Order::Cpu), 110);
        assert!(text.contains(" 0% by guests, 0% reserved"), "{text}");
    }

    #[test]
    fn names_are_shown_however_narrow_the_screen_is() {
        let mut view = View::new(Order::Name);
        view.take(MachineUse::default(), &[guest("a-name-that-has-thirty-letters", 1.0, 1 << 20, 0, 0)]);
        for (width, name, last) in [
            (120, "a-name-that-has-thirty-le… ", "OOM"),
            (80, "a-name-that-has-thirty-l… ", "PIDS"),
            (30, "a-name-that-has-thirty-letters", "GUEST"),
        ] {
            let text = text(&view, width);
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[2].starts_with(name), "{width}: {text}");
            assert!(lines[1].ends_with(last), "{width}: {text}");
        }
    }
}
