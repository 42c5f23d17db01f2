//! Networks that are known by their names: making, listing and removing them.
//!
//! One is a file in `networks` below the state, which says what it is made by. The host has devices for it only while a
//! guest is on it, as for the network that needs no name.

use crate::failure;
use crate::network::networks::NetworkError;
use crate::network::private_network::PrivateNetwork;
use crate::network::private_networks::PrivateNetworks;
use crate::network::subnets::{self, Surroundings};
use crate::state::daemon::Daemon;
use crate::state::record;
use pando_api::{Fault, FaultKind, NamedNetwork, Network, Spec, is_network_name};
use pando_guest::Places;
use pando_kernel::Context;
use pando_net::device::Device;
use pando_net::private::{self, Subnet};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What one is made by (`networks/NAME.toml`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkRecord {
    /// Letters in the names of its devices, which no other network has.
    pub(crate) tag: String,
    /// Whether nothing leads out of it.
    pub(crate) internal: bool,
    /// Seconds since the epoch.
    pub(crate) created: i64,
    /// Its addresses.
    pub(crate) subnet: Subnet,
}

fn path(places: &Places, name: &str) -> PathBuf {
    places.networks().join(format!("{name}.toml"))
}

/// Those that were made before. One that cannot be read is said to be so, and stays as it is.
pub(crate) fn recorded(places: &Places) -> Vec<(String, NetworkRecord)> {
    let entries = std::fs::read_dir(places.networks()).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".toml")?.to_owned()));
    let read = |name: String| match record::read_toml(&path(places, &name)) {
        Ok(record) => Some((name, record)),
        Err(error) => {
            tracing::error!(%error, "guests cannot be on the network '{name}'");
            None
        }
    };
    names.filter(|name| is_network_name(name)).filter_map(read).collect()
}

/// Makes one.
pub(crate) async fn make(daemon: &Rc<Daemon>, name: &str, subnet: Option<&str>, internal: bool) -> Result<(), Fault> {
    if !is_network_name(name) {
        let message = format!(
            "'{}' cannot be the name of a network: 1 to 63 letters, digits, '-', '_' and '.', beginning with a letter or digit, and no word for a kind of network such as host or bridge",
            name.escape_debug()
        );
        return Err(failure::bad(name, message));
    }
    let surroundings = tokio::task::spawn_blocking(Surroundings::look).await;
    let surroundings = surroundings.map_err(|error| failure::bad(name, format!("failed inside Pando: {error}")))?;
    let surroundings = surroundings.map_err(|error| failure::call("looking at this host's networks", name, &error))?;
    // From here on at once: another may be made at the same time.
    let known = daemon.private.named();
    if known.iter().any(|(other, ..)| other == name) || path(&daemon.places, name).exists() {
        let message = format!("there is a network '{name}' already; 'pando network rm {name}' removes it");
        return Err(failure::bad(name, message));
    }
    let tag = free_tag(&daemon.private, name, &surroundings.devices);
    let usual = daemon.private.configured();
    let chosen = choose(&known, usual, (subnet, &tag), &surroundings);
    let record = NetworkRecord {
        subnet: chosen.map_err(|error| failure::bad(name, error.to_string()))?,
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0)),
        internal,
        tag,
    };
    let written = std::fs::create_dir_all(daemon.places.networks())
        .context(|| format!("making {}", daemon.places.networks().display()))
        .and_then(|()| record::write_toml(&path(&daemon.places, name), &record));
    written.map_err(|error| failure::call(&format!("making the network '{name}'"), name, &error))?;
    daemon.private.add(name, record);
    daemon.events.tell(name, "network", Some("create".to_owned()));
    Ok(())
}

type Known = (String, NetworkRecord, Rc<PrivateNetwork>);

/// The addresses of one that is being made: those that its user names, if nobody has them. `usual` are those that
/// pando.toml gives the network that needs no name.
fn choose(
    known: &[Known],
    usual: Option<Subnet>,
    (named, tag): (Option<&str>, &str),
    surroundings: &Surroundings,
) -> Result<Subnet, NetworkError> {
    // Their own devices are there only while guests are.
    let of_networks = known.iter().map(|(name, record, _)| (name.as_str(), record.subnet));
    let mut of_networks = of_networks.chain(usual.map(|usual| ("private", usual)));
    let Some(named) = named else {
        let taken: Vec<Subnet> = of_networks.map(|(_, its)| its).chain(surroundings.routed()).collect();
        return Ok(private::choose_further(&surroundings.devices, &taken, subnets::seed(tag))?);
    };
    let subnet = named.parse::<Subnet>()?.with_six(subnets::seed(tag));
    if let Some((other, its)) = of_networks.find(|(_, its)| its.overlaps(&subnet)) {
        return Err(NetworkError::Overlaps(subnet.to_string(), other.to_owned(), its.to_string()));
    }
    surroundings.allow(&subnet)?;
    Ok(subnet)
}

/// Five letters that no network has, of this Pando or of another that has devices now.
fn free_tag(networks: &PrivateNetworks, name: &str, devices: &[Device]) -> String {
    let known = networks.named();
    let is_taken = |tag: &str| {
        let bridge = private::bridge_of(tag);
        tag == networks.tag()
            || known.iter().any(|(_, record, _)| record.tag == tag)
            || devices.iter().any(|device| device.name == bridge)
    };
    let mut tags = (0..u32::MAX).map(|attempt| tag(&format!("{} {name} {attempt}", networks.tag())));
    // Nobody has four billion networks.
    tags.find(|tag| !is_taken(tag)).unwrap_or_default()
}

/// Five letters and digits that follow from a text.
fn tag(text: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = hash ^ (hash >> 29);
    (0..5).map(|place| char::from(LETTERS[(mixed >> (place * 5)) as usize & 31])).collect()
}

/// All of them, in the order of their names.
pub(crate) fn list(daemon: &Daemon) -> Vec<NamedNetwork> {
    let told = |(name, record, network): Known| {
        let guests = daemon.guests.borrow();
        let on = guests.values().filter(|guest| names(&guest.spec.borrow(), &name));
        let addresses = on.filter_map(|guest| Some((guest.name.to_string(), network.addresses(guest.slot()?)?)));
        NamedNetwork {
            subnet: record.subnet.to_string(),
            gateway: record.subnet.gateway().0.into(),
            internal: record.internal,
            created: record.created,
            bridge: private::bridge_of(&record.tag),
            addresses: addresses.collect(),
            guests: users(daemon, &name),
            name,
        }
    };
    daemon.private.named().into_iter().map(told).collect()
}

fn names(spec: &Spec, name: &str) -> bool {
    spec.network_name.as_deref() == Some(name)
}

/// The guests and images that are to be on it.
fn users(daemon: &Daemon, name: &str) -> Vec<String> {
    let guests = daemon.guests.borrow();
    let guests = guests.values().filter(|guest| names(&guest.spec.borrow(), name)).map(|guest| guest.name.to_string());
    let images = daemon.images.borrow();
    let images =
        images.iter().filter(|(_, held)| names(&held.record.spec, name)).map(|(image, _)| format!("image {image}"));
    guests.chain(images).collect()
}

/// Removes one that nobody names.
pub(crate) async fn remove(daemon: &Rc<Daemon>, name: &str) -> Result<(), Fault> {
    let known = daemon.private.named().into_iter().find(|(known, ..)| known == name);
    let Some((_, _, network)) = known else {
        return Err(failure::bad(name, NetworkError::NoSuchNetwork(name.to_owned()).to_string()));
    };
    let busy = |message: String| Err(Fault::new(FaultKind::Busy, name, message));
    let in_use = || {
        let users = users(daemon, name);
        (!users.is_empty()).then(|| {
            let users = users.join(", ");
            format!("network '{name}' is used by {users}; remove these first, or have them use another network")
        })
    };
    if let Some(message) = in_use() {
        return busy(message);
    }
    let vacated = network.vacate().await;
    vacated.map_err(|error| {
        Fault::new(FaultKind::Failed, name, format!("removing the devices of network '{name}' failed: {error}"))
    })?;
    // Somebody may have come while its devices went.
    if let Some(message) = in_use() {
        return busy(message);
    }
    if network.stands() {
        return busy(format!("a guest is just leaving network '{name}' or coming to it; try again when that is done"));
    }
    match std::fs::remove_file(path(&daemon.places, name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failure::io(&format!("removing the network '{name}'"), name, &error));
        }
        _ => {}
    }
    daemon.private.forget(name);
    daemon.events.tell(name, "network", Some("remove".to_owned()));
    Ok(())
}

/// Refuses a spec that names a network that there is not, or asks one for what it has not.
pub(crate) fn check(daemon: &Daemon, spec: &Spec) -> Result<(), Fault> {
    let Some(name) = spec.network_name.as_ref().filter(|_| spec.network == Network::Private) else { return Ok(()) };
    let wrong = |error: &NetworkError| failure::bad(name, error.to_string());
    let network = daemon.private.of(spec).map_err(|error| wrong(&error))?;
    let definition = network.definition();
    if definition.internal && (!spec.publish.is_empty() || spec.publish_all) {
        return Err(wrong(&NetworkError::Internal(name.clone())));
    }
    match definition.subnet {
        Some(subnet) => subnets::wanted(spec, &subnet).map(drop).map_err(|error| wrong(&error)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_follow_from_the_name_and_fit_into_a_devices() {
        let tags: std::collections::BTreeSet<String> = (0..1000).map(|number| tag(&format!("x n{number} 0"))).collect();
        assert!(tags.len() > 998 && tags.iter().all(|tag| tag.len() == 5));
        assert_eq!(tag("a"), tag("a"));
    }
}
