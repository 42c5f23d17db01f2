//! `create`: a container whose process is there and waits to be started.

use crate::bundle::Bundle;
use crate::command_line::{Creation, Global};
use crate::container::{self, Home, Record, Status};
use crate::groups::{self, settings};
use crate::joined_namespaces;
use crate::launch::{Helper, Launched, Supplies, launch};
use crate::log::Log;
use crate::plan::files::{self, Facts};
use crate::plan::namespaces::{self, Namespaces};
use crate::plan::process::{Manner, become_program, surroundings};
use crate::plan::seccomp::Filter;
use crate::plan::{Plan, Want, c_string, devices, packed, text};
use crate::{hook, scheduling, session};
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Hook, Linux, LinuxNamespaceType, Spec};
use pando_kernel::{process, socket::packet};
use pando_shim::Step;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
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
    let mut record = Record::new(&creation.id, bundle, groups);
    record.keeps_keyring = creation.no_new_keyring;
    let mut namespaces = Namespaces::read(linux)?;
    let joined = joined_namespaces::open(&mut namespaces)?;
    if !namespaces.own(LinuxNamespaceType::Mount) {
        record.mounted_over = Some(container::mounts_at(&record.rootfs)?);
    }
    let plan = plan(creation, bundle, &record, &namespaces, waits)?;
    record.steps = plan.length();
    let home = Home::make(&global.root, &creation.id)?;
    // Whose processes are in the groups is to stay there: what fails from here on clears them away.
    if let Err(error) = record.groups.unused() {
        home.remove()?;
        return Err(error);
    }
    let supplies = Supplies { root: bundle.root.clone(), console, joined, ..Supplies::default() };
    match launched(creation, bundle, &mut record, (plan, supplies, waits), &home) {
        Ok(launched) => Ok(Made { home, record, launched }),
        Err(error) => {
            record.groups.kill();
            if let Err(left) = record.uncover().and_then(|()| record.groups.remove()) {
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
    record: &mut Record,
    (plan, mut supplies, waits): (Plan, Supplies, bool),
    home: &Home,
) -> Result<Launched> {
    // Before anything is made, and again as soon as the groups are: whoever finds it knows what to clear away.
    home.write(record)?;
    let _claims = record.groups.make()?;
    home.write(record)?;
    let linux = bundle.spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    confine(linux, record)?;
    let listen = || {
        let socket = packet::listen(&home.socket())?;
        // Whoever connects to it starts the container.
        rustix::fs::chmod(home.socket(), Mode::RUSR | Mode::WUSR)?;
        Ok::<_, std::io::Error>(socket)
    };
    supplies.listener = waits.then(listen).transpose().context("listening for the start")?;
    supplies.groups = record.groups.entrances().collect();
    let mut making = Making { bundle, linux, home, record: record.clone() };
    let launched = launch(plan, supplies, &mut making)?;
    if making.record.pid == 0 {
        making.settle(launched.pid)?;
    }
    *record = making.record;
    record.in_the_making = false;
    let written = home.write(record).and_then(|()| match &creation.pid_file {
        Some(path) => write_pid(path, launched.pid),
        None => Ok(()),
    });
    if let Err(error) = written {
        launched.kill();
        return Err(error);
    }
    Ok(launched)
}

/// Holds the groups to what the configuration says.
fn confine(linux: &Linux, record: &Record) -> Result<()> {
    let resources = linux.resources().clone().unwrap_or_default();
    let settings = settings::of(&resources, &record.groups)?;
    settings::apply(settings.iter().filter(|setting| !setting.counts_processes()))?;
    let rules = devices::rules(resources.devices().as_deref().unwrap_or_default())?;
    record.groups.hold_to(&rules)
}

/// Writes a process's pid to a file: all of it is there or nothing.
pub(crate) fn write_pid(path: &Path, pid: i32) -> Result<()> {
    let name = path.file_name().context("the pid file has no name")?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = OsString::from(".");
    new.push(name);
    let write = || -> std::io::Result<()> {
        let directory = openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // One that a killed command has left. The directory may be a user's: what is written to is made here.
        match unlinkat(&directory, &new, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, &new, flags, Mode::from_raw_mode(0o644))?;
        File::from(file).write_all(pid.to_string().as_bytes())?;
        Ok(renameat(&directory, &new, &directory, name)?)
    };
    write().with_context(|| format!("writing {}", path.display()))
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
        if let Some(process) = self.bundle.spec.process() {
            scheduling::set(pid, process, None)?;
            if let Some(adjustment) = process.oom_score_adj() {
                adjust(pid, adjustment)?;
            }
        }
        self.home.write(&self.record)?;
        // Now that the one process is there that stays: the way there takes two.
        let resources = self.linux.resources().clone().unwrap_or_default();
        let settings = settings::of(&resources, &self.record.groups)?;
        settings::apply(settings.iter().filter(|setting| setting.counts_processes()))
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

fn plan(creation: &Creation, bundle: &Bundle, record: &Record, namespaces: &Namespaces, waits: bool) -> Result<Plan> {
    let spec = &bundle.spec;
    let linux = spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
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
    names(&mut plan, spec, namespaces)?;
    let facts = facts(creation, bundle, record);
    files::arrange(&mut plan, spec, namespaces, &facts)?;
    let hooks = spec.hooks().as_ref();
    let inside = hooks.and_then(|hooks| hooks.create_container().clone()).unwrap_or_default();
    call(&mut plan, "createContainer", &inside, &[], None)?;
    files::close(&mut plan, spec, namespaces, &facts)?;
    plan.next_batch();
    surroundings(&mut plan, linux, &bundle.text)?;
    let keyring = record.keyring();
    let manner = Manner {
        waits,
        inherited: creation.preserve_fds,
        console: true,
        carried: creation.console_socket.is_none(),
        rest_comes: hooks.is_some_and(|hooks| hooks.start_container().as_ref().is_some_and(|hooks| !hooks.is_empty())),
    };
    if manner.rest_comes && !waits {
        bail!("startContainer hooks need a container that is created first");
    }
    become_program(&mut plan, &bundle.process()?, linux.seccomp().as_ref(), keyring.as_deref(), manner)?;
    Ok(plan)
}

fn names(plan: &mut Plan, spec: &Spec, namespaces: &Namespaces) -> Result<()> {
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let named = given(spec.hostname()).or_else(|| given(spec.domainname())).is_some();
    if named && !namespaces.own(LinuxNamespaceType::Uts) {
        bail!("unable to set hostname without a private UTS namespace");
    }
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

/// Steps that call hooks within the container's namespaces. One that says nothing of its environment has `inherited`.
/// Those that are programs of the container's have its filter of system calls.
pub(crate) fn call(
    plan: &mut Plan,
    kind: &str,
    hooks: &[Hook],
    inherited: &[String],
    filter: Option<&Filter>,
) -> Result<()> {
    for (number, hook) in hooks.iter().enumerate() {
        let path = hook.path().to_string_lossy().into_owned();
        let given = hook.args().clone().unwrap_or_default();
        let arguments = if given.is_empty() { vec![path.clone()] } else { given };
        let arguments = packed("argument of a hook", &arguments)?;
        let environment = hook.env().as_deref().filter(|variables| !variables.is_empty()).unwrap_or(inherited);
        let environment = packed("variable of a hook", environment)?;
        let path = c_string("path of a hook", &path)?;
        let timeout = hook.timeout().and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(0);
        let input = plan.want(Want::State);
        let label = format!("error running {kind} hook #{number}: {}", path.to_string_lossy());
        let (arguments, environment) = (arguments.as_slice(), environment.as_slice());
        let path = text(&path);
        let step = match filter {
            None => Step::CallProgram { input, path, arguments, environment, timeout },
            Some(Filter { program, flags }) => {
                Step::CallFiltered { input, path, arguments, environment, timeout, program, flags: *flags }
            }
        };
        plan.step(label, step);
    }
    Ok(())
}

/// A session that carries a terminal, where the command waits.
pub(crate) fn attended(terminal: bool) -> Result<(session::Session, Option<OwnedFd>)> {
    session::Session::begin(terminal)
}
