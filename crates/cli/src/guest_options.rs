//! The options of `run` and `create`, and the spec that they make.

use crate::env_file;
use crate::health_options::HealthOptions;
use crate::mount_option::{Mount, mount};
use crate::publish_option::{Publications, publications};
use crate::resource_options::ResourceOptions;
use crate::state_root::StateRoot;
use crate::{signal_name, source, spec_file};
use anyhow::Context;
use clap::ValueEnum;
use pando_api::{
    Address, Device, HostEntry, Link, Network, Profile, Restart, Rlimit, SeccompProfile, Spec, SpecError, Tmpfs,
    Volume, is_network_name,
};
use std::env::VarError;
use std::net::IpAddr;
use std::path::PathBuf;

/// What a guest is made of and what it may do.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "The guest")]
pub(crate) struct GuestOptions {
    /// What its files are: host, DIR, FILE.tar[.gz|.zst|.xz], oci:DIR[:TAG], oci:FILE, docker://IMAGE (or IMAGE),
    /// debian:SUITE[+PACKAGE,…] or guest:NAME [default: host]
    #[arg(long, value_name = "SOURCE", value_parser = source::source)]
    pub(crate) from: Option<String>,
    /// Read a spec in TOML first; the options given beside it win
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Set an environment variable; without a value, take the caller's
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = environment)]
    env: Vec<Option<(String, String)>>,
    /// Set the variables that stand in a file, NAME=VALUE a line; those of --env win
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Run this in the place of the image's entrypoint; the words after the options are its arguments, and it has no
    /// others
    #[arg(long, value_name = "PROGRAM")]
    entrypoint: Option<String>,
    /// Note something about the guest, for `pando ls --filter label=NAME[=VALUE]`
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = label)]
    label: Vec<(String, String)>,
    /// Run the command as this user of the guest: NAME, UID, NAME:GROUP or UID:GID
    #[arg(short, long)]
    user: Option<String>,
    /// Add a further group of the guest, by name or number, to those of the command's user
    #[arg(long, value_name = "GROUP")]
    group_add: Vec<String>,
    /// Start the command in this directory of the guest
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Show a directory or file of the host inside, or a volume by its name, which is made if it is missing
    #[arg(short, long, value_name = "HOST|NAME:GUEST[:ro]", value_parser = volume)]
    volume: Vec<Volume>,
    /// The same and --tmpfs in other words: type=bind,src=/HOST,dst=/GUEST[,ro], type=volume,src=NAME,dst=/GUEST[,ro]
    /// or type=tmpfs,dst=/GUEST[,tmpfs-size=SIZE,tmpfs-mode=MODE]
    #[arg(long, value_name = "type=KIND,…", value_parser = mount)]
    mount: Vec<Mount>,
    /// Keep everybody inside from writing to the guest's own files; what --volume and --tmpfs give can be written to
    #[arg(long)]
    read_only: bool,
    /// Put a file system in memory there: what is written to it is gone with the guest's run
    #[arg(long, value_name = "PATH[:size=SIZE,mode=MODE,exec]")]
    tmpfs: Vec<Tmpfs>,
    /// The network: none (a loopback device only), shared (the host's, of which it owns its addresses), private (one of
    /// the guests', behind the host), host (the host's, unrestricted), or a private one by the name that `pando network
    /// create` gave it [default: none]
    #[arg(long, visible_alias = "network", value_name = "KIND|NAME", value_parser = net)]
    net: Option<Net>,
    /// An address of the host's network that is the guest's own (implies --net shared), or its address on a private
    /// network
    #[arg(long, value_name = "IP[/LENGTH][@DEVICE]")]
    address: Vec<Address>,
    /// Lead a port of the host's to one of the guest's, such as 8080:80, 80 (a port of the host's that is free),
    /// 8000-8009:80-89 or 10.9.0.1:5353:53/udp; implies --net private
    #[arg(short, long, value_name = "[[IP:]HOST:]GUEST[/udp]", value_parser = publications)]
    publish: Vec<Publications>,
    /// Do that for every port that the image exposes, with ports of the host's that are free
    #[arg(short = 'P', long)]
    publish_all: bool,
    /// Have the guest know a name by its /etc/hosts
    #[arg(long, value_name = "NAME:IP")]
    add_host: Vec<HostEntry>,
    /// Set a setting of the kernel's that the guest's namespaces have of their own, such as net.ipv4.ip_forward=1
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    sysctl: Vec<(String, String)>,
    /// A name server for --net private [default: the host's]
    #[arg(long, value_name = "IP")]
    dns: Vec<IpAddr>,
    /// How --net private is reached: veth (a bridge), netkit (the same with less work for each packet, where the kernel
    /// has it) or macvlan (a machine of its own on the host's network, with --address) [default: veth]
    #[arg(long, value_name = "KIND")]
    link: Option<LinkKind>,
    /// The name that the guest sees as its own
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Run the guest's own init, such as /sbin/init, as its first process
    #[arg(long, value_name = "PATH")]
    init: Option<String>,
    /// Show a path of the host that --from host leaves out
    #[arg(long, value_name = "PATH")]
    expose: Vec<String>,
    /// How far it is trusted: default, strict (code that nobody vouches for) or system (a distribution that boots)
    /// [default: system with --init; strict for run over the host's files; else default]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Trust>,
    /// Let the guest use a device of the host's, such as /dev/fuse, /dev/net/tun, /dev/kvm, /dev/dri or a disk that the
    /// host does not use; access is read (r), write (w) and making nodes (m) [default: rwm]
    #[arg(long, value_name = "HOST[:GUEST][:rwm]")]
    device: Vec<Device>,
    /// Add a capability to the profile's set; ALL adds every one
    #[arg(long, value_name = "CAP")]
    cap_add: Vec<String>,
    /// Take a capability from the profile's set; ALL takes every one, before any is added
    #[arg(long, value_name = "CAP")]
    cap_drop: Vec<String>,
    /// Which system calls are denied: those that the profile names (default), or none (off)
    #[arg(long, value_name = "FILTER")]
    seccomp: Option<Seccomp>,
    /// User ids: auto (65,536 of the guest's own) or host (root inside is root outside)
    #[arg(long, value_name = "KIND")]
    userns: Option<UserNamespace>,
    /// Let the guest freeze itself with pando-freeze, into so many images at a time
    #[arg(long, value_name = "IMAGES")]
    allow_freeze: Option<u32>,
    /// When it is started again after it has ended: no, on-failure[:N], always or unless-stopped [default: no]
    #[arg(long, value_name = "POLICY")]
    restart: Option<Restart>,
    /// Set a resource limit, such as nofile=1024:4096
    #[arg(long, value_name = "NAME=SOFT[:HARD]", value_parser = rlimit)]
    ulimit: Vec<(String, Rlimit)>,
    /// The signal that asks the guest to stop [default: TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = signal_name::checked)]
    stop_signal: Option<String>,
    /// Seconds between that signal and KILL [default: 10]
    #[arg(long, value_name = "SECONDS")]
    stop_timeout: Option<u32>,
    #[command(flatten)]
    health: HealthOptions,
    #[command(flatten)]
    resources: ResourceOptions,
}

#[derive(Clone, Debug)]
enum Net {
    Kind(Network),
    Named(String),
}

/// A kind of network, or the name of one.
fn net(word: &str) -> Result<Net, String> {
    match word {
        "none" => Ok(Net::Kind(Network::None)),
        "shared" => Ok(Net::Kind(Network::Shared)),
        // What docker and podman call theirs.
        "private" | "bridge" => Ok(Net::Kind(Network::Private)),
        "host" => Ok(Net::Kind(Network::Host)),
        name if is_network_name(name) => Ok(Net::Named(name.to_owned())),
        _ => Err(format!(
            "'{}' is neither none, shared, private or host nor the name of a network; for example --net private",
            word.escape_debug()
        )),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkKind {
    Veth,
    Netkit,
    Macvlan,
}

impl From<LinkKind> for Link {
    fn from(kind: LinkKind) -> Self {
        match kind {
            LinkKind::Veth => Self::Veth,
            LinkKind::Netkit => Self::Netkit,
            LinkKind::Macvlan => Self::Macvlan,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Trust {
    Default,
    Strict,
    System,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Seccomp {
    Default,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UserNamespace {
    Auto,
    Host,
}

impl GuestOptions {
    /// Those of a plain line.
    pub(crate) fn plain(source: Option<String>, network: Option<&str>) -> Self {
        let net = network.and_then(|network| net(network).ok());
        Self { from: source, net, ..Self::default() }
    }

    /// The spec: the file's, if one is given, with the options laid over it. Lists are added to; single values replace.
    pub(crate) fn into_spec(self, root: &StateRoot, command: Vec<String>) -> anyhow::Result<Spec> {
        let mut spec = self.spec.as_deref().map(|path| spec_file::read(root, path)).transpose()?.unwrap_or_default();
        if !command.is_empty() {
            spec.command = command;
        }
        spec.user = self.user.or(spec.user);
        spec.workdir = self.workdir.or(spec.workdir);
        spec.hostname = self.hostname.or(spec.hostname);
        spec.init = self.init.or(spec.init);
        spec.stop_signal = self.stop_signal.or(spec.stop_signal);
        spec.stop_grace = self.stop_timeout.or(spec.stop_grace);
        spec.restart = self.restart.unwrap_or(spec.restart);
        spec.env.extend(env_file::read_all(root, &self.env_file)?);
        spec.env.extend(self.env.into_iter().flatten());
        spec.labels.extend(self.label);
        if let Some(program) = self.entrypoint {
            // An empty one takes the image's away.
            spec.entrypoint = Some(Some(program).filter(|program| !program.is_empty()).into_iter().collect());
        }
        spec.rlimits.extend(self.ulimit);
        spec.volumes.extend(self.volume);
        spec.tmpfs.extend(self.tmpfs);
        for mount in self.mount {
            match mount {
                Mount::Volume(volume) => spec.volumes.push(volume),
                Mount::Memory(tmpfs) => spec.tmpfs.push(tmpfs),
            }
        }
        spec.read_only |= self.read_only;
        spec.group_add.extend(self.group_add);
        spec.add_host.extend(self.add_host);
        spec.sysctl.extend(self.sysctl);
        spec.publish_all |= self.publish_all;
        spec.expose.extend(self.expose);
        spec.devices.extend(self.device);
        spec.cap_add.extend(self.cap_add);
        spec.cap_drop.extend(self.cap_drop);
        match self.net {
            Some(Net::Kind(kind)) => (spec.network, spec.network_name) = (kind, None),
            Some(Net::Named(name)) => (spec.network, spec.network_name) = (Network::Private, Some(name)),
            None if !self.publish.is_empty() || self.publish_all => spec.network = Network::Private,
            None if !self.address.is_empty() => spec.network = Network::Shared,
            None => {}
        }
        spec.addresses.extend(self.address);
        spec.publish.extend(self.publish.into_iter().flat_map(|ports| ports.0));
        spec.dns.extend(self.dns);
        spec.link = self.link.map_or(spec.link, Link::from);
        spec.profile = match self.profile {
            Some(Trust::Default) => Some(Profile::Default),
            Some(Trust::Strict) => Some(Profile::Strict),
            Some(Trust::System) => Some(Profile::System),
            None => spec.profile,
        };
        match self.seccomp {
            Some(Seccomp::Default) => spec.seccomp = SeccompProfile::Default,
            Some(Seccomp::Off) => spec.seccomp = SeccompProfile::Off,
            None => {}
        }
        if let Some(kind) = self.userns {
            spec.user_namespace = matches!(kind, UserNamespace::Auto);
        }
        spec.allow_freeze = self.allow_freeze.unwrap_or(spec.allow_freeze);
        self.health.lay_over(&mut spec);
        self.resources.lay_over(&mut spec);
        Ok(spec)
    }
}

/// `NAME=VALUE`, or the caller's value of `NAME`: none if the caller has none, as docker does it.
pub(crate) fn environment(word: &str) -> Result<Option<(String, String)>, String> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => match std::env::var(word) {
            Ok(value) => (word, Some(value)),
            Err(VarError::NotPresent) => (word, None),
            Err(VarError::NotUnicode(_)) => {
                return Err(format!(
                    "the caller's value of '{word}' is not UTF-8, and a guest's variables are; set another by NAME=VALUE"
                ));
            }
        },
    };
    if name.is_empty() || word.contains('\0') {
        return Err(format!("'{word}' is not NAME=VALUE; for example --env LANG=C.UTF-8"));
    }
    Ok(value.map(|value| (name.to_owned(), value)))
}

/// `NAME=VALUE`, or a name alone.
fn label(word: &str) -> Result<(String, String), String> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    match name.is_empty() || word.contains(char::is_control) {
        true => Err(format!("'{}' is not NAME or NAME=VALUE; for example --label tier=front", word.escape_debug())),
        false => Ok((name.to_owned(), value.to_owned())),
    }
}

/// `NAME=VALUE` of a setting of the kernel's.
fn setting(word: &str) -> Result<(String, String), String> {
    match word.split_once('=') {
        Some((name, value)) if !name.is_empty() && !word.contains('\0') => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("'{}' is not NAME=VALUE; for example --sysctl net.ipv4.ip_forward=1", word.escape_debug())),
    }
}

/// `HOST:GUEST[:ro]`, where HOST may also be written relative to the current directory, with a dot in front.
fn volume(word: &str) -> anyhow::Result<Volume> {
    match word.split_once(':') {
        Some((host, rest)) if host.starts_with('.') => {
            let host =
                source::absolute(host).map_err(anyhow::Error::msg).context(SpecError::Volume(word.to_owned()))?;
            Ok(format!("{host}:{rest}").parse()?)
        }
        _ => Ok(word.parse()?),
    }
}

fn rlimit(word: &str) -> Result<(String, Rlimit), SpecError> {
    let wrong = || SpecError::Rlimit(word.to_owned());
    let (name, value) = word.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    Ok((name.to_owned(), value.parse().map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    fn options(words: &[&str]) -> Result<GuestOptions, clap::Error> {
        let command = GuestOptions::augment_args(clap::Command::new("run").no_binary_name(true));
        GuestOptions::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    fn root() -> StateRoot {
        StateRoot::at("/").unwrap()
    }

    fn spec(words: &[&str]) -> Spec {
        options(words).unwrap().into_spec(&root(), Vec::new()).unwrap()
    }

    #[test]
    fn no_option_is_the_default_spec() {
        assert_eq!(spec(&[]), Spec::default());
    }

    #[test]
    fn options_reach_the_spec() {
        let spec = spec(&[
            "-e",
            "A=b=c",
            "-e",
            "PANDO_NO_SUCH_VARIABLE",
            "-u",
            "bob",
            "-w",
            "/srv",
            "-v",
            "/a:/b:ro",
            "--net",
            "host",
            "--cap-add",
            "NET_RAW",
            "--cap-drop=ALL",
            "--profile",
            "strict",
            "--seccomp",
            "off",
            "--userns",
            "host",
            "--ulimit",
            "nofile=1:2",
            "--expose",
            "/home",
            "--hostname",
            "h",
            "--init",
            "/sbin/init",
            "--stop-timeout",
            "3",
            "--stop-signal",
            "INT",
            "--allow-freeze",
            "2",
            "--restart",
            "on-failure:3",
            "-l",
            "tier=front",
            "--label",
            "own",
            "--entrypoint",
            "/e",
        ]);
        assert_eq!((spec.labels["tier"].as_str(), spec.labels["own"].as_str()), ("front", ""));
        assert_eq!(spec.entrypoint, Some(vec!["/e".to_owned()]));
        assert_eq!(spec.restart, Restart::OnFailure { most: 3 });
        assert_eq!(spec.env.into_iter().collect::<Vec<_>>(), [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!((spec.user.as_deref(), spec.workdir.as_deref()), (Some("bob"), Some("/srv")));
        assert!(spec.volumes[0].read_only && !spec.user_namespace);
        assert_eq!((spec.network, spec.seccomp), (Network::Host, SeccompProfile::Off));
        assert_eq!((spec.profile, spec.allow_freeze), (Some(Profile::Strict), 2));
        assert_eq!((spec.cap_add, spec.cap_drop), (vec!["NET_RAW".to_owned()], vec!["ALL".to_owned()]));
        assert_eq!(spec.rlimits["nofile"], Rlimit { soft: Some(1), hard: Some(2) });
        assert_eq!((spec.stop_grace, spec.stop_signal.as_deref()), (Some(3), Some("INT")));
    }

    #[test]
    fn variables_on_the_line_win_over_those_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "A=1\nB=2\n").unwrap();
        let spec = spec(&["-e", "A=3", "--env-file", file.path().to_str().unwrap()]);
        assert_eq!((spec.env["A"].as_str(), spec.env["B"].as_str()), ("3", "2"));
        let missing = options(&["--env-file", "/no/such/file"]).unwrap().into_spec(&root(), Vec::new()).unwrap_err();
        assert!(missing.to_string().contains("/no/such/file"), "{missing}");
    }

    #[test]
    fn options_win_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "user = \"a\"\nuser_namespace = false\ncommand = [\"x\"]\n[env]\nA = \"1\"\n")
            .unwrap();
        let path = file.path().to_str().unwrap();
        let spec =
            options(&["--spec", path, "-u", "b", "-e", "B=2"]).unwrap().into_spec(&root(), vec!["y".into()]).unwrap();
        assert_eq!((spec.user.as_deref(), spec.user_namespace), (Some("b"), false));
        assert_eq!((spec.command, spec.env.len()), (vec!["y".to_owned()], 2));
    }

    #[test]
    fn an_address_implies_the_shared_network() {
        let implied = spec(&["--address", "10.9.0.5/24", "--address", "fd00::5"]);
        assert_eq!((implied.network, implied.addresses.len()), (Network::Shared, 2));
        assert_eq!(
            spec(&["--address", "10.9.0.5", "--net", "host"]).network,
            Network::Host,
            "the daemon refuses this one"
        );
    }

    #[test]
    fn a_bridge_is_a_private_network() {
        assert_eq!(spec(&["--network", "bridge"]).network, Network::Private);
        let named = spec(&["--network", "front"]);
        assert_eq!((named.network, named.network_name.as_deref()), (Network::Private, Some("front")));
    }

    #[test]
    fn a_volume_may_be_relative() {
        let volume = volume("./x:/y").unwrap();
        assert_eq!(volume.source, std::env::current_dir().unwrap().join("x").to_str().unwrap());
    }

    #[test]
    fn wrong_words_are_refused_with_an_example() {
        for (words, expected) in [
            (["-v", "x/z:/y"], "for example --volume"),
            (["--add-host", "db"], "for example --add-host"),
            (["--sysctl", "net"], "for example --sysctl"),
            (["-p", "80-81:80"], "for example 8000-8009"),
            (["--ulimit", "nofile"], "for example --ulimit"),
            (["--ulimit", "nofile=2:1"], "nofile=2:1"),
            (["--device", "fuse"], "for example --device"),
            (["-e", "=x"], "for example --env"),
            (["--stop-signal", "NOPE"], "for example TERM"),
            (["--net", "container:web"], "for example --net private"),
            (["--address", "10.9"], "for example 10.9.0.5"),
        ] {
            let text = options(&words).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}
