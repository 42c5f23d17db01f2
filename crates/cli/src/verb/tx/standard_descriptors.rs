//! Which standard descriptors a transaction's command may have of its caller's.

use crate::session::End;
use crate::verb::{carry_on, carry_while_here};
use anyhow::{Context, bail};
use pando_front::{Passage, passage};
use rustix::fs::{FileType, Stat, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;

/// Sees to it that no standard descriptor leads a command past its view.
///
/// Paths below a directory, or below an open path, are those of the live tree, and what is changed there is in no
/// change set: these are refused. A socket can be disconnected and connected to somebody else, and brings descriptors
/// in and out: a pipe takes its place. Whatever a guest may not have for these reasons a transaction may not either.
/// Answers who carries the output, for as long as anybody has it.
pub(super) fn lead_nowhere() -> anyhow::Result<Vec<Child>> {
    for (own, name) in [(stdin(), "input"), (stdout(), "output"), (stderr(), "error")] {
        if let Passage::Refuse(what) = passage(own).with_context(|| format!("cannot look at standard {name}"))? {
            let instead = if name == "input" { "<" } else { ">" };
            bail!(
                "standard {name} is {what}, through which the command could change what it should only see. Redirect it, for example {instead} /dev/null"
            );
        }
    }
    carry_input().context("cannot carry standard input")?;
    carry_output().context("cannot carry standard output")
}

fn carry_input() -> anyhow::Result<()> {
    if socket(stdin())?.is_some() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        carry_while_here(stdin(), writer.as_fd())?;
        dup2_stdin(reader)?;
    }
    Ok(())
}

/// Output and errors that go to one socket go through one pipe, in their order.
fn carry_output() -> anyhow::Result<Vec<Child>> {
    let mut carriers = Vec::new();
    let mut carried_to = |socket| {
        let (pipe, carrier) = carried_to(socket)?;
        carriers.push(carrier);
        anyhow::Ok(pipe)
    };
    let (out, errors) = (socket(stdout())?, socket(stderr())?);
    let out_goes = out.map(|_| carried_to(stdout())).transpose()?;
    match (&out_goes, out.zip(errors)) {
        (Some(pipe), Some((out, errors))) if is_same(&out, &errors) => dup2_stderr(pipe)?,
        _ if errors.is_some() => dup2_stderr(carried_to(stderr())?)?,
        _ => {}
    }
    out_goes.map_or(Ok(()), dup2_stdout)?;
    Ok(carriers)
}

/// A pipe that is carried to a socket, for as long as anybody can write to it.
fn carried_to(socket: BorrowedFd<'static>) -> anyhow::Result<(OwnedFd, Child)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let carrier = carry_on(End::Ours(reader), End::Callers(socket))?;
    Ok((writer, carrier))
}

fn socket(descriptor: BorrowedFd<'_>) -> anyhow::Result<Option<Stat>> {
    let stat = fstat(descriptor)?;
    Ok(FileType::from_raw_mode(stat.st_mode).is_socket().then_some(stat))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}
