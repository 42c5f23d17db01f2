//! `pando daemon` and `pando spawner`: the processes that stay.

use super::Verb;
use crate::replies::Reloaded;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;
use pando_daemon::ServeError;
use pando_guest::Places;

#[derive(Debug, clap::Args)]
pub(crate) struct Daemon {
    /// Leave the session of whoever started it: for the command itself, which starts the daemon when it is missing
    #[arg(long)]
    background: bool,
    /// What a daemon that runs is told to do
    #[arg(conflicts_with = "background")]
    action: Option<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    /// Read pando.toml again, and say what holds now
    Reload,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Spawner {}

impl Verb for Daemon {
    const NAME: &'static str = "daemon";
    const ABOUT: &'static str = "Be the daemon; every command starts it when it is missing";
    const EXAMPLES: &'static str = "\
Examples:
  pando daemon                   in the foreground, for systemd or to see what it says
  pando daemon reload            have the one that runs read /etc/pando/pando.toml again
  pando --root /tmp/t daemon     a second one, with state of its own";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        if let Some(Action::Reload) = self.action {
            return reload(root);
        }
        if self.background {
            // Started through /proc/self/exe, it would be called "exe" in ps and top.
            rustix::thread::set_name(c"pando").context("cannot take a name")?;
            rustix::process::setsid().context("cannot leave the session of the caller")?;
            crate::callers_traits::shed();
        }
        // Whoever started it may have blocked some, a command that stands for a process among them; it has to hear of
        // its own end.
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

/// Has the daemon read its settings again; 1 if something is wrong with them.
fn reload(root: &StateRoot) -> anyhow::Result<u8> {
    let Some(mut client) = crate::daemon_start::if_running(root)? else {
        crate::table::print("no daemon runs; the next one reads the settings when it starts\n")?;
        return Ok(0);
    };
    let Reloaded { applied, at_next_daemon, problems } =
        client.call(Method::Reload {}).context("cannot have the daemon read its settings")?;
    let mut lines: Vec<String> = applied.iter().map(|line| format!("holds now: {line}\n")).collect();
    lines.extend(at_next_daemon.iter().map(|line| format!("holds when the daemon is started again: {line}\n")));
    if lines.is_empty() {
        lines.push("nothing has changed\n".to_owned());
    }
    crate::table::print(&crate::printable::printable_lines(&lines.concat()))?;
    for problem in &problems {
        eprintln!("pando: {}", crate::printable::printable(problem));
    }
    Ok(u8::from(!problems.is_empty()))
}

impl Verb for Spawner {
    const NAME: &'static str = "spawner";
    const ABOUT: &'static str = "Be the process that makes guests; the daemon starts it";
    const EXAMPLES: &'static str = "";
    const HIDDEN: bool = true;

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        // Guests are not, however urgent whoever started the daemon was; control groups of version 1 would not even
        // take them in.
        pando_kernel::process::real_time::leave().context("cannot be an ordinary process")?;
        pando_daemon::spawn(&Places::new(root.directory())).context("cannot be the spawner")?;
        Ok(0)
    }
}
