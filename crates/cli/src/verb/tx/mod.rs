//! `pando tx`: system transactions.

mod attribute_text;
mod diff;
mod end;
mod export;
mod gate;
mod guest;
mod heed;
mod holder;
mod host;
mod keep;
mod listing;
mod log;
mod memory_size;
mod named_paths;
mod open;
mod outcome;
mod prewarmed;
mod quoted;
mod recover;
mod report;
mod review_json;
mod review_text;
mod run;
mod run_in_guest;
mod settings;
mod shell;
mod standard_descriptors;
mod supervised;
mod undo;
mod users;
mod wait;

pub(crate) use listing::open_transactions;
pub(crate) use recover::recover_first;

use super::Verb;
use crate::state_root::StateRoot;
use pando_tx::StateDirectory;

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
    /// Run a shell in a transaction, and commit or abort it at its end
    Shell(shell::Shell),
    /// Show what a transaction has changed
    Diff(diff::Diff),
    /// Commit a transaction that was begun
    Commit(end::Commit),
    /// Abort a transaction that was begun
    Abort(end::Abort),
    /// List the transactions
    Ls(listing::Ls),
    /// List what was committed
    Log(log::Log),
    /// Show what a commit has changed
    Show(log::Show),
    /// Put back what a commit has changed
    Undo(undo::Undo),
    /// Finish or remove what a crash left
    Recover(recover::Recover),
    /// Run transactions of users who are not root, as pando.toml allows them
    Serve(users::Serve),
    /// Run one of them; `serve` starts it
    #[command(hide = true)]
    Work(users::Work),
    /// Be the process that holds a transaction; `begin` starts it
    #[command(hide = true)]
    Hold(holder::Hold),
    /// Answer for daemons of a committed transaction; `run` starts it
    #[command(hide = true)]
    Keep(keep::Keep),
}

impl Tx {
    /// What the line `pando tx run [-q] [--no-durable] -- CMD…` means.
    pub(crate) fn plain_run(quiet: bool, no_durable: bool, command: Vec<String>) -> Self {
        Self { action: Action::Run(run::Run::plain(quiet, no_durable, command)) }
    }
}

impl Verb for Tx {
    const NAME: &'static str = "tx";
    /// What users may have, too, is asked for at a server of root's.
    const NEEDS_ROOT: bool = false;
    const ABOUT: &'static str = "Run commands as transactions: everything they change is committed, or nothing";
    const EXAMPLES: &'static str = "\
Examples:
  pando tx run -- apt-get install -y nginx       all of it, or no trace of it
  pando tx run --dry-run -- make install         what it would change
  pando tx run --in-memory -- make check         the disk has nothing to do before the commit
  pando tx begin work && pando tx enter work     look around, change things,
  pando tx diff -p work                          see what that comes to,
  pando tx commit work                           and make it so, or `pando tx abort work`
  pando tx commit --exclude /etc/motd work       all but what is in conflict
  pando tx diff --export changes.tar work        the changes as an archive
  pando tx run --ignore /var/log -- ./report.sh  others may write to what it reads there
  pando tx run --guest web -- apt-get upgrade -y in a guest, seen by the rest of it all at once
  pando tx log && pando tx undo 12               what was committed, and taking one of it back

The exit code of run and enter is the command's own; 125 is Pando's failure: a conflict, for example.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        crate::inside_transaction::refuse("a transaction")?;
        match &self.action {
            Action::Run(run) if !rustix::process::geteuid().is_root() => return users::run(run, root),
            _ => crate::command_line::check_user(Self::NAME, true)?,
        }
        root.check()?;
        let home = StateDirectory::new(root.directory());
        match self.action {
            Action::Run(run) => run.run(root, &home),
            Action::Begin(begin) => begin.run(root),
            Action::Enter(enter) => enter.run(root),
            Action::Shell(shell) => shell.run(root),
            Action::Diff(diff) => diff.run(root),
            Action::Commit(commit) => commit.run(root),
            Action::Abort(abort) => abort.run(root),
            Action::Ls(ls) => ls.run(root),
            Action::Log(log) => log.run(root),
            Action::Show(show) => show.run(root),
            Action::Undo(undo) => undo.run(root),
            Action::Recover(recover) => recover.run(root, &home),
            Action::Serve(serve) => serve.run(root, &home),
            Action::Work(work) => work.run(root, &home),
            Action::Hold(hold) => hold.run(root),
            Action::Keep(keep) => keep.run(root),
        }
    }
}
