//! Who of the guests owns which addresses of the host's network. All of it lies in the kernel; this is the one place that changes it.

use pando_api::Address;
use pando_guest::{Places, slot};
use pando_kernel::{CallError, Context};
use pando_kernel::cgroup::Field;
use pando_net::device::Devices;
use pando_net::placement::{self, PlacementError};
use pando_net::private::SubnetError;
use pando_net::shared::{Pins, SharedError, Stack};
use pando_net::{Network, device};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// How long the programs stay loaded after the last guest that needed them: loading takes the kernel a good part of a second.
const LINGER: Duration = Duration::from_secs(2);

/// Why a guest cannot have its addresses.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error(transparent)]
    Shared(#[from] SharedError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(
        "this host has no unified cgroup hierarchy, by which the kernel would know the guest's sockets; use --net none or --net host"
    )]
    NoGroups,
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    #[error("another guest has {0} already; choose another address, or none for a free one")]
    Leased(Ipv4Addr),
    #[error("{0} is not an address of the private network {1}/{2}; choose one of those, or none for a free one")]
    Outside(IpAddr, Ipv4Addr, u8),
    #[error("{0} is the host's own; a guest that is a machine on the host's network needs another")]
    OfTheHost(IpAddr),
    #[error(
        "a guest that is a machine on the host's network needs an address there; for example --address 10.9.0.5/24@eth0"
    )]
    NoAddress,
    #[error("port {0} leads to guest '{1}' already; publish another, or on another address of the host")]
    Published(u16, String),
    #[error("port {0} is held by a server of the host; publish another")]
    HeldByHost(u16),
    #[error("failed inside Pando: {0}")]
    Inside(#[from] tokio::task::JoinError),
}

/// A guest that is to be let onto the network.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    pub(crate) slot: u32,
    /// The group that all of its processes are in.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) user_namespace: bool,
    pub(crate) addresses: Vec<Address>,
}

/// The shared network.
#[derive(Debug)]
pub(crate) struct Networks {
    pins: Pins,
    /// A group without processes, which is there as long as the programs are: with it the next guest is admitted sooner.
    idle: Option<PathBuf>,
    /// Held while something is changed: an address may have several owners.
    stack: Mutex<Option<Arc<Stack>>>,
    /// How often guests have gone: programs that have been needed since a guest went do not go by its going.
    gone: Cell<u64>,
}

/// The number by which the programs know the guest in a slot; 0 is nobody's.
fn number(slot: u32) -> u32 {
    slot + 1
}

impl Networks {
    pub(crate) fn new(places: &Places, field: &Field) -> Rc<Self> {
        Rc::new(Self {
            pins: Pins::at(places.run().join("bpf")),
            idle: field.beside("network"),
             stack: Mutex::new(None), gone: Cell::new(0) })
    }

    /// Finds what an earlier daemon left, and lets those of its guests go that `lives` does not know.
    pub(crate) async fn adopt(self: &Rc<Self>, lives: impl Fn(u32) -> bool) -> Result<(), NetworkError> {
        let mut held = self.stack.lock().await;
        *held = Stack::open(&self.pins)?.map(Arc::new);
        let Some(stack) = held.clone() else { return Ok(()) };
        for id in stack.guests().into_iter().filter(|id| !lives(id.wrapping_sub(1))) {
            dismiss(&stack, id)?;
        }
        drop(held);
        self.retire();
        Ok(())
    }

    /// Gives a guest that is about to start its addresses.
    pub(crate) async fn admit(&self, admission: Admission) -> Result<(), NetworkError> {
        let cgroup = admission.cgroup.ok_or(NetworkError::NoGroups)?;
        let id = number(admission.slot);
        let root = if admission.user_namespace { slot::first_id(admission.slot) } else { 0 };
        let mut held = self.stack.lock().await;
        let (pins, idle, known) = (self.pins.clone(), self.idle.clone(), held.clone());
        let admitted = tokio::task::spawn_blocking(move || -> Result<_, NetworkError> {
            let stack = match known {
                Some(stack) => stack,
                None => Arc::new(open_or_make(&pins, idle.as_deref())?),
            };
            let admit = || -> Result<(), NetworkError> {
                let mut devices = Devices::look()?;
                stack.cover_devices(&devices)?;
                let put = |address| put(&mut devices, address);
                let own = admission.addresses.iter().map(put).collect::<Result<Vec<_>, _>>()?;
                Ok(stack.admit(&mut devices, &cgroup, (id, root), &own)?)
            };
            let outcome = admit();
            if outcome.is_err() {
                withdraw_unowned(&stack, admission.addresses.iter().map(|address| address.ip));
            }
            Ok((stack, outcome))
        });
        let (stack, outcome) = admitted.await??;
        *held = Some(stack);
        outcome
    }

    /// Takes everything from a guest whose processes are gone; one that had nothing loses nothing.
    pub(crate) async fn dismiss(self: &Rc<Self>, slot: u32) {
        let held = self.stack.lock().await;
        let Some(stack) = held.clone() else { return };
        let gone = tokio::task::spawn_blocking(move || dismiss(&stack, number(slot))).await;
        match gone.map_err(NetworkError::from).and_then(|gone| gone) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, slot, "taking a guest's addresses failed; the next daemon will try again")
            }
        }
        drop(held);
        self.retire();
    }

    /// Gives a running guest one more address.
    pub(crate) async fn add(&self, slot: u32, address: Address) -> Result<(), NetworkError> {
        self.change(move |stack| {
            let mut devices = Devices::look()?;
            stack.cover_devices(&devices)?;
            let own = put(&mut devices, &address)?;
            let added = stack.add(number(slot), own);
            if added.is_err() {
                withdraw_unowned(stack, [address.ip]);
            }
            Ok(added?)
        })
        .await
    }

    /// Takes an address from a running guest.
    pub(crate) async fn remove(&self, slot: u32, ip: IpAddr, cgroup: PathBuf) -> Result<(), NetworkError> {
        self.change(move |stack| {
            stack.remove_address(number(slot), ip, &cgroup)?;
            withdraw_unowned(stack, [ip]);
            Ok(())
        })
        .await
    }

    async fn change(
        &self,
        change: impl FnOnce(&Stack) -> Result<(), NetworkError> + Send + 'static,
    ) -> Result<(), NetworkError> {
        let held = self.stack.lock().await;
        // Without programs there is no guest to change anything for.
        let Some(stack) = held.clone() else { return Ok(()) };
        tokio::task::spawn_blocking(move || change(&stack)).await?
    }

    /// Removes the programs once they have not been needed for a while.
    fn retire(self: &Rc<Self>) {
        let networks = Rc::clone(self);
        let gone = self.gone.get() + 1;
        self.gone.set(gone);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(LINGER).await;
            if networks.gone.get() == gone {
                networks.close().await;
            }
        });
    }

    /// Removes the programs if no guest needs them.
    pub(crate) async fn close(&self) {
        let mut held = self.stack.lock().await;
        let unused = held.take_if(|stack| stack.guests().is_empty()).and_then(Arc::into_inner);
        let Some(stack) = unused else { return };
        let idle = self.idle.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let _ = idle.map(std::fs::remove_dir);
            stack.remove_unused()
        });
        let removed = removed.await;
        if let Err(error) = removed.map_err(NetworkError::from).and_then(|removed| Ok(removed?)) {
            tracing::warn!(%error, "removing the programs of the shared network failed");
        }
    }
}

/// A guest is admitted in any case, if later: without a group that waits.
fn open_or_make(pins: &Pins, idle: Option<&Path>) -> Result<Stack, SharedError> {
    let stack = Stack::open_or_make(pins)?;
    let wait = |idle: &Path| -> Result<(), SharedError> {
        std::fs::create_dir(idle).context(|| format!("making {}", idle.display()))?;
        stack.stay_ready(idle)
    };
    if let Some(Err(error)) = idle.map(wait) {
        tracing::debug!(%error, "no group waits for guests with addresses");
    }
    Ok(stack)
}

/// Sees to it that the host has an address.
fn put(devices: &mut Devices, address: &Address) -> Result<Network, NetworkError> {
    let placed = placement::place(devices.all(), address.ip, address.prefix, address.device.as_deref())?;
    if let Some(index) = placed.put_on {
        devices.add_address(index, address.ip, placement::bits(address.ip))?;
    }
    Ok(placed.own)
}

fn dismiss(stack: &Stack, id: u32) -> Result<(), NetworkError> {
    let addresses = stack.addresses(id).unwrap_or_default();
    stack.dismiss(id)?;
    withdraw_unowned(stack, addresses.iter().map(|own| own.ip));
    Ok(())
}

/// Takes those addresses off the host's devices that were put there for guests and are nobody's any more.
fn withdraw_unowned(stack: &Stack, addresses: impl IntoIterator<Item = IpAddr>) {
    for ip in addresses {
        let unowned = stack.owners(ip).is_ok_and(|owners| owners.is_empty());
        if unowned && let Err(error) = device::withdraw(ip) {
            tracing::warn!(%error, %ip, "an address of a guest's stays on the host");
        }
    }
}
