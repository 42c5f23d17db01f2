//! `pando tx recover`, and the deleting that nobody waits for.

use super::guest;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::{Home, Recovered};
use rustix::io::FdFlags;
use std::os::fd::OwnedFd;
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
    pub(super) fn run(self, root: &StateRoot, home: &Home) -> anyhow::Result<u8> {
        let mut all = pando_tx::recover(home).context("cannot look at the transactions")?;
        for home in guest::homes(root) {
            all.extend(pando_tx::recover(&home).context("cannot look at the guests' transactions")?);
        }
        let mut code = 0;
        for recovered in all {
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
        // It keeps no mount busy.
        std::env::set_current_dir("/").context("cannot leave the directory")?;
        pando_tx::sweep(home, &self.mounts);
        Ok(0)
    }
}

/// What the daemon does before anything else: guests may stand on what a crash left half done.
pub(crate) fn recover_first(root: &StateRoot) {
    let host = Home::new(root.directory());
    let recovered = std::iter::once(host).chain(guest::homes(root)).flat_map(|home| {
        pando_tx::recover(&home).unwrap_or_else(|error| {
            tracing::warn!("the transactions cannot be looked at: {error}");
            Vec::new()
        })
    });
    for one in recovered {
        match one {
            Recovered::Finished(name) => tracing::info!("transaction '{name}' was committed, and is in place now"),
            Recovered::Dropped(name) => tracing::info!("transaction '{name}' was not committed, and is removed"),
            Recovered::Stuck(name, error) => {
                let error = crate::complaint::sentences(&error.into());
                tracing::warn!("transaction '{name}' cannot be finished now: {error}");
            }
        }
    }
}

/// Deletes what was thrown away, and closes `listener`. Whatever takes long is done by a process that nobody waits for. Where that one is started for a
/// listener, it has the rubbish beside the transactions too, however little; what is at the roots of mounts, where people look, goes at once.
pub(super) fn sweep_soon(root: &StateRoot, home: &Home, mounts: &[PathBuf], listener: Option<OwnedFd>) {
    const LITTLE: usize = 300;
    let little = pando_tx::rubbish(listener.is_none().then_some(home), mounts, LITTLE) < LITTLE;
    match &listener {
        None if little => return pando_tx::sweep(home, mounts),
        None => {}
        Some(listener) => {
            if little {
                pando_tx::sweep_mounts(mounts);
            }
            // If it is not passed on, it is closed here.
            let _ = rustix::io::fcntl_setfd(listener, FdFlags::empty());
        }
    }
    // Without a directory of its own to start in the library can start it without copying this process (vfork).
    let started = Command::new("/proc/self/exe")
        .arg0("pando")
        .arg("--root")
        .arg(root.directory())
        .args(["tx", "sweep"])
        .args(if little { &[] } else { mounts })
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if started.is_err() {
        pando_tx::sweep(home, mounts);
    }
}
