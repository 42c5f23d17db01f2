//! What makes a clone itself before anything of it runs: its addresses, its hooks, a signal to those who handle it.
//! What is restored is itself already.

use crate::clone::generation;
use crate::failure;
use crate::freeze::self_freeze;
use crate::init::hooks;
use crate::init::hooks::Hooks;
use crate::launch::hook_runs;
use crate::network::connections;
use crate::network::private_networks::PrivateNetworks;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::state::image::HeldImage;
use crate::state::processes;
use crate::warm::ready_roots::{ReadyRoot, ReadyRoots};
use crate::warm::standby_clones::{StandbyClone, StandbyClones};
use pando_api::{Address, Fault, Spec};
use pando_freeze::Connection;
use pando_freeze::image::{Image, Process};
use pando_kernel::process::{held::HeldProcess, signal};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

/// Who guests out of an image are.
#[derive(Debug)]
pub(crate) enum Identity {
    /// Each clone is a guest of its own.
    Other {
        /// The addresses that the clone is given.
        addresses: Vec<Address>,
        /// What those get that handle it.
        signal: Option<i32>,
    },
    /// The guest that was frozen, with the connections that it has still.
    Same(Vec<Connection>),
}

/// What is to be done in one of them.
#[derive(Debug)]
pub(crate) struct Customization {
    hooks: Hooks,
    signal: Option<i32>,
    connections: Vec<Connection>,
    /// The guest's first process, where some watch what tells them that they are in another guest.
    watched: Option<HeldProcess>,
    /// Where a process waits to hear who it is, in the guest of this first process, and what it is told.
    answer: Option<(HeldProcess, u32, String)>,
}

impl Identity {
    /// As a client requests it.
    pub(crate) fn requested(
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
            Self::Same(_) => held.record.spec.clone(),
        }
    }

    /// The image that it comes back from to where its address on the private network was kept for it.
    pub(crate) fn returns_from(&self, private: &PrivateNetworks, held: &HeldImage) -> Option<String> {
        match self {
            Self::Same(_) if private.keeps(&held.name) => Some(held.name.clone()),
            _ => None,
        }
    }

    /// A clone that was made ahead, if there is one. What is restored is not.
    pub(crate) fn standby(&self, standby_clones: &Rc<StandbyClones>, held: &Arc<HeldImage>) -> Option<StandbyClone> {
        match self {
            Self::Other { .. } => standby_clones.take(held),
            Self::Same(_) => None,
        }
    }

    /// A root file system for a guest: those of clones are made ahead.
    pub(crate) async fn root(&self, roots: &Rc<ReadyRoots>, held: &HeldImage) -> Result<ReadyRoot, Fault> {
        match self {
            Self::Other { .. } => roots.take_or_make(&held.roots()).await,
            Self::Same(_) => roots.make(&held.root_of_itself()).await,
        }
    }

    /// What has to be done in a guest that stands. Its hooks may have been found before.
    pub(crate) async fn customization(
        &self,
        guest: &Guest,
        running: &Running,
        image: &HeldImage,
        hooks: Option<Hooks>,
    ) -> Result<Customization, Fault> {
        let told = |said: String| image.record.answer.map(|number| (running.first.clone(), number, said));
        let watched =
            image.held().is_some_and(|frozen| generation::is_watched(&frozen.image)).then(|| running.first.clone());
        match self {
            Self::Other { signal, .. } => {
                let hooks = match hooks {
                    Some(hooks) => hooks,
                    None => Hooks::find(guest, running, hooks::CLONE).await?,
                };
                let answer = told(format!("1 {}", guest.name));
                let connections = connections::of_clones(&image.record);
                Ok(Customization { hooks, signal: *signal, connections, watched, answer })
            }
            Self::Same(connections) => {
                let answer = told(format!("0 {}", image.name));
                Ok(Customization {
                    hooks: Hooks::default(),
                    signal: None,
                    connections: connections.clone(),
                    watched,
                    answer,
                })
            }
        }
    }
}

impl Customization {
    pub(crate) fn is_empty(&self) -> bool {
        let told = self.signal.is_some() || self.watched.is_some() || self.answer.is_some();
        self.hooks.is_empty() && self.connections.is_empty() && !told
    }

    /// Does it, in a clone that waits to run.
    pub(crate) async fn perform(&self, daemon: &Rc<Daemon>, guest: &Rc<Guest>, image: &Image) -> Result<(), Fault> {
        hook_runs::run_in_clone(&self.hooks, daemon, guest).await?;
        if !self.connections.is_empty() {
            connections::restore(daemon, guest, image, &self.connections).await;
        }
        if let Some(first) = &self.watched {
            generation::tell(first).await;
        }
        if let Some((first, number, said)) = &self.answer {
            self_freeze::answer(first, *number, said).await;
        }
        let Some(number) = self.signal else { return Ok(()) };
        let handling: HashSet<i32> =
            image.processes.iter().filter(|process| handles(process, number)).map(|process| process.pid).collect();
        let all = processes::of_guest(&daemon.field, guest);
        let pids: Vec<i32> = all.iter().filter(|one| handling.contains(&one.pid)).map(|one| one.host_pid).collect();
        for process in processes::held(&daemon.field, guest.life()?.slot, &pids) {
            let doing = format!("sending {} to the clone's processes", signal::name(number));
            process.signal(number).map_err(|error| failure::io(&doing, guest.name.as_ref(), &error))?;
        }
        Ok(())
    }
}

/// Whether a process does something of its own about a signal: it has a handler, or all its threads block it and
/// somebody will fetch it. To any other it would mean its end, or nothing.
fn handles(process: &Process, number: i32) -> bool {
    const IGNORE: u64 = 1;
    let action = process.actions.iter().find(|(signal, _)| *signal == number).map_or(0, |(_, action)| action[0]);
    let bit = 1_u64 << (number - 1);
    let blocked = !process.threads.is_empty() && process.threads.iter().all(|thread| thread.mask & bit != 0);
    action > IGNORE || (blocked && action != IGNORE)
}
