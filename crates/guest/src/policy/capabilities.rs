//! Which capabilities a guest's root holds.

use caps::Capability;
use pando_shim::Capabilities;
use std::str::FromStr;

/// A name that is no capability's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is not a capability; use a name from capabilities(7) such as NET_ADMIN or CAP_NET_ADMIN, or ALL")]
pub struct CapabilityError(String);

fn bit(capability: Capability) -> Capabilities {
    1 << capability.index()
}

/// Every capability that this kernel may know.
pub fn all() -> Capabilities {
    u64::MAX >> (64 - 41)
}

/// The set of some names.
pub fn set(names: &[String]) -> Result<Capabilities, CapabilityError> {
    names.iter().try_fold(0, |set, name| Ok(set | parse(name)?))
}

/// Those that rule the network namespace they are held over: raw packets, links, routes, filters.
pub fn over_networks() -> Capabilities {
    bit(Capability::CAP_NET_RAW) | bit(Capability::CAP_NET_ADMIN)
}

/// Whether a set lets its holder mount: SYS_ADMIN.
pub fn can_mount(set: Capabilities) -> bool {
    set & bit(Capability::CAP_SYS_ADMIN) != 0
}

/// Applies `--cap-drop` and then `--cap-add` to a set.
pub fn adjusted(base: Capabilities, drop: &[String], add: &[String]) -> Result<Capabilities, CapabilityError> {
    let dropped = drop.iter().try_fold(base, |set, name| Ok(set & !parse(name)?))?;
    add.iter().try_fold(dropped, |set, name| Ok(set | parse(name)?))
}

fn parse(name: &str) -> Result<Capabilities, CapabilityError> {
    let upper = name.to_ascii_uppercase();
    if upper == "ALL" {
        return Ok(all());
    }
    let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
    Capability::from_str(&full).map(bit).map_err(|_| CapabilityError(name.to_owned()))
}

/// The names in a set, for people.
pub fn names(set: Capabilities) -> Vec<String> {
    let mut names: Vec<_> =
        caps::all().into_iter().filter(|one| set & bit(*one) != 0).map(|one| one.to_string()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_comes_before_add() {
        let set = adjusted(all(), &["ALL".into()], &["net_raw".into()]).unwrap();
        assert_eq!(names(set), ["CAP_NET_RAW"]);
    }

    #[test]
    fn a_wrong_name_is_named() {
        assert_eq!(adjusted(0, &[], &["FLY".into()]), Err(CapabilityError("FLY".into())));
    }
}
