//! `exec`: a further process in a container.

use super::create::{adjust, attended, console, write_pid};
use crate::bundle::{check_process, with_home};
use crate::command_line::Exec;
use crate::container::{self, Record, Status};
use crate::launch::{Helper, Supplies, launch};
use crate::log::Log;
use crate::plan::namespaces::Namespaces;
use crate::plan::process::{Manner, become_program};
use crate::plan::{Plan, Want};
use crate::session::with_size;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Capability, Process, User};
use pando_shim::Step;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

pub(crate) fn run(root: &Path, exec: &Exec, log: &Log) -> Result<u8> {
    let (home, record) = container::look(root, &exec.id)?;
    match home.status(&record) {
        Status::Stopped => bail!("cannot exec in a stopped container"),
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
    let plan = plan(exec, &record, &process)?;
    let supplies = Supplies { root: record.rootfs.clone(), console, ..Supplies::default() };
    let launched = launch(plan, supplies, &mut Joining { adjustment: process.oom_score_adj() })?;
    launched.wait_for_program()?;
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
struct Joining {
    adjustment: Option<i32>,
}

impl Helper for Joining {
    fn map_ids(&mut self, _: i32) -> Result<()> {
        Ok(())
    }

    fn set_clocks(&mut self, _: i32) -> Result<()> {
        Ok(())
    }

    fn born(&mut self, pid: i32) -> Result<Value> {
        if let Some(adjustment) = self.adjustment {
            adjust(pid, adjustment)?;
        }
        Ok(json!(null))
    }
}

fn plan(exec: &Exec, record: &Record, process: &Process) -> Result<Plan> {
    let mut plan = Plan::new();
    for file in record.groups.entrances() {
        let label = format!("entering the control group of {}", file.display());
        let fd = plan.want(Want::GroupFile(file));
        plan.step(label, Step::Group { fd });
    }
    let namespaces = Namespaces::of_process(record.pid).context("looking for the container's namespaces")?;
    namespaces.enter(&mut plan, false);
    if !namespaces.forks() {
        plan.fork();
    }
    let manner = Manner { waits: false, inherited: exec.preserve_fds, console: false, rest_comes: false };
    let spec = record.spec()?;
    let filter = spec.linux().as_ref().and_then(|linux| linux.seccomp().clone());
    become_program(&mut plan, process, filter.as_ref(), None, manner)?;
    Ok(plan)
}

/// The process: as a file has it, or the container's own with what the command says otherwise.
fn process(exec: &Exec, record: &Record, log: &Log) -> Result<Process> {
    if let Some(path) = &exec.process {
        let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let mut process: Process =
            serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
        if exec.tty {
            process.set_terminal(Some(true));
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
    let mut sets = process.capabilities().clone().unwrap_or_default();
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
    }
    process.set_capabilities(Some(sets));
    Ok(())
}
