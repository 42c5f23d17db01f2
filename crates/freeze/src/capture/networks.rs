//! Captures network namespaces, and what is set of the guest's own.

use crate::image::namespace::{LOOPBACK, MOST_NET_SETTINGS, MOST_NET_SPACES};
use crate::image::namespace_kind::NETWORK;
use crate::image::{NetDevice, NetSpace};
use crate::inspect::namespaces::Beside;
use crate::refusal::Refusal;
use crate::subject::Subject;
use pando_kernel::network::settings::{self, NetworkSettings};
use pando_kernel::network::{self, Address, Network, Rule};
use pando_kernel::{CallError, Context, namespace};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// What is in each, and what of that a clone's would not have.
pub(crate) fn look(nets: &Beside) -> Result<(Vec<Network>, Vec<Refusal>), CallError> {
    const ADVICE: &str =
        "remove it; of a net namespace of a process's own the loopback device comes along, with 127.0.0.1/8 and ::1";
    let (mut networks, mut refusals) = (Vec::new(), Vec::new());
    for space in nets.all() {
        if networks.len() >= MOST_NET_SPACES {
            refusals.push(space.refusal(format!("more than {MOST_NET_SPACES} net namespaces"), "stop what made them"));
            break;
        }
        let look = || Network::of(File::open(&space.at)?.as_fd());
        let network = match look() {
            // One whose processes have ended meanwhile has nothing against it.
            Err(_) if space.is_gone() => Network::default(),
            found => found.context(|| format!("looking into the net namespace of {}", space.at))?,
        };
        if let Some(what) = strange(&network) {
            refusals.push(space.refusal(format!("{what} in a net namespace of its own"), ADVICE));
        }
        networks.push(network);
    }
    Ok((networks, refusals))
}

/// The first thing in a network that is not in each that has just the loopback device.
pub(crate) fn strange(network: &Network) -> Option<String> {
    /// The table of addresses of one's own (`RT_TABLE_LOCAL`).
    const LOCAL: u32 = 255;
    const LENGTH: u32 = 65_536;
    // What some modules make in each new one.
    const TUNNELS: [&str; 9] =
        ["tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"];
    let usual = |name: &str, up: bool| name == LOOPBACK || !up && TUNNELS.contains(&name);
    if let Some(device) = network.devices.iter().find(|one| !usual(&one.name, one.up)) {
        return Some(format!("a network device ({})", device.name));
    }
    let loopback = network.devices.iter().find(|one| one.name == LOOPBACK);
    let standard = [(IpAddr::V4(Ipv4Addr::LOCALHOST), 8), (IpAddr::V6(Ipv6Addr::LOCALHOST), 128)];
    let is_standard = |one: &&Address| standard.contains(&(one.ip, one.bits));
    if let Some(one) = network.addresses.iter().find(|one| !is_standard(one)) {
        return Some(format!("an address ({}/{})", one.ip, one.bits));
    }
    let has_first = network.addresses.iter().any(|one| (one.ip, one.bits) == standard[0]);
    if loopback.is_some_and(|one| one.up && !has_first || one.longest != LENGTH) {
        return Some("a loopback device that was changed".into());
    }
    let of_loopback = |to: IpAddr, bits: u8, table: u32| match to {
        IpAddr::V4(to) => table == LOCAL && to.is_loopback(),
        IpAddr::V6(to) => to.is_loopback() || table == LOCAL && to.is_multicast() && bits == 8,
    };
    let other = network.routes.iter().find(|one| one.to.is_none_or(|(to, bits)| !of_loopback(to, bits, one.table)));
    if let Some(route) = other {
        return Some(route.to.map_or("a default route".into(), |(to, bits)| format!("a route (to {to}/{bits})")));
    }
    if let Some(other) = strange_rule(&network.rules) {
        return Some(other);
    }
    if let Some(ip) = network.neighbours.first() {
        return Some(format!("a neighbour named for good ({ip})"));
    }
    if let Some(discipline) = network.disciplines.first() {
        return Some(format!("a queueing discipline ({})", discipline.kind));
    }
    network.filters.then(|| "packet filters (nftables, iptables)".into())
}

/// A rule that is not in each, or the lack of one that is.
fn strange_rule(rules: &[Rule]) -> Option<String> {
    /// Those that choose the tables local, main and default; IPv6 has no last one.
    const FOUR: [u32; 3] = [0, 32_766, 32_767];
    const SIX: [u32; 2] = [0, 32_766];
    let mut left: Vec<u32> = FOUR.into_iter().chain(SIX).collect();
    for rule in rules {
        match left.iter().position(|usual| rule.plain && *usual == rule.priority) {
            Some(place) => drop(left.remove(place)),
            None => return Some(format!("a rule for routes (with priority {})", rule.priority)),
        }
    }
    // A kernel may have none, or none of IPv6.
    left.sort_unstable();
    let whole = rules.is_empty() || left.is_empty() || left == SIX;
    (!whole).then(|| format!("a rule for routes that was removed (with priority {})", left[0]))
}

/// What sysfs(5) of each is on, as /proc/PID/mountinfo has it; nothing where it cannot be had. While processes stand
/// still nobody waits for it to go.
pub(crate) fn devices(nets: &Beside, stopped: bool) -> Vec<String> {
    let device = |at: &str| -> io::Result<String> {
        let mount = network::system(File::open(at)?.as_fd())?;
        let device = rustix::fs::fstat(&mount)?.st_dev;
        if stopped {
            std::mem::forget(mount);
        }
        Ok(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
    };
    nets.all().iter().map(|space| device(&space.at).unwrap_or_default()).collect()
}

/// Captures all network namespaces that were found.
pub(crate) fn capture(networks: &[Network], nets: &Beside) -> Vec<NetSpace> {
    let up = |network: &Network| network.devices.iter().any(|one| one.name == LOOPBACK && one.up);
    let settings = |at: &str| {
        let now = File::open(at).and_then(|file| settings::of(file.as_fd(), None)).unwrap_or_default();
        changed(now, new(), &[])
    };
    let one = |(network, at): (&Network, &str)| NetSpace { up: up(network), settings: settings(at) };
    networks.iter().zip(nets.all().iter().map(|space| space.at.as_str())).map(one).collect()
}

/// Which one a socket belongs to; none of the image's own if the first process's. `None` if nobody is in that.
pub(crate) fn of_socket(socket: &OwnedFd, nets: &Beside) -> Option<Option<usize>> {
    let inode = namespace::of_socket(socket).and_then(|found| Ok(rustix::fs::fstat(found)?.st_ino));
    // Where the kernel does not tell there are no others.
    inode.map_or(Some(None), |inode| nets.place(&NETWORK.told(inode)))
}

/// What was set, unlike in a namespace that has just been made. Where that cannot be told nothing was.
pub(crate) fn settings(subject: &Subject<'_>) -> Vec<(String, String)> {
    let Some(given) = subject.network else { return Vec::new() };
    let device = given.device.as_deref();
    let Ok(now) = File::open(NETWORK.at(subject.init)).and_then(|file| settings::of(file.as_fd(), device)) else {
        return Vec::new();
    };
    let mut new = device.map_or_else(|| new().clone(), |device| with_device(new(), &now, device));
    if device.is_some() {
        new.retain(|path, _| !is_the_hosts(path));
    }
    changed(now, &new, &given.settings)
}

/// What is set of a namespace that has just been made.
fn new() -> &'static NetworkSettings {
    static NEW: OnceLock<NetworkSettings> = OnceLock::new();
    NEW.get_or_init(|| settings::of_a_new_one().unwrap_or_default())
}

/// Whether a new namespace has what the host has at that moment (net.core.devconf_inherit_init_net): whether packets
/// are passed on, which the host begins and ends with private networks.
fn is_the_hosts(path: &str) -> bool {
    let below = path.strip_prefix(settings::NETWORK_SETTINGS).and_then(|path| path.strip_prefix("/ipv4/"));
    below.is_some_and(|path| path == "ip_forward" || path.starts_with("conf/") && path.ends_with("/forwarding"))
}

/// The same, and of a device that was just put into it, of which there is set what is there `now`.
fn with_device(new: &NetworkSettings, now: &NetworkSettings, device: &str) -> NetworkSettings {
    let usual = |path: &String| Some((path.clone(), new.get(&settings::default_of(path, device)?)?.clone()));
    new.clone().into_iter().chain(now.keys().filter_map(usual)).collect()
}

/// What was chosen of the device that connects the guest. Where that cannot be told nothing was.
pub(crate) fn device(subject: &Subject<'_>) -> Option<NetDevice> {
    /// What a device takes where nobody has chosen (`ETH_DATA_LEN`).
    const USUAL: u32 = 1500;
    let name = subject.network?.device.as_ref()?;
    let network = File::open(NETWORK.at(subject.init)).and_then(|file| Network::of(file.as_fd())).ok()?;
    let device = network.devices.into_iter().find(|one| one.name == *name && one.longest != USUAL)?;
    Some(NetDevice { name: device.name, longest: device.longest })
}

fn changed(now: NetworkSettings, new: &NetworkSettings, given: &[(String, String)]) -> Vec<(String, String)> {
    let usual = |path: &String| {
        let given = given.iter().find(|(one, _)| one == path).map(|(_, value)| value);
        given.or_else(|| new.get(path)).cloned()
    };
    let same = |path: &String, value: &String| {
        let eq = |usual: String| usual.split_ascii_whitespace().eq(value.split_ascii_whitespace());
        usual(path).map_or_else(|| !is_the_hosts(path), eq)
    };
    let mut all: Vec<_> = now.into_iter().filter(|(path, value)| !same(path, value)).take(MOST_NET_SETTINGS).collect();
    // It sets others.
    all.sort_by_key(|(path, _)| !path.ends_with("/ip_forward"));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::network::{Device, Discipline, Route};

    fn network() -> Network {
        let device = |name: &str, up, longest| Device { index: 1, name: name.into(), up, longest, ..Device::default() };
        let rule = |priority| Rule { priority, plain: true };
        let address = |ip: IpAddr, bits| Address { ip, bits, device: 1 };
        let route = |table, to| Route { table, to, device: 1, maker: 2, via: None, plain: true };
        let to = |to: &str, bits| Some((to.parse().unwrap(), bits));
        Network {
            devices: vec![device("lo", true, 65_536), device("sit0", false, 1480)],
            addresses: vec![address(Ipv4Addr::LOCALHOST.into(), 8), address(Ipv6Addr::LOCALHOST.into(), 128)],
            routes: vec![route(255, to("127.0.0.0", 8)), route(254, to("::1", 128)), route(255, to("ff00::", 8))],
            rules: [0, 32_766, 32_767, 0, 32_766].map(rule).to_vec(),
            ..Network::default()
        }
    }

    #[test]
    fn what_is_not_in_each_is_named() {
        assert_eq!(strange(&network()), None);
        assert_eq!(strange(&Network::default()), None);
        type Change = fn(&mut Network);
        let cases: [(Change, &str); 12] = [
            (|network| network.neighbours.push([10, 9, 8, 8].into()), "a neighbour named for good (10.9.8.8)"),
            (
                |network| network.disciplines.push(Discipline { kind: "netem".into(), device: 1 }),
                "a queueing discipline (netem)",
            ),
            (|network| network.devices[1].up = true, "a network device (sit0)"),
            (|network| network.devices[1].name = "eth0".into(), "a network device (eth0)"),
            (|network| network.addresses[1].bits = 64, "an address (::1/64)"),
            (|network| network.devices[0].longest = 1500, "a loopback device that was changed"),
            (|network| network.routes[0].table = 254, "a route (to 127.0.0.0/8)"),
            (|network| network.rules[2].priority = 7, "a rule for routes (with priority 7)"),
            (|network| network.rules[2].plain = false, "a rule for routes (with priority 32767)"),
            (|network| network.rules.push(network.rules[0]), "a rule for routes (with priority 0)"),
            (
                |network| network.rules.retain(|rule| rule.priority != 32_766),
                "a rule for routes that was removed (with priority 32766)",
            ),
            (|network| network.filters = true, "packet filters"),
        ];
        for (change, wanted) in cases {
            let mut network = network();
            change(&mut network);
            assert!(strange(&network).is_some_and(|said| said.starts_with(wanted)), "{wanted}");
        }
    }

    #[test]
    fn settings_are_those_that_differ_and_what_sets_others_comes_first() {
        let all = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        let now = all(&[("/a", "1"), ("/b", "2\t3"), ("/c", "0"), ("/n/ip_forward", "1"), ("/only", "1")]);
        let new = all(&[("/a", "0"), ("/b", "2 3"), ("/c", "1024"), ("/n/ip_forward", "0")]).into_iter().collect();
        let found = changed(now.into_iter().collect(), &new, &all(&[("/c", "0")]));
        assert_eq!(found, all(&[("/n/ip_forward", "1"), ("/a", "1")]));
    }
}
