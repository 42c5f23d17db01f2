//! From the words of the command line to the verb that does it.

use crate::complaint::Usage;
use crate::foreign_words;
use crate::plain_line::{self, PlainLine};
use crate::state_root::StateRoot;
use crate::verb::{ENTRIES, Entry, Verb};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::ffi::OsString;

const ROOT: &str = "root";
const ROOT_VARIABLE: &str = "PANDO_ROOT";

/// The whole command. The options of a verb are defined when that verb is used: all of them together cost a tenth of a
/// millisecond.
pub(crate) fn definition() -> Command {
    let root = Arg::new(ROOT)
        .long("root")
        .value_name("DIR")
        .env(ROOT_VARIABLE)
        .hide_env_values(true)
        .default_value("/")
        .hide_default_value(true)
        .global(true)
        .help("Keep all state under DIR, with a daemon of its own [default: /]");
    Command::new("pando")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Many guests on one Linux kernel")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .arg(root)
        .subcommands(ENTRIES.iter().map(Entry::command))
}

/// The command as people know it, without the verbs that are part of the machinery.
pub(crate) fn public_definition() -> Command {
    let public = |verb: &Command| !verb.is_hide_set();
    let whole = definition();
    let verbs: Vec<Command> = whole.get_subcommands().filter(|verb| public(verb)).cloned().collect();
    let options: Vec<Arg> = whole.get_arguments().cloned().collect();
    Command::new("pando")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Many guests on one Linux kernel")
        .args(options)
        .disable_help_subcommand(true)
        .subcommands(verbs)
}

const EXAMPLES: &str = "\
Examples:
  pando run -- python3 -c 'print(\"hello\")'     a fresh guest over the host's own files, gone when it ends
  pando create web --from debian:bookworm      a guest that lasts
  pando start web && pando shell web           a terminal in it
  pando COMMAND --help                         more about a command, with examples";

/// Does what the words say; the answer is the exit code.
pub(crate) fn obey(words: impl Iterator<Item = OsString>) -> anyhow::Result<u8> {
    let words: Vec<OsString> = words.collect();
    let plain_line = plain_line::read(&words);
    match plain_line.and_then(|(root, line)| Some((line, root.or_else(root_of_environment)?))) {
        Some((PlainLine::Run(run), root)) => plain(run, &root),
        Some((PlainLine::Exec(exec), root)) => plain(exec, &root),
        Some((PlainLine::Clone(clone), root)) => plain(clone, &root),
        Some((PlainLine::Tx(tx), root)) => plain(tx, &root),
        None => by_clap(words),
    }
}

fn plain<V: Verb>(verb: V, root: &str) -> anyhow::Result<u8> {
    check_user(V::NAME, V::NEEDS_ROOT)?;
    verb.run(&StateRoot::at(root)?)
}

fn by_clap(words: Vec<OsString>) -> anyhow::Result<u8> {
    let matches = match definition().try_get_matches_from(help_last(words)) {
        Ok(matches) => matches,
        Err(refused) => return Err(refusal(refused).into()),
    };
    let Some((name, rest)) = matches.subcommand() else {
        return Err(Usage::sentence("no command is given. `pando --help` lists them").into());
    };
    let entry = ENTRIES.iter().find(|entry| entry.name == name).expect("clap accepts only the entries' names");
    check_user(name, entry.needs_root)?;
    let root = rest.get_one::<String>(ROOT).or_else(|| matches.get_one(ROOT)).map_or("/", String::as_str);
    (entry.run)(rest, &StateRoot::at(root)?)
}

/// `pando help VERB` is `pando VERB --help`.
fn help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    let first = |words: &[OsString]| match words.get(1).and_then(|word| word.to_str()) {
        Some("--root") => 3,
        Some(word) if word.starts_with("--root=") => 2,
        _ => 1,
    };
    let verb = first(&words);
    if words.get(verb).is_some_and(|word| word == "help") {
        words.remove(verb);
        words.truncate(verb + 1);
        words.push("--help".into());
    }
    words
}

/// What is wrong with the words. Of those that other tools know it is said what does the same here.
fn refusal(refused: clap::Error) -> Usage {
    let named = |kind| match refused.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let advice = match refused.kind() {
        ErrorKind::InvalidSubcommand => named(ContextKind::InvalidSubcommand)
            .and_then(|word| Some((format!("there is no `pando {word}`"), foreign_words::verb(word)?))),
        ErrorKind::UnknownArgument => named(ContextKind::InvalidArg)
            .and_then(|word| Some((format!("there is no option {word}"), foreign_words::option(word)?))),
        _ => None,
    };
    match advice {
        Some((what, advice)) => Usage::sentence(format!("{what}; {advice}")),
        None => refused.into(),
    }
}

/// The root of the state when no option gives it. None if only clap can say what is wrong with it.
fn root_of_environment() -> Option<String> {
    match std::env::var_os(ROOT_VARIABLE) {
        Some(root) => root.into_string().ok(),
        None => Some("/".to_owned()),
    }
}

/// Refuses a user who is not root, where only root can do it.
pub(crate) fn check_user(verb: &str, needs_root: bool) -> anyhow::Result<()> {
    let user = rustix::process::geteuid();
    if needs_root && !user.is_root() {
        anyhow::bail!("pando {verb} has to act as root, and this is user {user}. Try `sudo pando {verb}`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        definition().debug_assert();
    }

    #[test]
    fn every_verb_shows_examples() {
        let mut whole = definition();
        whole.build();
        for verb in whole.get_subcommands() {
            let help = verb.clone().render_long_help().to_string();
            assert!(verb.is_hide_set() || help.contains("Examples:"), "{}", verb.get_name());
            let entry = ENTRIES.iter().find(|entry| entry.name == verb.get_name()).unwrap();
            assert_eq!(verb.get_about().map(ToString::to_string).as_deref(), Some(entry.about), "{}", entry.name);
        }
    }

    #[test]
    fn words_of_other_tools_are_answered() {
        let answer = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            refusal(definition().try_get_matches_from(help_last(words)).unwrap_err()).to_string()
        };
        assert!(answer("pando login quay.io").contains("skopeo login"));
        assert!(answer("pando list").starts_with("there is no `pando list`; `pando ls`"));
        assert!(answer("pando run --privileged -- true").contains("--cap-add"));
        assert!(answer("pando run --gpus=all -- true").contains("graphics"));
        assert!(answer("pando nonsense").contains("unrecognized"));
        assert!(answer("pando help stop").contains("Usage: pando stop"));
        assert!(answer("pando --root /x help stop more").contains("Usage: pando stop"));
        assert!(answer("pando help").contains("Usage: pando"));
    }

    #[test]
    fn the_root_may_stand_before_or_after_the_verb() {
        for line in [["pando", "--root", "/x", "ls"], ["pando", "ls", "--root", "/x"]] {
            let matches = definition().try_get_matches_from(line).unwrap();
            let (_, rest) = matches.subcommand().unwrap();
            assert_eq!(rest.get_one::<String>(ROOT).map(String::as_str), Some("/x"), "{line:?}");
        }
    }
}
