//! What an image that comes from elsewhere wants of this machine beyond what any guest has.
//!
//! Whoever made it wrote its spec and its processes: volumes, networks, capabilities and filters are what he says. A
//! checksum tells that nothing was damaged, and nothing of who made it. So each such thing is granted only when it is
//! named by whoever imports the image.

use pando_api::{Address, Network, Publication, SeccompProfile, Spec, Volume};
use pando_freeze::{NeededCall, Powers};
use pando_guest::plan::{bound, filters};
use pando_guest::policy::{capabilities, grants, limits, profile, seccomp};
use pando_limit::process_bound;
use std::fmt::Write as _;

/// The word that grants everything.
const ALL: &str = "all";

/// The limit of cores: see setrlimit(2).
const CORE: u32 = 4;

/// One thing that an image wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// The word that grants it.
    word: &'static str,
    /// What it is, for people.
    what: String,
}

/// What is known of such an image.
pub(crate) struct Wants(Vec<Want>);

impl Wants {
    /// What a spec, and processes with these powers, want.
    pub(crate) fn of(spec: &Spec, powers: &Powers) -> Self {
        let mut wants = Self(Vec::new());
        wants.of_spec(spec);
        wants.of_processes(spec, powers);
        wants
    }

    fn add(&mut self, word: &'static str, what: impl Into<String>) {
        self.0.push(Want { word, what: what.into() });
    }

    fn of_spec(&mut self, spec: &Spec) {
        // Each field by its name: of a new one it has to be decided here what it is.
        let Spec {
            // What is the guest's own matter.
            command: _,
            entrypoint: _,
            labels: _,
            stdin_open: _,
            user: _,
            workdir: _,
            env: _,
            dns: _,
            cap_drop: _,
            stop_signal: _,
            stop_grace: _,
            // An import has none of these.
            restart: _,
            boot: _,
            // What is run and looked up inside, and what is kept from its own files.
            health: _,
            group_add: _,
            add_host: _,
            read_only: _,
            // It is part of `publish` once a guest is made.
            publish_all: _,
            sysctl,
            // How a network is reached that has to be granted itself.
            link: _,
            // It takes of the memory that the guest has.
            tmpfs: _,
            // Its neighbours find it by that.
            hostname,
            // The profile that goes with it.
            init: _,
            profile: _,
            network,
            network_name,
            addresses,
            publish,
            user_namespace,
            volumes,
            devices,
            cap_add,
            seccomp,
            allow_freeze,
            rlimits,
            expose,
            cpu,
            memory,
            io,
            net,
            disk,
            // Bounds, which are read as numbers below.
            pids: _,
            files: _,
            // Guests have no such bound unless one is named.
            files_total: _,
        } = spec;
        self.of_places(volumes, expose);
        devices.iter().for_each(|device| self.add("devices", format!("the device {} of this machine", device.source)));
        self.of_network((*network, network_name.as_deref()), addresses, publish);
        if let Some(name) = hostname.as_ref().filter(|name| *network == Network::Private && name.contains('.')) {
            self.add("network", format!("to be known to its neighbours as {name}"));
        }
        if !user_namespace {
            self.add("userns", "no user namespace: its root is root of this machine");
        }
        if !cap_add.is_empty() {
            self.add("caps", format!("the capabilities {}", cap_add.join(", ")));
        }
        if *seccomp == SeccompProfile::Off {
            self.add("seccomp", "no filter of system calls");
        }
        if spec.security_profile() == pando_api::Profile::System {
            self.add("profile", "the profile 'system', that of guests with an init of their own");
        }
        if *allow_freeze > 0 {
            self.add("freeze", format!("to freeze itself, into {allow_freeze} images"));
        }
        for name in sysctl.keys() {
            self.add("limits", format!("its own setting {name}"));
        }
        for name in rlimits.keys() {
            self.add("limits", format!("its own limit {name}"));
        }
        let granted = [cpu.pairs(), memory.pairs(), io.pairs(), net.pairs()].concat();
        for (key, amount) in granted {
            // Bounds keep it from something. A part of what there is others lack.
            if [".reserve", ".share", ".weight", ".locked"].iter().any(|word| key.ends_with(word)) {
                self.add("resources", format!("{key}={amount}"));
            }
        }
        // Room that it is given is set aside when its clones are made, whether they use it or not.
        for (key, amount) in disk.pairs() {
            self.add("resources", format!("{key}={amount}"));
        }
        self.of_bounds(spec);
    }

    /// A bound that it names takes the place of one that every guest of its profile has: a higher one lifts that.
    fn of_bounds(&mut self, spec: &Spec) {
        let usual = profile::completed(&Spec { profile: Some(spec.security_profile()), ..Spec::default() });
        let (Ok(own), Ok(usual)) = (grants::read(spec), grants::read(&usual)) else {
            return self.add("resources", "bounds that nobody can read");
        };
        let most = usual.pids.unwrap_or_else(process_bound::usual);
        if let Some(pids) = own.pids.filter(|pids| *pids > most) {
            self.add("resources", format!("pids={pids}, where a guest of its profile has at most {most}"));
        }
        let of_profile = profile::of(spec.security_profile()).rlimits();
        let most = of_profile.get("nofile").and_then(|limit| limit.hard);
        if let (Some(files), Some(most)) = (own.files.each, most)
            && files > most
        {
            self.add("resources", format!("files={files}, where a guest of its profile has at most {most}"));
        }
    }

    /// Limits of its processes that those of such a guest do not have: whoever makes a clone gives them theirs.
    fn of_limits(&mut self, spec: &Spec, powers: &Powers) {
        let Ok(wanted) = grants::of_processes(spec) else {
            return self.add("limits", "limits that nobody can read");
        };
        for (name, wanted) in wanted {
            let Some(number) = limits::number(&name) else { continue };
            let most = wanted.hard.unwrap_or(u64::MAX);
            // One that lets no core be written, and keeps it from the program of core_pattern, is neither less nor
            // more.
            let differs = |soft: u64, hard: u64| number == CORE && wanted.soft == Some(1) && (soft, hard) != (1, 1);
            let own = powers.limits.iter().filter(|limit| limit.0 == number);
            if own.into_iter().any(|(_, soft, hard)| *hard > most || *soft > most || differs(*soft, *hard)) {
                self.add("limits", format!("processes with another limit {name} than those of its profile have"));
            }
        }
    }

    /// What processes hold that those of such a guest do not.
    fn of_places(&mut self, volumes: &[Volume], expose: &[String]) {
        for volume in volumes {
            let how = if volume.read_only { "" } else { ", to write to" };
            self.add("volumes", format!("{} of this machine at {}{how}", volume.source, volume.target));
        }
        for path in expose {
            self.add("volumes", format!("{path} of this machine, which is left out by default"));
        }
    }

    fn of_network(
        &mut self,
        (network, named): (Network, Option<&str>),
        addresses: &[Address],
        publish: &[Publication],
    ) {
        match network {
            Network::None => {}
            Network::Private => self.add(
                "network",
                named.map_or("a private network".to_owned(), |name| {
                    format!("the private network '{name}' of this machine")
                }),
            ),
            Network::Shared => self.add("network", "this machine's network, with addresses of its own"),
            Network::Host => self.add("network", "this machine's network"),
        }
        addresses.iter().for_each(|address| self.add("network", format!("the address {address}")));
        publish.iter().for_each(|port| self.add("network", format!("the published port {port}")));
    }

    fn of_processes(&mut self, spec: &Spec, powers: &Powers) {
        let usual = bound(spec).unwrap_or(0);
        let more = powers.capabilities & !usual;
        if more != 0 {
            let names = capabilities::names(more).join(", ");
            self.add("caps", format!("processes with capabilities that its spec does not give them: {names}"));
        }
        if !powers.are_filtered_by(&filters(spec)) {
            self.add("seccomp", "processes without the filter of system calls that guests of its profile have here");
        }
        // Whoever makes a clone makes these without any filter.
        let filters = filters(spec);
        let passes =
            |call: &&NeededCall| filters.iter().all(|filter| seccomp::lets_pass(filter, call.number, &call.arguments));
        for call in powers.calls.iter().filter(|call| !passes(call)) {
            self.add("seccomp", format!("processes that hold {}, which the filter of its profile refuses", call.what));
        }
        for call in powers.calls.iter().filter(|call| call.capabilities != 0 && call.capabilities & usual == 0) {
            let names = capabilities::names(call.capabilities).join(" or ");
            self.add("caps", format!("processes that hold {}, which takes {names}", call.what));
        }
        self.of_limits(spec, powers);
        if profile::of(spec.security_profile()).no_new_privileges && !powers.no_new_privileges {
            self.add(
                "profile",
                "processes that may gain privileges by executing a file, as its profile does not let them",
            );
        }
    }

    /// What is wrong with it where only these words were said: a sentence; nothing where all that it wants was named.
    pub(crate) fn objection(&self, allowed: &[String]) -> Option<String> {
        let is_named = |want: &&Want| !allowed.iter().any(|word| word == want.word || word == ALL);
        let lacking: Vec<&Want> = self.0.iter().filter(is_named).collect();
        let first = lacking.first()?;
        let mut words: Vec<&str> = lacking.iter().map(|want| want.word).collect();
        words.dedup();
        words.sort_unstable();
        words.dedup();
        let mut told = format!("it wants more than a guest has by default: {}", first.what);
        for want in &lacking[1..] {
            let _ = write!(told, "; {}", want.what);
        }
        let words = words.join(",");
        Some(format!("{told}. If you trust whoever made it, grant that by name: --allow {words}. Nothing was imported"))
    }
}

/// The words of the API that mean something here, and what is wrong with others.
pub(crate) fn unknown(allowed: &[String]) -> Option<String> {
    const WORDS: [&str; 11] =
        ["volumes", "network", "devices", "userns", "caps", "seccomp", "profile", "freeze", "limits", "resources", ALL];
    let word = allowed.iter().find(|word| !WORDS.contains(&word.as_str()))?;
    Some(format!("'{word}' is nothing that could be granted; it is one of {}", WORDS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit((name, limit): (&String, &pando_api::Rlimit)) -> (u32, u64, u64) {
        let number = limits::number(name).unwrap();
        (number, limit.soft.unwrap_or(u64::MAX), limit.hard.unwrap_or(u64::MAX))
    }

    fn usual(spec: &Spec) -> Powers {
        Powers {
            capabilities: bound(spec).unwrap(),
            filters: Some(filters(spec).into_iter().map(<[u8]>::to_vec).collect()),
            no_new_privileges: profile::of(spec.security_profile()).no_new_privileges,
            calls: Vec::new(),
            limits: grants::of_processes(spec).unwrap().iter().map(limit).collect(),
        }
    }

    fn objection(text: &str, allowed: &[&str]) -> Option<String> {
        let spec: Spec = serde_json::from_str(text).unwrap();
        let allowed: Vec<String> = allowed.iter().map(|word| (*word).to_owned()).collect();
        Wants::of(&spec, &usual(&spec)).objection(&allowed)
    }

    #[test]
    fn what_every_guest_has_needs_no_word() {
        for text in [
            "{}",
            r#"{"command": ["a"], "pids": "5", "memory": {"limit": "1G"}, "profile": "strict", "cap_drop": ["ALL"]}"#,
        ] {
            assert_eq!(objection(text, &[]), None, "{text}");
        }
    }

    #[test]
    fn what_is_this_machines_is_granted_by_its_word_alone() {
        for (text, word) in [
            (r#"{"volumes": [{"source": "/", "target": "/host"}]}"#, "volumes"),
            (r#"{"expose": ["/home"]}"#, "volumes"),
            (r#"{"network": "host"}"#, "network"),
            (r#"{"network": "private"}"#, "network"),
            (r#"{"user_namespace": false}"#, "userns"),
            (r#"{"cap_add": ["SYS_ADMIN"]}"#, "caps"),
            (r#"{"seccomp": "off"}"#, "seccomp"),
            (r#"{"profile": "system"}"#, "profile"),
            (r#"{"init": "/sbin/init"}"#, "profile"),
            (r#"{"allow_freeze": 2}"#, "freeze"),
            (r#"{"rlimits": {"nofile": {}}}"#, "limits"),
            (r#"{"cpu": {"reserve": "50%"}}"#, "resources"),
            (r#"{"memory": {"locked": "1G"}}"#, "resources"),
            (r#"{"pids": "4000000"}"#, "resources"),
            (r#"{"pids": "1025", "profile": "strict"}"#, "resources"),
            (r#"{"files": "5000", "profile": "strict"}"#, "resources"),
            (r#"{"disk": {"size": "100M"}}"#, "resources"),
            (r#"{"disk": {"inodes": "100"}}"#, "resources"),
        ] {
            let told = objection(text, &["other"]).unwrap();
            assert!(told.contains(&format!("--allow {word}.")), "{text}: {told}");
            assert_eq!(objection(text, &[word]), None, "{text}");
            assert_eq!(objection(text, &["all"]), None, "{text}");
        }
    }

    #[test]
    fn processes_hold_no_more_than_those_of_a_guest() {
        let spec = Spec::default();
        let told = |change: fn(&mut Powers)| {
            let mut powers = usual(&spec);
            change(&mut powers);
            Wants::of(&spec, &powers).objection(&[])
        };
        assert_eq!(told(|_| ()), None);
        assert_eq!(told(|powers| powers.filters.as_mut().unwrap().push(vec![1; 8])), None, "its own come behind");
        assert!(told(|powers| powers.capabilities = u64::MAX).unwrap().contains("--allow caps"));
        assert!(told(|powers| powers.filters.as_mut().unwrap().clear()).unwrap().contains("--allow seccomp"));
        assert!(
            told(|powers| powers.filters.as_mut().unwrap().insert(0, vec![0; 8])).unwrap().contains("--allow seccomp")
        );
    }

    #[test]
    fn what_a_profiles_filter_refuses_is_not_held_unasked() {
        let told = |text: &str, number: i64, arguments: [u64; 6]| {
            let spec: Spec = serde_json::from_str(text).unwrap();
            let calls = vec![NeededCall { what: "it".into(), number, arguments, capabilities: 0 }];
            Wants::of(&spec, &Powers { calls, ..usual(&spec) }).objection(&[])
        };
        let socket = |family: i32| [family as u64, libc::SOCK_RAW as u64, 0, 0, 0, 0];
        let strict = r#"{"profile": "strict"}"#;
        for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET] {
            let objection = told(strict, libc::SYS_socket, socket(family)).unwrap();
            assert!(objection.contains("hold it") && objection.contains("--allow seccomp"), "{objection}");
        }
        assert_eq!(told(strict, libc::SYS_socket, socket(libc::AF_INET)), None);
        let namespace = [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0];
        assert!(told(strict, libc::SYS_unshare, namespace).is_some());
        // What is asked there is the profile, or to be without a filter, alone.
        assert!(!told(r#"{"profile": "system"}"#, libc::SYS_unshare, namespace).unwrap().contains("hold it"));
        assert!(!told(r#"{"seccomp": "off"}"#, libc::SYS_socket, socket(libc::AF_VSOCK)).unwrap().contains("hold it"));
        // On the host's network it is another filter that refuses.
        let reuse = [0, libc::IPPROTO_IP as u64, 51, 0, 0, 0];
        assert!(told(r#"{"network": "shared"}"#, libc::SYS_setsockopt, reuse).unwrap().contains("hold it"));
    }

    #[test]
    fn what_takes_a_capability_is_held_by_who_has_it() {
        let told = |text: &str| {
            let spec: Spec = serde_json::from_str(text).unwrap();
            let call = NeededCall {
                what: "it".into(),
                number: libc::SYS_socket,
                arguments: [2, 3, 0, 0, 0, 0],
                capabilities: 1 << 13,
            };
            Wants::of(&spec, &Powers { calls: vec![call], ..usual(&spec) }).objection(&[])
        };
        assert_eq!(told("{}"), None);
        for text in [r#"{"profile": "strict"}"#, r#"{"cap_drop": ["NET_RAW"]}"#] {
            let told = told(text).unwrap();
            assert!(told.contains("NET_RAW") && told.contains("--allow caps."), "{told}");
        }
    }

    #[test]
    fn processes_have_the_limits_of_their_profile() {
        let spec: Spec = serde_json::from_str(r#"{"profile": "strict"}"#).unwrap();
        let told = |number: u32, soft: u64, hard: u64| {
            let mut powers = usual(&spec);
            powers.limits.insert((number, soft, hard));
            Wants::of(&spec, &powers).objection(&[])
        };
        assert_eq!((told(7, 5, 5), told(0, u64::MAX, u64::MAX)), (None, None));
        for (number, soft, hard) in [(7, 1024, 1 << 20), (CORE, 0, 0), (CORE, u64::MAX, u64::MAX), (8, 0, u64::MAX)] {
            assert!(told(number, soft, hard).unwrap().contains("--allow limits."), "{number}");
        }
    }

    #[test]
    fn words_that_mean_nothing_are_told() {
        assert!(unknown(&["volume".to_owned()]).unwrap().contains("volumes"));
        assert_eq!(unknown(&["all".to_owned(), "caps".to_owned()]), None);
    }
}
