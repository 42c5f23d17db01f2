//! The container's root and everything that is mounted in it.

use super::cgroup_mount::{self, GroupTree};
use super::mount_options::{self, Bind, Change, Options};
use super::namespaces::{self, Namespaces};
use super::{IdMap, Owners, Plan, Want, devices, inner, text};
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxNamespaceType, Mount, Spec};
use pando_shim::{Attributes, Make, Mountpoint, Step, Text};
use std::path::{Component, Path, PathBuf};

/// What of the host a plan of files depends on.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The bundle's directory.
    pub(crate) bundle: PathBuf,
    /// The root's directory.
    pub(crate) root: PathBuf,
    /// Sources of binds that are no directories.
    pub(crate) files: Vec<PathBuf>,
    /// The container's groups.
    pub(crate) groups: GroupTree,
    /// Whether the root is entered by chroot(2) alone (`--no-pivot`).
    pub(crate) no_pivot: bool,
}

const READ_ONLY: u32 = 0x1;

/// Steps from a new mount namespace to the container's root.
pub(crate) fn arrange(plan: &mut Plan, spec: &Spec, namespaces: &Namespaces, facts: &Facts) -> Result<()> {
    let linux = spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    let in_user_namespace = namespaces.own(LinuxNamespaceType::User);
    let over = if namespaces.mounts_alone() {
        plan.step("parting from the host's mounts", Step::Private);
        c"/".into()
    } else {
        // Others see what is mounted there: it covers the root's own directory and nothing else.
        super::c_string("root", &facts.root.to_string_lossy())?
    };
    let (path, change) = (facts.root.clone(), Change::default());
    let fd = plan.want(Want::Tree { path, recursive: true, change, owners: None });
    plan.step("entering the root", Step::EnterRoot { fd, over: text(&over) });
    for mount in spec.mounts().iter().flatten() {
        let at = mount.destination().display();
        one(plan, mount, linux, (namespaces, facts)).with_context(|| format!("planning the mount at {at}"))?;
    }
    let brings_devices = |mount: &Mount| {
        clean(mount.destination()) == "/dev"
            && mount.options().iter().flatten().any(|option| option == "bind" || option == "rbind")
    };
    if !spec.mounts().iter().flatten().any(brings_devices) {
        devices::make(plan, linux, in_user_namespace)?;
    }
    for setting in linux.sysctl().iter().flatten() {
        sysctl(plan, setting, namespaces)?;
    }
    Ok(())
}

/// Steps after hooks had their say: what is hidden, and the root is the root.
pub(crate) fn close(plan: &mut Plan, spec: &Spec, namespaces: &Namespaces, facts: &Facts) -> Result<()> {
    let linux = spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    // Until here there was something to be mounted or made in them.
    for mount in spec.mounts().iter().flatten().filter(|mount| mount.typ().as_deref() == Some("tmpfs")) {
        let options = mount_options::read("tmpfs", mount.options().as_deref().unwrap_or_default())?;
        if options.change.set & READ_ONLY != 0 && options.bind.is_none() && !options.copy_up {
            let at = inner("mount point", &clean(mount.destination()))?;
            let change = Step::Change { at: text(&at), recursive: false, set: READ_ONLY, clear: 0, propagation: 0 };
            plan.step(format!("protecting {}", mount.destination().display()), change);
        }
    }
    if let Some(process) = spec.process() {
        let at = inner("working directory", &process.cwd().to_string_lossy())?;
        plan.step("making the working directory", Step::Directory { at: text(&at) });
    }
    let restricted = once(linux.masked_paths()).chain(once(linux.readonly_paths())).next().is_some();
    if restricted && !namespaces.own(LinuxNamespaceType::Mount) {
        bail!("unable to restrict sys entries without a private MNT namespace");
    }
    for path in once(linux.masked_paths()) {
        let at = inner("masked path", &clean(Path::new(path)))?;
        plan.step(format!("hiding {path}"), Step::Hide { at: text(&at) });
    }
    for path in once(linux.readonly_paths()) {
        let at = inner("read-only path", &clean(Path::new(path)))?;
        plan.step(format!("protecting {path}"), Step::Protect { at: text(&at) });
    }
    let read_only = spec.root().as_ref().and_then(|root| root.readonly()).unwrap_or(false);
    let propagation = match linux.rootfs_propagation().as_deref().filter(|word| !word.is_empty()) {
        None => 0,
        Some(word) => {
            mount_options::propagation(word).with_context(|| format!("rootfsPropagation '{word}' is not known"))?.0
        }
    };
    let set = if read_only { READ_ONLY } else { 0 };
    let shared = mount_options::propagation("shared").map_or(0, |(flag, _)| flag);
    let before = if propagation == shared { 0 } else { propagation };
    if set != 0 || before != 0 {
        let at = Text::from(c"");
        plan.step("changing the root", Step::Change { at, recursive: false, set, clear: 0, propagation: before });
    }
    // The root of a namespace that is not the container's own stays what it is.
    let enter = if facts.no_pivot || !namespaces.mounts_alone() { Step::TakeRoot } else { Step::Pivot };
    plan.step("making the root the root", enter);
    if propagation == shared && namespaces.mounts_alone() {
        // Afterwards: the kernel pivots to no root that others hear of.
        plan.step("sharing what is mounted", Step::Share);
    }
    Ok(())
}

/// What is listed, each once.
fn once(listed: &Option<Vec<String>>) -> impl Iterator<Item = &String> {
    let listed = listed.as_deref().unwrap_or_default();
    listed.iter().enumerate().filter(|(number, path)| !listed[..*number].contains(path)).map(|(_, path)| path)
}

/// A path without doubled or closing slashes, and without names that lead up: it is told by its words which mount it
/// lies in.
fn clean(path: &Path) -> String {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name.to_string_lossy()),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    format!("/{}", names.join("/"))
}

fn one(plan: &mut Plan, mount: &Mount, linux: &Linux, (namespaces, facts): (&Namespaces, &Facts)) -> Result<()> {
    let kind = mount.typ().as_deref().unwrap_or("none");
    let options = mount_options::read(kind, mount.options().as_deref().unwrap_or_default())?;
    let place = clean(mount.destination());
    let at = inner("mount point", &place)?;
    let label = format!("mounting {place}");
    let owners = owners(mount, &options, linux)?;
    if options.bind.is_some() {
        let source = mount.source().as_ref().with_context(|| format!("the mount at {place} has no source"))?;
        let path = facts.bundle.join(source);
        let make = if facts.files.contains(&path) { Make::File } else { Make::Directory };
        let recursive = options.bind == Some(Bind::Recursive);
        let fd = plan.want(Want::Tree { path, recursive, change: options.change, owners });
        plan.step(label, Step::Attach { fd, on: Mountpoint { at: text(&at), make } });
        return Ok(());
    }
    let on = Mountpoint { at: text(&at), make: Make::Directory };
    if kind == "cgroup" || kind == "cgroup2" {
        let own = namespaces.own(LinuxNamespaceType::Cgroup);
        return cgroup_mount::mount(plan, &place, options.change, &facts.groups, own);
    }
    if options.copy_up {
        return filled(plan, place, &options, on);
    }
    let source = mount.source().as_ref().map(|source| format!("source={}", source.display()));
    let data = source.into_iter().chain(options.data.clone()).collect::<Vec<_>>().join(",");
    let kind = super::c_string("kind of file system", kind)?;
    let mut attributes = Attributes::from_bits_retain(options.change.set);
    if matches!(kind.as_bytes(), b"proc" | b"sysfs") {
        // What is masked and protected in it later has to be there, and not where a link of the image leads to.
        plan.step(label, Step::MountPlainly { kind: text(&kind), options: &data, attributes, at: text(&at) });
    } else {
        attributes
            .set(Attributes::READ_ONLY, attributes.contains(Attributes::READ_ONLY) && kind.as_bytes() != b"tmpfs");
        plan.step(label, Step::Mount { kind: text(&kind), options: &data, attributes, on });
    }
    spread(plan, &at, options.change.propagation, options.change.propagation_below);
    Ok(())
}

/// The map of ids that a mount's files are shown by.
fn owners(mount: &Mount, options: &Options, linux: &Linux) -> Result<Option<Owners>> {
    let given = |mappings: &Option<Vec<LinuxIdMapping>>| {
        mappings.as_deref().filter(|mappings| !mappings.is_empty()).map(namespaces::id_map)
    };
    let own = (given(mount.uid_mappings()), given(mount.gid_mappings()));
    let below = options.mapped == Some(Bind::Recursive);
    let ids = match own {
        (None, None) if options.mapped.is_none() => return Ok(None),
        _ if options.bind.is_none() => bail!("only bind mounts can be id-mapped"),
        (Some(uids), Some(gids)) => IdMap::Lines { uids, gids },
        (None, None) => {
            let user = LinuxNamespaceType::User;
            let namespace = linux.namespaces().iter().flatten().find(|namespace| namespace.typ() == user);
            let path = namespace.and_then(|namespace| namespace.path().clone());
            let path = path.filter(|path| !path.as_os_str().is_empty());
            match (path, given(linux.uid_mappings()), given(linux.gid_mappings())) {
                (Some(_), ..) => IdMap::Joined,
                (None, Some(uids), Some(gids)) => IdMap::Lines { uids, gids },
                _ => bail!("an id-mapped mount without uidMappings and gidMappings needs a user namespace"),
            }
        }
        _ => bail!("an id-mapped mount needs both uidMappings and gidMappings"),
    };
    Ok(Some(Owners { ids, below }))
}

/// Sets the propagation of a mount that is attached; new ones are private.
fn spread(plan: &mut Plan, at: &std::ffi::CString, propagation: u32, recursive: bool) {
    let private = mount_options::propagation("private").map_or(0, |(flag, _)| flag);
    if propagation != 0 && propagation != private {
        let label = format!("setting the propagation of /{}", at.to_string_lossy());
        plan.step(label, Step::Change { at: text(at), recursive, set: 0, clear: 0, propagation });
    }
}

/// A tmpfs that begins with what lies below it.
fn filled(plan: &mut Plan, place: String, options: &Options, on: Mountpoint<'_>) -> Result<()> {
    let pair = |option: &String| {
        let (key, value) = option.split_once('=').with_context(|| format!("option '{option}' of a tmpfs"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    let pairs = options.data.iter().map(pair).collect::<Result<_>>()?;
    let label = format!("mounting {place}, with what is there");
    let fd = plan.want(Want::Filled { path: place, options: pairs, attributes: options.change.set });
    plan.step(label, Step::Attach { fd, on });
    Ok(())
}

/// Settings of the kernel's that a namespace has of its own; others would be the host's.
fn sysctl(plan: &mut Plan, (key, value): (&String, &String), namespaces: &Namespaces) -> Result<()> {
    const IPC: [&str; 10] = [
        "msgmax",
        "msgmnb",
        "msgmni",
        "sem",
        "shmall",
        "shmmax",
        "shmmni",
        "shm_rmid_forced",
        "auto_msgmni",
        "msg_next_id",
    ];
    let names = setting_names(key)?;
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    // What is judged is what is opened: these names, one below the other.
    let kind = match names.as_slice() {
        ["net", _, ..] => LinuxNamespaceType::Network,
        ["fs", "mqueue", _] => LinuxNamespaceType::Ipc,
        ["kernel", name] if IPC.contains(name) => LinuxNamespaceType::Ipc,
        ["kernel", "domainname" | "hostname"] => LinuxNamespaceType::Uts,
        ["user", _] => LinuxNamespaceType::User,
        _ => bail!("sysctl {key} is not in a separate kernel namespace"),
    };
    if !namespaces.own(kind) {
        bail!(
            "sysctl {key} is not allowed: the container has no {kind:?} namespace of its own, and it would be the host's"
        );
    }
    let at = inner("sysctl", &names.join("/"))?;
    plan.step(format!("setting {key}"), Step::Setting { at: text(&at), value: value.as_bytes() });
    Ok(())
}

/// The names that a setting's name is made of, as sysctl(8) reads it: the first separator in it, a dot or a slash,
/// parts them all, and the other one stands for that within a name.
fn setting_names(key: &str) -> Result<Vec<String>> {
    let exchanged = |letter| match letter {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    let dotted = key.find(['.', '/']).is_some_and(|first| key.as_bytes()[first] == b'.');
    let path: String = if dotted { key.chars().map(exchanged).collect() } else { key.to_owned() };
    let names: Vec<_> = path.split('/').map(str::to_owned).collect();
    if let Some(wrong) = names.iter().find(|name| matches!(name.as_str(), "" | "." | "..")) {
        bail!(
            "sysctl '{key}' has the name '{wrong}' in it; write it as below /proc/sys, without names that lead elsewhere"
        );
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACES: &str = r#""namespaces":[{"type":"mount"},{"type":"pid"},{"type":"network"}]"#;

    fn facts() -> Facts {
        Facts {
            bundle: "/b".into(),
            root: "/b/rootfs".into(),
            files: vec!["/etc/hosts".into()],
            groups: GroupTree::default(),
            no_pivot: false,
        }
    }

    fn planned(mounts: &str, linux: &str) -> Result<String> {
        let text = format!(
            r#"{{"ociVersion":"1.0.2","root":{{"path":"rootfs","readonly":true}},"mounts":[{mounts}],"linux":{{{NAMESPACES}{linux}}}}}"#
        );
        let spec: Spec = serde_json::from_str(&text).unwrap();
        let namespaces = Namespaces::read(spec.linux().as_ref().unwrap())?;
        let mut plan = Plan::new();
        arrange(&mut plan, &spec, &namespaces, &facts())?;
        close(&mut plan, &spec, &namespaces, &facts())?;
        Ok(format!("{plan:?}"))
    }

    #[test]
    fn a_bind_makes_a_file_of_a_file_and_a_directory_of_a_directory() {
        let bind = r#"{"destination":"/etc/hosts","source":"/etc/hosts","options":["bind"]},{"destination":"//d/","source":"d","options":["rbind","ro"]}"#;
        let plan = planned(bind, "").unwrap();
        assert!(plan.contains(r#"at: "etc/hosts", make: File"#), "{plan}");
        assert!(plan.contains(r#"at: "d", make: Directory"#) && plan.contains(r#"path: "/b/d", recursive: true"#));
    }

    #[test]
    fn what_is_masked_is_hidden_before_the_root_is_the_root() {
        let plan = planned("", r#","maskedPaths":["/proc/kcore"],"readonlyPaths":["/proc/sys"]"#).unwrap();
        let at = |text: &str| plan.find(text).unwrap_or_else(|| panic!("{text} in {plan}"));
        assert!(at("hiding /proc/kcore") < at("changing the root") && at("protecting") < at("Pivot"));
    }

    #[test]
    fn settings_of_the_host_are_refused() {
        assert!(planned("", r#","sysctl":{"net.ipv4.ip_forward":"1"}"#).unwrap().contains("net/ipv4/ip_forward"));
        for key in ["kernel.panic", "kernel.shmmax", "vm.swappiness", "net", "user.max_user_namespaces"] {
            assert!(planned("", &format!(r#","sysctl":{{"{key}":"1"}}"#)).is_err(), "{key}");
        }
    }

    #[test]
    fn a_setting_is_judged_by_the_names_that_are_opened() {
        for (key, names) in [
            ("net.ipv4.ip_forward", &["net", "ipv4", "ip_forward"][..]),
            ("net/ipv4/conf/eth0.1/forwarding", &["net", "ipv4", "conf", "eth0.1", "forwarding"]),
            ("net.ipv4.conf.eth0/1.forwarding", &["net", "ipv4", "conf", "eth0.1", "forwarding"]),
        ] {
            assert_eq!(setting_names(key).unwrap(), names, "{key}");
        }
        for key in
            ["net/../kernel/core_pattern", "net/./x", "net//x", "/net/x", "net.//.kernel.x", "net..x", "net/", ""]
        {
            let refused = planned("", &format!(r#","sysctl":{{"{key}":"1"}}"#)).unwrap_err().to_string();
            assert!(refused.contains("lead elsewhere"), "{key}: {refused}");
        }
    }

    #[test]
    fn owners_are_mapped_by_a_mounts_own_map_or_the_containers() {
        let maps = r#""uidMappings":[{"containerID":0,"hostID":7,"size":1}],"gidMappings":[{"containerID":0,"hostID":8,"size":1}]"#;
        let mount = format!(r#"{{"destination":"/x","source":"/y","options":["bind"],{maps}}}"#);
        let plan = planned(&mount, "").unwrap();
        assert!(plan.contains(r#"Lines { uids: "0 7 1\n", gids: "0 8 1\n" }, below: false"#), "{plan}");
        let implied =
            planned(r#"{"destination":"/x","source":"/y","options":["rbind","ridmap"]}"#, &format!(",{maps}"));
        assert!(implied.unwrap().contains(r#"gids: "0 8 1\n" }, below: true"#));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let refused = planned(r#"{"destination":"/x","source":"/y","options":["bind","idmap"]}"#, "").unwrap_err();
        assert!(format!("{refused:#}").contains("user namespace"), "{refused:#}");
        let maps = r#""uidMappings":[{"containerID":0,"hostID":7,"size":1}]"#;
        let refused = planned(&format!(r#"{{"destination":"/x","type":"tmpfs",{maps}}}"#), "").unwrap_err();
        assert!(format!("{refused:#}").contains("only bind"), "{refused:#}");
    }
}
