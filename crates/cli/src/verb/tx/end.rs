//! `pando tx commit` and `pando tx abort`.

use super::guest;
use super::recover::{sweep_soon, tell_of_mounts};
use super::report::{Outcome, PassedOutside, Report};
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{Reached, TxName};
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(super) struct Commit {
    /// The transaction's name
    name: TxName,
    /// The guest that it is in
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// Do not wait for the disk: a loss of power may undo the commit, or leave it half done
    #[arg(long)]
    no_durable: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Abort {
    /// The transaction's name
    name: TxName,
    /// The guest that it is in
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
}

impl Commit {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let begun = Instant::now();
        let gate = if self.guest.is_some() { "freeze" } else { "none" };
        let reached = Reached::of(home, &self.name);
        let committed = pando_tx::commit_open(home, &self.name, !self.no_durable, None, None, false);
        let (figures, settled) = committed.with_context(|| format!("cannot commit '{}'", self.name))?;
        tell_of_mounts(home);
        sweep_soon(home, None, None);
        let outcome = Outcome::Committed(figures, &settled);
        let report = Report {
            outcome,
            time: begun.elapsed(),
            retries: 0,
            gate,
            ended: 0,
            read_only: &[],
            passed: PassedOutside::of(&reached),
        };
        eprintln!("pando: {report}");
        Ok(0)
    }
}

impl Abort {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let begun = Instant::now();
        let reached = Reached::of(home, &self.name);
        let ended = pando_tx::abort_open(home, &self.name, None);
        let ended = ended.with_context(|| format!("cannot abort '{}'", self.name))?;
        tell_of_mounts(home);
        sweep_soon(home, None, None);
        let report = Report {
            outcome: Outcome::Aborted("as asked"),
            time: begun.elapsed(),
            retries: 0,
            gate: "",
            ended,
            read_only: &[],
            passed: PassedOutside::of(&reached),
        };
        eprintln!("pando: {report}");
        Ok(0)
    }
}
