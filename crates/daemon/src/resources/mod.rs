//! What guests are granted and limited to, and what they use.
//!
//! ```text
//!   spec ──▶ Limits ──admit──▶ refused or borne ──enter──▶ files of the guest's groups ──▶ a member of the governor
//!                                                 change, adopt                             (governing: the loop)
//!   accounting: samples of what each uses, kept in a ring beside the guest's files
//! ```

pub(crate) mod accounting;
pub(crate) mod accounts;
pub(crate) mod admission;
pub mod exposition;
pub(crate) mod governing;
mod held;
pub(crate) mod kills;
pub(crate) mod metrics;
pub(crate) mod metrics_settings;
pub(crate) mod open_files;
pub(crate) mod page_sharing;
pub(crate) mod reclaiming;
mod shared_memory;
mod tenant;
pub(crate) mod views;
pub(crate) mod watchdog;
pub(crate) mod watching;

pub(crate) use held::held;
pub(crate) use tenant::Tenant;

use crate::failure;
use crate::state::guest::{Guest, Running};
use crate::state::record::RunRecord;
use pando_api::{Fault, FaultKind, Spec};
use pando_guest::policy::{grants, profile};
use pando_guest::settings::Settings;
use pando_guest::{GuestName, Places};
use pando_kernel::cgroup::{Field, Seat};
use pando_kernel::process::held::HeldProcess;
use pando_limit::apply::{self, ApplyError};
use pando_limit::block_device::Device;
use pando_limit::entitlement::{Claim, Scale};
use pando_limit::governor::Governor;
use pando_limit::meter;
use pando_limit::process_bound;
use pando_limit::quota;
use pando_limit::setting::{self, Setting, Site};
use pando_limit::slice_latency;
use pando_limit::socket_bound;
use pando_limit::usage::Usage;
use pando_limit::{Controller, Groups, Limits, Machine, Promised, Refusal};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use tokio::sync::Notify;

/// Processes in a guest's groups that are Pando's: its shim.
pub(crate) const UNCOUNTED: u64 = 1;

/// The resources of the machine and who has them.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) machine: Machine,
    field: Field,
    /// Where each controller acts on the field of all guests.
    seats: BTreeMap<&'static str, Seat>,
    state: PathBuf,
    device: OnceCell<Result<Device, String>>,
    /// How many processes a guest may have that was given no number.
    processes: u64,
    /// What the machine grants to all sockets, in bytes.
    sockets: Option<u64>,
    tenants: RefCell<BTreeMap<GuestName, Tenant>>,
    pub(crate) governor: RefCell<Governor<GuestName>>,
    /// Told when somebody came, went or changed.
    pub(crate) stirred: Notify,
    pub(crate) accounts: accounts::Accounts,
    pub(crate) views: views::Views,
    pub(crate) watch: watchdog::Watch,
    /// Told when somebody came, went or changed: for who looks after open files.
    pub(crate) filed: Notify,
    /// Told when a guest came that is shown what it may use.
    pub(crate) seen: Notify,
}

impl Resources {
    pub(crate) fn new(field: &Field, places: &Places, settings: &Settings) -> Self {
        const NAMES: [&str; 6] = ["cpu", "cpuset", "memory", "io", "pids", "cpuacct"];
        let mut machine = Machine::look();
        machine.ceilings = machine.ceilings.at(&places.state());
        let seats: BTreeMap<_, _> = NAMES.into_iter().filter_map(|name| Some((name, field.seat(name)?))).collect();
        let scale = if seats.get("cpu").is_none_or(|seat| seat.unified) { Scale::Weight } else { Scale::Shares };
        let resources = Self {
            governor: RefCell::new(Governor::new(machine.count(), scale)),
            machine,
            field: field.clone(),
            seats,
            state: places.state(),
            device: OnceCell::new(),
            processes: process_bound::usual(),
            sockets: socket_bound::pool(),
            tenants: RefCell::default(),
            stirred: Notify::new(),
            accounts: accounts::Accounts::default(),
            views: views::Views::new(&places.run()),
            seen: Notify::new(),
            filed: Notify::new(),
            watch: watchdog::Watch::new(settings),
        };
        let whole = Groups::find(|name| resources.seats.get(name).cloned(), None);
        if let Err(error) = meter::weigh_field(&whole) {
            tracing::warn!(%error, "the guests weigh no more than one process of the host");
        }
        if let Err(error) = socket_bound::bound_all(&whole, resources.sockets) {
            tracing::warn!(%error, "the sockets of all guests together may take all memory that the machine grants to sockets");
        }
        resources
    }

    /// The groups of a slot.
    pub(crate) fn groups(&self, slot: u32) -> Groups {
        Groups::find(|name| self.seats.get(name).map(|seat| seat.of_plot(slot)), self.field.plot(slot).guest())
    }

    fn site<'a>(&self, groups: &'a Groups) -> Site<'a> {
        let device = self.device.get_or_init(|| Device::below(&self.state)).clone();
        Site { groups, device, uncounted: UNCOUNTED, processes: self.processes, sockets: self.sockets }
    }

    /// The settings of limits in some groups.
    fn plan(&self, limits: &Limits, groups: &Groups) -> Result<Vec<Setting>, Refusal> {
        setting::plan(limits, &self.site(groups), self.machine.count())
    }

    /// Reads a spec's limits and looks whether this machine could ever grant them.
    pub(crate) fn borne(&self, spec: &Spec) -> Result<Limits, Fault> {
        // Any slot's groups tell which controllers there are.
        self.borne_by(spec, &self.groups(0)).map(|(limits, _)| limits)
    }

    fn borne_by(&self, spec: &Spec, groups: &Groups) -> Result<(Limits, Vec<Setting>), Fault> {
        let limits = grants::read(spec).map_err(refused)?;
        self.machine.bears(&limits).map_err(refused)?;
        let settings = self.plan(&limits, groups).map_err(refused)?;
        Ok((limits, settings))
    }

    /// What is promised to guests that run, but for one.
    fn promised(&self, but: &GuestName) -> Promised {
        let tenants = self.tenants.borrow();
        let others = tenants.iter().filter(|(name, _)| *name != but);
        let memory = others.filter_map(|(_, tenant)| tenant.limits.memory.reserve).sum();
        Promised { cpu: self.governor.borrow().promised(Some(but)), memory }
    }

    /// Looks whether the limits can be kept beside what is promised to others that run.
    fn admit(&self, name: &GuestName, spec: &Spec) -> Result<Limits, Fault> {
        let limits = self.borne(spec)?;
        self.machine.grants(&limits, self.promised(name)).map_err(refused)?;
        Ok(limits)
    }

    /// Sets a guest's limits in the groups of its slot, before anything of it runs.
    pub(crate) fn enter(&self, name: &GuestName, spec: &Spec, slot: u32) -> Result<(), Fault> {
        let groups = self.groups(slot);
        let (limits, settings) = self.borne_by(spec, &groups)?;
        self.machine.grants(&limits, self.promised(name)).map_err(refused)?;
        apply::apply(&settings, &groups).map_err(|error| not_set(name, &error))?;
        if limits.cpu.reserve.is_some() {
            slice_latency::set(&groups, true);
        }
        let tenant = Tenant::new(groups, limits, settings);
        self.views.enter(name, slot, &tenant, &self.machine, None);
        self.settle(name, tenant, None);
        Ok(())
    }

    /// Takes over a guest whose limits an earlier daemon has set.
    pub(crate) fn adopt(&self, guest: &Guest, run: &RunRecord) {
        let slot = run.slot;
        let groups = self.groups(slot);
        let limits = grants::read(&profile::completed(&guest.spec.borrow())).unwrap_or_default();
        let settings = self.plan(&limits, &groups).unwrap_or_default();
        let told = meter::weight(&groups);
        // What an earlier daemon held it to for another's sake.
        if let Err(error) = quota::hold(&groups, limits.cpu.bound(self.machine.count())) {
            tracing::warn!(%error, guest = %guest.name, "its processor time may be bounded more than it should be");
        }
        let tenant = Tenant::new(groups, limits, settings);
        self.views.enter(&guest.name, slot, &tenant, &self.machine, Some(run.started));
        self.settle(&guest.name, tenant, told);
    }

    /// Sets those limits that a guest's first process brings the place for; `owner` is its root on the host.
    pub(crate) fn born(&self, name: &GuestName, (first, owner): (&HeldProcess, u32)) -> Result<(), Fault> {
        let Some(limits) = self.with(name, |tenant| tenant.limits.clone()) else { return Ok(()) };
        shared_memory::bound(first, owner, &limits, None)
            .map_err(|error| failure::call("setting memory.sysv", name.as_ref(), &error))
    }

    fn settle(&self, name: &GuestName, tenant: Tenant, told: Option<u64>) {
        let claim = Claim::of(&tenant.limits.cpu, self.machine.count());
        self.tenants.borrow_mut().insert(name.clone(), tenant);
        self.governor.borrow_mut().join(name.clone(), claim, told);
        self.rebalance();
    }

    /// Changes the limits of a guest that runs: all of them, or none. What it was granted is not lost where the new
    /// cannot be had.
    pub(crate) fn change(&self, name: &GuestName, spec: &Spec, running: &Running) -> Result<(), Fault> {
        let (first, owner) = (&running.first, running.root());
        let limits = self.admit(name, spec)?;
        let mut tenants = self.tenants.borrow_mut();
        let Some(tenant) = tenants.get_mut(name) else { return Ok(()) };
        let settings = self.plan(&limits, &tenant.groups).map_err(refused)?;
        apply::replace(&tenant.settings, &settings, &tenant.groups).map_err(|error| not_set(name, &error))?;
        crate::crash::point("set.applied");
        shared_memory::bound(first, owner, &limits, Some(&tenant.limits))
            .map_err(|error| failure::call("changing memory.sysv", name.as_ref(), &error))?;
        let was_prompt = tenant.limits.cpu.reserve.is_some();
        (tenant.settings, tenant.limits) = (settings, limits);
        let is_prompt = tenant.limits.cpu.reserve.is_some();
        if is_prompt != was_prompt {
            slice_latency::set(&tenant.groups, is_prompt);
        }
        let more = self.views.change(name, running.slot, tenant, &self.machine, running.started);
        if let Some(mounts) = running.mounts.borrow().as_ref()
            && let Err(error) = views::attach(more, first, mounts.as_fd())
        {
            tracing::warn!(%error, guest = %name, "it sees the host's numbers there until it is started again");
        }
        let claim = Claim::of(&tenant.limits.cpu, self.machine.count());
        drop(tenants);
        self.governor.borrow_mut().join(name.clone(), claim, None);
        self.rebalance();
        Ok(())
    }

    /// A guest runs no more.
    pub(crate) fn leave(&self, name: &GuestName) {
        let gone = self.tenants.borrow_mut().remove(name);
        self.governor.borrow_mut().leave(name);
        self.views.leave(name);
        if gone.is_some() {
            self.rebalance();
        }
    }

    /// Weights, and protection of memory, over those that run now.
    fn rebalance(&self) {
        let changes = self.governor.borrow_mut().weigh();
        self.tell(changes);
        self.hold();
        self.protect();
        self.stirred.notify_one();
        self.seen.notify_one();
        self.filed.notify_one();
    }

    /// Gives the groups of guests their weights.
    pub(crate) fn tell(&self, changes: Vec<(GuestName, u64)>) {
        let tenants = self.tenants.borrow();
        for (name, weight) in changes {
            let Some(tenant) = tenants.get(&name) else { continue };
            if let Err(error) = meter::set_weight(&tenant.groups, weight) {
                tracing::debug!(%error, guest = %name, "its weight could not be set; it may be ending");
            }
        }
    }

    /// Gives groups the bounds that somebody else's reservation needs, or takes those back.
    fn hold(&self) {
        let changes = self.governor.borrow_mut().bounds();
        let (tenants, count) = (self.tenants.borrow(), self.machine.count());
        for (name, held) in changes {
            let Some(tenant) = tenants.get(&name) else { continue };
            let (held, own) = (held.map(|part| part * f64::from(count)), tenant.limits.cpu.bound(count));
            let bound = held.map_or(own, |held| Some(own.map_or(held, |own| own.min(held))));
            if let Err(error) = quota::hold(&tenant.groups, bound) {
                tracing::debug!(%error, guest = %name, "its bound could not be set; it may be ending");
            }
        }
    }

    /// In version 2 memory is protected only as far as every group above protects it as well.
    fn protect(&self) {
        let Some(seat) = self.seats.get("memory").filter(|seat| seat.unified) else { return };
        let sum: u64 = self.tenants.borrow().values().filter_map(|tenant| tenant.limits.memory.reserve).sum();
        let file = seat.group.join("memory.min");
        let said = std::fs::read_to_string(&file).unwrap_or_default();
        if said.trim() != sum.to_string()
            && let Err(error) = std::fs::write(&file, sum.to_string())
        {
            tracing::warn!(%error, "reserved memory cannot be protected");
        }
    }

    /// Who may have only so many files open in all.
    pub(crate) fn limited_in_files(&self) -> Vec<(GuestName, u64)> {
        let tenants = self.tenants.borrow();
        tenants.iter().filter_map(|(name, tenant)| Some((name.clone(), tenant.limits.files.total?))).collect()
    }

    /// Does something with a guest that runs.
    pub(crate) fn with<T>(&self, name: &GuestName, act: impl FnOnce(&Tenant) -> T) -> Option<T> {
        self.tenants.borrow().get(name).map(act)
    }

    /// How many of a guest's processes the kernel has killed for want of memory in this run.
    pub(crate) fn oom_kills(&self, name: &GuestName) -> u64 {
        self.with(name, |tenant| Usage::oom_kills(&tenant.groups)).unwrap_or(0)
    }

    /// Reads what the members to look at have used, and changes the weights that follow.
    pub(crate) fn look(&self) {
        let members = self.governor.borrow_mut().to_look_at();
        let mut tenants = self.tenants.borrow_mut();
        for name in members {
            let Some(tenant) = tenants.get_mut(&name) else { continue };
            let Some((used, elapsed)) = tenant.look() else { continue };
            let waited = tenant.waited(elapsed);
            let mut governor = self.governor.borrow_mut();
            governor.observe(&name, used, elapsed);
            governor.waited(&name, waited);
        }
        drop(tenants);
        let changes = self.governor.borrow_mut().decide();
        self.tell(changes);
        self.hold();
    }

    /// Whether a controller has version 1's files here.
    pub(crate) fn is_legacy(&self, controller: Controller) -> bool {
        self.seats.get(controller.name()).is_some_and(|seat| !seat.unified)
    }
}

fn refused(refusal: Refusal) -> Fault {
    failure::bad(&refusal.key, refusal.to_string())
}

/// A limit that the kernel refuses.
fn not_set(name: &GuestName, error: &ApplyError) -> Fault {
    let reason = failure::reason(&error.source.source);
    let more = match error.source.source.raw_os_error() {
        Some(libc::EBUSY) => "; its processes hold more than that, and it cannot be taken from them while they run",
        Some(libc::ENOENT | libc::EOPNOTSUPP) => "; 'pando doctor' shows what this kernel grants",
        _ => "",
    };
    let message = format!("{} of guest '{name}' cannot be set: {}: {reason}{more}", error.key, error.source.what);
    Fault::new(FaultKind::Unavailable, name.as_ref(), message)
}
