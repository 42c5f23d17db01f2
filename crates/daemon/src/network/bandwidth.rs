//! Which guest is granted what of which device's bandwidth. It is held by the kernel; this is the one place that
//! changes it.

use crate::network::settings::NetworkSettings;
use pando_api::{Link, Network, Spec};
use pando_guest::{Places, slot};
use pando_kernel::CallError;
use pando_net::bandwidth::{self, Class, Counted, Grant, GrantError, Overbooked, Rate, Tags, class_id};
use pando_net::device;
use pando_net::shared::{Pins, SharedError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first number of a class that is a guest's; the guest in slot N has N more.
const FIRST_MINOR: u32 = 0x10;

/// Why a guest cannot have its bandwidth.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BandwidthError {
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error("device {0}: {1}")]
    Overbooked(String, Overbooked),
    #[error("device {0} does not know its own rate; say it in pando.toml: [network.link_rate] {0} = \"1gbit\"")]
    Rate(String),
    #[error("pando.toml: [network.link_rate] {0} = '{1}' is not a rate such as \"1gbit\"")]
    Setting(String, String),
    #[error("a guest without a network has no bandwidth; give it one with --net")]
    NoNetwork,
    #[error("this host has no unified cgroup hierarchy, by which the kernel would know the guest's packets")]
    NoGroups,
    #[error(transparent)]
    Shared(#[from] SharedError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("failed inside Pando: {0}")]
    Inside(#[from] tokio::task::JoinError),
}

impl BandwidthError {
    /// Whether the user asked for what cannot be.
    pub(crate) fn is_the_users(&self) -> bool {
        matches!(self, Self::Grant(_) | Self::Overbooked(..) | Self::NoNetwork | Self::Setting(..) | Self::Rate(_))
    }
}

/// A guest with bandwidth of its own.
#[derive(Clone, Debug)]
struct Member {
    grant: Grant,
    devices: BTreeSet<String>,
    cgroup: PathBuf,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeMap<u32, Member>,
    /// Devices that classes were put on.
    devices: BTreeSet<String>,
    tags: Option<Tags>,
}

/// The bandwidth of all guests.
#[derive(Clone, Debug)]
pub(crate) struct Bandwidth {
    pins: Pins,
    settings: NetworkSettings,
    state: Arc<Mutex<State>>,
}

/// The class of a slot, within a device.
fn minor(slot: u32) -> u16 {
    u16::try_from(slot + FIRST_MINOR).unwrap_or(u16::MAX - 1)
}

/// Reads what a spec grants of bandwidth.
pub(crate) fn read(spec: &Spec) -> Result<Grant, BandwidthError> {
    let grant = Grant::read(spec.net.pairs())?;
    if !grant.is_empty() && spec.network == Network::None {
        return Err(BandwidthError::NoNetwork);
    }
    Ok(grant)
}

impl Bandwidth {
    pub(crate) fn new(places: &Places) -> Self {
        let pins = Pins::at(places.run().join("bpf-bandwidth"));
        Self { pins, settings: NetworkSettings::read(places), state: Arc::default() }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants a guest what its spec says, new or changed: all of it, or what it had. Gives the class of what it sends,
    /// 0 for none.
    pub(crate) async fn grant(&self, slot: u32, cgroup: Option<PathBuf>, spec: &Spec) -> Result<u32, BandwidthError> {
        let grant = read(spec)?;
        if grant.is_empty() && !self.locked().members.contains_key(&slot) {
            return Ok(0);
        }
        let cgroup = cgroup.ok_or(BandwidthError::NoGroups)?;
        let (all, spec) = (self.clone(), spec.clone());
        tokio::task::spawn_blocking(move || {
            let member = Member { grant, devices: devices(&spec)?, cgroup };
            all.enter(slot, member)
        })
        .await?
    }

    fn enter(&self, slot: u32, member: Member) -> Result<u32, BandwidthError> {
        let mut state = self.locked();
        let before = state.members.insert(slot, member.clone());
        let granted = self.settle(&mut state, None).and_then(|()| {
            if state.tags.is_none() {
                state.tags = Some(Tags::open(&self.pins)?);
            }
            let class = if member.grant.has_class() { class_id(minor(slot)) } else { 0 };
            let Some(tags) = &state.tags else { return Ok(class) };
            if before.is_none() {
                tags.attach(&member.cgroup)?;
            }
            tags.grant(&member.cgroup, class, member.grant.limit_in.map_or(0, |rate| rate.0))?;
            Ok(class)
        });
        if granted.is_err() {
            match before {
                Some(before) => drop(state.members.insert(slot, before)),
                None => drop(state.members.remove(&slot)),
            }
            let _ = self.settle(&mut state, Some(slot));
        }
        granted
    }

    /// Takes over guests that an earlier daemon has granted theirs.
    pub(crate) fn adopt(&self, running: Vec<(u32, PathBuf, Spec)>) -> Result<(), BandwidthError> {
        let mut state = self.locked();
        for (slot, cgroup, spec) in running {
            let grant = read(&spec)?;
            if !grant.is_empty() {
                state.members.insert(slot, Member { grant, devices: devices(&spec)?, cgroup });
            }
        }
        if !state.members.is_empty() {
            state.tags = Some(Tags::open(&self.pins)?);
        }
        // Those of guests that have ended since may lie on any device.
        let with_classes =
            device::devices()?.into_iter().map(|device| device.name).filter(|name| bandwidth::is_shaped(name));
        state.devices = with_classes.collect();
        self.settle(&mut state, None)
    }

    /// Takes a guest's classes back; one that had none loses none.
    pub(crate) async fn leave(&self, slot: u32) {
        if self.locked().members.remove(&slot).is_none() {
            return;
        }
        let all = self.clone();
        let settled = tokio::task::spawn_blocking(move || all.settle(&mut all.locked(), Some(slot))).await;
        if let Err(error) = settled.map_err(BandwidthError::from).and_then(|settled| settled) {
            tracing::warn!(%error, slot, "taking a guest's bandwidth back failed; the next daemon will try again");
        }
    }

    /// Forgets the programs if no guest needs them.
    pub(crate) fn close(&self) {
        let mut state = self.locked();
        if state.members.is_empty()
            && let Some(tags) = state.tags.take()
            && let Err(error) = tags.remove()
        {
            tracing::warn!(%error, "removing the programs for bandwidth failed");
        }
    }

    /// Puts on every device the classes of those that send by it.
    fn settle(&self, state: &mut State, gone: Option<u32>) -> Result<(), BandwidthError> {
        let used: BTreeSet<String> = state.members.values().flat_map(|member| member.devices.clone()).collect();
        let all: BTreeSet<String> = used.union(&state.devices).cloned().collect();
        for device in &all {
            let members: Vec<(u16, Grant)> = state
                .members
                .iter()
                .filter(|(_, member)| member.devices.contains(device) && member.grant.has_class())
                .map(|(slot, member)| (minor(*slot), member.grant))
                .collect();
            let link = if members.is_empty() { Rate(1) } else { self.link_rate(device)? };
            let classes: Vec<Class> =
                bandwidth::plan(link, &members).map_err(|error| BandwidthError::Overbooked(device.clone(), error))?;
            // Several Pandos may share a device: a class whose slot somebody holds is that one's.
            let is_others = |number: u16| {
                let slot = u32::from(number).wrapping_sub(FIRST_MINOR);
                Some(slot) != gone && !state.members.contains_key(&slot) && slot < slot::SLOTS && slot::is_held(slot)
            };
            bandwidth::settle(device, link, &classes, is_others)?;
        }
        state.devices = used;
        Ok(())
    }

    fn link_rate(&self, device: &str) -> Result<Rate, BandwidthError> {
        match self.settings.link_rate.get(device) {
            Some(said) => said.parse().map_err(|()| BandwidthError::Setting(device.to_owned(), said.clone())),
            None => bandwidth::link_rate(device).ok_or_else(|| BandwidthError::Rate(device.to_owned())),
        }
    }

    /// What a guest has sent and received, where its packets are counted.
    pub(crate) fn counted(&self, slot: u32) -> Option<Counted> {
        let state = self.locked();
        state.tags.as_ref()?.counted(&state.members.get(&slot)?.cgroup)
    }

    /// How the kernel holds a guest's grants, a device each.
    pub(crate) fn shown(&self, slot: u32) -> Vec<(String, String)> {
        let member = self.locked().members.get(&slot).cloned();
        let member = member.filter(|member| member.grant.has_class());
        let devices = member.into_iter().flat_map(|member| member.devices);
        devices.filter_map(|device| bandwidth::shown(&device, minor(slot)).map(|words| (device, words))).collect()
    }
}

/// The devices by which what a guest sends leaves the machine: those of its addresses, and those of the routes to
/// everywhere.
fn devices(spec: &Spec) -> Result<BTreeSet<String>, BandwidthError> {
    const LOOPBACK: &str = "lo";
    let all = device::devices()?;
    let routes: BTreeSet<u32> = device::default_routes()?.into_iter().map(|(device, _)| device).collect();
    let on_devices = spec.network == Network::Shared || spec.link == Link::Macvlan;
    let named = |name: &str| spec.addresses.iter().any(|address| address.device.as_deref() == Some(name));
    let holds = |device: &device::Device| {
        let near =
            |ip| device.addresses.iter().any(|(own, length)| pando_net::placement::same_network(ip, *own, *length));
        spec.addresses.iter().any(|address| near(address.ip))
    };
    let carries = |device: &&device::Device| {
        routes.contains(&device.index) || (on_devices && (named(&device.name) || holds(device)))
    };
    Ok(all.iter().filter(carries).map(|device| device.name.clone()).filter(|name| name != LOOPBACK).collect())
}

/// The group that all of a guest's processes are in.
pub(crate) fn group(field: &pando_kernel::cgroup::Field, slot: u32) -> Option<PathBuf> {
    field.plot(slot).guest().and_then(|guest| guest.parent().map(Path::to_path_buf))
}
