//! The addresses of a guest that exists: in its spec, and at once where it runs.

use crate::failure;
use crate::network::networks::{Admission, NetworkError};
use crate::network::private_network::{Newcomer, PrivateNetwork};
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::SPEC;
use pando_api::{Address, AddressChange, Fault, FaultKind, Link, Network, Spec, is_network_name};
use pando_guest::GuestName;
use pando_guest::Places;
use pando_kernel::cgroup::Field;
use pando_kernel::process::held::HeldProcess;
use pando_net::shared::MOST_ADDRESSES;
use std::path::PathBuf;
use std::rc::Rc;

/// Lets a guest that is about to start, and whose first process is there, onto the network that its spec asks for.
/// Where that is the host's, it is on its way there when this returns.
pub(crate) fn admit(
    daemon: &Daemon,
    guest: &Guest,
    spec: &Spec,
    (slot, first): (u32, &HeldProcess),
) -> impl Future<Output = Result<(), Fault>> {
    let name = &guest.name;
    let shared = (spec.network == Network::Shared).then(|| share(daemon, spec, slot));
    async move {
        if let Some(shared) = shared {
            shared.await.map_err(|error| fault("giving the guest its addresses", name, &error))?;
        }
        if spec.network == Network::Private {
            let network = daemon.private.of(spec).map_err(|error| fault("connecting the guest", name, &error))?;
            connect(&network, guest, spec, (slot, first)).await?;
        }
        grant(daemon, name, spec, slot).await
    }
}

/// Grants a guest the bandwidth that its spec asks for.
pub(crate) async fn grant(daemon: &Daemon, name: &GuestName, spec: &Spec, slot: u32) -> Result<(), Fault> {
    let class = daemon.bandwidth.grant(slot, group(&daemon.field, slot), spec).await;
    let class = class.map_err(|error| {
        let kind = if error.is_the_users() { FaultKind::BadRequest } else { FaultKind::Failed };
        Fault::new(kind, name.as_ref(), format!("granting the guest its bandwidth failed: {error}"))
    })?;
    if spec.network != Network::Private {
        return Ok(());
    }
    let classified = daemon.private.classify(slot, class).await;
    classified.map_err(|error| fault("granting the guest its bandwidth", name, &error))
}

async fn connect(
    private: &Rc<PrivateNetwork>,
    guest: &Guest,
    spec: &Spec,
    (slot, first): (u32, &HeldProcess),
) -> Result<(), Fault> {
    let (name, returning) = (&guest.name, guest.returning.borrow().clone());
    let doing = "connecting the guest to the private network";
    let namespace = first.namespace("net").map_err(|error| failure::io(doing, name.as_ref(), &error))?;
    let newcomer = Newcomer { slot, name: name.to_string(), spec: spec.clone(), namespace, returning };
    private.admit(newcomer).await.map_err(|error| fault(doing, name, &error))
}

fn share(daemon: &Daemon, spec: &Spec, slot: u32) -> impl Future<Output = Result<(), NetworkError>> + use<> {
    let admission = Admission {
        slot,
        cgroup: group(&daemon.field, slot),
        user_namespace: spec.user_namespace,
        addresses: spec.addresses.clone(),
    };
    daemon.networks.admit(admission, daemon.starting.is_one())
}

/// The group that a guest and its shim are in: what joins the guest has been in the shim's.
fn group(field: &Field, slot: u32) -> Option<PathBuf> {
    field.plot(slot).guest().and_then(|guest| guest.parent().map(PathBuf::from))
}

fn fault(doing: &str, name: &GuestName, error: &NetworkError) -> Fault {
    let kind = match error {
        NetworkError::Placement(_)
        | NetworkError::Subnet(_)
        | NetworkError::Leased(_)
        | NetworkError::Outside(..)
        | NetworkError::OfTheHost(_)
        | NetworkError::NoSuchNetwork(_)
        | NetworkError::Overlaps(..)
        | NetworkError::Internal(_)
        | NetworkError::NoAddress
        | NetworkError::Published(..)
        | NetworkError::HeldByHost(_) => FaultKind::BadRequest,
        NetworkError::NoGroups => FaultKind::Unavailable,
        _ => FaultKind::Failed,
    };
    Fault::new(kind, name.as_ref(), format!("{doing} failed: {error}"))
}

/// Looks for addresses that a spec cannot mean.
pub(crate) fn check(spec: &Spec) -> Result<(), Fault> {
    let wrong = |message: String| Err(failure::bad("address", message));
    let may_own = matches!(spec.network, Network::Shared | Network::Private);
    if let (Some(address), false) = (spec.addresses.first(), may_own) {
        return wrong(format!(
            "a guest can own {} only on the host's network or a private one; use --net shared",
            address.ip
        ));
    }
    if let Some(name) = &spec.network_name {
        if !is_network_name(name) {
            return Err(failure::bad(name, format!("'{}' cannot be the name of a network", name.escape_debug())));
        }
        if spec.network != Network::Private || spec.link == Link::Macvlan {
            let message = format!(
                "network '{name}' is a private one; a guest on it has network=private, and no link=macvlan (--net {name} says the first)"
            );
            return Err(failure::bad("network_name", message));
        }
    }
    let behind = spec.network == Network::Private && spec.link != Link::Macvlan;
    if let (Some(published), false) = (spec.publish.first(), behind) {
        return Err(failure::bad(
            "publish",
            format!("port {published} can be published only for a guest behind the host; use --net private"),
        ));
    }
    if behind && spec.addresses.len() > 1 {
        return wrong("a guest on the private network has one address of each family".to_owned());
    }
    let private = spec.network == Network::Private;
    if spec.link == Link::Macvlan && private && spec.addresses.is_empty() {
        return wrong(NetworkError::NoAddress.to_string());
    }
    if !private && (!spec.link.is_default() || !spec.dns.is_empty()) {
        return Err(failure::bad("network", "--link and --dns are for --net private"));
    }
    crate::network::bandwidth::read(spec).map_err(|error| failure::bad("net", error.to_string()))?;
    for four in [true, false] {
        let ips: Vec<_> = spec.addresses.iter().map(|address| address.ip).filter(|ip| ip.is_ipv4() == four).collect();
        if ips.len() > MOST_ADDRESSES {
            return wrong(format!("a guest can have at most {MOST_ADDRESSES} addresses of each family"));
        }
        if let Some(twice) = ips.iter().enumerate().find(|(at, ip)| ips[..*at].contains(ip)) {
            return wrong(format!("the address {} is given twice", twice.1));
        }
    }
    Ok(())
}

/// Changes the addresses of a guest that runs.
pub(crate) async fn change(
    daemon: &Daemon,
    guest: &Rc<Guest>,
    change: AddressChange,
    address: Address,
) -> Result<(), Fault> {
    let _doing = guest.begin("changed")?;
    guest.is_sound()?;
    let ip = address.ip;
    if guest.spec.borrow().network == Network::Private {
        let message =
            format!("guest '{}' is on a private network, where it keeps its address while it runs", guest.name);
        return Err(failure::bad(guest.name.as_ref(), message));
    }
    match change {
        AddressChange::Add => gain(daemon, guest, address).await,
        AddressChange::Del => lose(daemon, guest, &address).await,
        AddressChange::Move => {
            let others = daemon.guests.borrow().values().filter(|other| owns(other, &address)).cloned().collect();
            let others: Vec<Rc<Guest>> = others;
            if !owns(guest, &address) {
                gain(daemon, guest, address.clone()).await?;
            }
            for other in others.iter().filter(|other| other.name != guest.name) {
                let _doing = other.begin("changed")?;
                other.is_sound()?;
                lose(daemon, other, &address).await?;
            }
            daemon.events.tell(guest.name.as_ref(), "address", Some(format!("move {ip}")));
            Ok(())
        }
    }
}

fn owns(guest: &Guest, address: &Address) -> bool {
    guest.spec.borrow().addresses.iter().any(|known| known.ip == address.ip)
}

async fn gain(daemon: &Daemon, guest: &Rc<Guest>, address: Address) -> Result<(), Fault> {
    if owns(guest, &address) {
        return Err(failure::bad(guest.name.as_ref(), format!("guest '{}' has {} already", guest.name, address.ip)));
    }
    let mut spec = guest.spec.borrow().clone();
    spec.addresses.push(address.clone());
    check(&spec)?;
    if let Ok(running) = guest.life() {
        let added = daemon.networks.add(running.slot, address.clone()).await;
        added.map_err(|error| fault("giving the guest an address", &guest.name, &error))?;
    }
    remember(&daemon.places, guest, spec)?;
    daemon.events.tell(guest.name.as_ref(), "address", Some(format!("add {}", address.ip)));
    Ok(())
}

async fn lose(daemon: &Daemon, guest: &Rc<Guest>, address: &Address) -> Result<(), Fault> {
    if !owns(guest, address) {
        return Err(failure::bad(guest.name.as_ref(), format!("guest '{}' does not have {}", guest.name, address.ip)));
    }
    if let (Ok(running), Some(cgroup)) =
        (guest.life(), guest.life().ok().and_then(|running| group(&daemon.field, running.slot)))
    {
        let removed = daemon.networks.remove(running.slot, address.ip, cgroup).await;
        removed.map_err(|error| fault("taking an address from the guest", &guest.name, &error))?;
    }
    let mut spec = guest.spec.borrow().clone();
    spec.addresses.retain(|known| known.ip != address.ip);
    remember(&daemon.places, guest, spec)?;
    daemon.events.tell(guest.name.as_ref(), "address", Some(format!("del {}", address.ip)));
    Ok(())
}

fn remember(places: &Places, guest: &Rc<Guest>, spec: Spec) -> Result<(), Fault> {
    if !guest.ephemeral {
        let path = guest.directory(places).join(SPEC);
        record::write_kept(&path, &spec)
            .map_err(|error| failure::call("changing the guest's spec", guest.name.as_ref(), &error))?;
    }
    *guest.spec.borrow_mut() = spec;
    Ok(())
}
