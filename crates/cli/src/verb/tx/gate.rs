//! The gate of a commit on the host, as it is asked for.

use crate::complaint::Usage;
use crate::state_root::StateRoot;
use crate::verb::tx::run::seconds;
use pando_tx::{GateChoice, GateKind, GateRequest, HostGate};
use std::time::Duration;

/// How others are kept out while a commit is applied.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct GateOptions {
    /// What keeps others from seeing a commit half done: auto, bpf, hold, fanotify, freeze or none; in a guest it is
    /// always freeze [default: what pando.toml says, or auto]
    #[arg(long, value_name = "GATE", conflicts_with = "guest")]
    gate: Option<GateChoice>,
    /// How long others may have to wait at most, in seconds, for a commit, and with hold for a transaction, which is
    /// doomed then [default: 1; 0.05 with freeze; 5 for a transaction]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "guest")]
    hold_timeout: Option<Duration>,
}

impl GateOptions {
    /// Whether anything was said of it.
    pub(super) fn is_said(&self) -> bool {
        self.gate.is_some() || self.hold_timeout.is_some()
    }

    /// The gate that this machine has of them. With `strict` there must be one.
    pub(super) fn choose(self, root: &StateRoot, strict: bool) -> anyhow::Result<HostGate> {
        let choice = match self.gate {
            Some(choice) => choice,
            None => super::settings::gate(root)?,
        };
        Ok(HostGate::choose(GateRequest { choice, longest: self.hold_timeout, strict })?)
    }

    /// The same for a commit whose command has run already.
    pub(super) fn choose_for_commit(self, root: &StateRoot, strict: bool) -> anyhow::Result<HostGate> {
        if self.gate == Some(GateChoice::Only(GateKind::Hold)) {
            let words = "the gate 'hold' keeps others out from a command's first touch on: it is for `pando tx run`; \
                         for a commit alone there is 'bpf'";
            return Err(Usage::sentence(words.to_owned()).into());
        }
        Ok(self.choose(root, strict)?.for_commit())
    }
}
