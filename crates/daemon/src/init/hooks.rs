//! Programs of a guest's own that run inside it when something is about to happen to it, or has happened.

use crate::failure;
use crate::state::guest::{Guest, Running};
use pando_api::Fault;
use pando_guest::root;
use pando_kernel::process::held::HeldProcess;
use std::os::fd::AsFd;

/// Where those are that run in a clone before anything else of it.
pub(crate) const CLONE: &str = "/etc/pando/clone.d";
/// Where those are that run before a guest is frozen and afterwards.
pub(crate) const FREEZE: &str = "/etc/pando/freeze.d";

/// The hooks of one directory, in the order in which they run.
#[derive(Debug, Default)]
pub(crate) struct Hooks(Vec<String>);

impl Hooks {
    /// Those that a guest has. What is no executable file is none, nor is what is hidden.
    pub(crate) async fn find(guest: &Guest, running: &Running, directory: &'static str) -> Result<Self, Fault> {
        let first = running.first.clone();
        let look = move || Self::inside(&first, directory);
        let found = tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let doing = || format!("looking for hooks in {directory} of guest '{}'", guest.name);
        found.map_err(|error| failure::io(&doing(), guest.name.as_ref(), &error))
    }

    /// Those in the root of a first process. Blocking.
    pub(crate) fn inside(first: &HeldProcess, directory: &str) -> std::io::Result<Self> {
        root::programs_inside(first.root()?.as_fd(), directory).map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their paths inside the guest, in the order in which they run.
    pub(crate) fn paths(&self) -> &[String] {
        &self.0
    }
}
