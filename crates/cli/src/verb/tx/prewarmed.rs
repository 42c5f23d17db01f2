//! The beginning of a transaction out of what a daemon has made ahead, and its end, which that daemon clears away.

use crate::client::{Answer, Client};
use crate::daemon_start::if_running;
use crate::replies::SpareTaken;
use crate::state_root::StateRoot;
use pando_api::Method;
use pando_tx::{BeginError, Moment, Prewarmed, StateDirectory, Transaction, TxName, ViewPlan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How many may turn out to be out of date: no more than a daemon keeps.
const STALE: usize = 3;

/// How long the daemon may take. Transactions need none, and do not wait for one that is stuck.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A daemon that clears away after a transaction on one of its prewarmed transactions, as soon as this process has
/// ended.
pub(super) struct Clearer(Client);

impl Clearer {
    /// Leaves it to the daemon, if that is still there: whether it is.
    pub(super) fn leave_it(self) -> bool {
        // It says nothing unasked: there is something to hear if it has gone.
        let heard = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let is_there = heard == Ok(0);
        // Closed by the kernel, behind all else that this process does.
        std::mem::forget(self);
        is_there
    }
}

/// A daemon that may have some.
struct Keeper {
    client: Client,
    /// Whether it has been asked for one that it has not given yet.
    asked: bool,
}

impl Keeper {
    fn of(root: &StateRoot) -> Option<Self> {
        match pando_front::handed_over() {
            Some(call) => Some(Self { client: Client::after(call.socket.into(), call.heard).ok()?, asked: true }),
            None => Some(Self { client: if_running(root).ok()??, asked: false }),
        }
    }

    fn give(&mut self, home: &StateDirectory) -> Option<Prewarmed> {
        if !std::mem::take(&mut self.asked) {
            self.client.send(Method::TakeSpare {}, false, Vec::new()).ok()?;
        }
        let waited = poll(&mut [PollFd::new(&self.client, PollFlags::IN)], Some(&PATIENCE));
        waited.ok().filter(|ready| *ready > 0)?;
        let Answer { reply, descriptors, .. } = self.client.receive::<SpareTaken>().ok()?;
        Prewarmed::accept(home, &reply.spare?, descriptors).ok()
    }
}

/// Begins on one, if there is a daemon that has one and it is current. Whatever goes wrong before, a transaction can
/// begin without.
pub(super) fn begin(
    root: &StateRoot,
    home: &StateDirectory,
    name: &TxName,
    command: &[String],
    first_begun: Option<Moment>,
) -> Result<Option<(Transaction, ViewPlan, Clearer)>, BeginError> {
    let Some(mut keeper) = Keeper::of(root) else { return Ok(None) };
    for _ in 0..=STALE {
        let Some(prewarmed) = keeper.give(home) else { break };
        if let Some((transaction, plan)) = Transaction::on_prewarmed(home, name, command, first_begun, prewarmed)? {
            return Ok(Some((transaction, plan, Clearer(keeper.client))));
        }
    }
    Ok(None)
}
