//! `pando man`: the manual pages.

use super::Verb;
use crate::state_root::StateRoot;
use anyhow::Context;
use clap_mangen::Man as Page;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Write one page a command into this directory [default: pando(1) to standard output]
    directory: Option<PathBuf>,
}

impl Verb for Man {
    const NAME: &'static str = "man";
    const ABOUT: &'static str = "Print or write the manual pages";
    const EXAMPLES: &'static str = "\
Examples:
  pando man | man -l -
  pando man /usr/local/share/man/man1";
    const NEEDS_ROOT: bool = false;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        let definition = crate::command_line::definition();
        match self.directory {
            Some(directory) => {
                let failed = || format!("cannot write the manual pages into '{}'", directory.display());
                std::fs::create_dir_all(&directory).with_context(failed)?;
                clap_mangen::generate_to(definition, &directory).with_context(failed)?;
            }
            None => {
                let mut page = Vec::new();
                Page::new(definition).render(&mut page)?;
                crate::table::print(&String::from_utf8(page)?)?;
            }
        }
        Ok(0)
    }
}
