//! `pando version`: this program's, and the daemon's if it runs.

use super::Verb;
use crate::replies::Version as Answer;
use crate::state_root::StateRoot;
use crate::table::{print, print_json};
use pando_api::Method;
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(crate) struct Version {
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Verb for Version {
    const NAME: &'static str = "version";
    const ABOUT: &'static str = "Show the versions of this command and of the daemon";
    const EXAMPLES: &'static str = "\
Examples:
  pando version
  pando version --json";
    const NEEDS_ROOT: bool = false;

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        // A daemon that is not there, or not ours to talk to, has no version to tell.
        let daemon = crate::daemon_start::if_running(root).ok().flatten();
        let daemon = daemon.and_then(|mut client| client.call::<Answer>(Method::Version {}).ok());
        let own = env!("CARGO_PKG_VERSION");
        if self.json {
            let daemon =
                daemon.map(|Answer { version, pid, root }| json!({ "version": version, "pid": pid, "root": root }));
            print_json(&json!({ "version": own, "daemon": daemon }))?;
        } else {
            print(&format!("pando {own}\n"))?;
            if let Some(Answer { version, pid, root }) = daemon {
                print(&format!("daemon {version} (pid {pid}, root {root})\n"))?;
            }
        }
        Ok(0)
    }
}
