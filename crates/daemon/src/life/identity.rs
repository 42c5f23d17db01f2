//! What makes a clone itself before anything of it runs: its addresses, its hooks, a signal to those who handle it.

use super::hooks::{self, Hooks};
use crate::daemon::Daemon;
use crate::failure;
use crate::guest::{Guest, Running};
use crate::image::HeldImage;
use crate::processes;
use pando_api::{Address, Fault, Spec};
use pando_freeze::image::{Image, Process};
use pando_kernel::{pidfd, signal};
use std::collections::HashSet;
use std::rc::Rc;

/// What clones are to be given.
#[derive(Debug)]
pub(crate) struct Identity {
    addresses: Vec<Address>,
    signal: Option<i32>,
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
        Ok(Self { addresses, signal: signal.transpose()? })
    }

    /// The spec of a clone.
    pub(crate) fn spec(&self, held: &HeldImage) -> Spec {
        Spec { addresses: self.addresses.clone(), ..held.spec_of_clones() }
    }

    /// What has to be done in a clone that stands.
    pub(crate) async fn rites(&self, guest: &Guest, running: &Running) -> Result<Rites, Fault> {
        Ok(Rites { hooks: Hooks::find(guest, running, hooks::CLONE).await?, signal: self.signal })
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
