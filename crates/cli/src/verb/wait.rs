//! `pando wait`: the end of guests.

use super::Verb;
use crate::client::Client;
use crate::complaint::{Told, complain};
use crate::replies::Noticed;
use crate::state_root::StateRoot;
use anyhow::{Context, anyhow};
use pando_api::{Fault, Method};

#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    /// The guests
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl Verb for Wait {
    const NAME: &'static str = "wait";
    const ABOUT: &'static str = "Wait until guests end, and print their exit codes";
    const EXAMPLES: &'static str = "\
Examples:
  pando wait job                   the exit code, on a line of its own
  exit \"$(pando wait job)\"

Of a guest that is at rest it is how its last run ended. 128 and more are signals: 137 is SIGKILL.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let mut failed = false;
        for name in &self.names {
            match one(&mut client, name).with_context(|| format!("cannot wait for guest '{name}'")) {
                Ok(code) => crate::table::print(&format!("{code}\n"))?,
                Err(error) if !error.chain().any(|cause| cause.is::<Fault>()) => return Err(error),
                Err(error) => {
                    complain(&error);
                    failed = true;
                }
            }
        }
        if failed { Err(Told.into()) } else { Ok(0) }
    }
}

/// The exit code of a guest, once it has ended.
fn one(client: &mut Client, name: &str) -> anyhow::Result<i32> {
    client.send(Method::Wait { name: name.to_owned() }, true, Vec::new())?;
    loop {
        let answer = client.receive::<Noticed>()?;
        if answer.reply.notice.exited {
            let unknown = || {
                let message = format!("guest '{name}' is at rest, and it is not known how it ended");
                anyhow!(Fault::new(pando_api::FaultKind::Failed, name, message))
            };
            return answer.reply.notice.exit_code.ok_or_else(unknown);
        }
        anyhow::ensure!(answer.continues, "the daemon said that it runs, and then no more about it");
    }
}
