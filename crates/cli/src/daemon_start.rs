//! A connection to the daemon, which is started when it is not there.

use crate::client::Client;
use crate::state_root::{LOG, StateRoot};
use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a daemon may take until it answers: it re-adopts every guest first.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pauses between two tries: from the shortest, doubled each time, to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long whoever has the lock is waited for until another daemon is started.
const ANOTHER_TRY: Duration = Duration::from_millis(200);
/// How much of the daemon's log a complaint shows.
const LOG_LINES: usize = 5;

/// A connection to the daemon of `root`, after starting it if nobody listens.
pub(crate) fn connected(root: &StateRoot) -> anyhow::Result<Client> {
    let next = root.clone();
    Ok(reach(root)?.or_next(move || reach(&next)))
}

fn reach(root: &StateRoot) -> anyhow::Result<Client> {
    match if_running(root)? {
        Some(client) => Ok(client),
        None => started(root),
    }
}

/// A connection to the daemon of `root` if there is one.
pub(crate) fn if_running(root: &StateRoot) -> anyhow::Result<Option<Client>> {
    match Client::connect(&root.socket()) {
        Ok(client) => Ok(Some(client)),
        Err(error) if nobody_listens(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot reach the daemon on {}", root.socket().display())),
    }
}

/// No socket, or one that a dead daemon left behind.
fn nobody_listens(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

fn started(root: &StateRoot) -> anyhow::Result<Client> {
    crate::inside_transaction::refuse("starting Pando's daemon, without which there are no guests,")?;
    let mut daemon = spawn(root)?;
    let until = Instant::now() + PATIENCE;
    let mut pause = PAUSES.0;
    let mut lost = None;
    while Instant::now() < until {
        sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
        if let Some(client) = if_running(root)? {
            return Ok(client);
        }
        let ended = daemon.try_wait().context("cannot watch the daemon start")?;
        if let Some(status) = ended.filter(|status| !status.success()) {
            bail!("the daemon ended as soon as it was started ({status}).{}", last_words(root));
        }
        // Of two daemons that start at once one loses the lock and leaves with success, and the other will answer:
        // unless that one was being killed, and a thread of it held the lock a little longer.
        if ended.is_some() && lost.get_or_insert_with(Instant::now).elapsed() > ANOTHER_TRY {
            daemon = spawn(root)?;
            lost = None;
        }
    }
    bail!(
        "the daemon was started but has not answered on {} within {} seconds.{}",
        root.socket().display(),
        PATIENCE.as_secs(),
        last_words(root)
    )
}

/// Starts the daemon away from everything of the caller's: descriptors, directory, environment; it leaves the session
/// by itself.
fn spawn(root: &StateRoot) -> anyhow::Result<Child> {
    let run = root.make_run().context("cannot start the daemon")?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
    let log = run.file(LOG, flags, Mode::from_raw_mode(0o600)).context("cannot open the daemon's log")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pando").arg("--root").arg(root.directory()).args(["daemon", "--background"]);
    // Guests inherit nothing from whoever happened to be the first to call.
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    for kept in ["PANDO_LOG", "RUST_LOG", "RUST_BACKTRACE"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().context("cannot start the daemon")
}

/// The end of the daemon's log, as a sentence of its own.
fn last_words(root: &StateRoot) -> String {
    let path = root.daemon_log();
    let tail = tail_of(&path).unwrap_or_default();
    let lines: Vec<&str> = tail.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    if last.is_empty() {
        return format!(" Its log {} is empty; `pando daemon` in another terminal shows more", path.display());
    }
    let shown: Vec<String> = last.iter().map(|line| format!("\n  {}", crate::printable::printable(line))).collect();
    format!(" Its log {} ends with:{}", path.display(), shown.concat())
}

fn tail_of(path: &std::path::Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(4096);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(4096).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_listens_on_a_missing_or_dead_socket() {
        let directory = tempfile::tempdir().unwrap();
        let root = StateRoot::at(directory.path().to_str().unwrap()).unwrap();
        assert!(if_running(&root).unwrap().is_none());
        std::fs::create_dir_all(root.run()).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(root.socket()).unwrap();
        assert!(if_running(&root).unwrap().is_some());
        drop(listener);
        assert!(if_running(&root).unwrap().is_none());
    }

    #[test]
    fn the_last_words_are_few() {
        let directory = tempfile::tempdir().unwrap();
        let root = StateRoot::at(directory.path().to_str().unwrap()).unwrap();
        assert!(last_words(&root).contains("is empty"));
        std::fs::create_dir_all(root.run()).unwrap();
        let text: String = (0..2000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(root.daemon_log(), text).unwrap();
        let words = last_words(&root);
        assert!(words.ends_with("\n  line 1998\n  line 1999") && !words.contains("line 1994"), "{words}");
    }
}
