//! `pando tx recover`, and the deleting that nobody waits for.

use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{Home, Recovered};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Debug, clap::Args)]
pub(super) struct Recover {}

#[derive(Debug, clap::Args)]
pub(super) struct Sweep {
    /// Mounts that the transactions had parts on
    mounts: Vec<PathBuf>,
}

impl Recover {
    pub(super) fn run(self, home: &Home) -> anyhow::Result<u8> {
        let mut code = 0;
        for recovered in pando_tx::recover(home).context("cannot look at the transactions")? {
            match recovered {
                Recovered::Finished(name) => println!("{name}: committed, and in place now"),
                Recovered::Dropped(name) => println!("{name}: not committed, and removed"),
                Recovered::Stuck(name, error) => {
                    let error = anyhow::Error::new(error).context(format!("'{name}' cannot be finished now"));
                    eprintln!("pando: {}", crate::complaint::sentences(&error));
                    code = crate::complaint::OWN_FAILURE;
                }
            }
        }
        Ok(code)
    }
}

impl Sweep {
    pub(super) fn run(self, home: &Home) -> anyhow::Result<u8> {
        pando_tx::sweep(home, &self.mounts);
        Ok(0)
    }
}

/// Deletes what was thrown away: at once if that is little, else by a process that nobody waits for.
pub(super) fn sweep_soon(root: &StateRoot, home: &Home, mounts: &[PathBuf]) {
    const LITTLE: usize = 300;
    if pando_tx::rubbish(home, mounts, LITTLE) < LITTLE {
        pando_tx::sweep(home, mounts);
        return;
    }
    let started = Command::new("/proc/self/exe")
        .arg0("pando")
        .arg("--root")
        .arg(root.directory())
        .args(["tx", "sweep"])
        .args(mounts)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if started.is_err() {
        pando_tx::sweep(home, mounts);
    }
}
