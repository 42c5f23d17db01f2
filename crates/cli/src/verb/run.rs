//! `pando run`: a process in a fresh guest that goes away with it.

use super::Verb;
use super::exec::login_shell;
use crate::complaint::Usage;
use crate::foreign_words;
use crate::guest_options::GuestOptions;
use crate::session::{TerminalOptions, attach, start_detached};
use crate::source::REGISTRY;
use crate::state_root::StateRoot;
use pando_api::{Fault, FaultKind, Method, Process};

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Run {
    /// The guest's name [default: one that is free]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Accepted for the habit: a guest of `run` always goes away
    #[arg(long, hide = true)]
    rm: bool,
    /// Leave it running and print the guest's name; what it prints goes to its log. With -t it keeps a terminal that
    /// nobody looks at
    #[arg(short, long)]
    detach: bool,
    #[command(flatten)]
    guest: GuestOptions,
    #[command(flatten)]
    terminal: TerminalOptions,
    /// What to run, and its arguments [default on a terminal: a shell]
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    /// What the line `pando run --name NAME --from SOURCE --net NETWORK -- COMMAND` means.
    pub(crate) fn plain(
        name: Option<String>,
        source: Option<String>,
        network: Option<&str>,
        command: Vec<String>,
    ) -> Self {
        Self { name, guest: GuestOptions::plain(source, network), command, ..Self::default() }
    }

    /// The terminal that it is to have, and the call.
    pub(crate) fn into_order(
        self,
        root: &StateRoot,
    ) -> anyhow::Result<(TerminalOptions, impl FnOnce(Process) -> Method)> {
        let source = self.guest.from.clone();
        let mut spec = self.guest.into_spec(root, self.command)?;
        // Otherwise the caller's own is passed on.
        spec.stdin_open = self.detach && (self.terminal.interactive || spec.stdin_open);
        // An image may bring a command of its own, and an init needs none.
        let needs_command = spec.init.is_none() && !source.as_deref().is_some_and(brings_command);
        if spec.command.is_empty() && spec.entrypoint.is_none() && needs_command {
            let terminal = if self.detach { self.terminal.demanded() } else { self.terminal.wanted() };
            if !terminal {
                return Err(Usage::sentence(
                    "there is nothing to run: give a command, for example `pando run -- uname -a`",
                )
                .into());
            }
            spec.command = login_shell();
        }
        let name = self.name;
        Ok((self.terminal, |process| Method::Run { name, source, spec, process }))
    }
}

impl Verb for Run {
    const NAME: &'static str = "run";
    const ABOUT: &'static str = "Run a command in a fresh guest that goes away when it ends";
    const EXAMPLES: &'static str = "\
Examples:
  pando run -- python3 -c 'print(\"hello\")'       over the host's own files; what it writes is dropped
  pando run --from debian:bookworm               a shell in another system
  pando run --from nginx:1.27                    what the image runs
  pando run -v .:/src:ro -w /src -- make check   with a directory of the host's, read-only
  pando run --read-only --tmpfs /tmp -- ./job    it can write to /tmp alone
  pando run --net host -e LANG=C -- curl example.org
  pando run -d --name job -- ./work              in the background: `pando logs -f job`, `pando wait job`, `pando stop job`
  pando run -d -i --name sum -- bc               the same with an input: `pando attach sum`
  pando run --net front --device /dev/net/tun --cap-add NET_ADMIN -- openvpn c.conf

The exit code is the command's own; 125 is Pando's failure, 126 and 127 say that the command cannot be run or found.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let image = self.guest.from.is_none().then(|| self.command.first().cloned()).flatten();
        let detach = self.detach;
        crate::pulling::have(root, self.guest.from.as_deref())?;
        let (terminal, method) = self.into_order(root)?;
        let done = match detach {
            true => start_detached(root, terminal.demanded(), Process::default(), method)
                .and_then(|notice| {
                    if let Some(note) = &notice.note {
                        eprintln!("pando: warning: {}", crate::printable::printable(note));
                    }
                    crate::table::print(&format!("{}\n", notice.guest))
                })
                .map(|()| 0),
            false => attach(root, terminal, Process::default(), method),
        };
        done.map_err(|error| perhaps_an_image(error, image.as_deref()))
    }
}

/// Whether a source may say itself what is to run.
fn brings_command(source: &str) -> bool {
    source.starts_with("oci:") || source.starts_with(REGISTRY)
}

/// Elsewhere the first word is an image. Where there is no command of that name it may have been meant so.
fn perhaps_an_image(error: anyhow::Error, word: Option<&str>) -> anyhow::Error {
    let fault = error.downcast_ref::<Fault>().filter(|fault| fault.kind == FaultKind::CommandNotFound);
    match (fault, word.filter(|word| !word.starts_with(['/', '.'])).and_then(foreign_words::image)) {
        (Some(fault), Some(how)) => {
            let message = format!(
                "{}. `pando run` takes a command, and runs it over this machine's own files; if an image was meant: {how}.",
                fault.message.trim_end_matches('.')
            );
            Fault { message, ..fault.clone() }.into()
        }
        _ => error,
    }
}
