//! Who of the guests owns which addresses of the host's network. All of it lies in the kernel; this is the one place
//! that changes it.

use pando_api::Address;
use pando_guest::{Places, slot};
use pando_kernel::cgroup::Field;
use pando_kernel::{CallError, Context as _};
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
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// How long the programs stay loaded after the last guest that needed them: loading takes the kernel a good part of a
/// second.
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
    #[error("there is no network '{0}'; 'pando network create {0}' makes it, 'pando network ls' lists those there are")]
    NoSuchNetwork(String),
    #[error("{0} overlaps network '{1}', which has {2}; choose another subnet")]
    Overlaps(String, String, String),
    #[error(
        "network '{0}' is internal: no port of the host's leads into it; publish none, or use a network that is not"
    )]
    Internal(String),
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
    /// A group without processes, which is there as long as the programs are: with it the next guest is admitted
    /// sooner.
    idle: Option<PathBuf>,
    /// Locked while something is changed: an address may have several owners.
    held: Arc<Mutex<Option<Held>>>,
    /// How often guests have gone: programs that have been needed since a guest went do not go by its going.
    gone: Cell<u64>,
}

/// The programs, and what is known of the devices that they are on.
#[derive(Debug)]
struct Held {
    stack: Stack,
    devices: Devices,
}

impl Held {
    fn of(stack: Stack) -> Result<Self, NetworkError> {
        let devices = Devices::look()?;
        stack.cover_devices(&devices)?;
        Ok(Self { stack, devices })
    }

    /// Sees to devices that have come or gone since.
    fn catch_up(&mut self) -> Result<(), NetworkError> {
        if self.devices.catch_up()? {
            self.stack.cover_devices(&self.devices)?;
        }
        Ok(())
    }

    /// Sees to it that the host has an address.
    fn put(&mut self, address: &Address) -> Result<Network, NetworkError> {
        let place =
            |devices: &Devices| placement::place(devices.all(), address.ip, address.prefix, address.device.as_deref());
        let placed = match place(&self.devices) {
            // The kernel does not tell of an address that it still looks for another machine's objections to.
            Err(_) => {
                self.devices = Devices::look()?;
                place(&self.devices)?
            }
            Ok(placed) => placed,
        };
        if let Some(index) = placed.put_on {
            self.devices.add_address(index, address.ip, placement::bits(address.ip))?;
        }
        Ok(placed.own)
    }

    fn admit(&mut self, admission: &Admission) -> Result<(), NetworkError> {
        let admitted = self.let_in(admission);
        if admitted.is_err() {
            withdraw_unowned(&self.stack, admission.addresses.iter().map(|address| address.ip));
        }
        admitted
    }

    fn let_in(&mut self, admission: &Admission) -> Result<(), NetworkError> {
        let cgroup = admission.cgroup.as_deref().ok_or(NetworkError::NoGroups)?;
        let id = number(admission.slot);
        let root = if admission.user_namespace { slot::first_id(admission.slot) } else { 0 };
        self.catch_up()?;
        let own = admission.addresses.iter().map(|address| self.put(address)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.stack.admit(&mut self.devices, cgroup, (id, root), &own)?)
    }

    fn add(&mut self, slot: u32, address: &Address) -> Result<(), NetworkError> {
        self.catch_up()?;
        let own = self.put(address)?;
        Ok(self.stack.add(number(slot), own)?)
    }
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
            held: Arc::default(),
            gone: Cell::new(0),
        })
    }

    /// Has a thread do something to the programs, at once or after those who have begun before. It is done whether
    /// anybody waits for the outcome or not.
    fn begin<T, A>(&self, act: A) -> impl Future<Output = Result<T, NetworkError>> + use<T, A>
    where
        T: Send + 'static,
        A: FnOnce(&mut Option<Held>) -> Result<T, NetworkError> + Send + 'static,
    {
        let in_thread = |mut held: OwnedMutexGuard<Option<Held>>| tokio::task::spawn_blocking(move || act(&mut held));
        let mut turn = Box::pin(tokio::task::unconstrained(Arc::clone(&self.held).lock_owned()));
        // Who has asked once has a place in the line: nobody who begins later comes first, such as who takes back what
        // this gives.
        let begun = match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(held) => in_thread(held),
            Poll::Pending => tokio::task::spawn_local(async move { in_thread(turn.await).await? }),
        };
        async move { begun.await? }
    }

    /// Finds what an earlier daemon left, and lets those of its guests go that `lives` does not know.
    pub(crate) async fn adopt(self: &Rc<Self>, lives: impl Fn(u32) -> bool) -> Result<(), NetworkError> {
        let mut held = self.held.lock().await;
        let Some(stack) = Stack::open(&self.pins)? else { return Ok(()) };
        for id in stack.guests().into_iter().filter(|id| !lives(id.wrapping_sub(1))) {
            dismiss(&stack, id)?;
        }
        *held = Some(Held::of(stack)?);
        drop(held);
        self.retire();
        Ok(())
    }

    /// Gives a guest that is about to start its addresses. Where no other is being started and the programs are there,
    /// it has them when this returns: that takes less than to wake a thread and to be woken by it. Else a thread is at
    /// it.
    pub(crate) fn admit(
        &self,
        admission: Admission,
        alone: bool,
    ) -> impl Future<Output = Result<(), NetworkError>> + use<> {
        let mut at_once = self.held.try_lock().ok().filter(|_| alone);
        let given = if let Some(held) = at_once.as_mut().and_then(|held| held.as_mut()) {
            Ok(held.admit(&admission))
        } else {
            drop(at_once);
            let (pins, idle) = (self.pins.clone(), self.idle.clone());
            Err(self.begin(move |held| {
                let held = match held {
                    Some(held) => held,
                    None => held.insert(Held::of(open_or_make(&pins, idle.as_deref())?)?),
                };
                held.admit(&admission)
            }))
        };
        async move {
            match given {
                Ok(outcome) => outcome,
                Err(begun) => begun.await,
            }
        }
    }

    /// Takes everything from a guest whose processes are gone; one that had nothing loses nothing.
    pub(crate) async fn dismiss(self: &Rc<Self>, slot: u32) {
        let gone = self.begin(move |held| {
            let Some(held) = held else { return Ok(false) };
            dismiss(&held.stack, number(slot))?;
            // Now, and not when the next guest is waiting for its addresses.
            held.catch_up()?;
            Ok(true)
        });
        match gone.await {
            Ok(false) => {}
            Ok(true) => self.retire(),
            Err(error) => {
                tracing::warn!(%error, slot, "taking a guest's addresses failed; the next daemon will try again");
                self.retire();
            }
        }
    }

    /// Gives a running guest one more address.
    pub(crate) async fn add(&self, slot: u32, address: Address) -> Result<(), NetworkError> {
        self.change(move |held| {
            let added = held.add(slot, &address);
            if added.is_err() {
                withdraw_unowned(&held.stack, [address.ip]);
            }
            added
        })
        .await
    }

    /// Takes an address from a running guest.
    pub(crate) async fn remove(&self, slot: u32, ip: IpAddr, cgroup: PathBuf) -> Result<(), NetworkError> {
        self.change(move |held| {
            held.stack.remove_address(number(slot), ip, &cgroup)?;
            withdraw_unowned(&held.stack, [ip]);
            Ok(())
        })
        .await
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut Held) -> Result<(), NetworkError> + Send + 'static,
    ) -> Result<(), NetworkError> {
        // Without programs there is no guest to change anything for.
        self.begin(move |held| held.as_mut().map_or(Ok(()), change)).await
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
        let idle = self.idle.clone();
        let removed = self.begin(move |held| {
            let Some(unused) = held.take_if(|held| held.stack.guests().is_empty()) else { return Ok(()) };
            let _ = idle.map(std::fs::remove_dir);
            Ok(unused.stack.remove_unused()?)
        });
        if let Err(error) = removed.await {
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
