//! `pando tx commit` and `pando tx abort`.

use super::gate::GateOptions;
use super::guest;
use super::named_paths::Named;
use super::outcome::failed;
use super::recover::{sweep_soon, tell_of_mounts};
use super::report::{Outcome, PassedOutside, Report};
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{CommitError, CommitRequest, EndError, HostGate, Reached, Selection, TxName};
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(super) struct Commit {
    /// The transaction's name
    name: TxName,
    /// The guest that it is in
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// Do not validate what it has read at PATH and below; may be given several times
    #[arg(long, value_name = "PATH")]
    ignore: Vec<PathBuf>,
    /// Commit nothing but what it has changed at PATH and below, and validate nothing else; may be given several times
    #[arg(long, value_name = "PATH")]
    include: Vec<PathBuf>,
    /// Leave out what it has changed at PATH and below, and do not validate that; may be given several times
    #[arg(long, value_name = "PATH")]
    exclude: Vec<PathBuf>,
    /// Do not wait for the disk: a loss of power may undo the commit, or leave it half done
    #[arg(long)]
    no_durable: bool,
    /// Refuse to commit where others could see it half done
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    gate: GateOptions,
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
    /// One of all that it has changed, which survives a loss of power.
    pub(super) fn whole(name: TxName, guest: Option<String>) -> Self {
        let (ignore, include, exclude) = Default::default();
        let gate = GateOptions::default();
        Self { name, guest, ignore, include, exclude, no_durable: false, strict: false, gate }
    }

    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let begun = Instant::now();
        let gate = match &self.guest {
            Some(_) => HostGate::NONE,
            None => self.gate.choose_for_commit(root, self.strict)?,
        };
        let reached = Reached::of(home, &self.name);
        let (selection, durable) = (&self.selection(root)?, !self.no_durable);
        let keep = super::settings::keep(root, None)?;
        let request =
            CommitRequest { selection, durable, contention: None, exclusive: None, with_daemons: false, keep, gate };
        let committed = pando_tx::commit_open(home, &self.name, &request);
        if matches!(&committed, Err(EndError::Commit(CommitError::Conflict(_)))) {
            eprintln!("{}", self.what_is_left());
        }
        let (figures, settled) = committed.map_err(|error| failed(error, format!("cannot commit '{}'", self.name)))?;
        tell_of_mounts(home);
        sweep_soon(home, None, None);
        let outcome = Outcome::Committed(figures, &settled);
        let report = Report {
            outcome,
            time: begun.elapsed(),
            retries: 0,
            alone: false,
            ended: 0,
            read_only: &[],
            ignored: &self.ignore,
            passed: PassedOutside::of(&reached),
        };
        eprintln!("pando: {report}");
        Ok(0)
    }

    fn selection(&self, root: &StateRoot) -> anyhow::Result<Selection> {
        let Self { ignore, include, exclude, guest, .. } = self;
        if [ignore, include, exclude].iter().all(|paths| paths.is_empty()) {
            return Ok(Selection::default());
        }
        let named = match guest {
            Some(guest) => Named::in_guest(&guest::target(root, guest)?)?,
            None => Named::on_host()?,
        };
        let (ignored, included) = (named.with_links(ignore)?, named.without_links(include)?);
        Ok(Selection { ignored, included, excluded: named.without_links(exclude)? })
    }

    /// What can be done with it after a conflict.
    fn what_is_left(&self) -> String {
        let Self { name, guest, .. } = self;
        let guest = guest.as_ref().map(|guest| format!(" --guest {guest}")).unwrap_or_default();
        format!(
            "pando: '{name}' stays open. Commit it without what is in conflict: pando tx commit{guest} --exclude PATH {name}; \
             keep its changes: pando tx diff{guest} --export FILE.tar {name}; or abort it: pando tx abort{guest} {name}"
        )
    }
}

impl Abort {
    pub(super) fn new(name: TxName, guest: Option<String>) -> Self {
        Self { name, guest }
    }

    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let begun = Instant::now();
        let reached = Reached::of(home, &self.name);
        let ended = pando_tx::abort_open(home, &self.name, None);
        let ended = ended.with_context(|| format!("cannot abort '{}'", self.name))?;
        tell_of_mounts(home);
        sweep_soon(home, None, None);
        let report = Report {
            outcome: Outcome::Aborted("as asked".into()),
            time: begun.elapsed(),
            retries: 0,
            alone: false,
            ended,
            read_only: &[],
            ignored: &[],
            passed: PassedOutside::of(&reached),
        };
        eprintln!("pando: {report}");
        Ok(0)
    }
}
