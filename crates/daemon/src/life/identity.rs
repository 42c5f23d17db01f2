//! What makes a clone itself before anything of it runs: its addresses, its hooks, a signal to those who handle it. What is restored is itself already.

use super::hooks::{self, Hooks};
use crate::daemon::Daemon;
use crate::failure;
use crate::guest::{Guest, Running};
use crate::image::HeldImage;
use crate::processes;
use crate::ready_roots::ReadyRoot;
use pando_api::{Address, Fault, Spec};
use pando_freeze::image::{Image, Process};
use pando_kernel::{pidfd, signal};
use std::collections::HashSet;
use std::rc::Rc;

/// Who guests out of an image are.
#[derive(Debug)]
pub(crate) enum Identity {
    /// Each somebody else.
    Other {
        /// What it is given.
        addresses: Vec<Address>,
        /// What those get that handle it.
        signal: Option<i32>,
    },
    /// The guest that was frozen.
    Same,
}

/// What is to be done in one of them.
#[derive(Debug)]
pub(crate) struct Rites {
    hooks: Hooks,
    signal: Option<i32>,
}

impl Identity {
    /// As a client wishes it.
    pub(crate) fn wished(
        image: &str,
        names: &[String],
        addresses: Vec<Address>,
        signal: Option<&str>,
    ) -> Result<Self, Fault> {
        if names.len() > 1 && !addresses.is_empty() {
            let message = "an address is for one clone; make several without, and use 'pando address add'";
            return Err(failure::bad(image, message));
        }
        let signal = signal.map(|text| match signal::number(text) {
            None => Err(failure::bad(
                text,
                format!("'{text}' is not a signal; use a name such as USR1, a number from 1 to 64, or RTMIN+N"),
            )),
            Some(libc::SIGKILL | libc::SIGSTOP) => {
                Err(failure::bad(text, format!("no program can handle signal {text}; use another, such as USR1")))
            }
            Some(number) => Ok(number),
        });
        Ok(Self::Other { addresses, signal: signal.transpose()? })
    }

    /// What a guest is said to be.
    pub(crate) fn spec(&self, held: &HeldImage) -> Spec {
        match self {
            Self::Other { addresses, .. } => Spec { addresses: addresses.clone(), ..held.spec_of_clones() },
            Self::Same => held.record.spec.clone(),
        }
    }

    /// A root file system for a guest: those of clones are made ahead.
    pub(crate) async fn root(&self, daemon: &Daemon, held: &HeldImage) -> Result<ReadyRoot, Fault> {
        match self {
            Self::Other { .. } => daemon.roots.take_or_make(&held.roots()).await,
            Self::Same => daemon.roots.make(&held.root_of_itself()).await,
        }
    }

    /// What has to be done in a guest that stands.
    pub(crate) async fn rites(&self, guest: &Guest, running: &Running) -> Result<Rites, Fault> {
        match self {
            Self::Other { signal, .. } => {
                Ok(Rites { hooks: Hooks::find(guest, running, hooks::CLONE).await?, signal: *signal })
            }
            Self::Same => Ok(Rites { hooks: Hooks::default(), signal: None }),
        }
    }
}

impl Rites {
    pub(crate) fn is_empty(&self) -> bool {
        self.hooks.is_empty() && self.signal.is_none()
    }

    /// Does it, in a clone that waits to run.
    pub(crate) async fn perform(&self, daemon: &Rc<Daemon>, guest: &Rc<Guest>, image: &Image) -> Result<(), Fault> {
        self.hooks.in_clone(daemon, guest).await?;
        let Some(number) = self.signal else { return Ok(()) };
        let handling: HashSet<i32> =
            image.processes.iter().filter(|process| handles(process, number)).map(|process| process.pid).collect();
        for process in processes::of_guest(daemon, guest).iter().filter(|one| handling.contains(&one.pid)) {
            let sent = pidfd::open(process.host_pid).and_then(|process| pidfd::send_signal(&process, number));
            let doing = format!("sending {} to the clone's processes", signal::name(number));
            sent.map_err(|error| failure::io(&doing, guest.name.as_ref(), &error))?;
        }
        Ok(())
    }
}

/// Whether a process does something of its own about a signal: it has a handler, or all its threads block it and somebody will fetch it. To any other
/// it would mean its end, or nothing.
fn handles(process: &Process, number: i32) -> bool {
    const IGNORE: u64 = 1;
    let action = process.actions.iter().find(|(signal, _)| *signal == number).map_or(0, |(_, action)| action[0]);
    let bit = 1_u64 << (number - 1);
    let blocked = !process.threads.is_empty() && process.threads.iter().all(|thread| thread.mask & bit != 0);
    action > IGNORE || (blocked && action != IGNORE)
}
