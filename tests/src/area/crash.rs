//! The daemon and the spawner are killed, at every step and at any moment: guests that run go on, and what was half
//! done is done or undone.

use crate::case::Case;
use crate::line::{Line, Started};
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;
use rustix::process::Signal;

pub(crate) const CASES: &[Case] = &[
    Case::new("crash::daemon_at_every_step_of_create", |sandbox| at_every_step(sandbox, Doing::Create, Killed::Daemon)),
    Case::new("crash::daemon_at_every_step_of_start", |sandbox| at_every_step(sandbox, Doing::Start, Killed::Daemon)),
    Case::new("crash::daemon_at_every_step_of_exec", |sandbox| at_every_step(sandbox, Doing::Exec, Killed::Daemon)),
    Case::new("crash::daemon_at_every_step_of_stop", |sandbox| at_every_step(sandbox, Doing::Stop, Killed::Daemon)),
    Case::new("crash::daemon_at_every_step_of_rm", |sandbox| at_every_step(sandbox, Doing::Remove, Killed::Daemon)),
    Case::new("crash::spawner_at_every_step_of_create", |sandbox| {
        at_every_step(sandbox, Doing::Create, Killed::Spawner)
    }),
    Case::new("crash::spawner_at_every_step_of_start", |sandbox| at_every_step(sandbox, Doing::Start, Killed::Spawner)),
    Case::new("crash::spawner_at_every_step_of_exec", |sandbox| at_every_step(sandbox, Doing::Exec, Killed::Spawner)),
    Case::new("crash::spawner_at_every_step_of_stop", |sandbox| at_every_step(sandbox, Doing::Stop, Killed::Spawner)),
    Case::new("crash::spawner_at_every_step_of_rm", |sandbox| at_every_step(sandbox, Doing::Remove, Killed::Spawner)),
    Case::new("crash::another_daemon_waits_for_one_that_is_dying", another_daemon_waits_for_one_that_is_dying),
];

/// What is being done when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Create,
    Start,
    Exec,
    Stop,
    Remove,
}

/// To whom it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Daemon,
    Spawner,
}

impl Doing {
    /// The boundaries between its steps, as the daemon's source names them.
    fn steps(self) -> &'static [&'static str] {
        match self {
            Self::Create => &[
                "create.begun",
                "create.staged",
                "create.filled",
                "store.scanned",
                "store.synced",
                "store.renamed",
                "store.objects",
                "store.named",
                "create.imported",
                "create.layered",
                "create.written",
                "create.settled",
            ],
            Self::Start => &["start.shim", "start.noted", "start.sent", "start.launched", "start.born"],
            Self::Exec => &["exec.begun", "exec.launched", "exec.born"],
            Self::Stop => &["stop.asking", "stop.asked", "end.noticed", "end.remembered", "end.quit", "end.cleared"],
            Self::Remove => &["remove.begun", "remove.aside"],
        }
    }

    /// Brings the subject to where it can be done.
    fn prepare(self, sandbox: &Sandbox) {
        match self {
            Self::Create => {}
            Self::Start | Self::Remove => create_subject(sandbox),
            Self::Exec | Self::Stop => {
                create_subject(sandbox);
                start_subject(sandbox);
            }
        }
    }

    fn line(self, sandbox: &Sandbox) -> Line {
        match self {
            // An archive is unpacked first, so there are more steps than with a directory.
            Self::Create => {
                let archive = archive(sandbox).to_string_lossy().into_owned();
                sandbox.pando(subject(&archive))
            }
            Self::Start => sandbox.pando(["start", "subject"]),
            Self::Exec => sandbox.exec_sh("subject", "echo x >>/srv/done"),
            Self::Stop => sandbox.pando(["stop", "subject"]),
            Self::Remove => sandbox.pando(["rm", "subject"]),
        }
    }

    /// The states that the subject may be found in afterwards.
    fn outcomes(self) -> &'static [&'static str] {
        match self {
            Self::Create | Self::Remove => &["absent", "stopped"],
            Self::Start | Self::Stop => &["stopped", "running"],
            Self::Exec => &["running"],
        }
    }
}

/// A guest whose command ends with 3 when it is asked to.
fn subject(source: &str) -> [&str; 8] {
    const COMMAND: &str = "trap 'exit 3' TERM; : >/ready; while :; do sleep 0.05; done";
    ["create", "subject", "--from", source, "--", "sh", "-c", COMMAND]
}

/// The small tree as an archive; made the first time.
fn archive(sandbox: &Sandbox) -> std::path::PathBuf {
    let archive = sandbox.scratch().join("tree.tar");
    if !archive.exists() {
        Line::new("tar").args(["--numeric-owner", "-C", sandbox.busybox(), "-cf"]).args([&archive]).args(["."]).ok();
    }
    archive
}

fn create_subject(sandbox: &Sandbox) {
    sandbox.pando(subject(sandbox.busybox())).ok();
}

fn start_subject(sandbox: &Sandbox) {
    sandbox.pando(["start", "subject"]).ok();
    await_subject(sandbox);
}

/// Its command's trap is set a moment after its start.
fn await_subject(sandbox: &Sandbox) {
    sandbox.exec_sh("subject", "until [ -e /ready ]; do sleep 0.05; done").ok();
}

/// A thread of a killed daemon may hold its lock for a moment longer than anybody listens.
fn another_daemon_waits_for_one_that_is_dying(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
    sandbox.end_daemon();
    let lock = sandbox.places().run().join("lock");
    let lock = std::fs::File::options().write(true).open(lock).expect("the daemon made it");
    eventually("the lock is free", || lock.try_lock().is_ok());
    let asker = sandbox.pando(["ls", "-q"]).start();
    // A daemon that finds it taken is gone too soon to be seen.
    std::thread::sleep(std::time::Duration::from_secs(1));
    lock.unlock().expect("it is held");
    asker.wait().succeeded();
    assert!(sandbox.daemon().is_some());
}

fn at_every_step(sandbox: &Sandbox, doing: Doing, killed: Killed) {
    let steady = Steady::make(sandbox);
    archive(sandbox);
    let before = World::of(sandbox);
    for step in doing.steps() {
        doing.prepare(sandbox);
        sandbox.end_daemon();
        match killed {
            Killed::Daemon => kill_daemon_at(sandbox, step, doing.line(sandbox)),
            Killed::Spawner => kill_spawner_at(sandbox, step, doing.line(sandbox)),
        }
        steady.goes_on(sandbox, step);
        if *step == "stop.asked" || step.starts_with("end.") {
            // It was asked, and does what it was asked to.
            sandbox.becomes("subject", "stopped");
        }
        let state = settled(sandbox);
        assert!(doing.outcomes().contains(&state.as_str()), "after {step} the guest is {state}");
        is_whole(sandbox, &state, step);
        if state != "absent" {
            sandbox.pando(["rm", "--force", "subject"]).ok();
        }
        before.comes_back(sandbox, &format!("{killed:?} killed at {step}, and the guest removed"));
    }
    println!("     killed {} times: {killed:?} while {doing:?}", doing.steps().len());
}

/// The subject's state, once it is at rest or running.
pub(super) fn settled(sandbox: &Sandbox) -> String {
    let mut state = String::new();
    eventually("the guest is in no state between", || {
        state = sandbox.state("subject");
        !matches!(state.as_str(), "starting" | "stopping")
    });
    state
}

/// What can be found works: it runs, stops with its exit code, and starts again.
fn is_whole(sandbox: &Sandbox, state: &str, step: &str) {
    if state == "absent" {
        return;
    }
    if state == "stopped" {
        let code = sandbox.status("subject").expect("it is there")["exit_code"].clone();
        assert!(code.is_null() || code == 3, "after {step} its exit code is {code}");
        assert!(!step.starts_with("end.") || code == 3, "after {step} its exit code was forgotten: {code}");
        sandbox.pando(["start", "subject"]).ok();
    }
    await_subject(sandbox);
    sandbox.pando(["stop", "subject"]).ok();
    assert_eq!(sandbox.status("subject").expect("it is there")["exit_code"], 3, "after {step}");
}

/// A daemon of this test's own, that is to crash or pause somewhere.
pub(super) fn daemon_with(sandbox: &Sandbox, variable: &str, step: &str) -> Started {
    let daemon = sandbox.pando(["daemon"]).env(variable, step).start();
    eventually("the daemon listens", || std::os::unix::net::UnixStream::connect(sandbox.places().socket()).is_ok());
    daemon
}

/// Has a line done by a daemon that dies at a step.
pub(super) fn kill_daemon_at(sandbox: &Sandbox, step: &str, line: Line) {
    let daemon = daemon_with(sandbox, "PANDO_CRASH_AT", step);
    let ended = line.run();
    // Some steps come after the client has its answer.
    daemon.wait().ended_with(137);
    assert!(matches!(ended.code(), 0 | 125), "at {step} the command ended with {}: {}", ended.code(), ended.err());
}

fn kill_spawner_at(sandbox: &Sandbox, step: &str, line: Line) {
    let daemon = daemon_with(sandbox, "PANDO_PAUSE_AT", step);
    let line = line.start();
    eventually(&format!("the daemon pauses at {step}"), || process::state(daemon.pid()) == Some('T'));
    if let Some(spawner) = sandbox.spawner() {
        process::kill(spawner);
    }
    process::signal(daemon.pid(), Signal::CONT);
    let ended = line.wait();
    assert_eq!(ended.code(), 0, "with the spawner killed at {step}: {}", ended.err());
    sandbox.end_daemon();
    daemon.wait().succeeded();
}

/// A guest that must not notice anything.
struct Steady {
    pid: i32,
}

impl Steady {
    fn make(sandbox: &Sandbox) -> Self {
        sandbox.guest("steady", &["--", "sh", "-c", "echo up; echo state >/srv/state; exec sleep 100000"]);
        eventually("it is up", || sandbox.pando(["logs", "steady"]).ok() == "up\n");
        Self { pid: sandbox.first_process("steady") }
    }

    fn goes_on(&self, sandbox: &Sandbox, after: &str) {
        let state = sandbox.state("steady");
        assert_eq!(state, "running", "after {after}");
        assert_eq!(sandbox.first_process("steady"), self.pid, "after {after}");
        sandbox.exec_sh("steady", "cat /srv/state").run().succeeded().says("state\n");
        assert_eq!(sandbox.pando(["logs", "steady"]).ok(), "up\n", "after {after}");
    }
}
