//! What the processes of the guest that is cloned keep of memory when they are forked plainly, by a program that knows
//! nothing of Pando: in as many control groups, namespaces and file systems of their own, less of which cannot be.

use super::{SETTLE, Size, row};
use crate::interrupt;
use crate::many::machine_memory;
use crate::report::Report;
use crate::service_group::ServiceGroup;
use anyhow::{Context, ensure};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forked"));

/// As many as there are clones beside them.
const CROWD: u32 = super::crowd::CROWD as u32;

/// The program, where it waits for being told to fork one more.
struct Forker {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Forker {
    fn start(directory: &Path, size: &Size) -> anyhow::Result<Self> {
        let program = directory.join("forked");
        std::fs::write(&program, PROGRAM)?;
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755))?;
        std::fs::create_dir(directory.join("lower"))?;
        for number in 0..CROWD {
            for part in ["upper", "work", "root"] {
                std::fs::create_dir_all(directory.join(number.to_string()).join(part))?;
            }
        }
        let mut command = Command::new(program);
        command.arg(size.mib.to_string()).arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the program that forks")?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("it has no output")?);
        let mut forker = Self { child, to, from };
        ensure!(forker.hear()? == "filled", "it has not filled its memory");
        Ok(forker)
    }

    fn say(&mut self) -> anyhow::Result<()> {
        self.to.as_mut().context("it has no input")?.write_all(b"\n").context("it does not listen")
    }

    fn hear(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn fork_into(&mut self, group: &ServiceGroup) -> anyhow::Result<()> {
        self.say()?;
        let pid = self.hear()?;
        group.take(pid.parse().with_context(|| format!("'{pid}' is no pid"))?)?;
        self.say()?;
        ensure!(self.hear()? == "ready", "the program that forks has failed");
        Ok(())
    }
}

impl Drop for Forker {
    fn drop(&mut self) {
        // Without input it ends, and with it all that it has forked.
        self.to = None;
        let _ = self.child.wait();
    }
}

/// A hundred of them; what they lie on is below `directory`.
pub(super) fn hundred(directory: &Path, size: &Size, report: &mut Report) -> anyhow::Result<()> {
    let directory = tempfile::tempdir_in(directory)?;
    // They outlive their processes.
    let groups;
    let mut forker = Forker::start(directory.path(), size)?;
    machine_memory::settle()?;
    let before = machine_memory::used_kib()?;
    groups = ServiceGroup::several("forked", CROWD)?;
    for group in &groups {
        forker.fork_into(group)?;
    }
    interrupt::pause(SETTLE)?;
    let each = (machine_memory::used_kib()? - before) / f64::from(CROWD);
    report.add(&row(size, "forked plainly: memory each, of the machine's"), "kB", each);
    let charges = groups.iter().map(ServiceGroup::charge).collect::<anyhow::Result<Vec<f64>>>()?;
    report.add(
        &row(size, "forked plainly: memory each, of its groups'"),
        "kB",
        charges.iter().sum::<f64>() / f64::from(CROWD),
    );
    Ok(())
}
