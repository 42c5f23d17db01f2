//! The private network of guests: who is on it with which address, which ports lead where, what guests are called.
//!
//! All of it lies under `run/net`, written down before it is made: `network.toml` what stands for all guests,
//! `leases/SLOT.toml` what one has, `away/IMAGE.toml` the addresses of one that is away with its connections. So the
//! next daemon takes back what a guest left that ended meanwhile.

use crate::network::networks::NetworkError;
use crate::network::settings::NetworkSettings;
use crate::state::record;
use pando_api::{Link, Protocol, Publication, Spec};
use pando_guest::Places;
use pando_kernel::Context;
use pando_kernel::file::tree_removal::remove_tree;
use pando_net::device;
use pando_net::private::{self, Connection, Lease, Private, Published, Subnet, Turned, names};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the bridge stays after the last guest: it may not be the last for long.
const LINGER: Duration = Duration::from_secs(2);

const NETWORK: &str = "network.toml";
const LEASES: &str = "leases";
const AWAY: &str = "away";

/// What stands for all guests.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Standing {
    subnet: Subnet,
    turned: Turned,
}

/// Addresses that are nobody else's while the guest that had them lies in an image: who sends to its connections is not
/// answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Away {
    four: Ipv4Addr,
}

#[derive(Debug, Default)]
struct State {
    standing: Option<Standing>,
    leases: BTreeMap<u32, Lease>,
    /// The addresses that are kept, by image.
    away: BTreeMap<String, Away>,
}

/// The private network.
#[derive(Debug)]
pub(crate) struct PrivateNetwork {
    directory: PathBuf,
    tag: String,
    settings: NetworkSettings,
    state: Arc<Mutex<State>>,
}

/// A guest that is to be connected.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) slot: u32,
    pub(crate) name: String,
    pub(crate) spec: Spec,
    pub(crate) namespace: OwnedFd,
    /// The image that it comes back from, with connections.
    pub(crate) returning: Option<String>,
}

/// Where what guests know by name lies.
pub(crate) fn directory(places: &Places) -> PathBuf {
    places.run().join("net")
}

impl PrivateNetwork {
    pub(crate) fn new(places: &Places) -> Rc<Self> {
        // Names of devices are short: five letters of the name that nobody else's cgroups have.
        let field = places.field();
        let tag = field[field.len() - 5..].to_owned();
        let settings = NetworkSettings::read(places);
        Rc::new(Self { directory: directory(places), tag, settings, state: Arc::default() })
    }

    /// A copy of the network's state for another thread.
    pub(crate) fn work(&self) -> Work {
        Work {
            directory: self.directory.clone(),
            tag: self.tag.clone(),
            settings: self.settings.clone(),
            state: Arc::clone(&self.state),
        }
    }

    /// Does something with the network on a thread where it may take its time.
    async fn blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Work) -> Result<T, NetworkError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let work = self.work();
        tokio::task::spawn_blocking(move || job(&work)).await?
    }

    /// Finds what an earlier daemon left, and takes back what those of its guests had that `lives` does not know, or
    /// that lie in none of these images.
    pub(crate) async fn adopt(
        self: &Rc<Self>,
        lives: BTreeSet<u32>,
        images: BTreeSet<String>,
    ) -> Result<(), NetworkError> {
        self.blocking(move |work| work.adopt(&lives, &images)).await?;
        self.retire();
        Ok(())
    }

    /// Connects a guest to the private network.
    pub(crate) async fn admit(&self, newcomer: Newcomer) -> Result<(), NetworkError> {
        self.blocking(move |work| match newcomer.spec.link {
            Link::Macvlan => work.connect_to_device(&newcomer),
            Link::Veth | Link::Netkit => work.admit(&newcomer),
        })
        .await
    }

    /// Takes back what a guest had; one that had nothing loses nothing.
    pub(crate) async fn dismiss(self: &Rc<Self>, slot: u32) {
        if !self.work().locked().leases.contains_key(&slot) {
            return;
        }
        if let Err(error) = self.blocking(move |work| work.dismiss(slot)).await {
            tracing::warn!(%error, slot, "taking a guest off the private network failed; the next daemon will try again");
        }
        self.retire();
    }

    /// Whether the guest that an image was made of is away, with its addresses kept for it.
    pub(crate) fn keeps(&self, image: &str) -> bool {
        self.work().locked().away.contains_key(image)
    }

    /// Does not keep them any longer.
    pub(crate) fn give_up(self: &Rc<Self>, image: &str) {
        let work = self.work();
        let kept = work.locked().away.remove(image).is_some();
        if kept {
            work.forget(image);
            self.retire();
        }
    }

    /// Puts what a guest sends into a class of traffic; into none with 0.
    pub(crate) async fn classify(&self, slot: u32, class: u32) -> Result<(), NetworkError> {
        self.blocking(move |work| work.classify(slot, class)).await
    }

    fn retire(self: &Rc<Self>) {
        let network = Rc::clone(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(LINGER).await;
            network.close().await;
        });
    }

    /// Removes everything if no guest needs it.
    pub(crate) async fn close(&self) {
        if let Err(error) = self.blocking(Work::remove_unused).await {
            tracing::warn!(%error, "removing the private network failed");
        }
    }

    /// A guest's addresses, for `inspect`.
    pub(crate) fn addresses(&self, slot: u32) -> Vec<IpAddr> {
        let work = self.work();
        let state = work.locked();
        state.leases.get(&slot).map_or(Vec::new(), |lease| {
            std::iter::once(IpAddr::V4(lease.four)).chain(lease.six.map(IpAddr::V6)).collect()
        })
    }
}

/// The same, on a thread.
pub(crate) struct Work {
    directory: PathBuf,
    tag: String,
    settings: NetworkSettings,
    state: Arc<Mutex<State>>,
}

impl Work {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn network(&self, standing: &Standing) -> Private {
        Private::new(&self.tag, standing.subnet)
    }

    fn lease_path(&self, slot: u32) -> PathBuf {
        self.directory.join(LEASES).join(format!("{slot}.toml"))
    }

    fn away_path(&self, image: &str) -> PathBuf {
        self.directory.join(AWAY).join(format!("{image}.toml"))
    }

    fn adopt(&self, lives: &BTreeSet<u32>, images: &BTreeSet<String>) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let path = self.directory.join(NETWORK);
        if !path.exists() {
            return Ok(());
        }
        let standing: Standing = record::read_toml(&path)?;
        let network = self.network(&standing);
        state.standing = Some(standing.clone());
        let entries = std::fs::read_dir(self.directory.join(LEASES)).into_iter().flatten().flatten();
        for entry in entries {
            let lease: Lease = match record::read_toml(&entry.path()) {
                Ok(lease) => lease,
                // Half written when its daemon was killed: nothing had been made of it.
                Err(_) => {
                    let _ = std::fs::remove_file(entry.path());
                    continue;
                }
            };
            state.leases.insert(lease.number, lease);
        }
        if !network.exists()? {
            // Killed before it was whole, or while it was going.
            network.make(&standing.turned)?;
        }
        let gone: Vec<u32> = state.leases.keys().filter(|slot| !lives.contains(slot)).copied().collect();
        gone.into_iter().try_for_each(|slot| self.release(&mut state, slot))?;
        // Nobody is being frozen, nor comes back, any more.
        let held: Vec<u32> = state.leases.values().filter(|lease| lease.held).map(|lease| lease.number).collect();
        held.into_iter().try_for_each(|slot| self.open(&mut state, slot))?;
        self.adopt_away(&mut state, images);
        Ok(())
    }

    /// Guests that are away. One that runs did not come to be.
    fn adopt_away(&self, state: &mut State, images: &BTreeSet<String>) {
        let entries = std::fs::read_dir(self.directory.join(AWAY)).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let image = name.strip_suffix(".toml").filter(|image| images.contains(*image));
            let away: Option<Away> = image.and_then(|_| record::read_toml(&entry.path()).ok());
            let runs = |away: &Away| state.leases.values().any(|lease| lease.four == away.four);
            if let Some((image, away)) = image.zip(away.filter(|away| !runs(away))) {
                state.away.insert(image.to_owned(), away);
            } else {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Keeps from a guest what others send it, and for the image that it goes into its addresses. Blocking.
    pub(crate) fn hold(&self, slot: u32, image: &str) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let (Some(standing), Some(lease)) = (state.standing.clone(), state.leases.get_mut(&slot)) else {
            return Ok(());
        };
        lease.held = true;
        let (lease, away) = (lease.clone(), Away { four: lease.four });
        record::write_toml(&self.lease_path(slot), &lease)?;
        std::fs::create_dir_all(self.directory.join(AWAY)).context(|| "making a place for who is away".into())?;
        record::write_toml(&self.away_path(image), &away)?;
        state.away.insert(image.to_owned(), away);
        Ok(self.network(&standing).hold(&lease)?)
    }

    /// Lets it through, to a guest that is back or never went. Blocking.
    pub(crate) fn let_through(&self, slot: u32) -> Result<(), NetworkError> {
        let mut state = self.locked();
        self.open(&mut state, slot)?;
        let Some(four) = state.leases.get(&slot).map(|lease| lease.four) else { return Ok(()) };
        let back: Vec<String> =
            state.away.iter().filter(|(_, away)| away.four == four).map(|(image, _)| image.clone()).collect();
        for image in back {
            state.away.remove(&image);
            self.forget(&image);
        }
        Ok(())
    }

    fn open(&self, state: &mut State, slot: u32) -> Result<(), NetworkError> {
        let (Some(standing), Some(lease)) = (state.standing.clone(), state.leases.get_mut(&slot)) else {
            return Ok(());
        };
        self.network(&standing).let_through(lease)?;
        lease.held = false;
        Ok(record::write_toml(&self.lease_path(slot), lease)?)
    }

    fn forget(&self, image: &str) {
        let _ = std::fs::remove_file(self.away_path(image));
    }

    fn admit(&self, newcomer: &Newcomer) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let standing = self.stand(&mut state)?;
        let network = self.network(&standing);
        let lease = self.lease(&state, &standing.subnet, newcomer)?;
        free_on_the_host(&lease)?;
        std::fs::create_dir_all(self.directory.join(LEASES)).context(|| "making a place for leases".into())?;
        record::write_toml(&self.lease_path(newcomer.slot), &lease)?;
        state.leases.insert(newcomer.slot, lease.clone());
        crate::crash::point("net.leased");
        let admitted = network.admit(&lease, newcomer.namespace.as_fd());
        let admitted = admitted.map_err(NetworkError::from).and_then(|()| {
            self.write_resolver(newcomer)?;
            self.write_names(&state)
        });
        if admitted.is_err() {
            let _ = self.release(&mut state, newcomer.slot);
        }
        admitted
    }

    /// Makes what stands for all guests, where it does not.
    fn stand(&self, state: &mut State) -> Result<Standing, NetworkError> {
        if let Some(standing) = &state.standing {
            return Ok(standing.clone());
        }
        let mut subnet = private::choose(&device::devices()?, self.seed());
        if let Some(named) = &self.settings.private {
            let six = subnet.as_ref().ok().and_then(|chosen| chosen.six);
            subnet = named.parse::<Subnet>().map(|named| Subnet { six, ..named });
        }
        let mut subnet = subnet?;
        subnet.six = subnet.six.filter(|_| has_ipv6());
        let standing = Standing { subnet, turned: Turned::needed() };
        std::fs::create_dir_all(&self.directory).context(|| format!("making {}", self.directory.display()))?;
        record::write_toml(&self.directory.join(NETWORK), &standing)?;
        state.standing = Some(standing.clone());
        let made = self.network(&standing).make(&standing.turned).and_then(|()| standing.turned.on());
        if let Err(error) = made {
            let _ = self.remove(state);
            return Err(error.into());
        }
        Ok(standing)
    }

    /// Of the tag, and so the same from one daemon to the next.
    fn seed(&self) -> u64 {
        let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
        let bytes = machine.iter().chain(self.tag.as_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    fn lease(&self, state: &State, subnet: &Subnet, newcomer: &Newcomer) -> Result<Lease, NetworkError> {
        let Newcomer { slot, name, spec, returning, .. } = newcomer;
        let back = returning.as_ref().and_then(|image| state.away.get(image));
        let others = state.away.values().filter(|away| Some(*away) != back).map(|away| away.four);
        let taken = state.leases.values().map(|lease| lease.four).chain(others);
        let taken: BTreeSet<u32> = taken.filter_map(|four| subnet.number_of(four)).collect();
        let number = match back.and_then(|away| subnet.number_of(away.four)).or(wanted(spec, subnet)?) {
            Some(number) if taken.contains(&number) => return Err(NetworkError::Leased(subnet.host(number).0)),
            Some(number) => number,
            None => private::free(subnet, &taken, name)?,
        };
        let (four, six) = subnet.host(number);
        let published: Vec<_> = spec.publish.iter().map(published).collect();
        for (other, one) in state.leases.values().flat_map(|lease| lease.published.iter().map(move |one| (lease, one)))
        {
            if published.iter().any(|own| own.conflicts_with(one)) {
                return Err(NetworkError::Published(one.host, other.names.first().cloned().unwrap_or_default()));
            }
        }
        let mut names = vec![name.clone()];
        names.extend(spec.hostname.clone().filter(|host| host != name && is_host_name(host)));
        let connection = if spec.link == Link::Netkit { Connection::Netkit } else { Connection::Veth };
        Ok(Lease { number: *slot, names, connection, four, six, published, class: 0, held: back.is_some() })
    }

    fn connect_to_device(&self, newcomer: &Newcomer) -> Result<(), NetworkError> {
        let devices = device::devices()?;
        let mut own = Vec::new();
        let mut parent = None;
        for address in &newcomer.spec.addresses {
            let place = pando_net::placement::place(&devices, address.ip, address.prefix, address.device.as_deref())?;
            let on = place.put_on.ok_or(NetworkError::OfTheHost(address.ip))?;
            parent = parent.or(Some(on));
            own.push(place.own);
        }
        let parent = parent.and_then(|index| devices.iter().find(|device| device.index == index));
        let parent = parent.ok_or(NetworkError::NoAddress)?;
        let routes = device::default_routes()?.into_iter().filter(|(device, _)| *device == parent.index);
        let gateways: Vec<IpAddr> = routes
            .filter_map(|(_, gateway)| gateway)
            .filter(|gateway| own.iter().any(|own| own.ip.is_ipv4() == gateway.is_ipv4()))
            .collect();
        self.write_resolver(newcomer)?;
        Ok(private::connect_to_device(&parent.name, &own, &gateways, newcomer.namespace.as_fd())?)
    }

    fn dismiss(&self, slot: u32) -> Result<(), NetworkError> {
        self.release(&mut self.locked(), slot)
    }

    fn release(&self, state: &mut State, slot: u32) -> Result<(), NetworkError> {
        let Some(lease) = state.leases.remove(&slot) else { return Ok(()) };
        if let Some(standing) = &state.standing {
            self.network(standing).dismiss(&lease)?;
        }
        let _ = std::fs::remove_file(self.lease_path(slot));
        let _ = std::fs::remove_file(resolver_path(&self.directory, slot));
        self.write_names(state)
    }

    fn classify(&self, slot: u32, class: u32) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let Some(standing) = state.standing.clone() else { return Ok(()) };
        let Some(lease) = state.leases.get_mut(&slot) else { return Ok(()) };
        self.network(&standing).classify(lease, class)?;
        lease.class = class;
        Ok(record::write_toml(&self.lease_path(slot), lease)?)
    }

    fn write_names(&self, state: &State) -> Result<(), NetworkError> {
        let Some(standing) = &state.standing else { return Ok(()) };
        let path = self.directory.join("hosts");
        let text = names::hosts(standing.subnet.gateway().0, state.leases.values());
        Ok(names::rewrite(&path, &text).context(|| format!("writing {}", path.display()))?)
    }

    fn write_resolver(&self, newcomer: &Newcomer) -> Result<(), NetworkError> {
        /// systemd-resolved keeps the servers that it asks itself here.
        const BEHIND: &str = "/run/systemd/resolve/resolv.conf";
        let own = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let host =
            if own.contains("nameserver 127.0.0.53") { std::fs::read_to_string(BEHIND).unwrap_or(own) } else { own };
        let path = resolver_path(&self.directory, newcomer.slot);
        let what = || format!("writing {}", path.display());
        std::fs::create_dir_all(&self.directory).context(what)?;
        Ok(names::rewrite(&path, &names::resolver(&host, &newcomer.spec.dns)).context(what)?)
    }

    fn remove_unused(&self) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let unused = state.leases.is_empty() && state.away.is_empty();
        if unused && state.standing.is_some() { self.remove(&mut state) } else { Ok(()) }
    }

    fn remove(&self, state: &mut State) -> Result<(), NetworkError> {
        let Some(standing) = state.standing.take() else { return Ok(()) };
        self.network(&standing).remove()?;
        standing.turned.off()?;
        remove_tree(&self.directory).context(|| format!("removing {}", self.directory.display()))?;
        Ok(())
    }
}

/// Where a guest's resolver configuration lies.
pub(crate) fn resolver_path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("resolv-{slot}.conf"))
}

fn has_ipv6() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6").is_ok_and(|text| text.trim() == "0")
}

/// The address that the user chose.
fn wanted(spec: &Spec, subnet: &Subnet) -> Result<Option<u32>, NetworkError> {
    let Some(address) = spec.addresses.first() else { return Ok(None) };
    let number = match address.ip {
        IpAddr::V4(four) => subnet.number_of(four),
        IpAddr::V6(_) => None,
    };
    number.map(Some).ok_or(NetworkError::Outside(address.ip, subnet.four, subnet.length))
}

fn published(one: &Publication) -> Published {
    Published { ip: one.ip, host: one.host, guest: one.guest, udp: one.protocol == Protocol::Udp }
}

/// A server of the host's that holds a port would lose its clients to the guest.
fn free_on_the_host(lease: &Lease) -> Result<(), NetworkError> {
    for one in &lease.published {
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        for ip in one.ip.map_or(any.to_vec(), |ip| vec![ip]) {
            let bound = if one.udp {
                UdpSocket::bind((ip, one.host)).map(drop)
            } else {
                TcpListener::bind((ip, one.host)).map(drop)
            };
            match bound {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                    return Err(NetworkError::HeldByHost(one.host));
                }
                Err(error) if one.ip.is_some() => {
                    Err(error).context(|| format!("publishing port {} of {ip}", one.host))?
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// What may stand in a hosts file: a guest's own words could hold another line.
fn is_host_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')) && !name.is_empty()
}
