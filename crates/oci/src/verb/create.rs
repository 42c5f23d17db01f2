//! `create`: a container whose process is there and waits to be started.

use crate::bundle::Bundle;
use crate::command_line::{Creation, Global};
use crate::container::{Home, Record, Status};
use crate::groups::{self, settings};
use crate::launch::{Helper, Launched, Supplies, launch};
use crate::log::Log;
use crate::plan::files::{self, Facts};
use crate::plan::namespaces::{self, Namespaces};
use crate::plan::process::{Manner, become_program};
use crate::plan::{Plan, Want, c_string, devices, packed};
use crate::{hook, session};
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Hook, Linux, Spec};
use pando_kernel::{process, socket::packet};
use pando_shim::Step;
use serde_json::Value;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A container that was made.
#[derive(Debug)]
pub(crate) struct Made {
    /// Its directory, locked.
    pub(crate) home: Home,
    /// What is kept of it.
    pub(crate) record: Record,
    /// Its process.
    pub(crate) launched: Launched,
}

pub(crate) fn run(global: &Global, creation: &Creation, log: &Log) -> Result<()> {
    let bundle = Bundle::read(&creation.bundle, log)?;
    let terminal = bundle.process()?.terminal().unwrap_or(false);
    let console = console(creation.console_socket.as_deref(), terminal)?;
    make(global, creation, &bundle, console, true, log).map(drop)
}

/// The socket that a terminal's master goes to.
pub(crate) fn console(path: Option<&Path>, terminal: bool) -> Result<Option<OwnedFd>> {
    match (path, terminal) {
        (Some(_), false) => bail!("a console socket is given, and the process has no terminal"),
        (None, true) => bail!("cannot allocate tty if the command does not wait: give --console-socket"),
        (None, false) => Ok(None),
        (Some(path), true) => {
            let socket = UnixStream::connect(path).with_context(|| format!("connecting to {}", path.display()))?;
            Ok(Some(socket.into()))
        }
    }
}

/// Makes a container. Where that fails nothing is left of it.
pub(crate) fn make(
    global: &Global,
    creation: &Creation,
    bundle: &Bundle,
    console: Option<OwnedFd>,
    waits: bool,
    log: &Log,
) -> Result<Made> {
    let preserved = (0..creation.preserve_fds).map(|number| 3 + i32::from(number));
    for number in preserved {
        fs::symlink_metadata(format!("/proc/self/fd/{number}"))
            .with_context(|| format!("descriptor {number} is to be preserved, and it is not open"))?;
    }
    let linux = bundle.spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    let groups = groups::find(linux.cgroups_path().as_deref(), &creation.id, global.systemd_cgroup)?;
    let record = Record::new(&creation.id, bundle, groups);
    let plan = plan(creation, bundle, &record, waits)?;
    let home = Home::make(&global.root, &creation.id)?;
    match launched(creation, bundle, record.clone(), (plan, console, waits), &home) {
        Ok((record, launched)) => Ok(Made { home, record, launched }),
        Err(error) => {
            record.groups.kill();
            if let Err(left) = record.groups.remove() {
                log.warning(&format!("clearing away after a failure: {left:#}"));
            }
            home.remove()?;
            Err(error)
        }
    }
}

fn launched(
    creation: &Creation,
    bundle: &Bundle,
    record: Record,
    (plan, console, waits): (Plan, Option<OwnedFd>, bool),
    home: &Home,
) -> Result<(Record, Launched)> {
    // Before anything is made: whoever finds it knows what to clear away.
    home.write(&record)?;
    let linux = bundle.spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    confine(linux, &record)?;
    let listener = waits.then(|| packet::listen(&home.socket())).transpose().context("listening for the start")?;
    let supplies = Supplies { root: bundle.root.clone(), console, listener, state: None };
    let mut making = Making { bundle, linux, home, record };
    let launched = launch(plan, supplies, &mut making)?;
    if making.record.pid == 0 {
        making.settle(launched.pid)?;
    }
    let record = making.record;
    if let Some(path) = &creation.pid_file
        && let Err(error) = write_pid(path, launched.pid)
    {
        launched.kill();
        return Err(error);
    }
    Ok((record, launched))
}

/// Makes the groups, with what they are held to.
fn confine(linux: &Linux, record: &Record) -> Result<()> {
    record.groups.make()?;
    let resources = linux.resources().clone().unwrap_or_default();
    settings::apply(&settings::of(&resources, &record.groups)?)?;
    let rules = devices::rules(resources.devices().as_deref().unwrap_or_default(), linux)?;
    record.groups.hold_to(&rules)
}

/// Writes a process's pid to a file: all of it is there or nothing.
pub(crate) fn write_pid(path: &Path, pid: i32) -> Result<()> {
    let name = path.file_name().context("the pid file has no name")?.to_string_lossy();
    let new = path.with_file_name(format!(".{name}"));
    fs::write(&new, pid.to_string())
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// What is done while a container is made.
struct Making<'a> {
    bundle: &'a Bundle,
    linux: &'a Linux,
    home: &'a Home,
    record: Record,
}

impl Making<'_> {
    /// Notes the container's process.
    fn settle(&mut self, pid: i32) -> Result<()> {
        self.record.pid = pid;
        self.record.start_time = process::start_time(pid).context("asking when the process began")?;
        let adjustment = self.bundle.spec.process().as_ref().and_then(|process| process.oom_score_adj());
        if let Some(adjustment) = adjustment {
            adjust(pid, adjustment)?;
        }
        self.home.write(&self.record)
    }
}

/// Sets how soon the kernel ends a process for want of memory.
pub(crate) fn adjust(pid: i32, adjustment: i32) -> Result<()> {
    let path = format!("/proc/{pid}/oom_score_adj");
    fs::write(&path, adjustment.to_string()).with_context(|| format!("writing '{adjustment}' to {path}"))
}

impl Helper for Making<'_> {
    fn map_ids(&mut self, pid: i32) -> Result<()> {
        let maps = [("uid_map", self.linux.uid_mappings()), ("gid_map", self.linux.gid_mappings())];
        for (file, mappings) in maps {
            let path = format!("/proc/{pid}/{file}");
            let mappings = mappings.as_deref().filter(|mappings| !mappings.is_empty());
            let map = namespaces::id_map(mappings.context("a user namespace needs uidMappings and gidMappings")?);
            fs::write(&path, map).with_context(|| format!("mapping ids in {path}"))?;
        }
        Ok(())
    }

    fn set_clocks(&mut self, pid: i32) -> Result<()> {
        let Some(offsets) = self.linux.time_offsets() else { return Ok(()) };
        let path = format!("/proc/{pid}/timens_offsets");
        fs::write(&path, namespaces::clocks(offsets)).with_context(|| format!("setting clocks in {path}"))
    }

    fn born(&mut self, pid: i32) -> Result<Value> {
        self.settle(pid)?;
        let state = self.record.state(Status::Creating);
        if let Some(hooks) = self.bundle.spec.hooks() {
            #[allow(deprecated, reason = "engines still write them")]
            let prestart = hooks.prestart().as_deref().unwrap_or_default();
            hook::run("prestart", prestart, &state)?;
            hook::run("createRuntime", hooks.create_runtime().as_deref().unwrap_or_default(), &state)?;
        }
        Ok(state)
    }
}

fn plan(creation: &Creation, bundle: &Bundle, record: &Record, waits: bool) -> Result<Plan> {
    let spec = &bundle.spec;
    let linux = spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    let namespaces = Namespaces::read(linux)?;
    let mut plan = Plan::new();
    for file in record.groups.entrances() {
        let label = format!("entering the control group of {}", file.display());
        let fd = plan.want(Want::GroupFile(file));
        plan.step(label, Step::Group { fd });
    }
    let clocks = linux.time_offsets().as_ref().is_some_and(|offsets| !offsets.is_empty());
    namespaces.enter(&mut plan, clocks);
    if !namespaces.forks() {
        // Hooks are called once a process is there that stays.
        plan.fork();
    }
    names(&mut plan, spec)?;
    let facts = facts(creation, bundle, record);
    files::arrange(&mut plan, spec, &namespaces, &facts)?;
    let hooks = spec.hooks().as_ref();
    let inside = hooks.and_then(|hooks| hooks.create_container().clone()).unwrap_or_default();
    call(&mut plan, "createContainer", &inside)?;
    files::close(&mut plan, spec, &facts)?;
    plan.next_batch();
    if let Some(personality) = linux.personality() {
        const LINUX32: u32 = 8;
        let wide = personality.domain() == oci_spec::runtime::LinuxPersonalityDomain::PerLinux;
        plan.step("setting the personality", Step::Personality { persona: if wide { 0 } else { LINUX32 } });
    }
    let keyring = (!creation.no_new_keyring).then(|| format!("_ses.{}", creation.id));
    let manner = Manner {
        waits,
        inherited: creation.preserve_fds,
        console: true,
        rest_comes: hooks.is_some_and(|hooks| hooks.start_container().as_ref().is_some_and(|hooks| !hooks.is_empty())),
    };
    if manner.rest_comes && !waits {
        bail!("startContainer hooks need a container that is created first");
    }
    become_program(&mut plan, &bundle.process()?, linux.seccomp().as_ref(), keyring.as_deref(), manner)?;
    Ok(plan)
}

fn names(plan: &mut Plan, spec: &Spec) -> Result<()> {
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    if let Some(name) = given(spec.hostname()) {
        let name = c_string("host name", &name)?;
        plan.step("setting the host name", Step::HostName { name: name.as_bytes() });
    }
    if let Some(name) = given(spec.domainname()) {
        let name = c_string("domain name", &name)?;
        plan.step("setting the domain name", Step::DomainName { name: name.as_bytes() });
    }
    Ok(())
}

fn facts(creation: &Creation, bundle: &Bundle, record: &Record) -> Facts {
    let sources = bundle.spec.mounts().iter().flatten().filter_map(|mount| mount.source().as_ref());
    let paths: Vec<PathBuf> = sources.map(|source| bundle.path.join(source)).collect();
    Facts {
        bundle: bundle.path.clone(),
        root: bundle.root.clone(),
        files: paths.into_iter().filter(|path| !path.is_dir()).collect(),
        groups: record.groups.clone(),
        no_pivot: creation.no_pivot,
    }
}

/// Steps that call hooks within the container's namespaces.
pub(crate) fn call(plan: &mut Plan, kind: &str, hooks: &[Hook]) -> Result<()> {
    for (number, hook) in hooks.iter().enumerate() {
        let path = hook.path().to_string_lossy().into_owned();
        let given = hook.args().clone().unwrap_or_default();
        if given.first().is_some_and(|name| *name != path) && !path.ends_with(given[0].as_str()) {
            // The shim executes what it calls by its first argument.
            bail!("{kind} hook #{number}: its first argument '{}' has to name its path '{path}'", given[0]);
        }
        let arguments: Vec<_> = std::iter::once(path.clone()).chain(given.into_iter().skip(1)).collect();
        let arguments = packed("argument of a hook", &arguments)?;
        let environment = packed("variable of a hook", hook.env().as_deref().unwrap_or_default())?;
        let timeout = hook.timeout().and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(0);
        let input = plan.want(Want::State);
        let step = Step::Call { input, arguments: &arguments, environment: &environment, timeout };
        plan.step(format!("error running {kind} hook #{number} {path}"), step);
    }
    Ok(())
}

/// A session that carries a terminal, where the command waits.
pub(crate) fn attended(terminal: bool) -> Result<(session::Session, Option<OwnedFd>)> {
    session::Session::begin(terminal)
}
