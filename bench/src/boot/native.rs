//! The same system in plain namespaces of the host, on a copy of the tree.

use super::console::Console;
use super::contender::System;
use super::{silent, until};
use crate::service_group::ServiceGroup;
use anyhow::Context;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(super) const NAME: &str = "native";

/// Namespaces and a root, and the system's init there. It begins when it may: when it is in its groups.
const BEGIN: &str = r#"
read -r go
exec unshare --pid --fork --mount --propagation private --net --uts --ipc --cgroup --kill-child sh -euc '
    ip link set lo up
    mount --bind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount -t tmpfs dev dev
    cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty dev
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=666 pts dev/pts
    mount -t tmpfs shm dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    : >dev/console
    mount --bind "$2" dev/console
    mount -t tmpfs run run
    pivot_root . mnt
    umount -l mnt
    exec chroot . /sbin/init' sh "$1" "$2"
"#;

pub(super) struct Native {
    tree: PathBuf,
    group: ServiceGroup,
    console: Console,
    /// Who waits for its init.
    runs: Option<Child>,
}

impl Native {
    pub(super) fn new(tree: &Path, copy: &Path) -> anyhow::Result<Self> {
        let copied = Command::new("cp").arg("-a").args([tree, copy]).status()?;
        anyhow::ensure!(copied.success(), "the tree cannot be copied");
        let (group, console) = (ServiceGroup::new("boot")?, Console::open()?);
        Ok(Self { tree: copy.to_owned(), group, console, runs: None })
    }

    /// Its init, which the one that we started waits for.
    fn init(&self) -> anyhow::Result<String> {
        let waiting = self.runs.as_ref().context("it does not run")?.id();
        let children = std::fs::read_to_string(format!("/proc/{waiting}/task/{waiting}/children"))?;
        Ok(children.trim().to_owned())
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        self.runs.take().context("it does not run")?.wait()?;
        Ok(())
    }
}

impl System for Native {
    fn name(&self) -> &'static str {
        NAME
    }

    fn boot(&mut self) -> anyhow::Result<()> {
        let mut begin = silent(Command::new("sh"));
        begin.args(["-c", BEGIN, "sh"]).args([self.tree.as_os_str(), self.console.path()]);
        let mut begin = begin.stdin(Stdio::piped()).spawn()?;
        let go = begin.stdin.take();
        self.group.take(self.runs.insert(begin).id())?;
        Ok(go.context("it has no input")?.write_all(b"\n")?)
    }

    fn enter(&self, script: &str) -> anyhow::Result<Command> {
        let mut command = silent(Command::new("nsenter"));
        command.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd", "--target", &self.init()?]);
        command.args(["sh", "-c", script]);
        Ok(command)
    }

    fn reboot(&mut self) -> anyhow::Result<()> {
        self.enter("reboot")?.status()?;
        self.wait()?;
        self.boot()
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.enter("poweroff")?.status()?;
        self.wait()
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        let init = self.init();
        if let Some(mut runs) = self.runs.take() {
            let _ = runs.kill();
            let _ = runs.wait();
        }
        // Who waited for it is gone, and it is killed for that: its groups can go when it has.
        if let Ok(init) = init {
            let _ = until(NAME, || Ok(!Path::new("/proc").join(&init).exists()));
        }
    }
}
