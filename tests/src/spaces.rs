//! Namespaces without Pando: first processes that do nothing, and programs below them.

use crate::patience::eventually;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A pid namespace, with others beside it, whose first process sleeps. Dropped, it ends with everything in it.
#[derive(Debug)]
pub(crate) struct Space {
    unshare: Child,
    init: i32,
}

impl Space {
    /// A new one, on the host's own files.
    pub(crate) fn new() -> Self {
        let kinds =
            ["--pid", "--fork", "--mount-proc", "--uts", "--ipc", "--mount", "--cgroup", "--net", "--kill-child"];
        let unshare = Command::new("unshare")
            .args(kinds)
            .args(["sleep", "infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare runs");
        let mut space = Self { unshare, init: 0 };
        let children = format!("/proc/{0}/task/{0}/children", space.unshare.id());
        eventually("a namespace has its first process", || {
            let text = std::fs::read_to_string(&children).unwrap_or_default();
            space.init = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
            let name = std::fs::read_to_string(format!("/proc/{}/comm", space.init)).unwrap_or_default();
            name.trim() == "sleep"
        });
        let loopback = space.command(&["ip", "link", "set", "lo", "up"]).status().expect("nsenter runs");
        assert!(loopback.success(), "the loopback device");
        space
    }

    /// Its first process.
    pub(crate) fn init(&self) -> i32 {
        self.init
    }

    /// The number by which processes inside know their pid namespace.
    pub(crate) fn number(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(format!("/proc/{}/ns/pid", self.init)).expect("it lives").ino()
    }

    /// What each of its processes is at, for people who wonder.
    pub(crate) fn shown(&self) -> String {
        let own = std::fs::read_link(format!("/proc/{}/ns/pid", self.init));
        let line = |pid: i32| {
            let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let status = read("status");
            let fields = ["Name", "State", "NSpid", "SigPnd", "ShdPnd", "SigBlk"];
            let fields = fields
                .map(|name| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().replace('\t', " "));
            format!("{}, syscall {}, in {}", fields.join(", "), read("syscall").trim(), read("wchan"))
        };
        let inside = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok() == own.as_ref().ok().cloned();
        let lines: Vec<_> =
            crate::process::all().into_iter().map(|process| process.pid).filter(inside).map(line).collect();
        lines.join("\n")
    }

    /// A program in it, with nothing of ours but what is given.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-a", "--"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts an actor of `fixtures/` in it, and waits until it is ready. `stage` is where it tells of itself.
    pub(crate) fn play(&self, script: &str, stage: &Path) -> Actor {
        let program = stage.join("actor.py");
        std::fs::write(&program, format!("{}{script}", include_str!("../fixtures/stand.py"))).expect("a file");
        let error = std::fs::File::create(stage.join("complaint")).expect("a file");
        let words = ["python3", "-E", "-s", &program.to_string_lossy(), &stage.to_string_lossy()];
        let mut command = self.command(&words);
        // The complaint is a file of the stage, as an actor's own files are.
        let mut process = Actor(command.stderr(error).spawn().expect("nsenter runs"));
        eventually("the actor is ready", || {
            let ended = process.0.try_wait().expect("a child");
            assert!(ended.is_none(), "{}", std::fs::read_to_string(stage.join("complaint")).unwrap_or_default());
            stage.join("ready").exists()
        });
        process
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.init) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.unshare.wait();
    }
}

/// A program that runs in a space. It ends with it.
#[derive(Debug)]
pub(crate) struct Actor(Child);

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
