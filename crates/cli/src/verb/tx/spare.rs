//! The beginning of a transaction out of what a daemon has made ahead.

use crate::client::{Answer, Client};
use crate::daemon_start::if_running;
use crate::replies::SpareTaken;
use crate::state_root::StateRoot;
use pando_api::Method;
use pando_tx::{Home, Spare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How many may turn out to be out of date: no more than a daemon keeps.
const STALE: usize = 3;

/// How long the daemon may take. Transactions need none, and do not wait for one that is stuck.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One, if there is a daemon that has one and it is current. Whatever goes wrong, a transaction can begin without.
pub(super) fn take(root: &StateRoot, home: &Home) -> Option<Spare> {
    let mut client = if_running(root).ok()??;
    (0..=STALE).map_while(|_| ask(&mut client, home)).find(Spare::is_current)
}

fn ask(client: &mut Client, home: &Home) -> Option<Spare> {
    client.send(Method::TakeSpare {}, false, Vec::new()).ok()?;
    let waited = poll(&mut [PollFd::new(&*client, PollFlags::IN)], Some(&PATIENCE));
    waited.ok().filter(|ready| *ready > 0)?;
    let Answer { reply, descriptors, .. } = client.receive::<SpareTaken>().ok()?;
    Spare::accept(home, &reply.spare?, descriptors).ok()
}
