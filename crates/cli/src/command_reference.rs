//! `docs/commands.md`: every command and every option, as `--help` has them, and the keys of a spec beside the options
//! that set them. The page is made from the definitions, and a test holds it against them.

use crate::spec_keys::KEYS;
use clap::{Arg, Command};
use std::fmt::Write;
use std::path::PathBuf;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");

const HEAD: &str = "\
# Commands and keys

This page is made from the program: `pando COMMAND --help` says the same, with examples. Every command takes `--root DIR`, which keeps all state below a directory
of its own. What the words mean is told by topic: [guests](guests.md), [resources](resources.md), [network](network.md), [transactions](transactions.md).
";

const KEYS_HEAD: &str = "\
# Keys of a spec

`spec.toml`, `--spec FILE` and `pando set` go by these keys; a key with dots stands in a table. `pando set NAME KEY=VALUE` changes one, `KEY=` takes it back to what
it is without it.

| key | option |
|---|---|
";

/// The whole page.
fn page() -> String {
    let mut definition = crate::command_line::definition();
    definition.build();
    let mut text = format!("{HEAD}\n");
    for verb in definition.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        command(&mut text, verb, &format!("pando {}", verb.get_name()));
    }
    text.push_str(KEYS_HEAD);
    for (key, option, _) in KEYS {
        let _ = writeln!(text, "| `{key}` | {option} |");
    }
    text
}

/// A command, and those below it.
fn command(text: &mut String, command: &Command, name: &str) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(text, "## {name}\n\n{about}.\n");
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !argument.is_global_set())
        .filter(|argument| argument.get_id() != "help" && argument.get_id() != "version")
        .collect();
    if !arguments.is_empty() {
        text.push_str("| | |\n|---|---|\n");
    }
    for argument in &arguments {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| {} | {} |", spelled(argument), cell(&help));
    }
    if !arguments.is_empty() {
        text.push('\n');
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        self::command(text, below, &format!("{name} {}", below.get_name()));
    }
}

/// `-n`, `--lines N`, or the name of what stands without an option.
fn spelled(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let value = if argument.get_action().takes_values() { names.collect::<Vec<_>>().join(" ") } else { String::new() };
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let aliases = argument.get_visible_aliases().unwrap_or_default().into_iter().map(|alias| format!("--{alias}"));
    let all: Vec<String> = short.into_iter().chain(long).chain(aliases).collect();
    let spelled = match all.is_empty() {
        true => value,
        false => format!("{} {value}", all.join(", ")).trim_end().to_owned(),
    };
    format!("`{}`", spelled.replace('|', "\\|"))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

/// With `PANDO_WRITE_DOCS` in the environment the page is written anew.
#[test]
fn the_page_of_commands_is_as_the_program_has_them() {
    if std::env::var_os("PANDO_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, page()).unwrap();
        return;
    }
    let found = std::fs::read_to_string(PAGE).unwrap_or_default();
    let advice = "docs/commands.md: PANDO_WRITE_DOCS=1 cargo test -p pando-cli the_page_of_commands writes it anew";
    assert!(found == page(), "{advice}");
}

/// The fields of a type, as the interface describes them.
fn described(name: &str) -> Vec<(&'static str, &'static str)> {
    let begin = format!("\ntype {name} (");
    let (_, rest) = pando_api::DESCRIPTION.split_once(&begin).unwrap_or_else(|| panic!("no type {name}"));
    // Choices have brackets of their own, and commas in them.
    let (mut depth, mut from, mut fields) = (1, 0, Vec::new());
    for (at, letter) in rest.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth == 0 || (depth == 1 && letter == ',') {
            fields.push(rest[from..at].trim());
            from = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    fields.into_iter().filter_map(|field| field.split_once(": ")).collect()
}

#[test]
fn every_key_of_a_spec_stands_on_the_page_with_options_that_there_are() {
    let tables = ["Boot", "HealthCheck", "CpuRequest", "MemoryRequest", "IoRequest", "DiskRequest", "NetRequest"];
    let mut keys: Vec<String> = Vec::new();
    for (key, kind) in described("Spec") {
        let table = tables.iter().find(|table| kind.trim_start_matches('?') == **table);
        match table {
            Some(table) => keys.extend(described(table).iter().map(|(field, _)| format!("{key}.{field}"))),
            None => keys.push(key.to_owned()),
        }
    }
    let mut listed: Vec<&str> = KEYS.iter().map(|(key, ..)| *key).collect();
    keys.sort();
    listed.sort_unstable();
    assert_eq!(listed, keys);
    let mut definition = crate::command_line::definition();
    definition.build();
    let create = definition.find_subcommand("create").unwrap();
    let words = KEYS.iter().flat_map(|(_, options, _)| options.split('`'));
    for option in words.filter_map(|word| word.strip_prefix("--")) {
        assert!(create.get_arguments().any(|known| known.get_long() == Some(option)), "there is no --{option}");
    }
}

/// Where the pages of the guide lie.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// What stands between backquotes in running text, on one line.
fn quoted(page: &str) -> Vec<String> {
    let mut quoted = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        inside ^= line.starts_with("```");
        if !inside && !line.starts_with("```") {
            quoted.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    quoted
}

/// What is wrong with a command line of `pando` in running text: a verb or an option that there is not.
fn wrong(definition: &Command, line: &str) -> Option<String> {
    let mut command = definition;
    let mut words = line.split_whitespace().skip(1).peekable();
    while let Some(below) = words.peek().and_then(|word| command.find_subcommand(word)) {
        command = below;
        words.next();
    }
    let a_verb = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    if command.has_subcommands()
        && let Some(word) = words.peek().filter(a_verb)
        && !word.starts_with('-')
    {
        return Some(format!("`{line}`: there is no '{word}'"));
    }
    // Behind these stand words of another command.
    let ours = |word: &&str| !matches!(*word, "--" | "|" | "&&" | "||") && !word.starts_with("$(");
    for word in words.take_while(ours) {
        let Some(name) = word.strip_prefix("--") else { continue };
        let name = name.split(['=', '[', ',', '.']).next().unwrap_or_default();
        let is = |argument: &Arg| {
            argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|all| all.contains(&name))
        };
        if !command.get_arguments().any(is) {
            return Some(format!("`{line}`: there is no --{name}"));
        }
    }
    None
}

#[test]
fn the_guide_names_no_command_and_no_option_that_there_is_not() {
    let mut definition = crate::command_line::definition();
    definition.build();
    assert!(wrong(&definition, "pando fly web").is_some() && wrong(&definition, "pando tx run --fly -- x").is_some());
    assert!(wrong(&definition, "pando run -- x --fly").is_none() && wrong(&definition, "pando NAME").is_none());
    let mut wrongs = Vec::new();
    let pages = std::fs::read_dir(DOCS).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.chain([PathBuf::from(DOCS).join("../README.md"), PathBuf::from(DOCS).join("../SECURITY.md")]);
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let quoted = quoted(&std::fs::read_to_string(&page).unwrap());
        let lines = quoted.iter().filter(|line| line.starts_with("pando "));
        wrongs.extend(lines.filter_map(|line| Some(format!("{}: {}", page.display(), wrong(&definition, line)?))));
    }
    assert!(wrongs.is_empty(), "{wrongs:#?}");
}
