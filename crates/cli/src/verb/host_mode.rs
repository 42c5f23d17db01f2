//! `pando host-mode`: servers of the host that listen on every address leave guests the same ports.

use super::Verb;
use crate::state_root::StateRoot;
use crate::table::print;
use anyhow::Context;
use clap::ValueEnum;
use pando_kernel::cgroup::Hierarchies;
use pando_net::shared::{Pins, Stack, host};

#[derive(Debug, clap::Args)]
pub(crate) struct HostMode {
    /// on: from now on; off: servers that are there already stay as they are until they end. Without it: which of both
    /// it is
    change: Option<Change>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Change {
    On,
    Off,
}

impl Verb for HostMode {
    const NAME: &'static str = "host-mode";
    const ABOUT: &'static str = "Let servers of the host and guests have the same ports";
    const EXAMPLES: &'static str = "\
Examples:
  pando host-mode on                       servers of the host that start from now on
  systemctl enable pando-host-mode         those that start at boot
  pando host-mode                          'on' or 'off'

A server that listens on every address of the host holds its port on guests' addresses as well, unless it was started in host mode. It concerns TCP; 'pando doctor'
lists what holds a port everywhere nevertheless. No daemon is needed, and it stays on when none runs.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let pins = Pins::at(root.run().join("bpf"));
        match self.change {
            None => print(if host::is_on(&pins) { "on\n" } else { "off\n" })?,
            Some(Change::On) => {
                root.make_run().context("cannot turn host mode on")?;
                let groups = Hierarchies::detect().context("cannot turn host mode on")?.unified.context(
                    "cannot turn host mode on: this host has no unified cgroup hierarchy, by which the kernel would know its servers' sockets",
                )?;
                let stack = Stack::open_or_make(&pins).context("cannot turn host mode on")?;
                let turned = stack.turn_host_on(&groups).context("cannot turn host mode on");
                if turned.is_err() {
                    stack
                        .turn_host_off()
                        .and_then(|()| stack.remove_unused())
                        .context("cannot take back what host mode got")?;
                }
                turned?;
            }
            Some(Change::Off) => {
                if let Some(stack) = Stack::open(&pins).context("cannot turn host mode off")? {
                    stack.turn_host_off().context("cannot turn host mode off")?;
                    stack.remove_unused().context("cannot remove what host mode needed")?;
                }
            }
        }
        Ok(0)
    }
}
