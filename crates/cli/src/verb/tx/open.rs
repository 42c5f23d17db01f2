//! `pando tx begin` and `pando tx enter`: a transaction over several commands.

use super::wait::{Waited, Waiting};
use crate::complaint::Usage;
use crate::state_root::StateRoot;
use anyhow::{Context, bail};
use pando_tx::{Home, Running, StartError, Transaction, TxName, WhenUnsupported};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// What the holder says once the view is there.
const READY: &str = "ready";

#[derive(Debug, clap::Args)]
pub(super) struct Begin {
    /// The transaction's name
    name: TxName,
}

#[derive(Debug, clap::Args)]
pub(super) struct Enter {
    /// The transaction's name
    name: TxName,
    /// What to do when the command does what cannot be undone
    #[arg(long, value_name = "HOW", default_value = "refuse")]
    unsupported: HowEntered,
    /// What to run, and its arguments [default: a shell]
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HowEntered {
    /// Do not let it, and say so
    Refuse,
    /// Let it, and say so
    Warn,
}

impl HowEntered {
    fn when(self) -> WhenUnsupported {
        match self {
            Self::Refuse => WhenUnsupported::Refuse,
            Self::Warn => WhenUnsupported::Warn,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Hold {
    name: TxName,
}

impl Begin {
    /// Starts the holder, and waits until it holds.
    pub(super) fn run(self, root: &StateRoot, home: &Home) -> anyhow::Result<u8> {
        pando_tx::recover(home).context("cannot look after earlier transactions")?;
        let mut holder = Command::new("/proc/self/exe")
            .arg0("pando")
            .arg("--root")
            .arg(root.directory())
            .args(["tx", "hold", self.name.as_ref()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start a process for the transaction")?;
        let mut line = String::new();
        if let Some(out) = holder.stdout.take() {
            BufReader::new(out).read_line(&mut line).context("cannot hear from the transaction's process")?;
        }
        if line.trim_end() != READY {
            // It has said why.
            let _ = holder.wait();
            return Err(crate::complaint::Told.into());
        }
        Ok(0)
    }
}

impl Hold {
    pub(super) fn run(self, home: &Home) -> anyhow::Result<u8> {
        rustix::thread::set_name(c"pando-tx").context("cannot take a name")?;
        rustix::process::setsid().context("cannot leave the session")?;
        let (mut transaction, plan) =
            Transaction::begin(home, &self.name, &[]).context("cannot begin a transaction")?;
        let view = transaction.hold(&plan).context("cannot make the transaction's view")?;
        let mut out = std::io::stdout();
        writeln!(out, "{READY}").and_then(|()| out.flush()).context("cannot say that the transaction is there")?;
        // Nothing is to keep the caller's pipes open.
        let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdout(&null)
            .and_then(|()| rustix::stdio::dup2_stderr(&null))
            .context("cannot close the output")?;
        loop {
            std::thread::park();
            // Until it is killed, by `commit` or `abort`.
            std::hint::black_box((&transaction, &view));
        }
    }
}

impl Enter {
    pub(super) fn run(self, home: &Home) -> anyhow::Result<u8> {
        let records = home.records().context("cannot list the transactions")?;
        let Some(record) = records.into_iter().find(|record| record.name == self.name) else {
            return Err(
                Usage::sentence(format!("there is no transaction '{}'; `pando tx ls` lists them", self.name)).into()
            );
        };
        if !record.command.is_empty() {
            return Err(
                Usage::sentence(format!("'{}' runs a command of its own, and cannot be entered", self.name)).into()
            );
        }
        let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        let command = if self.command.is_empty() { vec![shell()] } else { self.command };
        let mut waiting = Waiting::take()?;
        match Running::entering(home, &record, &command) {
            Ok(running) => match waiting.wait(running, None, self.unsupported.when())? {
                Waited::Ended(rest) => Ok(rest.ended.code()),
                Waited::TooLong | Waited::Unsupported(_) => bail!("the command's end was not seen"),
            },
            Err(StartError::Command(error)) => {
                let code = if error.source.kind() == ErrorKind::NotFound { 127 } else { 126 };
                eprintln!("pando: {}", crate::complaint::sentences(&error.into()));
                Ok(code)
            }
            Err(StartError::View(error)) => Err(anyhow::Error::new(error).context("cannot enter the transaction")),
        }
    }
}
