//! Where a first process waits to become the init of a frozen guest: what the daemon has of it, and what it has itself.
//!
//! It is made with the place of a clone, before it is known whose that will be. So its console's master waits in a
//! socket until there is a log to print into.

use crate::init::console;
use crate::init::prewarmed::PrewarmedInit;
use crate::logs::LogFiles;
use pando_guest::plan::Heritage;
use pando_kernel::{CallError, Context, socket::packet};
use std::os::fd::{AsFd, OwnedFd};

/// The daemon's ends of what a waiting first process has.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// Where the first process is told what to become.
    restorer: OwnedFd,
    /// Where its console's master comes out.
    console: OwnedFd,
    /// What the first process gets, until it has got it.
    parts: Option<HandoffParts>,
}

/// The other ends, for the first process.
#[derive(Debug)]
pub(crate) struct HandoffParts {
    /// The other ends: the console's, the restorer's.
    pub(crate) stdio: Vec<OwnedFd>,
    /// The restorer's program, which the first process executes.
    pub(crate) program: OwnedFd,
}

impl Handoff {
    /// One for a first process, if that is going to be out of an image.
    pub(crate) fn of(heritage: Heritage) -> Result<Option<Self>, CallError> {
        (heritage == Heritage::Init).then(Self::new).transpose()
    }

    fn new() -> Result<Self, CallError> {
        let pair = || packet::pair().context(|| "making a socket pair".into());
        let ((console, theirs), (restorer, waits)) = (pair()?, pair()?);
        let parts = HandoffParts { stdio: vec![theirs, waits], program: pando_freeze::program()? };
        Ok(Self { restorer, console, parts: Some(parts) })
    }

    /// What is yet to be given to the first process.
    pub(crate) fn take_parts(&mut self) -> Option<HandoffParts> {
        self.parts.take()
    }

    /// Has the shim keep the console, now that it is known what it prints into. Where the first process is told what to
    /// become.
    pub(crate) fn lay_out(&self, init: &PrewarmedInit, log: (&LogFiles, u64)) -> Result<OwnedFd, CallError> {
        let what = || "making the guest's console".to_owned();
        console::keep(init.link.shim(), self.console.as_fd(), log).context(what)?;
        self.restorer.try_clone().context(what)
    }
}
