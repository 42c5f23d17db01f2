//! What a network namespace has besides sockets: devices, addresses, routes, rules, neighbours, queueing disciplines,
//! packet filters (rtnetlink(7), nfnetlink).

pub mod conntrack;
pub mod filter_tables;
pub(crate) mod netlink_dump;
pub mod settings;

use crate::namespace::inside_network;
use crate::network::netlink_dump::{attributes, word};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::net::netlink;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A network device, as rtnetlink(7) lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its number in the namespace.
    pub index: u32,
    /// The device's name in its namespace.
    pub name: String,
    /// Whether the device is up (IFF_UP).
    pub up: bool,
    /// The largest packet that it takes, in bytes.
    pub longest: u32,
    /// The device's hardware address, as long as its kind has them.
    pub hardware: Vec<u8>,
    /// What somebody has chosen of it that no new device has; none if nothing.
    pub oddity: Option<&'static str>,
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address, IPv4 or IPv6.
    pub ip: IpAddr,
    /// How many bits of it are the network's.
    pub bits: u8,
    /// The number of the device that has it.
    pub device: u32,
}

/// A route, other than the one that the kernel has where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The table that it is in: 255 for addresses of the namespace's own.
    pub table: u32,
    /// Where it leads: the first address, and how many bits of it count. None for everywhere.
    pub to: Option<(IpAddr, u8)>,
    /// The number of the device that it leads by; 0 where it leads by none, or by several.
    pub device: u32,
    /// The origin of the route: 2 for the kernel itself (`RTPROT_KERNEL`), 9 for what routers announce.
    pub maker: u8,
    /// The router that it leads to; none where it leads to neighbours of the device.
    pub via: Option<IpAddr>,
    /// Whether nothing is said of it but where it leads: no metric, address of its own, or rate.
    pub plain: bool,
}

/// A rule by which a table of routes is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Its place: those of lower numbers are asked first.
    pub priority: u32,
    /// Whether it is one of those that every namespace has: everything is looked for in one of the kernel's tables.
    pub plain: bool,
}

/// A queueing discipline that somebody has given a device: not one that the kernel chose for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discipline {
    /// The name of its kind: htb, netem.
    pub kind: String,
    /// The number of the device that has it.
    pub device: u32,
}

/// What a network namespace has, besides sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The devices of the namespace.
    pub devices: Vec<Device>,
    /// The addresses of all its devices.
    pub addresses: Vec<Address>,
    /// The routes of all its tables.
    pub routes: Vec<Route>,
    /// The rules by which tables are chosen, of IPv4 and then of IPv6.
    pub rules: Vec<Rule>,
    /// Neighbours that somebody has named for good (`NUD_PERMANENT`): those that the kernel finds itself come and go.
    pub neighbours: Vec<IpAddr>,
    /// What somebody has chosen of how devices queue packets.
    pub disciplines: Vec<Discipline>,
    /// Whether there are tables of packet filters, of nftables or iptables.
    pub filters: bool,
}

/// More than this of a kind is not read.
const MOST: usize = 4096;

impl Network {
    /// Looks at a network namespace. Needs CAP_SYS_ADMIN over it.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN over the namespace. What is more of a kind than is read is left out.
    pub fn of(namespace: BorrowedFd<'_>) -> io::Result<Self> {
        let made = inside_network(namespace, || {
            let filters = match netlink_dump::open(Some(netlink::NETFILTER)) {
                Ok(socket) => Some(socket),
                Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => None,
                Err(error) => return Err(error),
            };
            // Routes and all that is NETLINK_ROUTE, which is 0.
            Ok((netlink_dump::open(None)?, filters, ["ip", "ip6"].map(has_tables)))
        });
        let (routes, filters, tables) = made?;
        let mut network = Self {
            devices: each(&routes, RTM_GETLINK, &[0; 16])?.iter().filter_map(|one| device(one)).collect(),
            addresses: each(&routes, RTM_GETADDR, &[0; 8])?.iter().filter_map(|one| address(one)).collect(),
            neighbours: each(&routes, RTM_GETNEIGH, &[0; 12])?.iter().filter_map(|one| neighbour(one)).collect(),
            disciplines: disciplines(&routes)?,
            filters: tables.contains(&true),
            ..Self::default()
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut request = [0; 12];
            request[0] = family as u8;
            network.routes.extend(each(&routes, RTM_GETROUTE, &request)?.iter().filter_map(|one| route(one, family)));
            network.rules.extend(each(&routes, RTM_GETRULE, &request)?.iter().map(|one| rule(one)));
        }
        if let Some(filters) = filters {
            network.filters |= has_filters(&filters)?;
        }
        Ok(network)
    }
}

/// The file system that shows a network namespace's devices (sysfs(5)), mounted nowhere, as a mere place. To close it
/// waits for a grace period.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN over the namespace.
pub fn system(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    inside_network(namespace, || {
        let context = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let flags = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        Ok(rustix::mount::fsmount(context.as_fd(), flags.0, flags.1)?)
    })
}

/// The routes of IPv4 in this thread's network namespace that lead somewhere by name: not the one for all that has no
/// other.
///
/// # Errors
///
/// The kernel's, from rtnetlink(7).
pub fn routes4() -> io::Result<Vec<Route>> {
    let mut request = [0; 12];
    request[0] = libc::AF_INET as u8;
    let mut routes = Vec::new();
    netlink_dump::ask(netlink_dump::open(None)?, RTM_GETROUTE, &request, |body| {
        routes.extend(route(body, libc::AF_INET).filter(|route| route.to.is_some()));
    })?;
    Ok(routes)
}

const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
const RTM_GETRULE: u16 = 34;
const RTM_GETQDISC: u16 = 38;

/// Whether iptables' modules keep tables in the namespace that this thread is in.
fn has_tables(family: &str) -> bool {
    let mut text = String::new();
    let file = File::open(format!("/proc/thread-self/net/{family}_tables_names"));
    file.is_ok_and(|file| file.take(4096).read_to_string(&mut text).is_ok()) && !text.is_empty()
}

/// Whether there are tables of nftables.
fn has_filters(socket: &OwnedFd) -> io::Result<bool> {
    const NFNL_SUBSYS_NFTABLES: u16 = 10;
    const NFT_MSG_GETTABLE: u16 = 1;
    match each(socket, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE, &[0; 4]) {
        Ok(tables) => Ok(!tables.is_empty()),
        // The kernel has none.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Those that somebody has chosen.
fn disciplines(socket: &OwnedFd) -> io::Result<Vec<Discipline>> {
    match each(socket, RTM_GETQDISC, &[0; 20]) {
        Ok(all) => Ok(all.iter().filter_map(|one| discipline(one)).collect()),
        // The kernel has none.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The bodies of all answers to a request.
fn each(socket: &OwnedFd, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut bodies = Vec::new();
    netlink_dump::ask(socket, kind, body, |body| {
        if bodies.len() < MOST {
            bodies.push(body.to_vec());
        }
    })?;
    Ok(bodies)
}

fn find(body: &[u8], fixed: usize, number: u16) -> Option<&[u8]> {
    attributes(body, fixed).find(|(other, _)| *other == number).map(|(_, value)| value)
}

/// `struct ifinfomsg`, `IFLA_IFNAME`, `IFLA_MTU`, `IFLA_ADDRESS`.
fn device(body: &[u8]) -> Option<Device> {
    let name = find(body, 16, 3)?.split(|byte| *byte == 0).next()?;
    let longest = find(body, 16, 4).map_or(0, |value| word(value, 0));
    let up = word(body, 8) & libc::IFF_UP as u32 != 0;
    let hardware = find(body, 16, 1).unwrap_or_default().to_vec();
    let name = String::from_utf8_lossy(name).into_owned();
    Some(Device { index: word(body, 4), name, up, longest, hardware, oddity: oddity(body) })
}

/// Flags, `IFLA_MASTER`, `IFLA_IFALIAS`, `IFLA_GROUP`, `IFLA_XDP` and in that `IFLA_XDP_ATTACHED`.
fn oddity(body: &[u8]) -> Option<&'static str> {
    const LISTENS_TO_ALL: u32 = (libc::IFF_PROMISC | libc::IFF_ALLMULTI) as u32;
    let is_set = |number| find(body, 16, number).is_some_and(|value| value.iter().any(|byte| *byte != 0));
    let program = find(body, 16, 43).and_then(|nested| find(nested, 0, 2)).is_some_and(|how| how.first() != Some(&0));
    if word(body, 8) & LISTENS_TO_ALL != 0 {
        Some("that takes what is not for it (promisc, allmulticast)")
    } else if is_set(10) {
        Some("that belongs to another (master)")
    } else if is_set(20) {
        Some("with an alias")
    } else if is_set(27) {
        Some("in a group")
    } else if program {
        Some("with a BPF program (XDP)")
    } else {
        None
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into()),
        _ => <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
    }
}

/// `struct ifaddrmsg`, `IFA_LOCAL`, else `IFA_ADDRESS`.
fn address(body: &[u8]) -> Option<Address> {
    let bytes = find(body, 8, 2).or_else(|| find(body, 8, 1))?;
    Some(Address { ip: ip(bytes)?, bits: *body.get(1)?, device: word(body, 4) })
}

/// `struct rtmsg`, `RTA_DST`, `RTA_OIF`, `RTA_TABLE`, `RTA_GATEWAY`; what else may be said is `RTA_PRIORITY`,
/// `RTA_PREFSRC`, `RTA_METRICS`, `RTA_FLOW`, `RTA_MULTIPATH`, `RTA_VIA`, `RTA_EXPIRES`, `RTA_ENCAP`, `RTA_NH_ID`.
fn route(body: &[u8], family: i32) -> Option<Route> {
    const UNICAST: u8 = 1;
    const UNREACHABLE: u8 = 7;
    const FURTHER: [u16; 9] = [6, 7, 8, 9, 11, 18, 22, 23, 30];
    /// What each route of IPv6 has where nobody names another (`IP6_RT_PRIO_USER`).
    const USUAL_METRIC: u32 = 1024;
    let (bits, table, kind) = (*body.get(1)?, *body.get(4)?, *body.get(7)?);
    let table = find(body, 12, 15).map_or(u32::from(table), |value| word(value, 0));
    let to = find(body, 12, 1).and_then(ip).map(|ip| (ip, bits));
    // Where there are no routes of IPv6, older kernels tell of one that leads nowhere.
    let none = kind == UNREACHABLE && table == 0 && to.is_none();
    let device = find(body, 12, 4).map_or(0, |value| word(value, 0));
    let is_usual = |(number, value): (u16, &[u8])| match number {
        6 => family == libc::AF_INET6 && word(value, 0) == USUAL_METRIC,
        // Without any in it.
        8 => value.is_empty(),
        _ => !FURTHER.contains(&number),
    };
    // Source's length, and type of service.
    let head = kind == UNICAST && body.get(2..4)? == [0, 0];
    let plain = head && attributes(body, 12).all(is_usual);
    let via = find(body, 12, 5).and_then(ip);
    (!none).then_some(Route { table, to, device, maker: *body.get(5)?, via, plain })
}

/// `struct ndmsg`, `NDA_DST`.
fn neighbour(body: &[u8]) -> Option<IpAddr> {
    const PERMANENT: u32 = 0x80;
    let stays = word(body, 8) & PERMANENT != 0;
    find(body, 12, 1).filter(|_| stays).and_then(ip)
}

/// `struct tcmsg`, `TCA_KIND`. Those that the kernel chooses have no number of their own.
fn discipline(body: &[u8]) -> Option<Discipline> {
    let kind = find(body, 20, 1)?.split(|byte| *byte == 0).next()?;
    let chosen = word(body, 8) != 0;
    chosen.then(|| Discipline { kind: String::from_utf8_lossy(kind).into_owned(), device: word(body, 4) })
}

/// `struct fib_rule_hdr`, `FRA_PRIORITY`, `FRA_TABLE`. Every rule also says `FRA_SUPPRESS_PREFIXLEN` (-1 for none) and
/// `FRA_PROTOCOL`.
fn rule(body: &[u8]) -> Rule {
    const TO_TABLE: u8 = 1;
    const SAID: [u16; 4] = [6, 14, 15, 21];
    const STANDARD: [(u32, u32); 3] = [(0, 255), (32_766, 254), (32_767, 253)];
    let priority = find(body, 12, 6).map_or(0, |value| word(value, 0));
    let table = find(body, 12, 15).map_or_else(|| body.get(4).copied().unwrap_or(0).into(), |value| word(value, 0));
    let all = attributes(body, 12)
        .all(|(number, value)| SAID.contains(&number) && (number != 14 || word(value, 0) == u32::MAX));
    // Lengths of destination and source, type of service; the flags are those of rules that are turned around.
    let head = body.get(1..4) == Some(&[0; 3]) && body.get(7) == Some(&TO_TABLE) && word(body, 8) == 0;
    Rule { priority, plain: head && all && STANDARD.contains(&(priority, table)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_new_namespace_has_the_loopback_device() {
        const SCRIPT: &str = "ip link set lo up; ip addr add 10.9.0.1/24 dev lo; nft add table inet x && echo filtered || echo plain; exec sleep 100";
        let started = Command::new("unshare")
            .args(["-n", "sh", "-c", SCRIPT])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = started else { return eprintln!("skipped: there is no unshare(1)") };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let seen = File::open(format!("/proc/{}/ns/net", child.id())).and_then(|file| Network::of(file.as_fd()));
        child.kill().unwrap();
        child.wait().unwrap();
        if line.is_empty() {
            return eprintln!("skipped: no network namespace can be made");
        }
        let network = seen.unwrap();
        let loopback = Device { index: 1, name: "lo".into(), up: true, longest: 65536, ..Device::default() };
        assert_eq!(network.devices, [Device { hardware: vec![0; 6], ..loopback }]);
        let added = ("10.9.0.1".parse().unwrap(), 24);
        let has = |ip: IpAddr, bits| network.addresses.contains(&Address { ip, bits, device: 1 });
        assert!(has(Ipv4Addr::LOCALHOST.into(), 8), "{network:?}");
        // There may be no ip(8).
        let routed = network.routes.iter().any(|route| route.to.is_some_and(|(to, _)| to == added.0));
        assert_eq!(has(added.0, added.1), routed, "{network:?}");
        assert!(network.rules.iter().all(|rule| rule.plain), "{network:?}");
        assert_eq!(network.filters, line == "filtered\n");
    }

    #[test]
    fn broken_messages_are_no_harm() {
        for length in 0..64 {
            for byte in [0, 1, 4, 0xff] {
                let bytes = vec![byte; length];
                let _ = (device(&bytes), address(&bytes), route(&bytes, libc::AF_INET6), rule(&bytes));
                let _ = (neighbour(&bytes), discipline(&bytes));
            }
        }
    }
}
