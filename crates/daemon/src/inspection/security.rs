//! What a running guest is kept from, read back from the kernel.

use crate::failure;
use crate::inspection::weakest;
use crate::inspection::weakest::Hold;
use crate::state::daemon::Daemon;
use pando_api::{Fault, Network, Security, Spec};
use pando_guest::device_list;
use pando_guest::plan::bound;
use pando_guest::policy::{capabilities, profile};
use pando_kernel::bpf::{self, Hook};
use pando_kernel::cgroup::Field;
use pando_kernel::file::proc_file;
use pando_kernel::mount::{MountEntry, mounts_of};
use pando_kernel::probe;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// Kinds of namespaces, as /proc/PID/ns names them.
pub(crate) const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// Looks at a guest's processes, its mounts and its groups: what is told is of the first one, and in what others are
/// held by less.
pub(crate) fn in_force(daemon: &Daemon, name: &str) -> Result<Security, Fault> {
    let guest = daemon.guest(name)?;
    let life = guest.life()?;
    let spec = guest.spec.borrow().clone();
    let seen = life.first.opened(|pid| Ok(Seen::of(pid)));
    let seen = seen.map_err(|_| failure::not_running(&guest.name))??;
    let (status, limits, mounts) = (&seen.status, &seen.limits, &seen.mounts);
    let mut security = Security {
        name: name.to_owned(),
        profile: spec.security_profile(),
        no_new_privileges: field(status, "NoNewPrivs") == Some("1"),
        capabilities: bounding_set(status),
        system_call_filters: field(status, "Seccomp_filters").and_then(|text| text.parse().ok()).unwrap_or(0),
        first_id: life.namespace.is_some().then(|| pando_guest::slot::first_id(life.slot)),
        limits: lowered(limits),
        ..Security::default()
    };
    (security.own_namespaces, security.host_namespaces) = seen.namespaces();
    paths(&mut security, &spec, mounts);
    domain(&mut security, &spec);
    devices(&mut security, &spec, &daemon.field, life.slot);
    let (weak, fewest) = weakest::among(&seen.hold, &crate::state::processes::pids(&daemon.field, life.slot));
    security.system_call_filters = security.system_call_filters.min(fewest);
    compare(&mut security, &spec);
    security.missing.extend(weak);
    Ok(security)
}

/// What the kernel says of a guest's first process.
struct Seen {
    status: String,
    limits: String,
    mounts: Vec<MountEntry>,
    hold: Hold,
}

impl Seen {
    fn of(pid: i32) -> Result<Self, Fault> {
        let name = pid.to_string();
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            proc_file::text(&path).map_err(|error| failure::io(&format!("reading {path}"), &name, &error))
        };
        let mounts = mounts_of(pid).map_err(|error| failure::call("looking at the guest's mounts", &name, &error))?;
        let hold = Hold::of(pid).unwrap_or_default();
        Ok(Self { status: read("status")?, limits: read("limits")?, mounts, hold })
    }

    /// The kinds of namespaces that are its own, and those that are the daemon's.
    fn namespaces(&self) -> (Vec<String>, Vec<String>) {
        let hosts = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).ok();
        let is_own = |kind: &String| self.hold.namespace(kind) != hosts(kind).as_ref();
        NAMESPACES.iter().map(|kind| (*kind).to_owned()).partition(is_own)
    }
}

pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn bounding_set(status: &str) -> Vec<String> {
    let set = field(status, "CapBnd").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(u64::MAX);
    capabilities::names(set)
}

/// The limits of a process that are not this one's own.
fn lowered(limits: &str) -> BTreeMap<String, String> {
    let own = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let foreign = limits.lines().skip(1).filter(|line| !own.lines().any(|known| known == *line));
    foreign.filter_map(limit).collect()
}

/// A line of /proc/PID/limits: `Max open files  1024  4096  files`.
fn limit(line: &str) -> Option<(String, String)> {
    /// How wide the first column is.
    const NAME: usize = 26;
    let (name, values) = line.split_at_checked(NAME)?;
    let mut values = values.split_whitespace();
    let (soft, hard) = (values.next()?, values.next()?);
    Some((name.trim().trim_start_matches("Max ").to_owned(), format!("{soft}:{hard}")))
}

/// Which of the profile's paths are hidden or read-only, by the mounts that lie there.
fn paths(security: &mut Security, spec: &Spec, mounts: &[MountEntry]) {
    let policy = profile::of(spec.security_profile());
    let is_mounted = |path: &str| mounts.iter().any(|mount| mount.at == Path::new("/").join(path));
    let exists = |path: &str| Path::new("/").join(path).exists();
    let directories: Vec<&str> = policy.masked_directories().map(|(_, path)| path).collect();
    for path in policy.masked_files.iter().map(String::as_str).chain(directories) {
        if is_mounted(path) {
            security.masked.push(format!("/{path}"));
        } else if exists(path) {
            security
                .missing
                .push(format!("/{path} is not hidden: the guest, which rules its mounts, may have shown it"));
        }
    }
    let volumes = spec.volumes.iter().filter(|volume| volume.read_only).map(|volume| volume.target.trim_matches('/'));
    for path in policy.read_only(spec.user_namespace).chain(volumes) {
        let mount = mounts.iter().rfind(|mount| mount.at == Path::new("/").join(path));
        if mount.is_some_and(MountEntry::is_read_only) {
            security.read_only.push(format!("/{path}"));
        } else if mount.is_some() || exists(path) {
            security.missing.push(format!("/{path} is not read-only"));
        }
    }
}

/// The kernel does not tell of a process's domain. It grants scopes or it does not, and the guest's shim asked for
/// them.
fn domain(security: &mut Security, spec: &Spec) {
    let scopes = profile::of(spec.security_profile()).scopes(spec.network);
    let names = scopes.iter_names().map(|(name, _)| name.to_ascii_lowercase().replace('_', " "));
    if probe::has_landlock_scopes() {
        security.landlock = names.collect();
    } else {
        security
            .missing
            .extend(names.map(|name| format!("{name} are not kept inside by Landlock: that needs Linux 6.12")));
    }
}

fn devices(security: &mut Security, spec: &Spec, groups: &Field, slot: u32) {
    let policy = profile::of(spec.security_profile());
    let held = match (groups.plot(slot).guest(), groups.seat("devices")) {
        (Some(group), _) => File::open(group).and_then(|group| bpf::names_in_force(group.as_fd(), Hook::CgroupDevice)),
        (None, Some(seat)) => {
            // The controller's own list: what it allows is what is in force.
            let list = std::fs::read_to_string(seat.of_plot(slot).group.join("devices.list")).unwrap_or_default();
            security.devices = list.lines().map(str::to_owned).collect();
            return;
        }
        (None, None) => Ok(Vec::new()),
    };
    match held {
        Ok(names) if names.iter().any(|name| name == device_list::NAME) => {
            let given = spec.devices.iter().map(ToString::to_string);
            security.devices = policy.devices().iter().map(ToString::to_string).chain(given).collect();
        }
        Ok(_) => security.missing.push("no list of devices is in force".to_owned()),
        Err(error) => security.missing.push(format!("whether a list of devices is in force cannot be read: {error}")),
    }
}

/// What else was asked for and is not there.
fn compare(security: &mut Security, spec: &Spec) {
    let policy = profile::of(spec.security_profile());
    if policy.no_new_privileges && !security.no_new_privileges {
        security.missing.push("executing a file may give privilege".to_owned());
    }
    let asked = bound(spec).map(capabilities::names).unwrap_or_default();
    let more: Vec<&String> = security.capabilities.iter().filter(|name| !asked.contains(name)).collect();
    if !more.is_empty() {
        let more: Vec<&str> = more.into_iter().map(String::as_str).collect();
        security.missing.push(format!("it holds more capabilities than it should: {}", more.join(", ")));
    }
    let filters =
        i64::from(spec.seccomp == pando_api::SeccompProfile::Default) + i64::from(spec.network == Network::Shared);
    if security.system_call_filters < filters {
        security.missing.push(format!("{filters} filters of system calls were asked for"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_by_name() {
        let status = "Name:\tx\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\nCapBnd:\t0000000000000003\n";
        assert_eq!((field(status, "NoNewPrivs"), field(status, "Seccomp")), (Some("1"), Some("2")));
        assert_eq!(bounding_set(status), ["CAP_CHOWN", "CAP_DAC_OVERRIDE"]);
        assert_eq!(field(status, "Groups"), None);
    }

    #[test]
    fn a_limit_is_read_by_columns() {
        let line = "Max open files            1024                 4096                 files     ";
        assert_eq!(limit(line), Some(("open files".to_owned(), "1024:4096".to_owned())));
        assert_eq!(limit("Max"), None);
    }
}
