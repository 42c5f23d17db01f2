//! `pando address`: the addresses that a guest owns on the host's network.

use super::Verb;
use crate::replies::Done;
use crate::state_root::StateRoot;
use anyhow::Context;
use clap::ValueEnum;
use pando_api::{AddressChange, Method};

#[derive(Debug, clap::Args)]
pub(crate) struct Address {
    /// add: the guest gets it too; del: the guest loses it; move: the guest gets it, and all others lose it
    change: Change,
    /// The guest
    name: String,
    /// The address
    #[arg(value_name = "IP[/LENGTH][@DEVICE]")]
    address: pando_api::Address,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Change {
    Add,
    Del,
    Move,
}

impl Verb for Address {
    const NAME: &'static str = "address";
    const ABOUT: &'static str = "Give a guest an address, take one away, or move one to it";
    const EXAMPLES: &'static str = "\
Examples:
  pando address add web 10.9.0.6
  pando address del web 10.9.0.6
  pando address move standby 10.9.0.5     from whichever guests have it

Where the guest runs it holds at once; what listens on all addresses follows.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let change = match self.change {
            Change::Add => AddressChange::Add,
            Change::Del => AddressChange::Del,
            Change::Move => AddressChange::Move,
        };
        let method = Method::Address { name: self.name.clone(), change, address: self.address };
        client.call::<Done>(method).with_context(|| format!("cannot change the addresses of guest '{}'", self.name))?;
        Ok(0)
    }
}
