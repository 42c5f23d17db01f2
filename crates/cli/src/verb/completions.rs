//! `pando completions`: what a shell needs to complete this command.

use super::Verb;
use crate::state_root::StateRoot;
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// For which shell
    shell: Shell,
}

impl Verb for Completions {
    const NAME: &'static str = "completions";
    const ABOUT: &'static str = "Print completions for a shell";
    const EXAMPLES: &'static str = "\
Examples:
  pando completions bash > /etc/bash_completion.d/pando
  pando completions zsh > /usr/local/share/zsh/site-functions/_pando
  pando completions fish > ~/.config/fish/completions/pando.fish

They know the names of guests, images, volumes, networks and open transactions where they may ask for them: for root, while
the daemon runs.";
    const NEEDS_ROOT: bool = false;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        let text = crate::completion::script(&self.shell.to_string())?;
        crate::table::print(&String::from_utf8(text)?)?;
        Ok(0)
    }
}
