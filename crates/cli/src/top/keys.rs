//! The live view: looks again every so often, and does what keys say.

use super::rows::{Order, View};
use super::screen::{Prompt, draw};
use crate::client::Client;
use crate::replies::{Done, Used};
use pando_api::Method;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::{Duration, Instant};

/// Shows everything until the user has seen enough. The terminal is as it was afterwards, whatever happens.
pub(crate) fn watch(client: &mut Client, mut view: View, pause: Duration) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, client, &mut view, pause);
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    client: &mut Client,
    view: &mut View,
    pause: Duration,
) -> anyhow::Result<()> {
    let mut prompt = Prompt::Keys;
    loop {
        let used = client.call::<Used>(Method::Stats { name: None, history: false })?;
        view.take(used.machine, &used.guests);
        let until = Instant::now() + pause;
        loop {
            terminal.draw(|frame| draw(view, &prompt, frame.area(), frame.buffer_mut()))?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match obey(key, view, prompt) {
                    Wanted::Leave => return Ok(()),
                    Wanted::Kill(name) => prompt = kill(client, name),
                    Wanted::Show(next) => prompt = next,
                }
            }
        }
    }
}

fn kill(client: &mut Client, name: String) -> Prompt {
    match client.call::<Done>(Method::Kill { name, signal: None }) {
        Ok(Done {}) => Prompt::Keys,
        Err(error) => Prompt::Trouble(format!("{error:#}")),
    }
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Show(Prompt),
    Kill(String),
    Leave,
}

fn obey(key: KeyEvent, view: &mut View, prompt: Prompt) -> Wanted {
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return Wanted::Leave;
    }
    match (prompt, key.code) {
        (Prompt::Kill(name), KeyCode::Char('y')) => return Wanted::Kill(name),
        (Prompt::Kill(_), _) => {}
        (Prompt::Filter, KeyCode::Char(letter)) => {
            view.filter.push(letter);
            view.chosen = 0;
            return Wanted::Show(Prompt::Filter);
        }
        (Prompt::Filter, KeyCode::Backspace) => {
            view.filter.pop();
            return Wanted::Show(Prompt::Filter);
        }
        (Prompt::Filter, KeyCode::Esc) => view.filter.clear(),
        (Prompt::Filter, KeyCode::Enter) => {}
        (_, code) => return plain(code, view),
    }
    Wanted::Show(Prompt::Keys)
}

fn plain(code: KeyCode, view: &mut View) -> Wanted {
    match code {
        KeyCode::Char('q') | KeyCode::Esc => return Wanted::Leave,
        KeyCode::Char('c') => view.order_by(Order::Cpu),
        KeyCode::Char('m') => view.order_by(Order::Memory),
        KeyCode::Char('i') => view.order_by(Order::Io),
        KeyCode::Char('n') => view.order_by(Order::Net),
        KeyCode::Char('a') => view.order_by(Order::Name),
        KeyCode::Char('/') => return Wanted::Show(Prompt::Filter),
        KeyCode::Char('k') => {
            if let Some(name) = view.chosen_name() {
                return Wanted::Show(Prompt::Kill(name));
            }
        }
        KeyCode::Up => view.choose(-1),
        KeyCode::Down => view.choose(1),
        _ => {}
    }
    Wanted::Show(Prompt::Keys)
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::guest;
    use super::*;
    use pando_api::MachineUse;

    fn press(view: &mut View, prompt: Prompt, code: KeyCode) -> Wanted {
        obey(KeyEvent::new(code, KeyModifiers::NONE), view, prompt)
    }

    #[test]
    fn killing_takes_two_keys() {
        let mut view = View::new(Order::Cpu);
        view.take(MachineUse::default(), &[guest("web", 0.0, 0, 0, 0)]);
        let asked = press(&mut view, Prompt::Keys, KeyCode::Char('k'));
        assert_eq!(asked, Wanted::Show(Prompt::Kill("web".into())));
        assert_eq!(press(&mut view, Prompt::Kill("web".into()), KeyCode::Char('n')), Wanted::Show(Prompt::Keys));
        assert_eq!(press(&mut view, Prompt::Kill("web".into()), KeyCode::Char('y')), Wanted::Kill("web".into()));
    }

    #[test]
    fn letters_of_a_filter_are_no_commands() {
        let mut view = View::new(Order::Cpu);
        assert_eq!(press(&mut view, Prompt::Filter, KeyCode::Char('q')), Wanted::Show(Prompt::Filter));
        assert_eq!(view.filter, "q");
        assert_eq!(press(&mut view, Prompt::Filter, KeyCode::Esc), Wanted::Show(Prompt::Keys));
        assert_eq!(view.filter, "");
        assert_eq!(press(&mut view, Prompt::Keys, KeyCode::Char('q')), Wanted::Leave);
    }
}
