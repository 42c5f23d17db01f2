//! `pando tx recover`, and the deleting that nobody waits for.

use super::guest;
use super::prewarmed::Clearer;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_kernel::process::follower::Follower;
use pando_tx::{Recovered, StateDirectory, Sweep, Watch};

#[derive(Debug, clap::Args)]
pub(super) struct Recover {}

impl Recover {
    pub(super) fn run(self, root: &StateRoot, home: &StateDirectory) -> anyhow::Result<u8> {
        let mut all = pando_tx::recover(home).context("cannot look at the transactions")?;
        for home in guest::homes(root) {
            all.extend(pando_tx::recover(&home).context("cannot look at the guests' transactions")?);
        }
        let mut code = 0;
        for recovered in all {
            match recovered {
                Recovered::Finished(name) => println!("{name}: committed, and in place now"),
                Recovered::Dropped(name) => println!("{name}: not committed, and removed"),
                Recovered::Waits(name) => println!("{name}: committed, and will be in place before its guest starts"),
                Recovered::Stuck(name, error) => {
                    let error = anyhow::Error::new(error).context(format!("'{name}' cannot be finished now"));
                    eprintln!("pando: {}", crate::complaint::sentences(&error));
                    code = crate::complaint::OWN_FAILURE;
                }
            }
        }
        tell_of_mounts(home);
        guest::homes(root).iter().for_each(tell_of_mounts);
        Ok(code)
    }
}

/// What the daemon does before anything else: guests may stand on what a crash left half done.
pub(crate) fn recover_first(root: &StateRoot) {
    let host = StateDirectory::new(root.directory());
    let recovered = std::iter::once(host).chain(guest::homes(root)).flat_map(|home| {
        pando_tx::recover(&home).unwrap_or_else(|error| {
            tracing::warn!("the transactions cannot be looked at: {error}");
            Vec::new()
        })
    });
    for one in recovered {
        match one {
            Recovered::Finished(name) => tracing::info!("transaction '{name}' was committed, and is in place now"),
            Recovered::Dropped(name) => tracing::info!("transaction '{name}' was not committed, and is removed"),
            Recovered::Waits(name) => tracing::info!("transaction '{name}' was committed; its guest does not run"),
            Recovered::Stuck(name, error) => {
                let error = crate::complaint::sentences(&error.into());
                tracing::warn!("transaction '{name}' cannot be finished now: {error}");
            }
        }
    }
}

/// Says why some of what was thrown away stays.
pub(super) fn tell_of_mounts(home: &StateDirectory) {
    for error in pando_tx::mounted_in_trash(home) {
        let error = crate::complaint::sentences(&anyhow::Error::new(error).context("what was thrown away stays"));
        eprintln!("pando: {error}");
    }
}

/// Deletes what was thrown away, and lets go of a view. Whatever takes long is done by a process that nobody waits for:
/// the kernel ends the listener and the overlays of a view in some 15 ms. What is at the roots of mounts, where people
/// look, goes at once if it is little. Where a daemon has made it ahead, and has others in the same places, so that
/// nobody would see a difference, it is the `clearer`.
pub(super) fn sweep_soon(home: &StateDirectory, watch: Option<Watch>, clearer: Option<Clearer>) {
    const LITTLE: usize = 300;
    if clearer.is_some_and(Clearer::leave_it) {
        return;
    }
    let at_once = pando_tx::rubbish(home, LITTLE) < LITTLE;
    if at_once && watch.is_none() {
        return pando_tx::sweep(home);
    }
    if at_once {
        pando_tx::sweep_mounts(home);
    }
    let later = Sweep::of(home);
    let follower = Follower::stand_by(|| later.run());
    drop(watch);
    // Let go only now, so that the last to close what was watched is not this process.
    if follower.map(drop).is_err() {
        later.run();
    }
}
