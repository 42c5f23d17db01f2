//! `pando tx serve`: has users' transactions run, each by a worker of its own.

use super::allowed::Allowed;
use super::conversation;
use super::request::Answer;
use super::worker::UNFINISHED;
use crate::complaint::OWN_FAILURE;
use crate::state_root::StateRoot;
use crate::verb::tx::settings::{self, UsersSettings};
use anyhow::{Context, ensure};
use pando_kernel::file::lock::FileLock;
use pando_kernel::file::trusted_directory::TrustedDirectory;
use pando_kernel::process::user_rights::peer;
use pando_kernel::socket::packet;
use pando_tx::StateDirectory;
use rustix::fs::{Mode, OFlags};
use rustix::net::{SocketFlags, accept_with};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// No more run at once, whoever's they are: each takes of what the kernel has for all of root's transactions.
const MOST: usize = 16;

/// Serves until it is killed. Who may have transactions is looked up for each: `[transactions] users` in pando.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {}

/// How many transactions each user has.
type Running = Arc<Mutex<HashMap<u32, u32>>>;

/// One of them, as long as it lives.
struct Turn(Running, u32);

impl Turn {
    /// One more for a user, if he has not as many as he may.
    fn take(running: &Running, uid: u32, most: u32) -> Result<Self, String> {
        let mut counts = running.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.values().sum::<u32>() as usize >= MOST {
            return Err(format!("{MOST} transactions of users run already; try again when one of them has ended"));
        }
        let count = counts.entry(uid).or_default();
        if *count >= most {
            return Err(format!(
                "{count} of your transactions run already, and pando.toml allows no more at once (users_at_once)"
            ));
        }
        *count += 1;
        Ok(Self(Arc::clone(running), uid))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

impl Serve {
    pub(crate) fn run(self, root: &StateRoot, home: &StateDirectory) -> anyhow::Result<u8> {
        let settings = settings::of_users(root)?;
        ensure!(
            !settings.users.is_empty(),
            "nobody but root may have transactions. Name those who may in pando.toml: [transactions] users = [\"alice\", \"@staff\"]"
        );
        let run = root.make_run().context("cannot make the directory that the socket lies in")?;
        let _lock =
            locked(&run).context("cannot lock the socket")?.context("users' transactions are served already")?;
        let socket = listen(&super::socket(root))?;
        // What the workers of a former server have left.
        pando_tx::recover(home).context("cannot recover what a former server left")?;
        eprintln!("pando: users' transactions are served at {}", super::socket(root).display());
        let running = Running::default();
        loop {
            match accept_with(&socket, SocketFlags::CLOEXEC) {
                Ok(connection) => take_in(root, home, &running, connection),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                // Others have to end first.
                Err(error) => {
                    eprintln!("pando: cannot take a connection: {error}");
                    std::thread::sleep(std::time::Duration::from_secs(1));
                }
            }
        }
    }
}

/// What only one server has. Whoever could open the file could lock it, so that there would be none.
fn locked(run: &TrustedDirectory) -> anyhow::Result<Option<FileLock>> {
    let private = Mode::RUSR | Mode::WUSR;
    let file = run.file("tx-users.lock", OFlags::CREATE | OFlags::WRONLY, private)?;
    // One that was made by an earlier version was open to all.
    rustix::fs::fchmod(&file, private)?;
    Ok(FileLock::try_on(file)?)
}

/// A socket that everybody may connect to; who may have more is asked by the kernel's word on who that is.
fn listen(path: &Path) -> anyhow::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        _ => {}
    }
    let socket = packet::listen(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    let everybody = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path, everybody).with_context(|| format!("cannot open {} to users", path.display()))?;
    Ok(socket)
}

/// Has a worker do what a user asks, or tells him why not.
fn take_in(root: &StateRoot, home: &StateDirectory, running: &Running, connection: OwnedFd) {
    let turn = match admitted(root, running, &connection) {
        Ok(turn) => turn,
        Err(error) => {
            let line = crate::complaint::sentences(&error);
            let _ =
                conversation::answer(&connection, &Answer::End { code: OWN_FAILURE, line, again: false, failed: true });
            return;
        }
    };
    let (root, home) = (root.clone(), home.clone());
    let work = move || {
        let end = connection.try_clone();
        if let Err(error) = work(&root, &home, connection) {
            eprintln!("pando: {}", crate::complaint::sentences(&error));
        }
        drop(turn);
        // Whoever has asked sees by that that his turn is over, and can ask again.
        drop(end);
    };
    if let Err(error) = std::thread::Builder::new().name("pando-worker".into()).spawn(work) {
        eprintln!("pando: cannot start a thread for a user's transaction: {error}");
    }
}

fn admitted(root: &StateRoot, running: &Running, connection: &OwnedFd) -> anyhow::Result<Turn> {
    let (ids, _) = peer(connection.as_raw_fd()).context("cannot tell who asks")?;
    let settings: UsersSettings = settings::of_users(root)?;
    let allowed = Allowed::of(&settings);
    for name in &allowed.unknown {
        eprintln!(
            "pando: pando.toml names '{name}' among those who may have transactions, and there is no such user or group"
        );
    }
    ensure!(
        allowed.has(&ids),
        "you (user {}) may not have transactions. Root says who may: [transactions] users in pando.toml",
        ids.uid
    );
    Turn::take(running, ids.uid, settings.users_at_once).map_err(anyhow::Error::msg)
}

/// Starts a worker and waits for its end. It ends with this thread.
fn work(root: &StateRoot, home: &StateDirectory, connection: OwnedFd) -> anyhow::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando").arg("--root").arg(root.directory()).args(["tx", "work"]).current_dir("/");
    command.stdin(connection).stdout(Stdio::null());
    let mut worker = command.spawn().context("cannot start a worker for a user's transaction")?;
    drop(command);
    let status = worker.wait().context("cannot wait for a worker")?;
    if status.signal().is_some() || status.code() == Some(UNFINISHED.into()) {
        pando_tx::recover(home).context("cannot recover what a worker left")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_bounded_for_each_user_and_for_all() {
        let running = Running::default();
        let one = Turn::take(&running, 7, 1).unwrap();
        assert!(Turn::take(&running, 7, 1).is_err_and(|why| why.contains("users_at_once")));
        let _others: Vec<_> = (100..100 + MOST as u32 - 1).map(|uid| Turn::take(&running, uid, 1).unwrap()).collect();
        assert!(Turn::take(&running, 8, 1).is_err_and(|why| why.contains("of users run already")));
        drop(one);
        assert!(Turn::take(&running, 7, 1).is_ok());
    }
}
