//! All private networks: the one that is always to be had, and those that were made by name.

use crate::network::claims::Claims;
use crate::network::named_networks::{self, NetworkRecord};
use crate::network::networks::NetworkError;
use crate::network::private_network::{Definition, PrivateNetwork};
use crate::network::settings::NetworkSettings;
use pando_api::Spec;
use pando_guest::Places;
use pando_net::private::{Place, Subnet};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// The private networks of one Pando.
#[derive(Debug)]
pub(crate) struct PrivateNetworks {
    run: PathBuf,
    usual: Rc<PrivateNetwork>,
    named: RefCell<BTreeMap<String, (NetworkRecord, Rc<PrivateNetwork>)>>,
    claims: Arc<Mutex<Claims>>,
}

impl PrivateNetworks {
    pub(crate) fn new(places: &Places) -> Rc<Self> {
        // Names of devices are short: five letters of the name that nobody else's cgroups have.
        let field = places.field();
        let tag = field[field.len() - 5..].to_owned();
        let claims = Arc::default();
        let usual = Definition { directory: places.run().join("net"), tag, subnet: None, internal: false };
        let usual = PrivateNetwork::new(usual, NetworkSettings::read(places), &claims);
        let all = Rc::new(Self { run: places.run().join("networks"), usual, named: RefCell::default(), claims });
        for (name, record) in named_networks::recorded(places) {
            all.add(&name, record);
        }
        all
    }

    /// Has one more that guests can be on.
    pub(crate) fn add(&self, name: &str, record: NetworkRecord) {
        let definition = Definition {
            directory: self.run.join(name),
            tag: record.tag.clone(),
            subnet: Some(record.subnet),
            internal: record.internal,
        };
        let network = PrivateNetwork::new(definition, NetworkSettings::default(), &self.claims);
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.subnets.insert(name.to_owned(), record.subnet);
        self.named.borrow_mut().insert(name.to_owned(), (record, network));
    }

    /// Knows one no longer that no guest is on.
    pub(crate) fn forget(&self, name: &str) {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).subnets.remove(name);
        self.named.borrow_mut().remove(name);
    }

    /// Those that were made by name.
    pub(crate) fn named(&self) -> Vec<(String, NetworkRecord, Rc<PrivateNetwork>)> {
        let named = self.named.borrow();
        named.iter().map(|(name, (record, network))| (name.clone(), record.clone(), Rc::clone(network))).collect()
    }

    /// The letters in the names of the usual one's devices.
    pub(crate) fn tag(&self) -> &str {
        &self.usual.definition().tag
    }

    /// The addresses that pando.toml gives the usual one.
    pub(crate) fn configured(&self) -> Option<Subnet> {
        self.usual.configured()
    }

    fn all(&self) -> Vec<Rc<PrivateNetwork>> {
        let named = self.named.borrow();
        std::iter::once(&self.usual).chain(named.values().map(|(_, network)| network)).cloned().collect()
    }

    /// The one that a guest with this spec is on.
    pub(crate) fn of(&self, spec: &Spec) -> Result<Rc<PrivateNetwork>, NetworkError> {
        let Some(name) = &spec.network_name else { return Ok(Rc::clone(&self.usual)) };
        let known = self.named.borrow().get(name).map(|(_, network)| Rc::clone(network));
        known.ok_or_else(|| NetworkError::NoSuchNetwork(name.clone()))
    }

    /// The one that the guest in a slot is on.
    pub(crate) fn holding(&self, slot: u32) -> Option<Rc<PrivateNetwork>> {
        self.all().into_iter().find(|network| network.addresses(slot).is_some())
    }

    /// Finds what an earlier daemon left, and takes back what those of its guests had that `lives` does not know, or
    /// that lie in none of these images.
    pub(crate) async fn adopt(&self, lives: &BTreeSet<u32>, images: &BTreeSet<String>) -> Result<(), NetworkError> {
        let mut outcome = Ok(());
        for network in self.all() {
            outcome = outcome.and(network.adopt(lives.clone(), images.clone()).await);
        }
        outcome
    }

    /// Takes back what a guest had; one that had nothing loses nothing.
    pub(crate) async fn dismiss(&self, slot: u32) {
        for network in self.all() {
            network.dismiss(slot).await;
        }
    }

    /// Whether the guest that an image was made of is away, with its addresses kept for it.
    pub(crate) fn keeps(&self, image: &str) -> bool {
        self.all().iter().any(|network| network.keeps(image))
    }

    /// Does not keep them any longer.
    pub(crate) fn give_up(&self, image: &str) {
        self.all().iter().for_each(|network| network.give_up(image));
    }

    /// Puts what a guest sends into a class of traffic; into none with 0.
    pub(crate) async fn classify(&self, slot: u32, class: u32) -> Result<(), NetworkError> {
        for network in self.all() {
            network.classify(slot, class).await?;
        }
        Ok(())
    }

    /// A guest's addresses, for `inspect`.
    pub(crate) fn addresses(&self, slot: u32) -> Vec<IpAddr> {
        self.all().iter().find_map(|network| network.addresses(slot)).unwrap_or_default()
    }

    /// What the device of a guest of one of them was given.
    pub(crate) fn place(&self, slot: u32) -> Option<(Place, [u8; 6])> {
        self.all().iter().find_map(|network| network.place(slot))
    }

    /// Removes those that no guest needs.
    pub(crate) async fn close(&self) {
        for network in self.all() {
            network.close().await;
        }
    }
}
