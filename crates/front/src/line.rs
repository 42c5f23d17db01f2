//! The lines that are plain: those that programs write in loops.

/// A line of which every word is understood here. The words are UTF-8, as JSON wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a, W> {
    /// `run [--name NAME] [--from SOURCE] [--net none|host] -- COMMAND`
    Run {
        /// What stands before the command.
        options: Options<'a, W>,
        /// The command and its arguments, at least one word.
        command: &'a [W],
    },
    /// `exec NAME -- COMMAND`
    Exec {
        /// The guest that runs the command.
        name: &'a W,
        /// The command and its arguments, at least one word.
        command: &'a [W],
    },
    /// `clone IMAGE NAME`
    Clone {
        /// The image that is cloned.
        image: &'a W,
        /// The name that the clone gets.
        name: &'a W,
    },
    /// `tx run [-q|--quiet] [--no-durable] -- COMMAND`, in which the daemon has no part but to give what it has made
    /// ahead
    Transaction {
        /// `-q`, `--quiet`
        quiet: bool,
        /// `--no-durable`
        no_durable: bool,
        /// The command and its arguments, at least one word.
        command: &'a [W],
    },
}

/// The options of a plain `run`, each of which is a word of its own with its value after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options<'a, W> {
    /// The guest's name, if the line gives one.
    pub name: Option<&'a W>,
    /// The source of its files, as `--from` has it.
    pub source: Option<&'a W>,
    /// The kind of network, as `--net` has it.
    pub network: Option<&'a W>,
}

/// A line, and whose state it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rooted<'a, W> {
    /// `--root DIR`, a whole path; the environment's where it is not said.
    pub root: Option<&'a W>,
    /// The line itself, without `--root`.
    pub line: Line<'a, W>,
}

/// Reads the words of a line, `[--root DIR] LINE`, the program's own name left out; `None` if it is not plain.
pub fn read<W: AsRef<str>>(words: &[W]) -> Option<Rooted<'_, W>> {
    let (root, words) = match words {
        [option, root, rest @ ..] if option.as_ref() == "--root" => (Some(root), rest),
        _ => (None, words),
    };
    if root.is_some_and(|root| !is_whole_path(root.as_ref())) {
        return None;
    }
    Some(Rooted { root, line: line(words)? })
}

fn line<W: AsRef<str>>(words: &[W]) -> Option<Line<'_, W>> {
    match words {
        [verb, rest @ ..] if verb.as_ref() == "run" => run(rest),
        [verb, name, dashes, command @ ..] if verb.as_ref() == "exec" && dashes.as_ref() == "--" => {
            (!command.is_empty() && !name.as_ref().starts_with('-')).then_some(Line::Exec { name, command })
        }
        [verb, image, name] if verb.as_ref() == "clone" => {
            (is_name(image.as_ref()) && is_name(name.as_ref())).then_some(Line::Clone { image, name })
        }
        [verb, action, rest @ ..] if verb.as_ref() == "tx" && action.as_ref() == "run" => transaction(rest),
        _ => None,
    }
}

fn transaction<W: AsRef<str>>(mut words: &[W]) -> Option<Line<'_, W>> {
    let (mut quiet, mut no_durable) = (false, false);
    loop {
        let (option, rest) = words.split_first()?;
        let place = match option.as_ref() {
            "--" => return (!rest.is_empty()).then_some(Line::Transaction { quiet, no_durable, command: rest }),
            "-q" | "--quiet" => &mut quiet,
            "--no-durable" => &mut no_durable,
            _ => return None,
        };
        // What is given twice is wrong, and `main` says so.
        if core::mem::replace(place, true) {
            return None;
        }
        words = rest;
    }
}

/// Whether a word can be a name, and is no option.
fn is_name(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('-')
}

fn run<W: AsRef<str>>(mut words: &[W]) -> Option<Line<'_, W>> {
    let mut options = Options { name: None, source: None, network: None };
    loop {
        let (option, rest) = words.split_first()?;
        if option.as_ref() == "--" {
            return (!rest.is_empty()).then_some(Line::Run { options, command: rest });
        }
        let (value, rest) = rest.split_first()?;
        let (place, plain) = match option.as_ref() {
            "--name" => (&mut options.name, is_name(value.as_ref())),
            "--from" => (&mut options.source, is_whole(value.as_ref())),
            "--net" => (&mut options.network, matches!(value.as_ref(), "none" | "host")),
            _ => return None,
        };
        // What is given twice is wrong, and `main` says so.
        if !plain || place.replace(value).is_some() {
            return None;
        }
        words = rest;
    }
}

/// Whether a source means the same wherever the daemon stands, and is written as `main` would pass it on.
fn is_whole(source: &str) -> bool {
    source == "host" || is_whole_path(source)
}

fn is_whole_path(path: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Options<'_, &str> = Options { name: None, source: None, network: None };

    #[track_caller]
    fn plain<'a>(words: &'a [&'a str]) -> Line<'a, &'a str> {
        let Rooted { root, line } = read(words).unwrap();
        assert_eq!(root, None);
        line
    }

    #[test]
    fn plain_lines() {
        assert_eq!(plain(&["run", "--", "ls", "-l"]), Line::Run { options: NONE, command: &["ls", "-l"] });
        assert_eq!(plain(&["exec", "web", "--", "--", "x"]), Line::Exec { name: &"web", command: &["--", "x"] });
        assert_eq!(plain(&["clone", "warm", "web"]), Line::Clone { image: &"warm", name: &"web" });
        let line = Line::Transaction { quiet: true, no_durable: false, command: &["ls", "-q"] };
        assert_eq!(plain(&["tx", "run", "-q", "--", "ls", "-q"]), line);
        assert_eq!(plain(&["tx", "run", "--quiet", "--", "ls", "-q"]), line);
        let options = Options { name: Some(&"a"), source: Some(&"/srv/root"), network: Some(&"host") };
        let line = ["run", "--net", "host", "--from", "/srv/root", "--name", "a", "--", "x"];
        assert_eq!(plain(&line), Line::Run { options, command: &["x"] });
    }

    #[test]
    fn the_state_of_a_line_may_lie_elsewhere() {
        let line = Line::Run { options: NONE, command: &["x"] };
        assert_eq!(read(&["--root", "/srv/pando", "run", "--", "x"]), Some(Rooted { root: Some(&"/srv/pando"), line }));
    }

    #[test]
    fn all_others_are_left_to_main() {
        for line in [
            "",
            "run",
            "run --",
            "run ls",
            "run --net",
            "run --net host",
            "run --net shared -- x",
            "run --net host --net none -- x",
            "run --net=host -- x",
            "run --from root -- x",
            "run --from /srv/../root -- x",
            "run --from /srv//root -- x",
            "run --from /srv/root/ -- x",
            "run --from debian:bookworm -- x",
            "run --name -x -- x",
            "run -t -- x",
            "exec -t -- x",
            "exec web --",
            "exec web x -- y",
            "clone warm",
            "clone warm -n",
            "clone -n 2",
            "clone warm web more",
            "tx run",
            "tx run ls",
            "tx run -q --",
            "tx run -q -q -- ls",
            "tx run -q --quiet -- ls",
            "--root run -- x",
            "--root srv run -- x",
            "--root / run -- x",
            "--root /srv/ run -- x",
            "--root=/srv run -- x",
            "run --root /srv -- x",
            "--root /srv --root /srv run -- x",
            "tx run --retry 0 -- ls",
            "tx ls",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(read(&words), None, "{line}");
        }
    }
}
