//! The lines that are plain: those that programs write in loops.

/// A line without any option. Its words are UTF-8, as JSON wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a, W> {
    /// `run -- COMMAND`
    Run {
        /// The command and its arguments, at least one word.
        command: &'a [W],
    },
    /// `exec NAME -- COMMAND`
    Exec {
        /// The guest.
        name: &'a W,
        /// The command and its arguments, at least one word.
        command: &'a [W],
    },
}

/// Reads the words of a line, the program's own name left out; `None` if it is not plain.
pub fn read<W: AsRef<str>>(words: &[W]) -> Option<Line<'_, W>> {
    match words {
        [verb, dashes, command @ ..] if verb.as_ref() == "run" && dashes.as_ref() == "--" && !command.is_empty() => {
            Some(Line::Run { command })
        }
        [verb, name, dashes, command @ ..]
            if verb.as_ref() == "exec"
                && dashes.as_ref() == "--"
                && !command.is_empty()
                && !name.as_ref().starts_with('-') =>
        {
            Some(Line::Exec { name, command })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_are_plain() {
        assert_eq!(read(&["run", "--", "ls", "-l"]), Some(Line::Run { command: &["ls", "-l"] }));
        assert_eq!(read(&["exec", "web", "--", "--", "x"]), Some(Line::Exec { name: &"web", command: &["--", "x"] }));
        for other in
            [&["run"][..], &["run", "--"], &["run", "ls"], &["exec", "-t", "--", "x"], &["exec", "web", "--"], &[]]
        {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
