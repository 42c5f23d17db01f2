//! Profiles: everything that a guest is kept from, read from the one file that says so.

use super::seccomp::Filter;
use super::{capabilities, devices, limits};
use pando_api::{Amount, Network, Profile, Rlimit, Spec};
use pando_shim::{Capabilities, Scopes};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

/// The file.
const PROFILES: &str = include_str!("profiles.toml");

/// All of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    calls: BTreeMap<String, Calls>,
    rules: BTreeMap<String, Vec<Rule>>,
    profile: BTreeMap<Profile, Policy>,
}

/// System calls that are refused for one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Calls {
    #[serde(rename = "why")]
    _why: String,
    /// What they answer; EPERM if it is not said.
    errno: Option<u32>,
    names: Vec<String>,
}

/// When a call is refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    #[serde(rename = "why")]
    _why: String,
    pub(super) call: String,
    pub(super) errno: u32,
    /// All must hold; without any, the call is refused whatever its arguments.
    #[serde(default)]
    pub(super) when: Vec<Condition>,
}

/// What must hold of half an argument, 32 bits: each that is given.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    pub(super) argument: u32,
    /// The upper half, not the lower.
    #[serde(default)]
    pub(super) upper: bool,
    pub(super) among: Option<Vec<u32>>,
    pub(super) not_among: Option<Vec<u32>>,
    pub(super) any_bit: Option<u32>,
}

/// What a guest of a profile may do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    capabilities: Vec<String>,
    capabilities_without_user_namespace: Option<Vec<String>>,
    /// Whether executing a file never gives privilege.
    pub no_new_privileges: bool,
    refused_calls: Vec<String>,
    rules: Vec<String>,
    /// Whether programs of the machine's 32-bit sibling run; they are killed otherwise.
    pub foreign_programs: bool,
    scopes: Vec<Scope>,
    scopes_on_shared_network: Vec<Scope>,
    /// Files hidden by the null device over them: relative to the root, where the kernel has them.
    pub masked_files: Vec<String>,
    masked_directories: Vec<String>,
    read_only_without_user_namespace: Vec<String>,
    read_only: Vec<String>,
    devices: Vec<String>,
    pids: Option<u64>,
    rlimits: BTreeMap<String, String>,
    /// The directories of `masked_directories` that this kernel has.
    #[serde(skip)]
    present: OnceLock<Vec<(usize, String)>>,
}

/// What a Landlock domain keeps inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Scope {
    AbstractUnixSockets,
    Signals,
}

fn written() -> &'static Written {
    static WRITTEN: OnceLock<Written> = OnceLock::new();
    WRITTEN
        .get_or_init(|| toml::from_str(PROFILES).expect("the profiles in this crate can be read, as their test shows"))
}

/// What a profile says.
///
/// # Panics
///
/// If the file in this crate cannot be read or lacks a profile, which its test rules out.
pub fn of(profile: Profile) -> &'static Policy {
    written().profile.get(&profile).expect("each profile is there, as their test shows")
}

/// A spec with what its profile says where the user said nothing of it.
pub fn completed(spec: &Spec) -> Spec {
    let policy = of(spec.security_profile());
    let mut spec = spec.clone();
    spec.pids = spec.pids.or_else(|| policy.pids.map(|most| Amount(most.to_string())));
    spec
}

impl Policy {
    /// The capabilities that a guest's root holds.
    pub fn capabilities(&self, user_namespace: bool) -> Capabilities {
        let own = self.capabilities_without_user_namespace.as_ref().filter(|_| !user_namespace);
        capabilities::set(own.unwrap_or(&self.capabilities)).expect("the names in this crate are capabilities")
    }

    /// What a Landlock domain around the guest keeps inside.
    pub fn scopes(&self, network: Network) -> Scopes {
        let shared = self.scopes_on_shared_network.iter().filter(|_| network == Network::Shared);
        self.scopes.iter().chain(shared).fold(Scopes::empty(), |scopes, scope| {
            scopes
                | match scope {
                    Scope::AbstractUnixSockets => Scopes::ABSTRACT_UNIX_SOCKETS,
                    Scope::Signals => Scopes::SIGNALS,
                }
        })
    }

    /// Directories hidden by an empty one over them, with a number each: those that this kernel has, and they do not
    /// come and go. A mount that is made and closed unused holds a start up for a grace period, so it is not made.
    pub fn masked_directories(&self) -> impl Iterator<Item = (usize, &str)> {
        let look = || {
            let all = (0..).zip(self.masked_directories.iter().cloned());
            all.filter(|(_, path)| Path::new("/").join(path).is_dir()).collect()
        };
        self.present.get_or_init(look).iter().map(|(number, path)| (*number, path.as_str()))
    }

    /// Paths that nothing is written to.
    pub fn read_only(&self, user_namespace: bool) -> impl Iterator<Item = &str> {
        let more = self.read_only_without_user_namespace.iter().filter(move |_| !user_namespace);
        self.read_only.iter().chain(more).map(String::as_str)
    }

    /// The devices that can be used, whatever nodes there are.
    pub fn devices(&self) -> Vec<devices::Rule> {
        let parsed = self.devices.iter().map(|line| line.parse());
        parsed.collect::<Result<_, _>>().expect("the devices in this crate can be read, as their test shows")
    }

    /// Resource limits where the spec names none, by name.
    pub fn rlimits(&self) -> BTreeMap<String, Rlimit> {
        let limit = |(name, text): (&String, &String)| {
            let limit: Rlimit = text.parse().expect("the limits in this crate can be read, as their test shows");
            (name.clone(), limits::within_own(name, limit))
        };
        self.rlimits.iter().map(limit).collect()
    }

    /// What is refused, to be compiled; `own_ids` says whether root inside is nobody outside.
    pub(super) fn filter(&self, own_ids: bool) -> Filter {
        const IDS_OF_THE_HOST: &str = "ids_of_the_host";
        let mut refused: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for group in self.refused_calls.iter().map(|group| &written().calls[group]) {
            let errno = group.errno.unwrap_or(libc::EPERM.unsigned_abs());
            refused.entry(errno).or_default().extend(group.names.iter().cloned());
        }
        let names = || refused.values().flatten();
        let more = rules(IDS_OF_THE_HOST).into_iter().filter(|_| !own_ids);
        // A call that is refused altogether needs no rule.
        let more = more.filter(|rule| !names().any(|name| *name == rule.call));
        let rules = self.rules.iter().flat_map(|name| rules(name)).chain(more).collect();
        Filter { refused, rules, foreign_programs: self.foreign_programs }
    }
}

/// A list of rules by its name.
pub(super) fn rules(name: &str) -> Vec<Rule> {
    written().rules[name].clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Profile; 3] = [Profile::Default, Profile::Strict, Profile::System];

    #[test]
    fn everything_that_is_written_can_be_read() {
        for profile in ALL {
            let policy = of(profile);
            let filter = policy.filter(true);
            assert!(filter.names().count() > 30, "{filter:?}");
            for user_namespace in [true, false] {
                assert_ne!(policy.capabilities(user_namespace), 0);
            }
            assert!(policy.devices().len() >= 8);
            assert!(policy.rlimits().keys().all(|name| limits::number(name).is_some()));
            for path in policy.masked_files.iter().chain(&policy.masked_directories).chain(&policy.read_only) {
                assert!(path.starts_with("proc/") || path.starts_with("sys/"), "{path}");
            }
        }
        assert_eq!(written().profile.len(), ALL.len());
    }

    #[test]
    fn strict_is_stricter() {
        let (default, strict) = (of(Profile::Default), of(Profile::Strict));
        assert_eq!(strict.capabilities(true) & !default.capabilities(true), 0);
        let (more, less) = (strict.filter(true), default.filter(true));
        assert!(less.names().all(|name| more.names().any(|known| known == name)));
        assert!(more.names().count() > less.names().count());
        assert!(default.masked_files.iter().all(|path| strict.masked_files.contains(path)));
        assert!(strict.no_new_privileges && strict.scopes(Network::None) == Scopes::all());
    }

    #[test]
    fn a_guest_without_a_user_namespace_never_rules_the_host() {
        for profile in ALL {
            let names = capabilities::names(of(profile).capabilities(false));
            for dangerous in ["CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_SYS_RAWIO"] {
                assert!(!names.iter().any(|name| name == dangerous), "{profile:?} {dangerous}");
            }
        }
    }

    #[test]
    fn what_the_user_says_wins() {
        let strict = Spec { profile: Some(Profile::Strict), ..Spec::default() };
        assert_eq!(completed(&strict).pids, Some(Amount("1024".into())));
        let spec = Spec { pids: Some(Amount("7".into())), ..strict };
        assert_eq!(completed(&spec).pids, Some(Amount("7".into())));
        assert_eq!(completed(&Spec::default()), Spec::default());
    }
}
