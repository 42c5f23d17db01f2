//! CRIU's restore of the same processes, from a dump of them.

use super::milliseconds;
use super::subject;
use crate::interrupt;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A dump, and what restores it.
pub(crate) struct Criu {
    program: PathBuf,
    dump: PathBuf,
    /// The pid of the first process, dumped and restored.
    pid: i32,
}

impl Criu {
    /// Starts the processes and dumps them, which ends them.
    pub(crate) fn dumped(program: Option<&Path>, directory: &Path, mib: usize) -> anyhow::Result<Self> {
        let program = program.context("name a criu of 4.2 or later with --criu PATH, or in PANDO_CRIU")?.to_owned();
        let dump = directory.join("criu");
        std::fs::create_dir(&dump)?;
        let ready = directory.join(subject::READY);
        // What this program was started with is of mounts that are not there for them.
        pando_kernel::process::inheritance::close_range_on_exec(3)?;
        let mut setsid = Command::new("setsid");
        let mut subject = setsid
            .arg(std::env::current_exe()?)
            .args([subject::NAME, &mib.to_string()])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = i32::try_from(subject.id())?;
        let dumped = wait_for(&ready, &mut subject).and_then(|()| {
            let log = "dump.log";
            let mut command = Command::new(&program);
            command.args(["dump", "-t", &pid.to_string(), "-o", log, "-D"]).arg(&dump);
            ended_well(&mut command, &dump.join(log))
        });
        if dumped.is_err() {
            kill_group(pid);
        }
        // Its pid must be free for the restored one.
        let _ = subject.wait();
        dumped.map(|()| Self { program, dump, pid })
    }

    /// Restores them once, and ends them. Milliseconds of the restoring command.
    pub(crate) fn restore(&mut self) -> anyhow::Result<f64> {
        let log = "restore.log";
        let mut command = Command::new(&self.program);
        command.args(["restore", "--restore-detached", "-o", log, "-D"]).arg(&self.dump);
        let since = Instant::now();
        let restored = ended_well(&mut command, &self.dump.join(log));
        let elapsed = milliseconds(since);
        kill_group(self.pid);
        while Path::new(&format!("/proc/{}", self.pid)).exists() {
            interrupt::pause(Duration::from_millis(1))?;
        }
        restored.map(|()| elapsed)
    }
}

fn wait_for(ready: &Path, subject: &mut Child) -> anyhow::Result<()> {
    while !ready.exists() {
        if let Some(status) = subject.try_wait()? {
            bail!("the processes to dump ended with {status}");
        }
        interrupt::pause(Duration::from_millis(10))?;
    }
    Ok(())
}

fn ended_well(command: &mut Command, log: &Path) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !status.success() {
        let said = std::fs::read_to_string(log).unwrap_or_default();
        let errors: Vec<&str> = said.lines().filter(|line| line.contains("Error")).collect();
        bail!("it ended with {status}: {}", errors.join(" · "));
    }
    Ok(())
}

/// They were started as a session of their own.
fn kill_group(pid: i32) {
    if let Some(group) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}
