//! Programs of the host's that are run when something happens to a guest: what lies in `/etc/pando/hooks.d`.
//!
//! They are told of it after it has happened, one after another, and nothing waits for them: a hook that fails or hangs
//! is told of as an event, and changes no guest.

use crate::state::daemon::Daemon;
use pando_api::Event;
use pando_kernel::file::trusted_directory::TrustedDirectory;
use rustix::fs::{Mode, OFlags};
use std::collections::HashSet;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// How long one may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What hooks are told of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Occasion {
    /// `create`, `start`, `stop`, `fail`, `unhealthy` or `watchdog`.
    what: &'static str,
    guest: String,
    /// How the guest ended, where that is known.
    exit_code: Option<i32>,
}

/// Which guests were asked to stop since they were started: their end is no failure.
#[derive(Debug, Default)]
struct Asked(HashSet<String>);

impl Asked {
    /// What an event is to hooks, if it is something.
    fn occasion(&mut self, event: &Event) -> Option<Occasion> {
        let exit_code = event.detail.as_deref().and_then(exit_code);
        let what = match event.what.as_str() {
            "create" => "create",
            "start" => {
                self.0.remove(&event.guest);
                "start"
            }
            "stop" | "kill" => {
                self.0.insert(event.guest.clone());
                return None;
            }
            "exit" if self.0.remove(&event.guest) || exit_code == Some(0) => "stop",
            "exit" => "fail",
            "health" if event.detail.as_ref().is_some_and(|detail| detail.starts_with("unhealthy")) => "unhealthy",
            "watchdog-notice" => "watchdog",
            _ => return None,
        };
        Some(Occasion { what, guest: event.guest.clone(), exit_code: exit_code.filter(|_| event.what == "exit") })
    }
}

/// The number in what the event `exit` says.
fn exit_code(detail: &str) -> Option<i32> {
    detail.strip_prefix("exit code ")?.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// Runs them, for as long as the daemon runs.
pub(crate) async fn serve(daemon: Rc<Daemon>, mut events: Receiver<Event>) {
    let directory = daemon.places.hooks();
    let mut asked = Asked::default();
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "hooks take too long: events were missed");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let Some(occasion) = asked.occasion(&event) else { continue };
        if !directory.is_dir() {
            continue;
        }
        let (path, root, told) = (directory.clone(), daemon.places.root().to_owned(), occasion.clone());
        let failures = tokio::task::spawn_blocking(move || run_all(&path, &root, &told)).await.unwrap_or_default();
        for failure in failures {
            daemon.events.tell(&occasion.guest, "hook-failed", Some(failure));
        }
    }
}

/// Runs each in the order of their names: what failed, in sentences. Blocking.
fn run_all(directory: &Path, root: &Path, occasion: &Occasion) -> Vec<String> {
    let hooks = match hooks(directory) {
        Ok(hooks) => hooks,
        Err(error) => return vec![format!("the hooks in {} are not run: {error}", directory.display())],
    };
    let failed = |hook: &PathBuf| {
        let error = run(hook, root, occasion).err()?;
        Some(format!("the hook {} {error}", hook.display()))
    };
    hooks.iter().filter_map(failed).collect()
}

/// The programs in it. Nobody but root may have put something there: root is who runs it.
fn hooks(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let trusted = TrustedDirectory::open(directory)?;
    trusted.holds_nothing_foreign()?;
    let mut hooks = Vec::new();
    for entry in std::fs::read_dir(trusted.path())? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let Ok(file) = trusted.file(name, OFlags::RDONLY, Mode::empty()) else { continue };
        let mode = file.metadata()?.permissions().mode();
        if mode & 0o022 != 0 {
            return Err(io::Error::other(format!("others than root may write to '{name}'; chmod go-w it")));
        }
        if mode & 0o111 != 0 {
            hooks.push(trusted.path().join(name));
        }
    }
    hooks.sort();
    Ok(hooks)
}

fn run(hook: &Path, root: &Path, occasion: &Occasion) -> Result<(), String> {
    let exit_code = occasion.exit_code.map_or_else(String::new, |code| code.to_string());
    let mut child = Command::new(hook)
        .args([occasion.what, &occasion.guest])
        .env("PANDO_EVENT", occasion.what)
        .env("PANDO_GUEST", &occasion.guest)
        .env("PANDO_EXIT_CODE", exit_code)
        .env("PANDO_ROOT", root)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // What it leaves behind is no part of the daemon's group.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot be run: {error}"))?;
    let until = Instant::now() + LIMIT;
    loop {
        match child.try_wait().map_err(|error| format!("cannot be waited for: {error}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("failed ({status}) when told '{}'", occasion.what)),
            None if Instant::now() < until => std::thread::sleep(LOOK),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not end within {} seconds, and was killed", LIMIT.as_secs()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: &str, detail: Option<&str>) -> Event {
        Event { time_ms: 0, guest: "web".into(), what: what.into(), detail: detail.map(ToOwned::to_owned) }
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_a_failure() {
        let mut asked = Asked::default();
        let mut what = |name, detail| asked.occasion(&event(name, detail)).map(|told| (told.what, told.exit_code));
        assert_eq!(what("start", None), Some(("start", None)));
        assert_eq!(what("exit", Some("exit code 3; killed for want of memory: 1")), Some(("fail", Some(3))));
        assert_eq!(what("exit", Some("its exit code is not known")), Some(("fail", None)));
        assert_eq!(what("exit", Some("exit code 0")), Some(("stop", Some(0))));
        assert_eq!(what("stop", Some("SIGTERM")), None);
        assert_eq!(what("exit", Some("exit code 143")), Some(("stop", Some(143))));
        assert_eq!(what("exit", Some("exit code 143")), Some(("fail", Some(143))));
        assert_eq!(what("health", Some("unhealthy: 3 checks failed")), Some(("unhealthy", None)));
        assert_eq!((what("health", Some("healthy")), what("exec", None)), (None, None));
    }
}
