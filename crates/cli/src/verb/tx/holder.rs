//! The process that keeps the view of a transaction that is begun and entered.

use super::guest;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{Moment, StartError, Target, Transaction, TxName};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// What it says once the view is there; the mounts that are read-only in it follow, one a line, and an empty line.
const READY: &str = "ready";

/// What it says instead where the view cannot be made.
const SHIFTED: &str = "shifted";

/// The view would have been of what was mounted a moment before.
#[derive(Debug, thiserror::Error)]
#[error("what is mounted was changed while the view was made")]
pub(super) struct Shifted;

/// The one command that a transaction is for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Purpose {
    /// What is run, to be shown; nothing if commands are to enter it.
    pub(super) command: Vec<String>,
    /// When its first run began, where this is a later one.
    pub(super) first_begun: Option<Moment>,
    /// Where what it reads is not validated.
    pub(super) ignored: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Hold {
    name: TxName,
    /// The guest that it is in
    #[arg(long)]
    guest: Option<String>,
    /// That guest, as JSON
    #[arg(long, requires = "guest")]
    target: Option<String>,
    /// End, with all of the transaction's processes, when this process ends
    #[arg(long)]
    with: Option<i32>,
    /// What it is for, as JSON
    #[arg(long)]
    purpose: Option<String>,
}

/// One that was started by this process.
pub(super) struct Holder {
    child: Child,
    read_only: Vec<String>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It has been ended by the commit or the abort, or goes on by itself: what has ended is taken note of.
        let _ = self.child.try_wait();
    }
}

impl Holder {
    /// Starts it, and waits until it holds. With a purpose it ends with this process.
    pub(super) fn start(
        root: &StateRoot,
        name: &TxName,
        target: Option<(&str, &Target)>,
        purpose: Option<&Purpose>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pando").arg("--root").arg(root.directory()).args(["tx", "hold", name.as_ref()]);
        if let Some((guest, target)) = target {
            let target = serde_json::to_string(target).context("cannot describe the guest")?;
            command.args(["--guest", guest, "--target", &target]);
        }
        if let Some(purpose) = purpose {
            let purpose = serde_json::to_string(purpose).context("cannot describe the command")?;
            command.args(["--with", &std::process::id().to_string(), "--purpose", &purpose]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("cannot start a process for the transaction")?;
        let out = child.stdout.take().context("cannot hear from the transaction's process")?;
        let mut lines = BufReader::new(out).lines();
        let first = lines.next().transpose().context("cannot hear from the transaction's process")?;
        if first.as_deref() != Some(READY) {
            let _ = child.wait();
            // Else it has said why.
            let why = if first.as_deref() == Some(SHIFTED) { Shifted.into() } else { crate::complaint::Told.into() };
            return Err(why);
        }
        let read_only = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        Ok(Self { child, read_only })
    }

    /// Mounts that can be written outside and not in the transaction.
    pub(super) fn read_only(&self) -> &[String] {
        &self.read_only
    }
}

impl Hold {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        rustix::thread::set_name(c"pando-tx").context("cannot take a name")?;
        rustix::process::setsid().context("cannot leave the session")?;
        let home = &guest::home(root, self.guest.as_deref())?;
        let target: Option<Target> = self.target.as_deref().map(serde_json::from_str).transpose()?;
        let awaited = self.awaited(target.as_ref())?;
        let purpose: Option<Purpose> = self.purpose.as_deref().map(serde_json::from_str).transpose()?;
        let Purpose { command, first_begun, ignored } = purpose.unwrap_or_default();
        let (mut transaction, plan) = Transaction::begin_in(home, &self.name, &command, first_begun, target)
            .context("cannot begin a transaction")?;
        transaction.ignore(&ignored).context("cannot note what is ignored")?;
        let killer = transaction.killer()?;
        let view = match transaction.hold(&plan) {
            Err(StartError::Shifted) => {
                println!("{SHIFTED}");
                return Ok(crate::complaint::OWN_FAILURE);
            }
            held => held.context("cannot make the transaction's view")?,
        };
        let lines = plan.read_only().map(|path| format!("{}\n", path.display()));
        let text = format!("{READY}\n{}\n", lines.collect::<String>());
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .context("cannot say that the transaction is there")?;
        // Nothing is to keep the caller's pipes open. What it is directed to was opened before the view was entered.
        rustix::stdio::dup2_stdout(std::io::stdin().as_fd())
            .and_then(|()| rustix::stdio::dup2_stderr(std::io::stdin().as_fd()))
            .context("cannot close the output")?;
        // Until it is killed, by `commit` or `abort`.
        wait_for_any(&awaited);
        std::hint::black_box((&transaction, &view));
        end(killer)
    }

    /// The processes whose end is this one's: the one that started it, if it is to be so, and the guest's first.
    fn awaited(&self, target: Option<&Target>) -> anyhow::Result<Vec<OwnedFd>> {
        let first = target.and_then(Target::first_process);
        let pids = self.with.into_iter().chain(first);
        pids.map(|pid| pando_kernel::process::pidfd::open(pid).with_context(|| format!("process {pid} has gone")))
            .collect()
    }
}

fn wait_for_any(processes: &[OwnedFd]) {
    loop {
        let mut fds: Vec<_> = processes.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Ends the transaction's processes. Its files are left to the next `recover`.
fn end(mut killer: File) -> anyhow::Result<u8> {
    let _ = killer.write_all(b"1");
    Ok(crate::complaint::OWN_FAILURE)
}
