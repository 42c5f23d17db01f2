//! A private network of guests: who is on it with which address, which ports lead where, what guests are called. There
//! is one that is always to be had, and those that were made by name (`named_networks`).
//!
//! All of it lies in a directory below `run`, written down before it is made: `network.toml` what stands for all
//! guests, `leases/SLOT.toml` what one has, `away/IMAGE.toml` the addresses of one that is away with its connections.
//! So the next daemon takes back what a guest left that ended meanwhile.

use crate::network::claims::Claims;
use crate::network::host_ports::free_on_the_host;
use crate::network::networks::NetworkError;
use crate::network::settings::NetworkSettings;
use crate::network::{macvlan, subnets};
use crate::state::record;
use pando_api::{Link, Protocol, Publication, Spec};
use pando_kernel::Context;
use pando_kernel::file::tree_removal::remove_tree;
use pando_net::private::{self, Connection, Lease, Place, Private, Published, Subnet, Turned, names};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
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
    /// The boot in which it was made: after another there is nothing of it but this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
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

/// What a network is made by.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    /// Where what is known of it lies.
    pub(crate) directory: PathBuf,
    /// Letters in the names of its devices, which no other network has.
    pub(crate) tag: String,
    /// Its addresses, where they were decided when it was made.
    pub(crate) subnet: Option<Subnet>,
    /// Whether nothing leads out of it.
    pub(crate) internal: bool,
}

/// A private network.
#[derive(Debug)]
pub(crate) struct PrivateNetwork {
    definition: Definition,
    settings: NetworkSettings,
    state: Arc<Mutex<State>>,
    claims: Arc<Mutex<Claims>>,
    /// Whether somebody sees to it that it stays guarded.
    pub(super) watched: Cell<bool>,
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

impl PrivateNetwork {
    pub(crate) fn new(definition: Definition, settings: NetworkSettings, claims: &Arc<Mutex<Claims>>) -> Rc<Self> {
        let (claims, watched) = (Arc::clone(claims), Cell::default());
        Rc::new(Self { definition, settings, state: Arc::default(), claims, watched })
    }

    /// A copy of the network's state for another thread.
    pub(crate) fn work(&self) -> Work {
        Work {
            definition: self.definition.clone(),
            settings: self.settings.clone(),
            state: Arc::clone(&self.state),
            claims: Arc::clone(&self.claims),
        }
    }

    /// Does something with the network on a thread where it may take its time.
    pub(super) async fn blocking<T: Send + 'static>(
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
        self.watch();
        self.retire();
        Ok(())
    }

    /// Connects a guest to the private network.
    pub(crate) async fn admit(self: &Rc<Self>, newcomer: Newcomer) -> Result<(), NetworkError> {
        let admitted = self.blocking(move |work| match newcomer.spec.link {
            Link::Macvlan => {
                work.write_resolver(&newcomer)?;
                macvlan::connect(&newcomer)
            }
            Link::Veth | Link::Netkit => work.admit(&newcomer),
        });
        let admitted = admitted.await;
        self.watch();
        admitted
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
        if let Err(error) = self.vacate().await {
            tracing::warn!(%error, "removing the private network failed");
        }
    }

    /// The same. What cannot be removed is not forgotten.
    pub(crate) async fn vacate(&self) -> Result<(), NetworkError> {
        self.blocking(Work::remove_unused).await
    }

    /// A guest's addresses, for `inspect`. None if it is not on this network.
    pub(crate) fn addresses(&self, slot: u32) -> Option<Vec<IpAddr>> {
        let work = self.work();
        let state = work.locked();
        let lease = state.leases.get(&slot)?;
        Some(std::iter::once(IpAddr::V4(lease.four)).chain(lease.six.map(IpAddr::V6)).collect())
    }

    /// Whether the host has devices for it.
    pub(crate) fn stands(&self) -> bool {
        self.work().locked().standing.is_some()
    }

    /// The addresses that pando.toml names, if it can be read.
    pub(crate) fn configured(&self) -> Option<Subnet> {
        self.settings.private.as_ref()?.parse().ok()
    }

    pub(crate) fn definition(&self) -> &Definition {
        &self.definition
    }

    /// What the device of a guest of this network was given.
    pub(crate) fn place(&self, slot: u32) -> Option<(Place, [u8; 6])> {
        let work = self.work();
        let state = work.locked();
        let (standing, lease) = (state.standing.as_ref()?, state.leases.get(&slot)?);
        Some((work.network(standing).place(lease), lease.hardware()))
    }
}

/// The same, on a thread.
pub(crate) struct Work {
    definition: Definition,
    settings: NetworkSettings,
    state: Arc<Mutex<State>>,
    claims: Arc<Mutex<Claims>>,
}

impl Work {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locked after the state, never before it.
    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn network(&self, standing: &Standing) -> Private {
        Private::new(&self.definition.tag, standing.subnet, self.definition.internal)
    }

    fn lease_path(&self, slot: u32) -> PathBuf {
        self.definition.directory.join(LEASES).join(format!("{slot}.toml"))
    }

    fn away_path(&self, image: &str) -> PathBuf {
        self.definition.directory.join(AWAY).join(format!("{image}.toml"))
    }

    fn adopt(&self, lives: &BTreeSet<u32>, images: &BTreeSet<String>) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let path = self.definition.directory.join(NETWORK);
        if !path.exists() {
            return Ok(());
        }
        let standing: Standing = record::read_toml(&path)?;
        let is_of_this_boot = standing.boot.as_ref().is_none_or(|boot| *boot == record::boot());
        state.standing = Some(standing.clone());
        if is_of_this_boot && !self.definition.internal {
            self.claims().forwards(&self.definition.tag, standing.turned.clone());
        }
        if !is_of_this_boot || self.has_other_addresses(&standing.subnet) {
            let removed = self.remove(&mut state);
            // Nobody is to come to it.
            state.standing = None;
            return removed;
        }
        self.adopt_leases(&mut state);
        // Killed before it was on.
        standing.turned.on()?;
        let network = self.whole(&state, &standing)?;
        // What others may have changed of it while no daemon ran is not looked for, but made anew.
        network.guard(&standing.turned, state.leases.values())?;
        let gone: Vec<u32> = state.leases.keys().filter(|slot| !lives.contains(slot)).copied().collect();
        gone.into_iter().try_for_each(|slot| self.release(&mut state, slot))?;
        // Nobody is being frozen, nor comes back, any more.
        let held: Vec<u32> = state.leases.values().filter(|lease| lease.held).map(|lease| lease.number).collect();
        held.into_iter().try_for_each(|slot| self.open(&mut state, slot))?;
        self.adopt_away(&mut state, images);
        Ok(())
    }

    /// Whether it was made by an earlier network of this name.
    fn has_other_addresses(&self, subnet: &Subnet) -> bool {
        self.definition.subnet.is_some_and(|own| (own.four, own.length) != (subnet.four, subnet.length))
    }

    fn adopt_leases(&self, state: &mut State) {
        let entries = std::fs::read_dir(self.definition.directory.join(LEASES)).into_iter().flatten().flatten();
        for entry in entries {
            let lease: Lease = match record::read_toml(&entry.path()) {
                Ok(lease) => lease,
                // Half written when its daemon was killed: nothing had been made of it.
                Err(_) => {
                    let _ = std::fs::remove_file(entry.path());
                    continue;
                }
            };
            // They led there before: no other guest's can be in the way.
            let _ = self.claims().publish(lease.number, &lease.names.join(" "), &lease.published);
            state.leases.insert(lease.number, lease);
        }
    }

    /// The network, with all that it needs: what others have removed of it, or an earlier daemon had not made yet, is
    /// made anew.
    fn whole(&self, state: &State, standing: &Standing) -> Result<Private, NetworkError> {
        let network = self.network(standing);
        if !network.is_guarded()? {
            network.guard(&standing.turned, state.leases.values())?;
        }
        // Behind the tables, and never before them.
        if !network.has_bridge()? {
            network.make(&standing.turned)?;
            standing.turned.on()?;
            network.guard(&standing.turned, state.leases.values())?;
        }
        Ok(network)
    }

    /// Makes anew what others have removed, where the network stands. Blocking.
    pub(super) fn restore(&self) -> Result<(), NetworkError> {
        let state = self.locked();
        let Some(standing) = &state.standing else { return Ok(()) };
        self.whole(&state, standing).map(drop)
    }

    /// Guests that are away. One that runs did not come to be.
    fn adopt_away(&self, state: &mut State, images: &BTreeSet<String>) {
        let entries = std::fs::read_dir(self.definition.directory.join(AWAY)).into_iter().flatten().flatten();
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
        std::fs::create_dir_all(self.definition.directory.join(AWAY))
            .context(|| "making a place for who is away".into())?;
        record::write_toml(&self.away_path(image), &away)?;
        state.away.insert(image.to_owned(), away);
        Ok(self.whole(&state, &standing)?.hold(&lease)?)
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
        let (Some(standing), Some(mut lease)) = (state.standing.clone(), state.leases.get(&slot).cloned()) else {
            return Ok(());
        };
        self.whole(state, &standing)?.let_through(&lease)?;
        lease.held = false;
        record::write_toml(&self.lease_path(slot), &lease)?;
        state.leases.insert(slot, lease);
        Ok(())
    }

    fn forget(&self, image: &str) {
        let _ = std::fs::remove_file(self.away_path(image));
    }

    fn admit(&self, newcomer: &Newcomer) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let standing = self.stand(&mut state)?;
        let network = self.whole(&state, &standing)?;
        let lease = self.lease(&state, &standing.subnet, newcomer)?;
        free_on_the_host(&lease)?;
        self.claims().publish(newcomer.slot, &newcomer.name, &lease.published)?;
        let written = std::fs::create_dir_all(self.definition.directory.join(LEASES))
            .context(|| "making a place for leases".into())
            .and_then(|()| record::write_toml(&self.lease_path(newcomer.slot), &lease));
        if let Err(error) = written {
            self.claims().withdraw(newcomer.slot);
            return Err(error.into());
        }
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
        let subnet = subnets::decide(&self.definition, &self.settings, &self.claims().subnets)?;
        let turned = match self.definition.internal {
            true => Turned::default(),
            false => self.claims().forward(&self.definition.tag, Turned::needed)?,
        };
        let standing = Standing { subnet, turned, boot: Some(record::boot()) };
        // From here on whoever finds it half made takes it back.
        state.standing = Some(standing.clone());
        let made = self.make(&standing);
        if made.is_err() {
            let _ = self.remove(state);
        }
        made.map(|()| standing)
    }

    fn make(&self, standing: &Standing) -> Result<(), NetworkError> {
        let directory = &self.definition.directory;
        std::fs::create_dir_all(directory).context(|| format!("making {}", directory.display()))?;
        record::write_toml(&directory.join(NETWORK), standing)?;
        self.network(standing).make(&standing.turned)?;
        Ok(standing.turned.on()?)
    }

    fn lease(&self, state: &State, subnet: &Subnet, newcomer: &Newcomer) -> Result<Lease, NetworkError> {
        let Newcomer { slot, name, spec, returning, .. } = newcomer;
        let back = returning.as_ref().and_then(|image| state.away.get(image));
        let others = state.away.values().filter(|away| Some(*away) != back).map(|away| away.four);
        let taken = state.leases.values().map(|lease| lease.four).chain(others);
        let taken: BTreeSet<u32> = taken.filter_map(|four| subnet.number_of(four)).collect();
        let number = match back.and_then(|away| subnet.number_of(away.four)).or(subnets::wanted(spec, subnet)?) {
            Some(number) if taken.contains(&number) => return Err(NetworkError::Leased(subnet.host(number).0)),
            Some(number) => number,
            None => private::free(subnet, &taken, name)?,
        };
        let (four, six) = subnet.host(number);
        let published: Vec<_> = spec.publish.iter().map(published).collect();
        let mut names = vec![name.clone()];
        names.extend(spec.hostname.clone().filter(|host| host != name && is_host_name(host)));
        let connection = if spec.link == Link::Netkit { Connection::Netkit } else { Connection::Veth };
        let knows = spec.add_host.iter().map(|entry| (entry.name.clone(), entry.ip)).collect();
        Ok(Lease { number: *slot, names, connection, four, six, knows, published, class: 0, held: back.is_some() })
    }

    fn dismiss(&self, slot: u32) -> Result<(), NetworkError> {
        self.release(&mut self.locked(), slot)
    }

    fn release(&self, state: &mut State, slot: u32) -> Result<(), NetworkError> {
        let Some(lease) = state.leases.remove(&slot) else { return Ok(()) };
        self.claims().withdraw(slot);
        if let Some(standing) = &state.standing {
            self.whole(state, standing)?.dismiss(&lease)?;
        }
        let _ = std::fs::remove_file(self.lease_path(slot));
        let _ = std::fs::remove_file(resolver_path(&self.definition.directory, slot));
        let _ = std::fs::remove_file(hosts_path(&self.definition.directory, Some(slot)));
        self.write_names(state)
    }

    fn classify(&self, slot: u32, class: u32) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let Some(standing) = state.standing.clone() else { return Ok(()) };
        let Some(mut lease) = state.leases.get(&slot).cloned() else { return Ok(()) };
        self.whole(&state, &standing)?.classify(&lease, class)?;
        lease.class = class;
        record::write_toml(&self.lease_path(slot), &lease)?;
        state.leases.insert(slot, lease);
        Ok(())
    }

    fn write_names(&self, state: &State) -> Result<(), NetworkError> {
        let Some(standing) = &state.standing else { return Ok(()) };
        let text = names::hosts(standing.subnet.gateway().0, state.leases.values());
        let write =
            |path: PathBuf, text: &str| names::rewrite(&path, text).context(|| format!("writing {}", path.display()));
        write(hosts_path(&self.definition.directory, None), &text)?;
        for lease in state.leases.values().filter(|lease| !lease.knows.is_empty()) {
            let own: String = lease.knows.iter().map(|(name, ip)| format!("{ip} {name}\n")).collect();
            write(hosts_path(&self.definition.directory, Some(lease.number)), &format!("{text}{own}"))?;
        }
        Ok(())
    }

    fn write_resolver(&self, newcomer: &Newcomer) -> Result<(), NetworkError> {
        /// systemd-resolved keeps the servers that it asks itself here.
        const BEHIND: &str = "/run/systemd/resolve/resolv.conf";
        let own = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let host = match own.contains("nameserver 127.0.0.53") {
            // None of the host's is reached from there.
            _ if self.definition.internal => String::new(),
            true => std::fs::read_to_string(BEHIND).unwrap_or(own),
            false => own,
        };
        let path = resolver_path(&self.definition.directory, newcomer.slot);
        let what = || format!("writing {}", path.display());
        std::fs::create_dir_all(&self.definition.directory).context(what)?;
        Ok(names::rewrite(&path, &names::resolver(&host, &newcomer.spec.dns)).context(what)?)
    }

    fn remove_unused(&self) -> Result<(), NetworkError> {
        let mut state = self.locked();
        let unused = state.leases.is_empty() && state.away.is_empty();
        if unused && state.standing.is_some() { self.remove(&mut state) } else { Ok(()) }
    }

    /// What fails halfway stands still: whoever comes next makes it whole, or removes it.
    fn remove(&self, state: &mut State) -> Result<(), NetworkError> {
        let Some(standing) = state.standing.clone() else { return Ok(()) };
        self.network(&standing).remove()?;
        // None that comes meanwhile is told that it is on, and finds it off.
        let mut claims = self.claims();
        if let Some(turned) = claims.stop_forwarding(&self.definition.tag)
            && let Err(error) = turned.off()
        {
            claims.forwards(&self.definition.tag, turned);
            return Err(error.into());
        }
        drop(claims);
        state.standing = None;
        remove_tree(&self.definition.directory)
            .context(|| format!("removing {}", self.definition.directory.display()))?;
        Ok(())
    }
}

/// Where the hosts file lies that all guests see, or that of a guest that knows more names than the others.
pub(crate) fn hosts_path(directory: &Path, slot: Option<u32>) -> PathBuf {
    slot.map_or_else(|| directory.join("hosts"), |slot| directory.join(format!("hosts-{slot}")))
}

/// Where a guest's resolver configuration lies.
pub(crate) fn resolver_path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("resolv-{slot}.conf"))
}

fn published(one: &Publication) -> Published {
    Published { ip: one.ip, host: one.host, guest: one.guest, udp: one.protocol == Protocol::Udp }
}

/// What may stand in a hosts file: a guest's own words could hold another line.
fn is_host_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')) && !name.is_empty()
}
