//! A bundle: its configuration, read, and refused where it asks for what this runtime cannot do.

use crate::agent::Agent;
use crate::dialect;
use crate::log::Log;
use crate::plan::memory_policy::MemoryPolicy;
use crate::plan::namespaces;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Capabilities, LinuxNamespaceType, Process, Spec};
use pando_kernel::file::confined::{Links, Root};
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// A bundle that was read.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// Its directory.
    pub(crate) path: PathBuf,
    /// The root's directory.
    pub(crate) root: PathBuf,
    /// The configuration.
    pub(crate) spec: Spec,
    /// The same as it was written.
    pub(crate) text: Value,
}

impl Bundle {
    /// Reads the bundle in a directory.
    pub(crate) fn read(path: &Path, log: &Log) -> Result<Self> {
        let path = fs::canonicalize(path).with_context(|| format!("opening the bundle {}", path.display()))?;
        let file = path.join("config.json");
        let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let mut text: Value = serde_json::from_slice(&bytes).with_context(|| format!("reading {}", file.display()))?;
        let left_out = dialect::understand(&mut text);
        if !left_out.is_empty() {
            log.warning(&format!("ignoring unknown or unavailable capabilities: {}", left_out.join(", ")));
        }
        MemoryPolicy::read(&text)?;
        let spec: Spec =
            serde_json::from_value(text.clone()).with_context(|| format!("malformed spec in {}", file.display()))?;
        for field in unknown(&text, &serde_json::to_value(&spec)?) {
            log.warning(&format!("{}: the field '{field}' is not known to this runtime", file.display()));
        }
        check(&spec)?;
        if let Some(process) = spec.process() {
            warn_of_ambient(process, log);
        }
        let root = spec.root().as_ref().context("malformed spec: there is no 'root' in it")?.path();
        let root = path.join(root);
        let root = fs::canonicalize(&root).with_context(|| format!("opening the root {}", root.display()))?;
        if !root.is_dir() {
            bail!("the root {} is no directory", root.display());
        }
        Ok(Self { path, root, spec, text })
    }

    /// The container's process, with what it has when the configuration does not say.
    pub(crate) fn process(&self) -> Result<Process> {
        let process = self.spec.process().clone().context("process property must not be empty")?;
        Ok(with_home(process, &self.root))
    }
}

/// A process that has HOME, as its user's entry in the root has it.
pub(crate) fn with_home(mut process: Process, root: &Path) -> Process {
    let given = process.env().clone().unwrap_or_default();
    let name = |pair: &String| pair.split('=').next().unwrap_or_default().to_owned();
    // Of a variable that is there twice the last counts, and an empty home is none.
    let last = |(number, pair): &(usize, &String)| !given[number + 1..].iter().any(|later| name(later) == name(pair));
    let kept = given.iter().enumerate().filter(last).map(|(_, pair)| pair.clone()).filter(|pair| pair != "HOME=");
    let mut environment: Vec<_> = kept.collect();
    if !environment.iter().any(|pair| pair.starts_with("HOME=")) {
        let home = home(root, process.user().uid()).unwrap_or_else(|| "/".into());
        environment.push(format!("HOME={home}"));
    }
    process.set_env(Some(environment));
    process
}

/// Says which ambient capabilities a process cannot have: only what it is permitted and may hand on.
fn warn_of_ambient(process: &Process, log: &Log) {
    let Some(sets) = process.capabilities() else { return };
    for wanted in sets.ambient().iter().flatten() {
        let has = |set: &Option<Capabilities>| set.as_ref().is_some_and(|set| set.contains(wanted));
        if !has(sets.permitted()) || !has(sets.inheritable()) {
            let name = serde_json::to_value(wanted).unwrap_or_default();
            let name = name.as_str().unwrap_or_default();
            log.warning(&format!("can't raise ambient capability {name}: it is not both permitted and inheritable"));
        }
    }
}

/// The home of a user, by the root's own user database, which is found inside the root and nowhere else.
fn home(root: &Path, uid: u32) -> Option<String> {
    /// More than any database that is no attack.
    const LONGEST: usize = 100_000;
    let root = rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // To open a device does something, and here no list of devices holds: what it is is asked before.
    let file = Root::from(root).place("etc/passwd", Links::Followed).ok()?.file().ok()?;
    let lines = BufReader::new(std::io::Read::take(file, LONGEST as u64 * 10)).lines().map_while(Result::ok);
    lines.take(LONGEST).find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        (fields.get(2)?.parse::<u32>().ok()? == uid).then(|| fields.get(5).map(|home| (*home).to_owned()))?
    })
}

/// Fields that a configuration has and this runtime does not know, by their paths.
fn unknown(given: &Value, known: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(given, known, String::new(), &mut found);
    found
}

fn compare(given: &Value, known: &Value, path: String, found: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (name, value) in given {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => compare(value, known, path, found),
                    // Nothing is said by these, and they are left out when a configuration is written.
                    None if value.is_null() || *value == Value::Bool(false) => {}
                    None => found.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (number, (given, known)) in given.iter().zip(known).enumerate() {
                compare(given, known, format!("{path}[{number}]"), found);
            }
        }
        _ => {}
    }
}

/// Refuses what cannot be done, by name.
fn check(spec: &Spec) -> Result<()> {
    if !spec.version().starts_with("1.") {
        bail!("ociVersion '{}' is not supported; this runtime knows 1.0 to 1.3", spec.version());
    }
    let linux = spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    let unsupported = [
        ("linux.intelRdt", linux.intel_rdt().is_some()),
        ("linux.netDevices", linux.net_devices().as_ref().is_some_and(|devices| !devices.is_empty())),
        ("linux.mountLabel", linux.mount_label().as_ref().is_some_and(|label| !label.is_empty())),
    ];
    if let Some((name, _)) = unsupported.iter().find(|(_, given)| *given) {
        bail!("{name} is not supported by this runtime");
    }
    if let Some(process) = spec.process() {
        check_process(process)?;
    }
    let has = |kind| namespaces::named(linux, kind);
    let named = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
    if (named(spec.hostname()) || named(spec.domainname())) && !has(LinuxNamespaceType::Uts) {
        bail!("unable to set hostname without a private UTS namespace");
    }
    let listed = |paths: &Option<Vec<String>>| paths.as_ref().is_some_and(|paths| !paths.is_empty());
    if (listed(linux.masked_paths()) || listed(linux.readonly_paths())) && !has(LinuxNamespaceType::Mount) {
        bail!("unable to restrict sys entries without a private MNT namespace");
    }
    if linux.time_offsets().as_ref().is_some_and(|offsets| !offsets.is_empty()) && !has(LinuxNamespaceType::Time) {
        bail!("timeOffsets are given, and the container has no time namespace");
    }
    Agent::of(linux.seccomp().as_ref(), Value::Null)?;
    Ok(())
}

/// Refuses what a process cannot have.
pub(crate) fn check_process(process: &Process) -> Result<()> {
    let label = |label: &Option<String>| label.as_ref().is_some_and(|label| !label.is_empty());
    let confined = process.apparmor_profile().as_ref().is_some_and(|name| !name.is_empty() && name != "unconfined");
    let unsupported = [("process.apparmorProfile", confined), ("process.selinuxLabel", label(process.selinux_label()))];
    if let Some((name, _)) = unsupported.iter().find(|(_, given)| *given) {
        bail!("{name} is not supported by this runtime");
    }
    if !process.cwd().is_absolute() {
        bail!("cwd '{}' must be an absolute path", process.cwd().display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(rest: &str, linux: &str) -> Result<()> {
        let text = format!(
            r#"{{"ociVersion":"1.0.2","root":{{"path":"r"}},"linux":{{"namespaces":[{{"type":"mount"}}]{linux}}}{rest}}}"#
        );
        check(&serde_json::from_str(&text)?)
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        assert!(checked("", "").is_ok());
        for (rest, linux, name) in [
            ("", r#","intelRdt":{"closID":"x"}"#, "linux.intelRdt"),
            ("", r#","netDevices":{"eth0":{}}"#, "linux.netDevices"),
            (r#","hostname":"x""#, "", "UTS"),
            (
                r#","process":{"user":{"uid":0,"gid":0},"cwd":"/","args":["a"],"apparmorProfile":"x"}"#,
                "",
                "apparmorProfile",
            ),
            (r#","process":{"user":{"uid":0,"gid":0},"cwd":"x","args":["a"]}"#, "", "absolute"),
        ] {
            let refused = checked(rest, linux).unwrap_err().to_string();
            assert!(refused.contains(name), "{refused}");
        }
    }

    #[test]
    fn fields_that_nobody_knows_are_told_by_their_paths() {
        let given: Value = serde_json::from_str(r#"{"a":{"b":1,"c":[{"d":2}]},"e":null,"f":false}"#).unwrap();
        let known: Value = serde_json::from_str(r#"{"a":{"c":[{}]}}"#).unwrap();
        assert_eq!(unknown(&given, &known), ["a.b", "a.c[0].d"]);
    }

    #[test]
    fn a_home_is_looked_for_inside_the_root_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("secret"), "x:x:0:0:x:/inside:/bin/sh\n").unwrap();
        std::os::unix::fs::symlink("/../../secret", root.path().join("etc/passwd")).unwrap();
        assert_eq!(home(root.path(), 0).as_deref(), Some("/inside"));
        assert_eq!(home(root.path(), 1), None);
    }
}
