//! `pando tx begin` and `pando tx enter`: a transaction over several commands.

use super::guest;
use super::holder::{Holder, Purpose, Shifted};
use super::supervised::{Manner, Supervised};
use super::wait::{Waited, Waiting};
use crate::complaint::Usage;
use crate::session::{TerminalOptions, attach_instead};
use crate::state_root::StateRoot;
use crate::verb::exec::login_shell;
use anyhow::{Context, bail};
use pando_api::Method;
use pando_tx::{MOST_VIEWS, Network, Record, Running, StartError, StateDirectory, TxName, WhenUnsupported};
use std::ffi::OsString;
use std::io::ErrorKind;

#[derive(Debug, clap::Args)]
pub(super) struct Begin {
    /// The transaction's name
    name: TxName,
    /// In this guest, which must be running
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Enter {
    /// The transaction's name
    name: TxName,
    /// The guest that it is in
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
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

impl Begin {
    pub(super) fn new(name: TxName, guest: Option<String>) -> Self {
        Self { name, guest }
    }

    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        self.begin(root, None).map(|()| 0)
    }

    /// Starts the holder, and waits until it holds. With a purpose it ends with this process.
    pub(super) fn begin(&self, root: &StateRoot, purpose: Option<&Purpose>) -> anyhow::Result<()> {
        let guest = self.guest.as_deref();
        let home = guest::home(root, guest)?;
        pando_tx::recover(&home).context("cannot look after earlier transactions")?;
        let target = guest.map(|guest| guest::target(root, guest)).transpose()?;
        let mut views = 0;
        loop {
            let started = Holder::start(root, &self.name, guest.zip(target.as_ref()), purpose);
            let is_shifted = started.as_ref().is_err_and(|error| error.is::<Shifted>());
            if is_shifted {
                pando_tx::abort_open(&home, &self.name, None)?;
            }
            if !is_shifted || views == MOST_VIEWS {
                return started.map(drop);
            }
            views += 1;
        }
    }
}

impl Enter {
    /// A command, or a shell, of which nothing that cannot be undone is let.
    pub(super) fn new(name: TxName, guest: Option<String>, command: Vec<OsString>) -> Self {
        Self { name, guest, unsupported: HowEntered::Refuse, command }
    }

    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        super::standard_descriptors::lead_nowhere()?;
        let home = &guest::home(root, self.guest.as_deref())?;
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
        if let Some(guest) = self.guest {
            let command: Vec<OsString> = match self.command.is_empty() {
                true => login_shell().into_iter().map(Into::into).collect(),
                false => self.command,
            };
            return enter_guest(root, home, &guest, &record, self.unsupported.when(), &command);
        }
        let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        let command = if self.command.is_empty() { vec![shell()] } else { self.command };
        let mut waiting = Waiting::take()?;
        match Running::entering(home, &record, &command) {
            Ok(running) => match waiting.wait(running, None, self.unsupported.when(), None)? {
                Waited::Ended(rest) => {
                    pando_tx::note_reached(home, &record, &rest.passed).context("cannot note what it has reached")?;
                    Ok(rest.ended.code())
                }
                Waited::TooLong(_) | Waited::Stopped(..) | Waited::Gone(_) => bail!("the command's end was not seen"),
            },
            Err(StartError::Command(error)) => {
                let code = if error.source.kind() == ErrorKind::NotFound { 127 } else { 126 };
                eprintln!("pando: {}", crate::complaint::sentences(&error.into()));
                Ok(code)
            }
            Err(error) => Err(anyhow::Error::new(error).context("cannot enter the transaction")),
        }
    }
}

fn enter_guest(
    root: &StateRoot,
    home: &StateDirectory,
    guest: &str,
    record: &Record,
    when: WhenUnsupported,
    command: &[OsString],
) -> anyhow::Result<u8> {
    let network = Network::Pass;
    let manner = Manner { network, when, note_signals: true, looks: false };
    let (supervised, socket) = Supervised::begin(home, record, manner)?;
    let process = guest::process(&record.name, record.holder(), network, command);
    let exec = |process| Method::Exec { name: guest.to_owned(), process };
    let code = attach_instead(
        root,
        TerminalOptions::without_keys(),
        &Default::default(),
        (Some(&socket), None),
        process,
        exec,
    );
    drop(socket);
    supervised.end()?;
    code
}
