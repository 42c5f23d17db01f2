//! `pando daemon` and `pando spawner`: the processes that stay.

use super::Verb;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_daemon::ServeError;
use pando_guest::Places;

#[derive(Debug, clap::Args)]
pub(crate) struct Daemon {
    /// Leave the session of whoever started it: for the command itself, which starts the daemon when it is missing
    #[arg(long)]
    background: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Spawner {}

impl Verb for Daemon {
    const NAME: &'static str = "daemon";
    const ABOUT: &'static str = "Be the daemon; every command starts it when it is missing";
    const EXAMPLES: &'static str = "\
Examples:
  pando daemon                   in the foreground, for systemd or to see what it says
  pando --root /tmp/t daemon     a second one, with state of its own";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        if self.background {
            // Started through /proc/self/exe, it would be called "exe" in ps and top.
            rustix::thread::set_name(c"pando").context("cannot take a name")?;
            rustix::process::setsid().context("cannot leave the session of the caller")?;
            crate::callers_traits::shed();
        }
        // Whoever started it may have blocked some, a command that stands for a process among them; it has to hear of its own end.
        nix::sys::signal::SigSet::empty()
            .thread_set_mask()
            .map_err(std::io::Error::from)
            .context("cannot take signals")?;
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("PANDO_LOG").unwrap_or_else(|_| "info".into()))
            .init();
        root.check().context("cannot be the daemon")?;
        super::tx::recover_first(root);
        match pando_daemon::serve(Places::new(root.directory())) {
            // Two commands that found no daemon started one each: the other one's is as good.
            Err(ServeError::Already(_)) if self.background => Ok(0),
            outcome => outcome.map(|()| 0).context("cannot be the daemon"),
        }
    }
}

impl Verb for Spawner {
    const NAME: &'static str = "spawner";
    const ABOUT: &'static str = "Be the process that makes guests; the daemon starts it";
    const EXAMPLES: &'static str = "";
    const HIDDEN: bool = true;

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        // Guests are not, however urgent whoever started the daemon was; control groups of version 1 would not even take them in.
        pando_kernel::real_time::leave().context("cannot be an ordinary process")?;
        pando_daemon::spawn(&Places::new(root.directory())).context("cannot be the spawner")?;
        Ok(0)
    }
}
