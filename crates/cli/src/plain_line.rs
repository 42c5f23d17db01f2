//! `pando run -- CMD…` and `pando exec NAME -- CMD…` without any option, read without clap.
//!
//! Touching clap's code and tables for the first time costs a fifth of a millisecond of page faults, half of what this
//! program spends on a short command. The two lines that programs write in loops have nothing in them that needs it. A
//! test holds this reading against clap's.

use crate::verb::{Exec, Run};
use pando_front::Line;
use std::ffi::OsString;

/// A line that has no options.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it, for a moment")]
pub(crate) enum PlainLine {
    Run(Run),
    Exec(Exec),
}

/// Reads `words` if they are such a line; anything else, wrong or right, is clap's.
pub(crate) fn read(words: &[OsString]) -> Option<PlainLine> {
    let words: Vec<&str> = words.iter().skip(1).map(|word| word.to_str()).collect::<Option<_>>()?;
    Some(match pando_front::read(&words)? {
        Line::Run { command } => PlainLine::Run(Run::plain(owned(command))),
        Line::Exec { name, command } => PlainLine::Exec(Exec::plain((*name).to_owned(), owned(command))),
    })
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn by_clap(words: &[OsString]) -> String {
        let matches = crate::command_line::definition().try_get_matches_from(words).unwrap();
        match matches.subcommand().unwrap() {
            ("run", rest) => format!("{:?}", PlainLine::Run(Run::from_arg_matches(rest).unwrap())),
            (_, rest) => format!("{:?}", PlainLine::Exec(Exec::from_arg_matches(rest).unwrap())),
        }
    }

    #[test]
    fn both_readings_agree() {
        for line in [
            "pando run -- true",
            "pando run -- ls -l --root /x --help",
            "pando run -- a -- b",
            "pando run -- -x",
            "pando exec web -- ls -l",
            "pando exec web -- -- x",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(format!("{:?}", read(&words).expect(line)), by_clap(&words), "{line}");
        }
    }

    #[test]
    fn everything_else_is_left_to_clap() {
        for line in [
            "pando",
            "pando run",
            "pando run --",
            "pando run true",
            "pando run -t -- true",
            "pando exec -t -- x",
            "pando exec web --",
            "pando ls",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(read(&words).is_none(), "{line}");
        }
    }
}
