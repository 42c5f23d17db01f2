//! A page of the documentation whose commands are run as they stand there.
//!
//! What is run stands in blocks that are marked `console`: a line that begins with `$ ` is a command, and what follows
//! up to the next is what it prints. `…` stands for what differs from machine to machine: in a line for any part of it,
//! on a line of its own for any number of lines.

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// As a shell takes it.
    pub(crate) line: String,
    /// What it prints, to either output.
    pub(crate) prints: Vec<String>,
}

/// The commands of a page, in their order.
pub(crate) fn commands(page: &str) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("$ ") {
            _ if line.starts_with("```") => inside = !inside && line == "```console",
            Some(command) if inside => commands.push(Command { line: command.to_owned(), prints: Vec::new() }),
            _ if inside => commands.last_mut().expect("a block begins with a command").prints.push(line.to_owned()),
            _ => (),
        }
    }
    commands
}

/// Whether lines are what a page says.
pub(crate) fn agrees(said: &[String], printed: &[&str]) -> bool {
    match said.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => (0..=printed.len()).any(|passed| agrees(rest, &printed[passed..])),
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, others)| fits(first, line) && agrees(rest, others))
        }
    }
}

/// Whether a line is what a page says, between its `…`.
fn fits(said: &str, line: &str) -> bool {
    let Some((before, after)) = said.split_once('…') else {
        return said == line.trim_end();
    };
    line.strip_prefix(before).is_some_and(|left| {
        let mut places = left.char_indices().map(|(at, _)| at).chain([left.len()]);
        places.any(|at| fits(after, &left[at..]))
    })
}
