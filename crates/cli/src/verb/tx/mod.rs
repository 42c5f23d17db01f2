//! `pando tx`: system transactions.

mod diff;
mod end;
mod held_output;
mod listing;
mod open;
mod recover;
mod replayed_input;
mod report;
mod run;
mod wait;

pub(crate) use recover::recover_first;

use super::Verb;
use crate::state_root::StateRoot;
use pando_tx::Home;

#[derive(Debug, clap::Args)]
pub(crate) struct Tx {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Run a command: commit what it did if it exits with 0, leave no trace of it otherwise
    Run(run::Run),
    /// Begin a transaction that commands can enter
    Begin(open::Begin),
    /// Run a command, or a shell, in a transaction that was begun
    Enter(open::Enter),
    /// Show what a transaction has changed
    Diff(diff::Diff),
    /// Commit a transaction that was begun
    Commit(end::Commit),
    /// Abort a transaction that was begun
    Abort(end::Abort),
    /// List the transactions
    Ls(listing::Ls),
    /// Finish or remove what a crash left
    Recover(recover::Recover),
    /// Be the process that holds a transaction; `begin` starts it
    #[command(hide = true)]
    Hold(open::Hold),
    /// Delete what aborted transactions left; others start it
    #[command(hide = true)]
    Sweep(recover::Sweep),
}

impl Verb for Tx {
    const NAME: &'static str = "tx";
    const ABOUT: &'static str = "Run commands as transactions: everything they change is committed, or nothing";
    const EXAMPLES: &'static str = "\
Examples:
  pando tx run -- apt-get install -y nginx       all of it, or no trace of it
  pando tx run --dry-run -- make install         what it would change
  pando tx begin work && pando tx enter work     look around, change things,
  pando tx diff -p work                          see what that comes to,
  pando tx commit work                           and make it so, or `pando tx abort work`

The exit code of run and enter is the command's own; 125 is Pando's failure: a conflict, for example.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = Home::new(root.directory());
        match self.action {
            Action::Run(run) => run.run(root, &home),
            Action::Begin(begin) => begin.run(root, &home),
            Action::Enter(enter) => enter.run(&home),
            Action::Diff(diff) => diff.run(&home),
            Action::Commit(commit) => commit.run(root, &home),
            Action::Abort(abort) => abort.run(root, &home),
            Action::Ls(ls) => ls.run(&home),
            Action::Recover(recover) => recover.run(&home),
            Action::Hold(hold) => hold.run(&home),
            Action::Sweep(sweep) => sweep.run(&home),
        }
    }
}
