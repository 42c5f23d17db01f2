//! Plain lines, `pando run -- CMD…`, `pando exec NAME -- CMD…`, `pando clone IMAGE NAME` and `pando tx run -- CMD…`
//! before all, read without clap.
//!
//! Touching clap's code and tables for the first time costs a fifth of a millisecond of page faults, half of what this
//! program spends on a short command. The lines that programs write in loops have nothing in them that needs it. Tests
//! hold this reading against clap's, and what the front sends for such a line against what would be sent from here.

use crate::verb::{Clone, Exec, Run, Tx};
use pando_front::{Line, Options, Rooted};
use std::ffi::OsString;

/// A line that is plain.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it, for a moment")]
pub(crate) enum PlainLine {
    Run(Run),
    Exec(Exec),
    Clone(Clone),
    Tx(Tx),
}

/// Reads `words` if they are such a line, and the root of Pando's state that they name, if they do; anything else,
/// wrong or right, is clap's.
pub(crate) fn read(words: &[OsString]) -> Option<(Option<String>, PlainLine)> {
    let words: Vec<&str> = words.iter().skip(1).map(|word| word.to_str()).collect::<Option<_>>()?;
    let Rooted { root, line } = pando_front::read(&words)?;
    let line = match line {
        Line::Run { options: Options { name, source, network }, command } => {
            let text = |word: Option<&&str>| word.map(|word| (*word).to_owned());
            PlainLine::Run(Run::plain(text(name), text(source), network.copied(), owned(command)))
        }
        Line::Exec { name, command } => PlainLine::Exec(Exec::plain((*name).to_owned(), owned(command))),
        Line::Transaction { quiet, no_durable, command } => {
            PlainLine::Tx(Tx::plain_run(quiet, no_durable, owned(command)))
        }
        Line::Clone { image, name } => PlainLine::Clone(Clone::plain((*image).to_owned(), (*name).to_owned())),
    };
    Some((root.map(|root| (*root).to_owned()), line))
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;
    use pando_api::Process;

    fn by_clap(words: &[OsString]) -> String {
        let matches = crate::command_line::definition().try_get_matches_from(words).unwrap();
        match matches.subcommand().unwrap() {
            ("run", rest) => format!("{:?}", PlainLine::Run(Run::from_arg_matches(rest).unwrap())),
            ("tx", rest) => format!("{:?}", PlainLine::Tx(Tx::from_arg_matches(rest).unwrap())),
            ("clone", rest) => format!("{:?}", PlainLine::Clone(Clone::from_arg_matches(rest).unwrap())),
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
            "pando run --net host -- x",
            "pando run --name a --net none --from /srv/root -- x",
            "pando run --from host -- x",
            "pando exec web -- ls -l",
            "pando exec web -- -- x",
            "pando clone warm web",
            "pando tx run -- make -j2 install",
            "pando tx run -q --no-durable -- true -- -q",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (root, read) = read(&words).expect(line);
            assert_eq!((root, format!("{read:?}")), (None, by_clap(&words)), "{line}");
        }
    }

    #[test]
    fn a_root_is_read_as_clap_reads_it() {
        let words: Vec<OsString> = "pando --root /srv/p tx run --quiet -- x".split(' ').map(OsString::from).collect();
        let (root, read) = read(&words).unwrap();
        let matches = crate::command_line::definition().try_get_matches_from(&words).unwrap();
        assert_eq!((root.as_ref(), format!("{read:?}")), (matches.get_one::<String>("root"), by_clap(&words)));
    }

    #[test]
    fn the_front_sends_what_main_would() {
        for line in [
            "pando run -- ü \" \\ \u{1}",
            "pando run --net host -- x",
            "pando run --net none --name a --from /srv/root -- x -- y",
            "pando exec web -- ls -l",
            "pando clone warm ü\"",
            "pando tx run -q -- x",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let texts: Vec<&str> = line.split(' ').skip(1).collect();
            let mut space = [0; 1000];
            let sent =
                pando_front::Request::write(&pando_front::read(&texts).expect(line).line, &mut space).expect("room");
            let call: serde_json::Value =
                serde_json::from_slice(sent.strip_suffix(b"\0").expect("a NUL")).expect("JSON");
            assert_eq!(call["more"] == true, line.starts_with("pando run") || line.starts_with("pando exec"));
            let call: pando_api::MethodCall = serde_json::from_value(call).expect("a call");
            let root = crate::state_root::StateRoot::at("/").expect("a root");
            let expected = match read(&words).expect(line).1 {
                PlainLine::Run(run) => run.into_order(&root).expect("an order").1(Process::default()),
                PlainLine::Exec(exec) => {
                    let (_, method, process) = exec.into_order(&root).expect("an order");
                    method(process)
                }
                PlainLine::Clone(clone) => clone.into_order().expect("an order").1,
                PlainLine::Tx(_) => pando_api::Method::TakeSpare {},
            };
            assert_eq!(call.typed().expect("a method"), expected, "{line}");
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
            "pando clone warm",
            "pando tx run",
            "pando tx run true",
            "pando tx run --",
            "pando tx run --retry 0 -- true",
            "pando tx run -q -q -- true",
            "pando --root srv tx run -- true",
            "pando tx ls",
            "pando clone -n 2 warm",
            "pando clone warm web --signal USR1",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(read(&words).is_none(), "{line}");
        }
    }
}
