//! The container's root and everything that is mounted in it.

use super::cgroup_mount::{self, GroupTree};
use super::mount_options::{self, Bind, Change, Options};
use super::namespaces::Namespaces;
use super::{Plan, Want, devices, inner, text};
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};
use pando_shim::{Attributes, Make, Mountpoint, Step, Text};
use std::path::{Path, PathBuf};

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
    plan.step("parting from the host's mounts", Step::Private);
    let fd = plan.want(Want::Tree { path: facts.root.clone(), recursive: true, change: Change::default() });
    plan.step("entering the root", Step::EnterRoot { fd, over: Text::from(c"/") });
    for mount in spec.mounts().iter().flatten() {
        let at = mount.destination().display();
        one(plan, mount, namespaces, facts).with_context(|| format!("planning the mount at {at}"))?;
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
pub(crate) fn close(plan: &mut Plan, spec: &Spec, facts: &Facts) -> Result<()> {
    let linux = spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    if let Some(process) = spec.process() {
        let at = inner("working directory", &process.cwd().to_string_lossy())?;
        plan.step("making the working directory", Step::Directory { at: text(&at) });
    }
    for path in linux.masked_paths().iter().flatten() {
        let at = inner("masked path", path)?;
        plan.step(format!("hiding {path}"), Step::Hide { at: text(&at) });
    }
    for path in linux.readonly_paths().iter().flatten() {
        let at = inner("read-only path", path)?;
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
    let enter = if facts.no_pivot { Step::TakeRoot } else { Step::Pivot };
    plan.step("making the root the root", enter);
    if propagation == shared {
        // Afterwards: the kernel pivots to no root that others hear of.
        plan.step("sharing what is mounted", Step::Share);
    }
    Ok(())
}

/// A path without doubled or closing slashes.
fn clean(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let joined = parts.join("/");
    format!("/{}", joined.trim_start_matches('/'))
}

fn one(plan: &mut Plan, mount: &Mount, namespaces: &Namespaces, facts: &Facts) -> Result<()> {
    if mount.uid_mappings().is_some() || mount.gid_mappings().is_some() {
        bail!("id-mapped mounts are not supported by this runtime");
    }
    let kind = mount.typ().as_deref().unwrap_or("none");
    let options = mount_options::read(kind, mount.options().as_deref().unwrap_or_default())?;
    let place = clean(mount.destination());
    let at = inner("mount point", &place)?;
    let label = format!("mounting {place}");
    if options.bind.is_some() {
        let source = mount.source().as_ref().with_context(|| format!("the mount at {place} has no source"))?;
        let path = facts.bundle.join(source);
        let make = if facts.files.contains(&path) { Make::File } else { Make::Directory };
        let recursive = options.bind == Some(Bind::Recursive);
        let fd = plan.want(Want::Tree { path, recursive, change: options.change });
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
    let data: Vec<_> = source.filter(|_| !matches!(kind, "proc" | "sysfs" | "mqueue")).into_iter().collect();
    let data = [data, options.data.clone()].concat().join(",");
    let kind = super::c_string("kind of file system", kind)?;
    let attributes = Attributes::from_bits_retain(options.change.set);
    plan.step(label, Step::Mount { kind: text(&kind), options: &data, attributes, on });
    spread(plan, &at, options.change.propagation, options.change.propagation_below);
    Ok(())
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
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.auto_msgmni",
        "kernel.msg_next_id",
    ];
    let dotted = key.replace('/', ".");
    let kind = match dotted.as_str() {
        name if name.starts_with("net.") => LinuxNamespaceType::Network,
        name if name.starts_with("fs.mqueue.") || IPC.contains(&name) => LinuxNamespaceType::Ipc,
        "kernel.domainname" | "kernel.hostname" => LinuxNamespaceType::Uts,
        name if name.starts_with("user.") => LinuxNamespaceType::User,
        _ => bail!("sysctl {key} is not in a separate kernel namespace"),
    };
    if !namespaces.own(kind) {
        bail!(
            "sysctl {key} is not allowed: the container has no {kind:?} namespace of its own, and it would be the host's"
        );
    }
    let path = if key.contains('/') { key.clone() } else { key.replace('.', "/") };
    let at = inner("sysctl", &path)?;
    plan.step(format!("setting {key}"), Step::Setting { at: text(&at), value: value.as_bytes() });
    Ok(())
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
        close(&mut plan, &spec, &facts())?;
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
        for key in ["kernel.panic", "kernel.shmmax", "vm.swappiness"] {
            assert!(planned("", &format!(r#","sysctl":{{"{key}":"1"}}"#)).is_err(), "{key}");
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let refused = planned(r#"{"destination":"/x","source":"/y","options":["bind","idmap"]}"#, "").unwrap_err();
        assert!(format!("{refused:#}").contains("idmap"), "{refused:#}");
    }
}
