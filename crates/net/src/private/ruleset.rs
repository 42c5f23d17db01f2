//! What the firewall is told, as the text that nft(8) reads. Plain data: no system calls.
//!
//! One table translates addresses and lets nobody through to a guest but by what is published, one on the bridge guards
//! addresses: what comes from a guest's port has the guest's own, of Ethernet and of IP, or it is dropped. What
//! concerns one guest are elements of their sets, so guests come and go without a rule being touched.
//!
//! A bridge shows no table what is sent to bridges themselves (IEEE 802.1D, 01:80:c2:00:00:00 to 0f): it learns the
//! sender and gives the frame to the host, as if it had come for the port. So a third table has a chain for each port,
//! which stands before the bridge, and drops it there.

use super::lease::{Lease, Published};
use super::link::ethernet;
use super::subnet::{LENGTH6, Subnet};
use pando_kernel::network::filter_tables::Family;
use std::fmt::Write;
use std::net::IpAddr;

/// The names of a network's devices and tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) bridge: String,
    ports: String,
    pub(super) table: String,
}

/// The families that a network has a table of, each by the network's own name.
pub(super) const FAMILIES: [Family; 3] = [Family::Inet, Family::Netdev, Family::Bridge];

impl Names {
    pub(super) fn of(tag: &str) -> Self {
        Self { bridge: format!("pb-{tag}"), ports: format!("pv-{tag}-"), table: format!("pando_{tag}") }
    }

    /// Whether a device is the bridge of a network or a port of one, this one's or another's.
    pub(super) fn is_of_a_network(device: &str) -> bool {
        device.starts_with("pb-") || device.starts_with("pv-")
    }

    /// The host's device of a guest: at most fifteen letters.
    pub(super) fn port(&self, number: u32) -> String {
        format!("{}{number}", self.ports)
    }

    pub(super) fn is_port(&self, device: &str) -> bool {
        device.strip_prefix(&self.ports).is_some_and(|number| number.parse::<u32>().is_ok())
    }
}

/// What comes to the host, or from it, is led where its port is published.
const ARRIVING: &str = "  chain arriving { type nat hook prerouting priority dstnat; jump publish; }
  chain local { type nat hook output priority -100; jump publish; }
";

/// What one of these devices receives goes out by none of the others.
fn keep_apart(devices: &[String]) -> String {
    let devices = devices.iter().map(|device| format!("\"{device}\"")).collect::<Vec<_>>().join(", ");
    match devices.is_empty() {
        true => String::new(),
        false => format!("    iifname {{ {devices} }} oifname {{ {devices} }} drop\n"),
    }
}

/// The tables of a network without guests. What one of `apart`, devices of the host's, receives goes out by none of the
/// others: the host passed nothing on between them before it had to for its guests. From one that is `internal`, and to
/// it, nothing is passed on, whatever it is an answer to, and no port of the host's leads there.
pub(super) fn base(names: &Names, subnet: &Subnet, internal: bool, apart: &[String]) -> String {
    let Names { bridge, ports, table } = names;
    let four = format!("{}/{}", subnet.four, subnet.length);
    let translate6 = translate6(bridge, subnet);
    let keep_apart = keep_apart(apart);
    let (answers, published, keep_in, arriving) = if internal {
        (String::new(), String::new(), format!("    iifname \"{bridge}\" drop\n"), String::new())
    } else {
        (
            "    ct state established,related accept\n".to_owned(),
            format!("    oifname \"{bridge}\" ct status dnat accept\n"),
            String::new(),
            ARRIVING.to_owned(),
        )
    };
    format!(
        "table inet {table} {{
  map publish4 {{ type inet_proto . inet_service : ipv4_addr . inet_service; }}
  map publish6 {{ type inet_proto . inet_service : ipv6_addr . inet_service; }}
  map publish_at4 {{ type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }}
  map publish_at6 {{ type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; }}
  map class4 {{ type ipv4_addr : classid; }}
  map class6 {{ type ipv6_addr : classid; }}
  chain guard {{
    type filter hook prerouting priority raw;
    iifname \"{bridge}\" ip daddr 127.0.0.0/8 drop
  }}
  chain forward {{
    type filter hook forward priority filter;
{answers}    iifname \"{bridge}\" oifname \"{bridge}\" accept
{published}    oifname \"{bridge}\" drop
{keep_in}{keep_apart}  }}
  chain publish {{
    dnat ip to ip daddr . meta l4proto . th dport map @publish_at4
    dnat ip6 to ip6 daddr . meta l4proto . th dport map @publish_at6
    fib daddr type local dnat ip to meta l4proto . th dport map @publish4
    ip6 daddr != ::1 fib daddr type local dnat ip6 to meta l4proto . th dport map @publish6
  }}
{arriving}  chain leaving {{
    type nat hook postrouting priority srcnat;
    ip saddr {four} oifname != \"{bridge}\" masquerade
    oifname \"{bridge}\" ip saddr {four} ct status dnat masquerade
    oifname \"{bridge}\" ip saddr 127.0.0.0/8 masquerade
{translate6}  }}
  chain classes {{
    type filter hook postrouting priority mangle;
    meta priority set ip saddr map @class4
    meta priority set ip6 saddr map @class6
  }}
}}
table bridge {table} {{
  set own4 {{ type ifname . ipv4_addr; }}
  set own6 {{ type ifname . ipv6_addr; }}
  set own_ethernet {{ type ifname . ether_addr; }}
  chain arriving {{ type filter hook prerouting priority -300; iifname \"{ports}*\" jump check; }}
  chain check {{
    iifname . ether saddr != @own_ethernet drop
    ether type arp iifname . arp saddr ip @own4 accept
    ether type ip iifname . ip saddr @own4 accept
    ether type ip6 iifname . ip6 saddr @own6 accept
    icmpv6 type {{ nd-router-advert, nd-redirect }} drop
    ether type ip6 ip6 saddr {{ ::, fe80::/10 }} accept
    drop
  }}
}}
table netdev {table} {{
}}
"
    )
}

/// The rules that give what leaves by IPv6 an address of the host's.
fn translate6(bridge: &str, subnet: &Subnet) -> String {
    subnet.six.map_or(String::new(), |six| {
        let six = format!("{six}/{LENGTH6}");
        format!(
            "    ip6 saddr {six} oifname != \"{bridge}\" masquerade\n    oifname \"{bridge}\" ip6 saddr {six} ct status dnat masquerade\n"
        )
    })
}

/// The tables gone, whether they were there or not.
pub(super) fn remove(names: &Names) -> String {
    let table = &names.table;
    ["inet", "bridge", "netdev"]
        .map(|family| format!("table {family} {table}\ndelete table {family} {table}\n"))
        .concat()
}

/// A guest's elements, and the chain of its port where that is there.
pub(super) fn admit(names: &Names, lease: &Lease, has_port: bool) -> String {
    let held = if lease.held { hold(names, lease) } else { String::new() };
    let screen = if has_port { screen(names, lease) } else { String::new() };
    elements(names, lease).iter().fold(held + &screen, |mut script, element| {
        let _ = writeln!(script, "add element {element}");
        script
    })
}

/// What a guest's port lets no bridge see.
fn screen(names: &Names, lease: &Lease) -> String {
    let (chain, port) = (own_chain(names, lease), names.port(lease.number));
    format!(
        "{}add chain {chain} {{ type filter hook ingress device \"{port}\" priority -500; }}
add rule {chain} ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 drop
add rule {chain} ether saddr != {} drop
",
        no_screen(names, lease),
        text(ethernet(lease.four))
    )
}

/// The chain of a port gone. It goes with the port or outlives it, as the kernel likes; it is added first, without a
/// hook.
fn no_screen(names: &Names, lease: &Lease) -> String {
    let chain = own_chain(names, lease);
    format!("add chain {chain}\ndelete chain {chain}\n")
}

fn own_chain(names: &Names, lease: &Lease) -> String {
    format!("netdev {} in_{}", names.table, lease.number)
}

fn text(ethernet: [u8; 6]) -> String {
    ethernet.map(|byte| format!("{byte:02x}")).join(":")
}

/// A guest's elements gone, and its port's chain. What is to be deleted has to be there, so it is added first, in the
/// same transaction.
pub(super) fn dismiss(names: &Names, lease: &Lease) -> String {
    let held = if lease.held { let_through(names, lease) } else { String::new() };
    let elements = elements(names, lease).iter().map(|element| gone(element)).fold(held, |script, line| script + &line);
    elements + &no_screen(names, lease)
}

/// Nothing goes out by a guest's port any more. What keeps it back comes with the first that is held: frames of others
/// are not looked at for it.
pub(super) fn hold(names: &Names, lease: &Lease) -> String {
    let table = &names.table;
    format!(
        "{}add chain bridge {table} leaving {{ type filter hook postrouting priority -300; }}
flush chain bridge {table} leaving
add rule bridge {table} leaving oifname @held drop
add element {}
",
        held(names),
        holding(names, lease)
    )
}

/// It does again.
pub(super) fn let_through(names: &Names, lease: &Lease) -> String {
    held(names) + &gone(&holding(names, lease))
}

fn held(names: &Names) -> String {
    format!("add set bridge {} held {{ type ifname; }}\n", names.table)
}

fn holding(names: &Names, lease: &Lease) -> String {
    format!("bridge {} held {{ \"{}\" }}", names.table, names.port(lease.number))
}

/// Another class for what a guest sends; none with 0.
pub(super) fn classify(names: &Names, lease: &Lease, class: u32) -> String {
    let before: String = classes(names, lease, lease.class).iter().map(|element| gone(element)).collect();
    let after: String = classes(names, lease, class).iter().map(|element| format!("add element {element}\n")).collect();
    before + &after
}

fn gone(element: &str) -> String {
    format!("add element {element}\ndelete element {element}\n")
}

fn classes(names: &Names, lease: &Lease, class: u32) -> Vec<String> {
    if class == 0 {
        return Vec::new();
    }
    let (table, class) = (&names.table, format!("{:x}:{:x}", class >> 16, class & 0xffff));
    let four = format!("inet {table} class4 {{ {} : {class} }}", lease.four);
    std::iter::once(four).chain(lease.six.map(|six| format!("inet {table} class6 {{ {six} : {class} }}"))).collect()
}

fn elements(names: &Names, lease: &Lease) -> Vec<String> {
    let (table, port) = (&names.table, names.port(lease.number));
    let mut all = vec![format!("bridge {table} own4 {{ \"{port}\" . {} }}", lease.four)];
    all.push(format!("bridge {table} own_ethernet {{ \"{port}\" . {} }}", text(ethernet(lease.four))));
    all.extend(lease.six.map(|six| format!("bridge {table} own6 {{ \"{port}\" . {six} }}")));
    let publications = lease.published.iter().flat_map(|one| publication(lease, one));
    all.extend(publications.map(|element| format!("inet {table} {element}")));
    all.extend(classes(names, lease, lease.class));
    all
}

/// One published port: of each family that it concerns.
fn publication(lease: &Lease, published: &Published) -> Vec<String> {
    let protocol = if published.udp { "udp" } else { "tcp" };
    let Published { host, guest, .. } = published;
    let (four, six) = (lease.four, lease.six);
    match published.ip {
        Some(IpAddr::V4(at)) => vec![format!("publish_at4 {{ {at} . {protocol} . {host} : {four} . {guest} }}")],
        Some(IpAddr::V6(at)) => six
            .map(|six| format!("publish_at6 {{ {at} . {protocol} . {host} : {six} . {guest} }}"))
            .into_iter()
            .collect(),
        None => {
            let mut both = vec![format!("publish4 {{ {protocol} . {host} : {four} . {guest} }}")];
            both.extend(six.map(|six| format!("publish6 {{ {protocol} . {host} : {six} . {guest} }}")));
            both
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::Connection;

    fn lease() -> Lease {
        Lease {
            number: 28_000,
            names: vec!["web".into()],
            connection: Connection::Veth,
            four: "10.1.0.5".parse().unwrap(),
            six: None,
            knows: Vec::new(),
            published: vec![Published { ip: None, host: 8080, guest: 80, udp: false }],
            class: 0x50a_0010,
            held: false,
        }
    }

    #[test]
    fn names_of_devices_fit() {
        let names = Names::of("abcde");
        assert!(names.port(28_671).len() <= 15 && names.is_port(&names.port(28_671)));
        assert!(!names.is_port("pv-abcde-") && !names.is_port("pv-abcdf-1") && !names.is_port("eth0"));
    }

    #[test]
    fn nothing_comes_into_an_internal_network() {
        let subnet = "10.1.0.0/16".parse().unwrap();
        let text = |internal| base(&Names::of("x"), &subnet, internal, &[]);
        for way in ["ct status dnat accept", "established", "jump publish"] {
            assert!(text(false).contains(way) && !text(true).contains(way), "{way}: {}", text(true));
        }
        assert!(text(true).contains("    iifname \"pb-x\" drop\n") && !text(false).contains("iifname \"pb-x\" drop"));
    }

    #[test]
    fn a_guest_is_elements_and_goes_by_them() {
        let names = Names::of("x");
        let came = admit(&names, &lease(), false);
        assert_eq!(
            came,
            "add element bridge pando_x own4 { \"pv-x-28000\" . 10.1.0.5 }\n\
             add element bridge pando_x own_ethernet { \"pv-x-28000\" . 02:50:0a:01:00:05 }\n\
             add element inet pando_x publish4 { tcp . 8080 : 10.1.0.5 . 80 }\n\
             add element inet pando_x class4 { 10.1.0.5 : 50a:10 }\n"
        );
        let went = dismiss(&names, &lease());
        assert!(came.lines().all(|line| went.contains(&line.replace("add", "delete"))), "{went}");
    }

    #[test]
    fn a_port_is_screened_by_a_chain_of_its_own_that_goes_with_the_guest() {
        let names = Names::of("x");
        let came = admit(&names, &lease(), true);
        let chain = "netdev pando_x in_28000";
        assert!(came.contains(&format!(
            "add chain {chain} {{ type filter hook ingress device \"pv-x-28000\" priority -500; }}\n\
             add rule {chain} ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 drop\n\
             add rule {chain} ether saddr != 02:50:0a:01:00:05 drop\n"
        )));
        let gone = format!("add chain {chain}\ndelete chain {chain}\n");
        assert!(came.starts_with(&gone) && dismiss(&names, &lease()).ends_with(&gone));
    }

    #[test]
    fn who_is_held_is_so_before_anything_leads_to_it() {
        let (names, lease) = (Names::of("x"), Lease { held: true, ..lease() });
        let (came, went) = (admit(&names, &lease, true), dismiss(&names, &lease));
        let place = |text: &str, what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
        assert!(place(&came, "held { \"pv-x-28000\" }") < place(&came, "own4"));
        assert!(place(&came, "add set") < place(&came, "@held drop"));
        assert!(place(&went, "delete element bridge pando_x held") > place(&went, "add set"));
    }

    #[test]
    fn another_class_takes_the_place_of_the_one_before() {
        let script = classify(&Names::of("x"), &lease(), 0x50a_0011);
        let words: Vec<_> = script.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        assert_eq!(words, ["add", "delete", "add"]);
        assert_eq!(classify(&Names::of("x"), &Lease { class: 0, ..lease() }, 0), "");
    }
}
