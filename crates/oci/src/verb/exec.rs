//! `exec`: a further process in a container.

use super::create::{adjust, attended, console, write_pid};
use crate::agent::Agent;
use crate::bundle::{check_process, with_home};
use crate::command_line::Exec;
use crate::container::{self, Record, Status};
use crate::first_process::{FirstProcess, STOPPED, Surroundings};
use crate::launch::{Helper, Supplies, launch};
use crate::log::Log;
use crate::plan::namespaces::Namespaces;
use crate::plan::process::{Manner, become_program, surroundings};
use crate::plan::{Plan, Want, c_string, text};
use crate::session::with_size;
use crate::{dialect, scheduling};
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Capability, Process, User};
use pando_shim::Step;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

pub(crate) fn run(root: &Path, exec: &Exec, log: &Log) -> Result<u8> {
    let (home, record) = container::look(root, &exec.id)?;
    // Held before it is asked how the container is.
    let first = FirstProcess::hold(&record);
    match home.status(&record) {
        Status::Stopped => bail!(STOPPED),
        Status::Creating => bail!("cannot exec in a container that is being created"),
        Status::Paused if !exec.ignore_paused => {
            bail!("cannot exec in a paused container (use --ignore-paused to override)")
        }
        _ => {}
    }
    let mut process = process(exec, &record, log)?;
    let terminal = process.terminal().unwrap_or(false);
    let (session, console) = if exec.detach || exec.console_socket.is_some() {
        (None, console(exec.console_socket.as_deref(), terminal)?)
    } else {
        let (session, console) = attended(terminal)?;
        process = with_size(process);
        (Some(session), console)
    };
    let first = first.context(STOPPED)?;
    let (plan, surroundings) = plan(exec, &record, &first, &process)?;
    let surroundings = Some(surroundings);
    let supplies = Supplies { root: record.rootfs.clone(), console, surroundings, ..Supplies::default() };
    scheduling::begin_at(&process)?;
    let launched = launch(plan, supplies, &mut Joining { process: &process })?;
    let spec = record.spec()?;
    let filter = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let agent = Agent::of(filter, record.state(home.status(&record)))?;
    launched.wait_for_program(agent.as_ref())?;
    if let Some(path) = &exec.pid_file {
        write_pid(path, launched.pid).inspect_err(|_| launched.kill())?;
    }
    match session {
        Some(session) => session.wait(launched.pid, &launched.process),
        None if exec.detach => Ok(0),
        None => attended(false)?.0.wait(launched.pid, &launched.process),
    }
}

/// Nothing has to be mapped or set: all of that is the container's.
struct Joining<'a> {
    process: &'a Process,
}

impl Helper for Joining<'_> {
    fn map_ids(&mut self, _: i32) -> Result<()> {
        Ok(())
    }

    fn set_clocks(&mut self, _: i32) -> Result<()> {
        Ok(())
    }

    fn born(&mut self, pid: i32) -> Result<Value> {
        let affinity = self.process.exec_cpu_affinity().as_ref();
        let processors = affinity.and_then(|affinity| affinity.cpu_affinity_final().clone());
        scheduling::set(pid, self.process, processors.as_deref())?;
        if let Some(adjustment) = self.process.oom_score_adj() {
            adjust(pid, adjustment)?;
        }
        Ok(json!(null))
    }
}

fn plan(exec: &Exec, record: &Record, first: &FirstProcess<'_>, process: &Process) -> Result<(Plan, Surroundings)> {
    let spec = record.spec()?;
    let linux = spec.linux().as_ref().context("malformed spec: there is no 'linux' in it")?;
    let made = Namespaces::read(linux)?;
    let held = first.surroundings(made.new)?;
    let mut plan = Plan::new();
    let keyring = record.keyring();
    if let Some(name) = &keyring {
        // Before the process is where the container's may have it do something: its caller's keys stay outside. Once it
        // is there it begins another, which belongs to the container's ids.
        let name = c_string("keyring", name)?;
        plan.step("leaving the caller's session keyring", Step::Keyring { name: text(&name) });
    }
    for file in record.groups.below(&exec.cgroup)?.entrances() {
        let label = format!("entering the control group of {}", file.display());
        let fd = plan.want(Want::GroupFile(file));
        plan.step(label, Step::Group { fd });
    }
    let namespaces = Namespaces::held(held.namespaces.iter().map(|(kind, _)| *kind));
    namespaces.enter(&mut plan, false);
    if !namespaces.forks() {
        plan.fork();
    }
    if !made.mounts_alone() {
        // The root of the namespace is another's: only the container's processes have the container's.
        let fd = plan.want(Want::HeldRoot);
        plan.step("taking the container's root", Step::ChangeRoot { fd });
    }
    let carried = exec.console_socket.is_none();
    let manner = Manner { waits: false, inherited: exec.preserve_fds, console: false, carried, rest_comes: false };
    surroundings(&mut plan, linux, &record.config)?;
    become_program(&mut plan, process, linux.seccomp().as_ref(), keyring.as_deref(), manner)?;
    Ok((plan, held))
}

/// The process: as a file has it, or the container's own with what the command says otherwise.
fn process(exec: &Exec, record: &Record, log: &Log) -> Result<Process> {
    if let Some(path) = &exec.process {
        let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let wrong = || format!("reading {}", path.display());
        let mut text: Value = serde_json::from_slice(&text).with_context(wrong)?;
        let left_out = dialect::understand_process(&mut text);
        if !left_out.is_empty() {
            log.warning(&format!("ignoring unknown or unavailable capabilities: {}", left_out.join(", ")));
        }
        inherit(&mut text, &record.config["process"]);
        let mut process: Process = serde_json::from_value(text).with_context(wrong)?;
        if exec.tty {
            process.set_terminal(Some(true));
        }
        if process.capabilities().is_none() {
            let own = record.spec()?.process().as_ref().and_then(|own| own.capabilities().clone());
            process.set_capabilities(own);
        }
        check_process(&process)?;
        return Ok(with_home(process, &record.rootfs));
    }
    let spec = record.spec()?;
    let mut process = spec.process().clone().context("process property must not be empty")?;
    if exec.command.is_empty() {
        bail!("exec args cannot be empty");
    }
    process.set_args(Some(exec.command.clone()));
    process.set_terminal(Some(exec.tty));
    if let Some(cwd) = &exec.cwd {
        process.set_cwd(cwd.into());
    }
    if exec.no_new_privs {
        process.set_no_new_privileges(Some(true));
    }
    let environment = process.env().clone().unwrap_or_default().into_iter().chain(exec.env.clone()).collect();
    process.set_env(Some(environment));
    if let Some(text) = &exec.user {
        let user = user(text, process.user())?;
        process.set_user(user);
    }
    if !exec.additional_gids.is_empty() {
        let mut user = process.user().clone();
        let groups = user.additional_gids().clone().unwrap_or_default();
        user.set_additional_gids(Some(groups.into_iter().chain(exec.additional_gids.clone()).collect()));
        process.set_user(user);
    }
    add_capabilities(&mut process, &exec.cap)?;
    for (name, given) in [("--process-label", &exec.process_label), ("--apparmor", &exec.apparmor)] {
        if given.as_ref().is_some_and(|value| !value.is_empty()) {
            log.warning(&format!("{name} is not supported by this runtime, and is passed over"));
        }
    }
    check_process(&process)?;
    Ok(with_home(process, &record.rootfs))
}

/// What a process has as the container's own has it, where it does not say.
fn inherit(process: &mut Value, own: &Value) {
    let Some(process) = process.as_object_mut() else { return };
    for name in ["scheduler", "ioPriority", "execCPUAffinity"] {
        if let Some(value) = own.get(name).filter(|value| !value.is_null()) {
            process.entry(name).or_insert_with(|| value.clone());
        }
    }
}

fn user(text: &str, before: &User) -> Result<User> {
    let wrong = || format!("'{text}' is no user; write UID or UID:GID");
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let mut user = before.clone();
    user.set_uid(uid.parse().with_context(wrong)?);
    if let Some(gid) = gid {
        user.set_gid(gid.parse().with_context(wrong)?);
    }
    Ok(user)
}

fn add_capabilities(process: &mut Process, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    // The library's own default has some capabilities in it.
    let none = serde_json::from_value(json!({})).context("making empty sets of capabilities")?;
    let mut sets = process.capabilities().clone().unwrap_or(none);
    for name in names {
        let capability: Capability = serde_json::from_value(json!(name.to_ascii_uppercase()))
            .with_context(|| format!("'{name}' is no capability"))?;
        let with = |set: &Option<oci_spec::runtime::Capabilities>| {
            let mut set = set.clone().unwrap_or_default();
            set.insert(capability);
            Some(set)
        };
        let (bounding, effective, permitted) = (with(sets.bounding()), with(sets.effective()), with(sets.permitted()));
        sets.set_bounding(bounding);
        sets.set_effective(effective);
        sets.set_permitted(permitted);
        // What may be handed on is handed on.
        if sets.inheritable().as_ref().is_some_and(|set| set.contains(&capability)) {
            let ambient = with(sets.ambient());
            sets.set_ambient(ambient);
        }
    }
    process.set_capabilities(Some(sets));
    Ok(())
}
