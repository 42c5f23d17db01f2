//! What the daemon holds.

use crate::failure;
use crate::logs::Logs;
use crate::network::bandwidth::Bandwidth;
use crate::network::networks::Networks;
use crate::network::private_networks::PrivateNetworks;
use crate::resources::Resources;
use crate::resources::admission::Admission;
use crate::resources::metrics_settings::MetricsSettings;
use crate::resources::page_sharing::PageSharing;
use crate::resources::reclaiming::Reclaiming;
use crate::runtime::descriptors::SpareDescriptors;
use crate::runtime::idle::Idle;
use crate::runtime::spin_wait::Count;
use crate::state::events::Events;
use crate::state::guest::Guest;
use crate::state::image::HeldImage;
use crate::state::lives::Lives;
use crate::state::pulled_images::PulledImages;
use crate::state::unsettled::Unsettled;
use crate::warm::pool::Pool;
use crate::warm::ready_files::ReadyFiles;
use crate::warm::ready_roots::ReadyRoots;
use crate::warm::standby_clones::StandbyClones;
use crate::warm::transaction_reserve::TransactionReserve;
use pando_api::Fault;
use pando_freeze::{TaskIterator, Touched};
use pando_guest::root::LayerStore;
use pando_guest::settings::Settings;
use pando_guest::{GuestName, Places};
use pando_kernel::CallError;
use pando_kernel::cgroup::{Field, Hierarchies};
use pando_net::shared::Pins;
use pando_net::withhold::Withholding;
use pando_store::LayerId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::fs::DirEntry;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use tokio::sync::{Notify, watch};

/// Everything, shared by the tasks of the daemon's one thread.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) places: Places,
    pub(crate) field: Field,
    /// Whether this host has a unified cgroup hierarchy.
    pub(crate) unified: bool,
    pub(crate) guests: RefCell<BTreeMap<GuestName, Rc<Guest>>>,
    /// Frozen images, by name.
    pub(crate) images: RefCell<BTreeMap<String, Arc<HeldImage>>>,
    /// How many of them are being written to the disk.
    pub(crate) keeping: Cell<usize>,
    /// Images of registries that are here.
    pub(crate) pulled: PulledImages,
    /// Names of guests that are being made.
    pub(crate) making: RefCell<HashSet<GuestName>>,
    pub(crate) pool: Rc<Pool>,
    /// Files for guests that go away with their command, made ahead.
    pub(crate) files: Rc<ReadyFiles>,
    /// Whole root file systems for them.
    pub(crate) roots: Rc<ReadyRoots>,
    /// Beginnings of transactions of the host, made ahead.
    pub(crate) transaction_reserve: Rc<TransactionReserve>,
    /// Clones that were made ahead.
    pub(crate) standby_clones: Rc<StandbyClones>,
    /// What tells of processes while they stand still, loaded when it is first needed.
    pub(crate) task_iterator: Arc<LazyLock<Option<TaskIterator>>>,
    /// What tells which of a guest's files were touched, likewise.
    pub(crate) touched: Arc<LazyLock<Option<Touched>>>,
    /// Who owns which addresses.
    pub(crate) networks: Rc<Networks>,
    /// What is withheld of connections to guests that are frozen.
    pub(crate) withholding: Arc<Withholding>,
    /// Who is on which private network.
    pub(crate) private: Rc<PrivateNetworks>,
    /// Who is granted what of the devices.
    pub(crate) bandwidth: Bandwidth,
    /// The layers of guests, by content.
    pub(crate) store: Arc<LayerStore>,
    /// Whether a collection of what no guest stands on any more is due or under way.
    pub(crate) collecting: Cell<bool>,
    /// Layers of which it is being noted what guests use.
    pub(crate) noting: RefCell<HashSet<LayerId>>,
    pub(crate) events: Events,
    pub(crate) resources: Rc<Resources>,
    /// Pages that are shared again.
    pub(crate) page_sharing: PageSharing,
    /// Who is admitted, and what guests come to.
    pub(crate) admission: Admission,
    /// Memory that is taken back.
    pub(crate) reclaiming: Reclaiming,
    /// The logs of guests.
    pub(crate) logs: Rc<Logs>,
    /// Where metrics are served.
    pub(crate) metrics: watch::Sender<MetricsSettings>,
    /// What pando.toml said when it was last read.
    pub(crate) settings: RefCell<Settings>,
    /// When to do what can wait.
    pub(crate) idle: Idle,
    /// Lives that have begun.
    pub(crate) lives: Lives,
    /// How many guests are being started now.
    pub(crate) starting: Count,
    /// How many clones are being made now.
    pub(crate) cloning: Count,
    /// How many images are being read from clients now.
    pub(crate) importing: Count,
    /// How many images are being written to clients now.
    pub(crate) exporting: Count,
    /// This boot's identity.
    pub(crate) boot: String,
    /// Counts the guests that were given no name.
    pub(crate) unnamed: Cell<u64>,
    /// Clones that are not on the disk yet.
    pub(crate) unsettled: Rc<Unsettled>,
    /// Told when there is a guest that cannot be reached or read.
    pub(crate) troubled: Notify,
    pub(crate) descriptors: SpareDescriptors,
    /// Told when the daemon is to end.
    pub(crate) quit: Notify,
}

/// Without it each file is asked for.
fn touched() -> Option<Touched> {
    let refused = |error: &std::io::Error| tracing::debug!(%error, "no BPF program tells of touched files");
    Touched::load().inspect_err(refused).ok()
}

/// Without it processes are asked.
fn task_iterator() -> Option<TaskIterator> {
    let refused = |error: &std::io::Error| tracing::debug!(%error, "no BPF program tells of frozen processes");
    TaskIterator::load().inspect_err(refused).ok()
}

impl Daemon {
    pub(crate) fn new(places: Places, settings: Settings) -> Result<Rc<Self>, CallError> {
        let hierarchies = Hierarchies::detect()?;
        let field = hierarchies.field(&places.field())?;
        let idle = Idle::new();
        let unified = hierarchies.unified.is_some();
        let pool = Pool::new(&places, &field, unified, idle.clone());
        let files = ReadyFiles::new(&places, idle.clone());
        let store = Arc::new(LayerStore::new(places.store()));
        let roots = ReadyRoots::new(&places, &pool, &files, &idle, &store, unified);
        let logs = Rc::new(Logs::new(&settings));
        let boot = crate::state::record::boot();
        let standby_clones = StandbyClones::new(&roots, &logs, &field, &idle);
        Ok(Rc::new(Self {
            task_iterator: Arc::new(LazyLock::new(task_iterator)),
            touched: Arc::new(LazyLock::new(touched)),
            resources: Rc::new(Resources::new(&field, &places, &settings)),
            admission: Admission::new(&places, &settings),
            reclaiming: Reclaiming::new(&settings),
            page_sharing: PageSharing::new(&places, &boot, &settings),
            logs,
            metrics: watch::Sender::new(MetricsSettings::read(&settings).0),
            settings: RefCell::new(settings),
            guests: RefCell::default(),
            images: RefCell::default(),
            pulled: PulledImages::default(),
            keeping: Cell::new(0),
            making: RefCell::default(),
            networks: Networks::new(&places, &field),
            withholding: Arc::new(Withholding::at(Pins::at(places.run().join("withheld")))),
            private: PrivateNetworks::new(&places),
            bandwidth: Bandwidth::new(&places),
            roots,
            transaction_reserve: TransactionReserve::new(&places),
            standby_clones,
            pool,
            files,
            store,
            collecting: Cell::new(false),
            noting: RefCell::default(),
            events: Events::new(),
            boot,
            unnamed: Cell::new(0),
            unsettled: Unsettled::new(&places, idle.clone()),
            troubled: Notify::new(),
            descriptors: SpareDescriptors::default(),
            quit: Notify::new(),
            field,
            unified,
            idle,
            lives: Lives::new(),
            starting: Count::default(),
            cloning: Count::default(),
            importing: Count::default(),
            exporting: Count::default(),
            places,
        }))
    }

    /// The guest of a name.
    pub(crate) fn guest(&self, name: &str) -> Result<Rc<Guest>, Fault> {
        let parsed: GuestName = name.parse().map_err(|error| failure::bad_name(name, &error))?;
        self.guests.borrow().get(&parsed).cloned().ok_or_else(|| failure::no_such_guest(name))
    }

    /// Reserves a name for a guest that is being made. One that goes away with its command, which has ended already, is
    /// waited for.
    pub(crate) async fn reserve(self: &Rc<Self>, name: &GuestName) -> Result<Reservation, Fault> {
        let leaving = || self.guests.borrow().get(name).filter(|guest| guest.is_leaving()).cloned();
        while let Some(guest) = leaving() {
            guest.has_left().await;
        }
        if self.guests.borrow().contains_key(name) {
            return Err(failure::exists(name));
        }
        if !self.making.borrow_mut().insert(name.clone()) {
            return Err(failure::busy(name, "created"));
        }
        Ok(Reservation { daemon: Rc::clone(self), name: name.clone() })
    }

    /// A name for a guest that was given none.
    pub(crate) fn invent_name(&self) -> GuestName {
        loop {
            let number = self.unnamed.get() + 1;
            self.unnamed.set(number);
            if let Ok(name) = format!("run-{number}").parse::<GuestName>()
                && !self.guests.borrow().contains_key(&name)
            {
                return name;
            }
        }
    }

    /// An image on the disk of which nobody knows what it stands on: nothing that it might stand on may be thrown away.
    pub(crate) fn unreadable_image(&self) -> Option<String> {
        let images = self.images.borrow();
        let entries = std::fs::read_dir(self.places.images()).into_iter().flatten().flatten();
        let name = |entry: DirEntry| Some(entry.file_name().to_str()?.parse::<GuestName>().ok()?.to_string());
        let mut names = entries.filter_map(name);
        names.find(|name| !images.contains_key(name))
    }

    /// Whether a slot is that of a guest that runs.
    pub(crate) fn uses(&self, slot: u32) -> bool {
        self.guests.borrow().values().any(|guest| guest.slot() == Some(slot))
    }

    /// Removes what a slot leaves.
    pub(crate) async fn clear_slot(&self, slot: u32) {
        // Before the slot is free for another.
        self.private.dismiss(slot).await;
        self.bandwidth.leave(slot).await;
        crate::init::slot_clearing::clear_slot(&self.places, &self.field, slot).await;
        self.networks.dismiss(slot).await;
    }
}

/// A name that is taken for as long as this lives.
#[derive(Debug)]
pub(crate) struct Reservation {
    daemon: Rc<Daemon>,
    name: GuestName,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.daemon.making.borrow_mut().remove(&self.name);
    }
}
