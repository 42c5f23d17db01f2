//! `pando tx undo`: what was committed is put back, by a transaction of its own.

use super::gate::GateOptions;
use super::guest;
use super::holder::{Holder, Purpose, Shifted};
use super::named_paths::Named;
use super::outcome::failed;
use super::recover::{sweep_soon, tell_of_mounts};
use super::report::{Outcome, PassedOutside, Report};
use crate::state_root::StateRoot;
use anyhow::{Context, bail};
use pando_tx::{
    CommitRequest, Entry, Figures, HostGate, MOST_VIEWS, PutBack, Reached, Selection, Settled, StateDirectory, TxName,
};
use std::path::PathBuf;
use std::time::Instant;

/// So many paths are named that others have changed.
const NAMED: usize = 10;

#[derive(Debug, clap::Args)]
pub(super) struct Undo {
    /// The number of the commit, as `pando tx log` names it
    number: u64,
    /// The guest that it is in
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// Put back nothing but what it changed at PATH and below
    #[arg(long, value_name = "PATH", num_args = 1..)]
    paths: Vec<PathBuf>,
    /// Leave what was changed since as it is, and put the rest back
    #[arg(long)]
    keep_changed: bool,
    /// Do not wait for the disk: a loss of power may undo the commit, or leave it half done
    #[arg(long)]
    no_durable: bool,
    #[command(flatten)]
    gate: GateOptions,
}

impl Undo {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        pando_tx::recover(home).context("cannot look after earlier transactions")?;
        let begun = Instant::now();
        let entry = pando_tx::entry(home, self.number)?;
        let name = TxName::fresh(0);
        let holder = self.begin(root, home, &name)?;
        let done = self.undo(root, home, &name, &entry);
        if done.is_err() {
            // Nothing of it stays. Where it was committed, or has ended by itself, there is nothing to abort.
            let _ = pando_tx::abort_open(home, &name, None);
        }
        drop(holder);
        tell_of_mounts(home);
        sweep_soon(home, None, None);
        let (figures, settled) = done?;
        let nothing = Reached::default();
        let report = Report {
            outcome: Outcome::Committed(figures, &settled),
            time: begun.elapsed(),
            retries: 0,
            alone: false,
            ended: 0,
            read_only: &[],
            ignored: &[],
            passed: PassedOutside::of(&nothing),
        };
        eprintln!("pando: {report}");
        Ok(0)
    }

    /// Begins the transaction, which ends with this process.
    fn begin(&self, root: &StateRoot, home: &StateDirectory, name: &TxName) -> anyhow::Result<Holder> {
        let guest = self.guest.as_deref();
        let target = guest.map(|guest| guest::target(root, guest)).transpose()?;
        let command = ["pando", "tx", "undo", &self.number.to_string()].map(str::to_owned).into();
        let purpose = Purpose { command, ..Purpose::default() };
        let mut views = 0;
        loop {
            match Holder::start(root, name, guest.zip(target.as_ref()), Some(&purpose)) {
                Err(error) if error.is::<Shifted>() && views < MOST_VIEWS => {
                    pando_tx::abort_open(home, name, None)?;
                    views += 1;
                }
                started => return started,
            }
        }
    }

    fn undo(
        &self,
        root: &StateRoot,
        home: &StateDirectory,
        name: &TxName,
        entry: &Entry,
    ) -> anyhow::Result<(Figures, Settled)> {
        let number = self.number;
        let record = home.records()?.into_iter().find(|record| record.name == *name);
        let record = record.with_context(|| format!("transaction '{name}' has gone"))?;
        let included = self.selected(root)?;
        let put_back = pando_tx::put_back(&record, entry, &included);
        let put_back = put_back.with_context(|| format!("cannot undo commit {number}, and nothing was changed"))?;
        self.heed(&put_back)?;
        let selection = &Selection { included, ..Selection::default() };
        let gate = match &self.guest {
            Some(_) => HostGate::NONE,
            None => self.gate.choose_for_commit(root, false)?,
        };
        let request = CommitRequest {
            selection,
            durable: !self.no_durable,
            contention: None,
            exclusive: None,
            with_daemons: false,
            keep: super::settings::keep(root, Some(number))?,
            gate,
        };
        let committed = pando_tx::commit_open(home, name, &request);
        committed.map_err(|error| failed(error, format!("cannot commit the undo of {number}")))
    }

    fn selected(&self, root: &StateRoot) -> anyhow::Result<Vec<PathBuf>> {
        if self.paths.is_empty() {
            return Ok(Vec::new());
        }
        let named = match &self.guest {
            Some(guest) => Named::in_guest(&guest::target(root, guest)?)?,
            None => Named::on_host()?,
        };
        named.without_links(&self.paths)
    }

    /// What was changed since is in the way, or is named as what is left as it is.
    fn heed(&self, PutBack { standing }: &PutBack) -> anyhow::Result<()> {
        if standing.is_empty() {
            return Ok(());
        }
        let mut words: Vec<_> = standing.iter().take(NAMED).map(ToString::to_string).collect();
        if standing.len() > NAMED {
            words.push(format!("and {} more", standing.len() - NAMED));
        }
        let words = words.join(", ");
        if self.keep_changed {
            eprintln!("pando: left as it is: {words}");
            return Ok(());
        }
        let Self { number, .. } = self;
        bail!(
            "cannot undo commit {number}: conflict: {words} since; nothing was changed. \
             With --keep-changed the rest is put back, with --paths PATH what lies there"
        )
    }
}
