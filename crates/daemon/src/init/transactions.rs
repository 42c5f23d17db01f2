//! Transactions in a guest that a crash has left: finished or removed before the guest's first process runs.

use crate::failure;
use pando_api::{Fault, FaultKind};
use pando_guest::root::{LayerStore, Mounted, Owner, Root};
use pando_guest::{GuestName, Places};
use pando_kernel::CallError;
use pando_kernel::mount::Tree;
use pando_store::StoreError;
use pando_tx::{Recovered, StateDirectory};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a guest waits for what held its files, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Where the transactions in a guest are kept, if there ever were any.
pub(crate) fn kept(places: &Places, name: &GuestName) -> Option<StateDirectory> {
    let directory = places.guest(name).join("tx");
    directory.exists().then(|| StateDirectory::new(places.root()).of_target(&directory))
}

/// Puts the root file system of a guest together that had transactions. The process that held one ends with the guest;
/// until it has, and the kernel has let go of what it held, the guest's files are in use (EBUSY).
pub(crate) fn mount(root: &Root, owner: Option<Owner<'_>>, store: &LayerStore) -> Result<Mounted, StoreError> {
    let begun = Instant::now();
    loop {
        match root.mount(owner, store) {
            Err(StoreError::Call(error)) if is_busy(&error) && begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            mounted => return mounted,
        }
    }
}

fn is_busy(error: &CallError) -> bool {
    error.source.kind() == std::io::ErrorKind::ResourceBusy
}

/// Looks after them. `root` is the guest's root file system, which nobody uses yet.
pub(crate) fn recover(home: &StateDirectory, name: &str, root: &Tree, first_id: u32) -> Result<(), Fault> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", root.as_fd().as_raw_fd()));
    let doing = format!("looking after the transactions in guest '{name}'");
    let recovered =
        pando_tx::recover_in(home, Some((&path, first_id))).map_err(|error| failure::call(&doing, name, &error))?;
    for one in recovered {
        match one {
            Recovered::Finished(tx) => tracing::info!("transaction '{tx}' in guest '{name}' is in place now"),
            Recovered::Dropped(tx) => tracing::info!("transaction '{tx}' in guest '{name}' was not committed"),
            // Its root was given.
            Recovered::Waits(tx) => tracing::warn!("transaction '{tx}' in guest '{name}' was not looked after"),
            Recovered::Stuck(tx, error) => {
                let message = format!(
                    "guest '{name}' cannot be started: transaction '{tx}' is half committed, and cannot be finished: {error}"
                );
                return Err(Fault::new(FaultKind::Failed, name, message));
            }
        }
    }
    Ok(())
}
