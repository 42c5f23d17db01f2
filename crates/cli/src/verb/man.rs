//! `pando man`: the manual pages. Those of commands are made from the command line's definition, those of files from
//! the tables that docs/commands.md and docs/configuration.md are made of.

use super::Verb;
use crate::spec_keys::KEYS;
use crate::state_root::StateRoot;
use anyhow::Context;
use clap::Command;
use clap_mangen::Man as Page;
use pando_guest::settings::TABLES;
use roff::{Roff, bold, roman};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Write one page a command into this directory, and those of files into man5 beside it if it is a man1 [default:
    /// pando(1) to standard output]
    directory: Option<PathBuf>,
}

impl Verb for Man {
    const NAME: &'static str = "man";
    const ABOUT: &'static str = "Print or write the manual pages";
    const EXAMPLES: &'static str = "\
Examples:
  pando man | man -l -
  pando man /usr/local/share/man/man1     also writes pando-spec(5) and pando.toml(5) into man5";
    const NEEDS_ROOT: bool = false;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        let definition = crate::command_line::public_definition();
        match self.directory {
            Some(directory) => write(definition, &directory)
                .with_context(|| format!("cannot write the manual pages into '{}'", directory.display()))?,
            None => {
                let mut page = Vec::new();
                Page::new(definition).render(&mut page)?;
                crate::table::print(&String::from_utf8(page)?)?;
            }
        }
        Ok(0)
    }
}

fn write(definition: Command, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(definition, directory)?;
    let files = match directory.file_name().is_some_and(|name| name == "man1") {
        true => directory.with_file_name("man5"),
        false => directory.to_owned(),
    };
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("pando-spec.5"), spec())?;
    std::fs::write(files.join("pando.toml.5"), settings())?;
    Ok(())
}

/// A page, with its name and what it is.
fn begin(title: &str, name: &str, about: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [title, "5", "", concat!("pando ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} \\- {about}"))]);
    page.control("SH", ["DESCRIPTION"]);
    page
}

/// A key, and what it is.
fn entry(page: &mut Roff, key: &str, rest: &str, meaning: &str) {
    page.control("TP", []);
    page.text([bold(key), roman(rest)]);
    page.text([roman(meaning)]);
}

/// pando-spec(5)
fn spec() -> String {
    let mut page = begin("PANDO-SPEC", "pando-spec", "what a guest is made of and may do");
    page.text([roman(
        "A guest's spec is TOML: spec.toml in its directory, and the file of --spec FILE. Every key may be left out. A key with dots stands in a table: memory.limit is limit in [memory]. pando-set(1) changes one by KEY=VALUE.",
    )]);
    page.control("SH", ["KEYS"]);
    let mut create = crate::command_line::definition();
    create.build();
    let create = create.find_subcommand("create").cloned().unwrap_or_default();
    for (key, options, meaning) in KEYS {
        let options = options.replace('`', "");
        let first = options.split([',', ' ', ':']).next().and_then(|word| word.strip_prefix("--"));
        let help = first.and_then(|name| create.get_arguments().find(|option| option.get_long() == Some(name)));
        let help = help.and_then(|option| option.get_help()).map(ToString::to_string).unwrap_or_default();
        let meaning = if meaning.is_empty() { help } else { (*meaning).to_owned() };
        let rest = if options.starts_with("--") { format!(" ({options})") } else { String::new() };
        entry(&mut page, key, &rest, &meaning);
    }
    see_also(&mut page, "pando-create(1), pando-run(1), pando-set(1), pando.toml(5)");
    page.to_roff()
}

/// pando.toml(5)
fn settings() -> String {
    let mut page = begin("PANDO.TOML", "pando.toml", "what holds for all guests of a machine");
    page.text([roman(
        "/etc/pando/pando.toml is TOML. It need not be there, and every key may be left out. pando-doctor(1) names what is wrong with it; `pando daemon reload` has the daemon read it again.",
    )]);
    for (table, keys) in TABLES {
        page.control("SH", [format!("[{table}]").as_str()]);
        for key in *keys {
            let usual = if key.usual.is_empty() { String::new() } else { format!(" [without it: {}]", key.usual) };
            entry(&mut page, key.name, &usual, &plain(key.meaning));
        }
    }
    see_also(&mut page, "pando-daemon(1), pando-doctor(1), pando-spec(5)");
    page.to_roff()
}

fn see_also(page: &mut Roff, pages: &str) {
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(pages)]);
}

/// Words of a page of the guide without its marks: code, and links to other pages.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once(" ([") {
        plain.push_str(before);
        rest = link.split_once("))").map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_on_its_page_with_a_meaning() {
        let page = spec();
        for (key, ..) in KEYS {
            let at = page.find(&format!("\\fB{key}\\fR")).unwrap_or_else(|| panic!("{key} is not on the page"));
            let meaning = page[at..].lines().nth(1).unwrap_or_default();
            assert!(meaning.len() > 10 && !meaning.starts_with('.'), "{key}: {meaning}");
        }
        let page = settings();
        for key in TABLES.iter().flat_map(|(_, keys)| *keys) {
            assert!(page.contains(&format!("\\fB{}\\fR", key.name)), "{}", key.name);
        }
    }

    #[test]
    fn links_and_marks_are_left_out() {
        assert_eq!(plain("`\"a\"` or more ([memory](memory.md)); as `x`"), "\"a\" or more; as x");
    }
}
