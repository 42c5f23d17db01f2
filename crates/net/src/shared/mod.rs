//! Addresses of guests' own on the host's stack.
//!
//! A [`Stack`] is one network namespace with its programs. Everything about it lies in the kernel, by names in a BPF
//! file system ([`Pins`]): a process that ends leaves all of it working, and the next one opens it again.

mod error;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
pub mod host;
mod layout;
mod pins;
mod programs;
mod steering;

pub use error::SharedError;
pub use layout::{HIGHEST_ID, MOST_ADDRESSES, MOST_OWNERS};
pub use pins::Pins;

use crate::device::Devices;
use crate::placement::Network;
use crate::{device, sockets};
pub(crate) use error::Named;
use layout::GuestEntry;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use pando_kernel::bpf::{self, Hook};
use pando_kernel::{CallError, Context};
use std::collections::HashSet;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The index that the loopback device has in every network namespace.
const LOOPBACK_DEVICE: u32 = 1;

/// The name of the link that guards lookups.
const LOOKUP_LINK: &str = "lookup";

/// The programs and maps of this process's network namespace.
#[derive(Debug)]
pub struct Stack {
    pins: Pins,
    of_guests: Vec<(OwnedFd, Hook)>,
    steer: OwnedFd,
    itself: MapHandle,
    guests: MapHandle,
    owners4: MapHandle,
    owners6: MapHandle,
    known: MapHandle,
}

impl Stack {
    /// Opens what an earlier process left; `None` where there is nothing.
    ///
    /// # Errors
    ///
    /// What is there is not what was left.
    pub fn open(pins: &Pins) -> Result<Option<Self>, SharedError> {
        if !pins.exist() {
            return Ok(None);
        }
        let map = |name: &str| MapHandle::from_pinned_path(pins.map(name)).named(|| format!("opening map {name}"));
        let program = |(name, hook): &(&str, Hook)| Ok((pins.open_program(name)?, *hook));
        Ok(Some(Self {
            of_guests: programs::OF_GUESTS.iter().map(program).collect::<Result<_, SharedError>>()?,
            steer: pins.open_program(programs::STEER)?,
            itself: map("self")?,
            guests: map("guests")?,
            owners4: map("owners4")?,
            owners6: map("owners6")?,
            known: map("known")?,
            pins: pins.clone(),
        }))
    }

    /// Opens what an earlier process left, or makes it. Two that do so at once make one.
    ///
    /// # Errors
    ///
    /// Those of [`Self::make`].
    pub fn open_or_make(pins: &Pins) -> Result<Self, SharedError> {
        let _alone = pins.lock()?;
        Self::open(pins)?.map_or_else(|| Self::make(pins), Ok)
    }

    /// Removes everything, unless another daemon has come to need it meanwhile.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn remove_unused(self) -> Result<(), SharedError> {
        let _alone = self.pins.lock()?;
        if self.serves_host() || !self.guests().is_empty() { Ok(()) } else { self.remove() }
    }

    /// Loads the programs, attaches those of the namespace and of its devices, and opens it.
    ///
    /// # Errors
    ///
    /// The kernel lacks something, or this process the privilege (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN).
    /// Nothing is left then.
    fn make(pins: &Pins) -> Result<Self, SharedError> {
        let made = Self::attempt(pins);
        if made.is_err() {
            let _ = pins.remove();
        }
        made
    }

    fn attempt(pins: &Pins) -> Result<Self, SharedError> {
        pins.mount()?;
        programs::load(pins)?;
        let namespace = File::open("/proc/thread-self/ns/net").context(|| "opening the network namespace".into())?;
        let lookup = pins.open_program(programs::LOOKUP)?;
        let link = bpf::link_to_namespace(lookup.as_fd(), namespace.as_fd(), Hook::SkLookup)
            .context(|| "guarding lookups of listeners".into())?;
        pins.keep(link.as_fd(), &pins.link(LOOKUP_LINK))?;
        let stack = Self::open(pins)?.ok_or_else(|| SharedError::Bpf {
            what: "opening the programs that were just loaded".into(),
            reason: "they are not there".into(),
        })?;
        stack.cover_devices(&Devices::look()?)?;
        Ok(stack)
    }

    /// Attaches steering to every device that has come since. A packet that came by an uncovered one would reach no
    /// guest.
    ///
    /// # Errors
    ///
    /// The kernel has no tcx (Linux 6.6).
    pub fn cover_devices(&self, devices: &Devices) -> Result<(), SharedError> {
        steering::cover(&self.pins, self.steer.as_fd(), devices)
    }

    /// Has guests be admitted sooner, as long as there is this cgroup of version 2, which has no process and gets none:
    /// the kernel turns a hook on when the first group on the machine asks for it, by changing its own text, and off
    /// when the last such group goes. Each of them takes as long as the rest of an admission.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn stay_ready(&self, cgroup: &Path) -> Result<(), SharedError> {
        self.attach(cgroup).map(drop)
    }

    /// Makes the processes of a cgroup of version 2 the guest `id`, with these addresses, which are on the devices, and
    /// no others. `root` is the user id that may bind low ports. Sockets that a process had before it entered the group
    /// are not bound by it.
    ///
    /// # Errors
    ///
    /// Nothing is left then but programs, which go with the cgroup and deny everything.
    pub fn admit(
        &self,
        devices: &mut Devices,
        cgroup: &Path,
        (id, root): (u32, u32),
        own: &[Network],
    ) -> Result<(), SharedError> {
        let group = self.attach(cgroup)?;
        let number = group.metadata().context(|| format!("looking at {}", cgroup.display()))?.ino();
        let entry = GuestEntry::new(id, root, own.to_vec());
        self.write(&entry)?;
        let settled = self.settle(devices, &entry, number);
        if settled.is_err() {
            let _ = self.dismiss(id);
        }
        settled
    }

    fn attach(&self, cgroup: &Path) -> Result<File, SharedError> {
        let group = File::open(cgroup).context(|| format!("opening {}", cgroup.display()))?;
        for (program, hook) in &self.of_guests {
            bpf::attach_to_cgroup(program.as_fd(), group.as_fd(), *hook)
                .context(|| format!("attaching {hook:?} to {}", cgroup.display()))?;
        }
        Ok(group)
    }

    fn settle(&self, devices: &mut Devices, entry: &GuestEntry, group: u64) -> Result<(), SharedError> {
        devices.add_address(LOOPBACK_DEVICE, entry.loop6().into(), 128).or_else(exists_already)?;
        for own in &entry.own {
            self.give(own.ip, entry.id)?;
        }
        // From here on the group's processes are the guest.
        let id = u64::from(entry.id).to_ne_bytes();
        self.itself
            .update(&group.to_ne_bytes(), &id, MapFlags::ANY)
            .named(|| "telling a cgroup which guest it is".into())
    }

    /// The addresses of a guest, IPv4 first.
    ///
    /// # Errors
    ///
    /// [`SharedError::Unknown`].
    pub fn addresses(&self, id: u32) -> Result<Vec<Network>, SharedError> {
        self.read(id).map(|entry| entry.own)
    }

    /// The guests that own an address.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn owners(&self, ip: IpAddr) -> Result<Vec<u32>, SharedError> {
        let found = self.owners_map(ip).lookup(&layout::key(ip), MapFlags::ANY);
        Ok(found
            .named(|| format!("looking for the owners of {ip}"))?
            .map_or(Vec::new(), |bytes| layout::read_owners(&bytes)))
    }

    /// Gives a running guest one more address. Sockets that it bound to ANY serve it from now on.
    ///
    /// # Errors
    ///
    /// [`SharedError::TooMany`], [`SharedError::Crowded`], [`SharedError::Unknown`].
    pub fn add(&self, id: u32, own: Network) -> Result<(), SharedError> {
        let entry = self.read(id)?;
        let mut all = entry.own.clone();
        all.retain(|known| known.ip != own.ip);
        all.push(own);
        self.write(&entry.with(all))?;
        self.give(own.ip, id).inspect_err(|_| {
            let _ = self.write(&entry);
        })
    }

    /// Takes an address from a running guest, whose processes are in `cgroup` and below. Its connections from there
    /// end; what it has bound there gets nothing any more.
    ///
    /// # Errors
    ///
    /// [`SharedError::Unknown`].
    pub fn remove_address(&self, id: u32, ip: IpAddr, cgroup: &Path) -> Result<(), SharedError> {
        let entry = self.read(id)?;
        self.take(ip, id)?;
        let rest = entry.own.iter().filter(|own| own.ip != ip).copied().collect();
        self.write(&entry.with(rest))?;
        let mut groups = HashSet::new();
        numbers(cgroup, &mut groups);
        Ok(sockets::end_connections(ip, &groups)?)
    }

    /// Forgets a guest whose processes are gone. The programs go with its cgroup.
    ///
    /// # Errors
    ///
    /// The kernel's. One that is not known is no error.
    pub fn dismiss(&self, id: u32) -> Result<(), SharedError> {
        let Ok(entry) = self.read(id) else { return Ok(()) };
        for own in &entry.own {
            self.take(own.ip, id)?;
        }
        self.guests.delete(&id.to_ne_bytes()).named(|| format!("forgetting guest number {id}"))?;
        Ok(device::remove_address(LOOPBACK_DEVICE, entry.loop6().into(), 128)?)
    }

    /// The numbers of all guests that are known.
    pub fn guests(&self) -> Vec<u32> {
        self.guests.keys().filter_map(|key| key.as_slice().try_into().ok().map(u32::from_ne_bytes)).collect()
    }

    /// Detaches and removes everything. Only when no guest is left: what one has would be open to all.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn remove(self) -> Result<(), SharedError> {
        for id in self.guests() {
            self.dismiss(id)?;
        }
        self.pins.remove()
    }

    fn owners_map(&self, ip: IpAddr) -> &MapHandle {
        if ip.is_ipv4() { &self.owners4 } else { &self.owners6 }
    }

    fn give(&self, ip: IpAddr, id: u32) -> Result<(), SharedError> {
        let mut owners = self.owners(ip)?;
        if owners.contains(&id) {
            return Ok(());
        }
        if owners.len() == MOST_OWNERS {
            return Err(SharedError::Crowded(ip));
        }
        owners.push(id);
        self.write_owners(ip, &owners)
    }

    fn take(&self, ip: IpAddr, id: u32) -> Result<(), SharedError> {
        let mut owners = self.owners(ip)?;
        if !owners.contains(&id) {
            return Ok(());
        }
        owners.retain(|owner| *owner != id);
        self.write_owners(ip, &owners)?;
        // What was learned of its listeners must not be found by the next owner's clients.
        for key in self.known.keys().filter(|key| layout::is_place_of(key, ip)).collect::<Vec<_>>() {
            let _ = self.known.delete(&key);
        }
        Ok(())
    }

    fn write_owners(&self, ip: IpAddr, owners: &[u32]) -> Result<(), SharedError> {
        let (map, key) = (self.owners_map(ip), layout::key(ip));
        let written = match owners {
            [] => map.delete(&key),
            _ => map.update(&key, &layout::owners(owners), MapFlags::ANY),
        };
        written.named(|| format!("writing whose {ip} is"))
    }

    fn read(&self, id: u32) -> Result<GuestEntry, SharedError> {
        let found =
            self.guests.lookup(&id.to_ne_bytes(), MapFlags::ANY).named(|| format!("reading guest number {id}"))?;
        found.as_deref().and_then(GuestEntry::read).ok_or(SharedError::Unknown(id))
    }

    fn write(&self, entry: &GuestEntry) -> Result<(), SharedError> {
        let of_family = |four: bool| entry.own.iter().filter(|own| own.ip.is_ipv4() == four).count();
        if of_family(true).max(of_family(false)) > MOST_ADDRESSES {
            return Err(SharedError::TooMany);
        }
        let written = self.guests.update(&entry.id.to_ne_bytes(), &entry.bytes(), MapFlags::ANY);
        written.named(|| format!("writing guest number {}", entry.id))
    }
}

/// The numbers of a cgroup and of all below, as sockets name them.
fn numbers(cgroup: &Path, into: &mut HashSet<u64>) {
    into.extend(cgroup.metadata().map(|found| found.ino()));
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            numbers(&entry.path(), into);
        }
    }
}

/// What a crash left is as good as new.
fn exists_already(error: CallError) -> Result<(), CallError> {
    if error.source.kind() == std::io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}
