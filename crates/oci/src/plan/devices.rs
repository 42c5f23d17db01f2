//! The device nodes of a container, and the list of devices that it may use.

use super::{Plan, Want, inner, text};
use anyhow::{Result, bail};
use oci_spec::runtime::{Linux, LinuxDeviceCgroup, LinuxDeviceType};
use pando_guest::policy::devices::OrderedRule;
use pando_shim::{Make, Mountpoint, Step};

const CHARACTER: u32 = 0o020_000;
const BLOCK: u32 = 0o060_000;
const FIFO: u32 = 0o010_000;
/// The bits of a mode that say of which kind a node is.
const KIND: u32 = 0o170_000;

/// Those that every container has: path, major and minor number.
const DEFAULT: [(&str, u32, u32); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];

/// Links that programs expect beside them.
const LINKS: [(&str, &str); 6] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/core", "/proc/kcore"),
    ("dev/ptmx", "pts/ptmx"),
];

/// A node, as it is made.
struct Node {
    path: String,
    mode: u32,
    device: (u32, u32),
    owner: (u32, u32),
}

fn nodes(linux: &Linux) -> Result<Vec<Node>> {
    let mut nodes: Vec<Node> = DEFAULT
        .iter()
        .map(|(path, major, minor)| Node {
            path: (*path).to_owned(),
            mode: CHARACTER | 0o666,
            device: (*major, *minor),
            owner: (0, 0),
        })
        .collect();
    for device in linux.devices().iter().flatten() {
        let kind = match device.typ() {
            LinuxDeviceType::C | LinuxDeviceType::U => CHARACTER,
            LinuxDeviceType::B => BLOCK,
            LinuxDeviceType::P => FIFO,
            LinuxDeviceType::A => bail!("device {} has type 'a', which is none", device.path().display()),
        };
        let number = |number: i64| u32::try_from(number).unwrap_or(0);
        let path = device.path().to_string_lossy().into_owned();
        if path.split('/').any(|part| part == "..") {
            bail!("device path {path} climbs; write it without '..'");
        }
        nodes.retain(|known| known.path != path);
        nodes.push(Node {
            path,
            mode: kind | (device.file_mode().unwrap_or(0o666) & 0o7777),
            device: (number(device.major()), number(device.minor())),
            owner: (device.uid().unwrap_or(0), device.gid().unwrap_or(0)),
        });
    }
    Ok(nodes)
}

/// Makes the nodes. In a user namespace none can be made: there the host's are shown.
pub(crate) fn make(plan: &mut Plan, linux: &Linux, in_user_namespace: bool) -> Result<()> {
    for node in nodes(linux)? {
        let at = inner("device", &node.path)?;
        let label = format!("making device {}", node.path);
        if in_user_namespace && node.mode & KIND != FIFO {
            let block = node.mode & KIND == BLOCK;
            let fd = plan.want(Want::Device { path: node.path.clone().into(), block, device: node.device });
            plan.step(label, Step::Attach { fd, on: Mountpoint { at: text(&at), make: Make::File } });
        } else {
            let Node { mode, device, owner, .. } = node;
            plan.step(label, Step::Node { at: text(&at), mode, device, owner });
        }
    }
    for (at, to) in LINKS {
        let (at, to) = (inner("link", at)?, super::c_string("link", to)?);
        plan.step(format!("making the link /{}", at.to_string_lossy()), Step::Link { at: text(&at), to: text(&to) });
    }
    Ok(())
}

/// What is allowed besides what a configuration lists: nodes of every kind may be made, and the default devices and
/// terminals used, as every runtime has it.
const ALLOWED: [&str; 10] = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

/// The rules of a configuration, the last of which that says something of a device counts.
pub(crate) fn rules(listed: &[LinuxDeviceCgroup]) -> Result<Vec<OrderedRule>> {
    let mut rules = Vec::new();
    for rule in listed {
        let kind = match rule.typ() {
            Some(LinuxDeviceType::B) => 'b',
            Some(LinuxDeviceType::C | LinuxDeviceType::U) => 'c',
            Some(LinuxDeviceType::A) | None => 'a',
            Some(LinuxDeviceType::P) => bail!("a rule of devices names a pipe, which is none"),
        };
        let number =
            |number: Option<i64>| number.filter(|number| *number >= 0).map_or("*".to_owned(), |n| n.to_string());
        let access = rule.access().clone().filter(|access| !access.is_empty()).unwrap_or_else(|| "rwm".into());
        let text = format!("{kind} {}:{} {access}", number(rule.major()), number(rule.minor()));
        rules.push(OrderedRule::read(&text, rule.allow())?);
    }
    for text in ALLOWED {
        rules.push(OrderedRule::read(text, true)?);
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linux(json: &str) -> Linux {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_listed_device_takes_the_place_of_a_default_one() {
        let linux =
            linux(r#"{"devices":[{"path":"/dev/null","type":"c","major":1,"minor":3,"fileMode":384,"uid":7}]}"#);
        let nodes = nodes(&linux).unwrap();
        assert_eq!(nodes.len(), DEFAULT.len());
        let null = nodes.iter().find(|node| node.path == "/dev/null").unwrap();
        assert_eq!((null.mode, null.owner), (CHARACTER | 0o600, (7, 0)));
    }

    #[test]
    fn a_user_namespace_makes_no_nodes() {
        let mut plan = Plan::new();
        make(&mut plan, &linux("{}"), true).unwrap();
        assert!(!format!("{plan:?}").contains("Node"));
        let mut plan = Plan::new();
        make(&mut plan, &linux("{}"), false).unwrap();
        assert_eq!(format!("{plan:?}").matches("Node {").count(), DEFAULT.len());
    }

    #[test]
    fn a_path_that_climbs_is_refused() {
        let linux = linux(r#"{"devices":[{"path":"/dev/../x","type":"c","major":1,"minor":3}]}"#);
        assert!(nodes(&linux).is_err());
    }
}
