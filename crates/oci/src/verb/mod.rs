//! The commands, one a file.

mod create;
mod delete;
mod events;
mod exec;
mod features;
mod kill;
mod list;
mod pause;
mod ps;
mod run;
mod spec;
mod start;
mod state;
mod update;

use crate::command_line::{CommandLine, Verb};
use crate::copy_up;
use crate::log::Log;
use anyhow::{Result, bail};

/// Carries a command out: its exit code.
pub(crate) fn run(line: &CommandLine, log: &Log) -> Result<u8> {
    let global = &line.global;
    if global.rootless == "true" {
        bail!("--rootless is not supported by this runtime yet; run it as root");
    }
    let root = global.root.as_path();
    match &line.verb {
        Verb::Create(creation) => create::run(global, creation, log).map(|()| 0),
        Verb::Start { id } => start::run(root, id).map(|()| 0),
        Verb::State { id } => state::run(root, id).map(|()| 0),
        Verb::Kill { all, id, signal } => kill::run(root, id, signal, *all).map(|()| 0),
        Verb::Delete { force, id } => delete::run(root, id, *force, log).map(|()| 0),
        Verb::Run { creation, detach, keep, .. } => run::run(global, creation, *detach, *keep, log),
        Verb::Exec(exec) => exec::run(root, exec, log),
        Verb::Ps { format, id, options } => ps::run(root, id, *format, options).map(|()| 0),
        Verb::List { format, quiet } => list::run(root, *format, *quiet, log).map(|()| 0),
        Verb::Pause { id } => pause::pause(root, id).map(|()| 0),
        Verb::Resume { id } => pause::resume(root, id).map(|()| 0),
        Verb::Update(update) => update::run(root, update).map(|()| 0),
        Verb::Events { stats, interval, id } => events::run(root, id, *stats, interval).map(|()| 0),
        Verb::Features => features::run().map(|()| 0),
        Verb::Spec { bundle, rootless } => spec::run(bundle, *rootless).map(|()| 0),
        Verb::CopyUp { groups } => copy_up::copy(groups).map(|()| 0),
        Verb::Checkpoint { .. } => bail!("checkpoint is not supported by this runtime yet"),
        Verb::Restore { .. } => bail!("restore is not supported by this runtime yet"),
    }
}

/// The exit code of a command that failed.
pub(crate) fn failure(line: &CommandLine) -> u8 {
    match line.verb {
        Verb::Exec(_) => 255,
        _ => 1,
    }
}
