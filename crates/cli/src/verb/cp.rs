//! `pando cp`, and the two hidden verbs that are its other side: this program, run inside the guest.

use super::Verb;
use crate::client::Client;
use crate::complaint::Usage;
use crate::copy::{Landing, Owners, Place, pack, unpack_foreign, unpack_own};
use crate::host_path::Links;
use crate::replies::Noticed;
use crate::state_root::StateRoot;
use anyhow::{Context, bail, ensure};
use pando_api::{Copying, Fault, Method};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::termios::isatty;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Fewer turns between the two sides than with the customary 64 KiB.
const PIPE_SIZE: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Cp {
    /// Keep the numbers of users and groups when copying into a guest [default: root's]
    #[arg(short, long)]
    archive: bool,
    /// GUEST:PATH, a path of the host's, or - for a tar stream on standard input; DIR/. means what is in it
    #[arg(value_name = "SRC")]
    source: Place,
    /// GUEST:PATH, a path of the host's, or - for a tar stream on standard output
    #[arg(value_name = "DST")]
    destination: Place,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Pack {
    path: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unpack {
    path: PathBuf,
}

impl Verb for Cp {
    const NAME: &'static str = "cp";
    const ABOUT: &'static str = "Copy files between the host and a guest";
    const EXAMPLES: &'static str = "\
Examples:
  pando cp nginx.conf web:/etc/nginx/      into a directory, under its own name
  pando cp web:/var/log/nginx ./logs       logs/nginx if logs exists, else logs
  pando cp site/. web:/var/www             what is in site
  pando cp web:/etc - | tar tv             as a tar stream

A guest that is stopped runs for as long as that takes, and runs nothing of its own. Out of a guest, files become the caller's; setuid bits, capabilities, access control lists and devices stay behind.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        use Place::{Guest, Host, Stream};
        let links = Links::OfNobodyElse(root);
        let owners = if self.archive { Owners::Kept } else { Owners::Root };
        match (self.source, self.destination) {
            (Host(source), Guest { name, path }) => {
                into_guest(root, &name, path, |out| left_behind(pack(&source, links, out, owners)?))
            }
            (Stream, Guest { name, path }) => into_guest(root, &name, path, |mut out| {
                ensure!(!isatty(rustix::stdio::stdin()), "standard input is a terminal, not a tar stream");
                std::io::copy(&mut std::io::stdin().lock(), &mut out).context("cannot pass the tar stream on").map(drop)
            }),
            (Guest { name, path }, Host(destination)) => {
                // Before anything is asked of the guest: the destination may be impossible.
                let landing = Landing::at(&destination, links)?;
                out_of_guest(root, &name, path, |stream| left_behind(unpack_foreign(stream, landing)?))
            }
            (Guest { name, path }, Stream) => {
                ensure!(
                    !isatty(rustix::stdio::stdout()),
                    "a tar stream is not for a terminal; redirect standard output"
                );
                out_of_guest(root, &name, path, |mut stream| {
                    std::io::copy(&mut stream, &mut std::io::stdout().lock())
                        .context("cannot pass the tar stream on")
                        .map(drop)
                })
            }
            _ => Err(Usage::sentence(
                "one side of a copy is a guest's: GUEST:PATH. For example pando cp web:/etc/hosts .",
            )
            .into()),
        }
    }
}

/// Says what was not copied; that is no failure.
fn left_behind(sentences: Vec<String>) -> anyhow::Result<()> {
    for sentence in sentences {
        let _ = writeln!(std::io::stderr(), "pando: {sentence}.");
    }
    Ok(())
}

fn into_guest(
    root: &StateRoot,
    name: &str,
    path: String,
    write: impl FnOnce(File) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    let _ = fcntl_setpipe_size(&ours, PIPE_SIZE);
    let mut client = crate::daemon_start::connected(root)?;
    let method = Method::Copy { name: name.to_owned(), path: path.clone(), direction: Copying::In };
    let reason = Reason::new()?;
    let reason = client.send(method, true, vec![theirs, reason.theirs]).map(|_| reason.ours)?;
    let written = write(ours.into());
    let what = || format!("cannot copy to '{path}' in guest '{name}'");
    match (written, finished(&mut client, reason)) {
        // The guest's side stopped reading because it failed: its reason is the reason.
        (Err(error), Err(reason)) if stopped_reading(&error) => Err(reason).with_context(what),
        // It had read to the end of the archive. Writers fill their last block up with zeros, as tar(1) does, and
        // nobody needs those.
        (Err(error), Ok(())) if stopped_reading(&error) => Ok(0),
        (Err(error), _) => Err(error),
        (Ok(()), finished) => finished.with_context(what).map(|()| 0),
    }
}

fn out_of_guest(
    root: &StateRoot,
    name: &str,
    path: String,
    read: impl FnOnce(File) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    let _ = fcntl_setpipe_size(&ours, PIPE_SIZE);
    let mut client = crate::daemon_start::connected(root)?;
    let method = Method::Copy { name: name.to_owned(), path: path.clone(), direction: Copying::Out };
    let reason = Reason::new()?;
    let reason = client.send(method, true, vec![theirs, reason.theirs]).map(|_| reason.ours)?;
    let read = read(ours.into());
    let what = || format!("cannot copy '{path}' out of guest '{name}'");
    match (read, finished(&mut client, reason)) {
        // A stream that is cut short has its cause there.
        (_, Err(reason)) if reason.is::<Fault>() => Err(reason).with_context(what),
        (Err(error), _) => Err(error).with_context(what),
        (Ok(()), finished) => finished.with_context(what).map(|()| 0),
    }
}

fn stopped_reading(error: &anyhow::Error) -> bool {
    let broken = |error: &std::io::Error| error.kind() == ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(broken))
}

/// Where the guest's side says why it failed.
struct Reason {
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl Reason {
    fn new() -> anyhow::Result<Self> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe")?;
        Ok(Self { ours, theirs })
    }
}

/// What the guest's side said, a sentence each. It runs among the guest's processes, so its words are the guest's too.
fn words(reason: &OwnedFd) -> Vec<String> {
    const LONGEST: usize = 4096;
    let mut bytes = [0; LONGEST];
    let read = rustix::io::ioctl_fionbio(reason, true).and_then(|()| rustix::io::read(reason, &mut bytes));
    let text = String::from_utf8_lossy(&bytes[..read.unwrap_or(0)]).into_owned();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let sentence = |line: &str| line.strip_prefix("pando: ").unwrap_or(line).trim_end_matches('.').to_owned();
    lines.map(|line| crate::printable::printable(&sentence(line)).to_string()).collect()
}

/// Waits for the guest's side to end well.
fn finished(client: &mut Client, reason: OwnedFd) -> anyhow::Result<()> {
    loop {
        let answer = client.receive::<Noticed>()?;
        let notice = answer.reply.notice;
        match (notice.exited, notice.exit_code) {
            (true, Some(0)) => return left_behind(words(&reason)),
            (true, Some(code)) => match words(&reason).pop() {
                Some(words) => bail!("{words}"),
                None => bail!("its side of the copy ended with exit code {code}"),
            },
            (true, None) => bail!("nobody could tell how its side of the copy ended"),
            (false, _) => ensure!(answer.continues, "the daemon said no more about it"),
        }
    }
}

impl Verb for Pack {
    const NAME: &'static str = "pack";
    const ABOUT: &'static str = "Write a tar stream of a path; the guest's side of cp";
    const EXAMPLES: &'static str = "";
    const NEEDS_ROOT: bool = false;
    const HIDDEN: bool = true;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        left_behind(pack(&self.path, Links::Followed, std::io::stdout().lock(), Owners::Kept)?)?;
        Ok(0)
    }
}

impl Verb for Unpack {
    const NAME: &'static str = "unpack";
    const ABOUT: &'static str = "Unpack a tar stream at a path; the guest's side of cp";
    const EXAMPLES: &'static str = "";
    const NEEDS_ROOT: bool = false;
    const HIDDEN: bool = true;

    fn run(self, _: &StateRoot) -> anyhow::Result<u8> {
        left_behind(unpack_own(std::io::stdin().lock(), Landing::at(Path::new(&self.path), Links::Followed)?)?)?;
        Ok(0)
    }
}
