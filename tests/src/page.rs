//! A page of the documentation whose commands are run as they stand there.
//!
//! What is run stands in blocks that are marked `console` or `sh`. In the first a line that begins with `$ ` is a
//! command, and what follows up to the next is what it prints. `…` stands for what differs from machine to machine: in
//! a line for any part of it, on a line of its own for any number of lines. In the second every line is a command, but
//! for those that carry the one above on: they are indented, or follow a line that ends in `|` or `\`. Further words
//! behind the mark say what the block needs.

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// As a shell takes it.
    pub(crate) line: String,
    /// What it prints, to either output.
    pub(crate) prints: Vec<String>,
    /// Whether the page shows what it prints.
    pub(crate) shows: bool,
}

/// What stands between two fences.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// The word at its fence: `console`, `sh`, `toml`; empty where there is none.
    pub(crate) language: &'a str,
    /// The words after that one: what it needs.
    pub(crate) needs: Vec<&'a str>,
    pub(crate) lines: Vec<&'a str>,
}

/// The blocks of a page, in their order.
pub(crate) fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if inside => inside = false,
            Some(marks) => {
                inside = true;
                let mut words = marks.split(' ');
                let language = words.next().unwrap_or_default();
                blocks.push(Block { language, needs: words.collect(), lines: Vec::new() });
            }
            None if inside => blocks.last_mut().expect("one has begun").lines.push(line),
            None => (),
        }
    }
    blocks
}

impl Block<'_> {
    /// Its commands, in their order; none of a block that is no shell's.
    pub(crate) fn commands(&self) -> Vec<Command> {
        match self.language {
            "console" => self.console(),
            "sh" => self.script(),
            _ => Vec::new(),
        }
    }

    fn console(&self) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        for line in &self.lines {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push(Command { line: command.to_owned(), prints: Vec::new(), shows: true }),
                None => commands.last_mut().expect("a block begins with a command").prints.push((*line).to_owned()),
            }
        }
        commands
    }

    fn script(&self) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        for line in self.lines.iter().filter(|line| !line.trim().is_empty()) {
            match commands.last_mut() {
                Some(above) if line.starts_with(' ') || above.line.ends_with(['|', '\\']) => {
                    above.line.push('\n');
                    above.line.push_str(line);
                }
                _ => commands.push(Command { line: (*line).to_owned(), prints: Vec::new(), shows: false }),
            }
        }
        commands
    }
}

/// The commands of a page that say what they print, in their order.
pub(crate) fn commands(page: &str) -> Vec<Command> {
    blocks(page).iter().filter(|block| block.language == "console").flat_map(Block::commands).collect()
}

/// A line without what differs from run to run: numbers, times, sizes, digests, how wide a column is.
pub(crate) fn shape(line: &str) -> String {
    let mut shaped: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let unit =
            matches!(word.trim_end_matches([',', ';', ')']), "µs" | "ms" | "s" | "min" | "B" | "KiB" | "MiB" | "GiB");
        let after_number = shaped.last().is_some_and(|last| last == "#");
        match (unit && after_number, number(word)) {
            (true, _) => shaped.push(format!("unit{}", &word[word.trim_end_matches([',', ';', ')']).len()..])),
            (false, text) => shaped.push(text),
        }
    }
    shaped.join(" ")
}

/// A word with `#` for each number and each digest in it.
fn number(word: &str) -> String {
    let digest = |part: &str| part.len() >= 8 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(part) = word.split([':', ',', ')']).find(|part| digest(part)) {
        return word.replace(part, "#");
    }
    let mut text = String::new();
    for letter in word.chars() {
        match letter {
            '0'..='9' if text.ends_with('#') => (),
            '0'..='9' => text.push('#'),
            other => text.push(other),
        }
    }
    while let Some(shorter) = [("#.#", "#"), ("#,#", "#")].iter().find(|(long, _)| text.contains(long)) {
        text = text.replace(shorter.0, shorter.1);
    }
    text
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
