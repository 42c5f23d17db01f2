//! `pando top`: a live view of what guests use.

use super::Verb;
use crate::replies::Used;
use crate::state_root::StateRoot;
use crate::table::{print, print_json};
use crate::top::{Order, View, text, watch};
use anyhow::ensure;
use pando_api::Method;
use rustix::termios::isatty;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Look once, after a second, and print it
    #[arg(long)]
    once: bool,
    /// Look once, and print it as JSON
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// What guests are ordered by, the most first
    #[arg(long, value_name = "WHAT", default_value = "cpu")]
    sort: Order,
    /// Only guests whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Seconds between looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Elsewhere this lists a guest's processes
    #[arg(hide = true)]
    name: Option<String>,
}

/// The width of a look that goes to no terminal.
const WIDTH: u16 = 120;

impl Verb for Top {
    const NAME: &'static str = "top";
    const ABOUT: &'static str = "Watch what guests use";
    const EXAMPLES: &'static str = "\
Examples:
  pando top
  pando top --sort memory --filter web
  pando top --once | head -20
  pando top --json | jq -r '.guests[] | select(.live) | .name'

Keys: c, m, i, n, a order by processor time, memory, disk, network, name; / filters; k kills; q leaves.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        if let Some(name) = self.name {
            let message = format!(
                "`pando ps {name}` lists a guest's processes, `pando top --filter {name}` watches what it uses"
            );
            return Err(crate::complaint::Usage::sentence(message).into());
        }
        let shows = self.once || self.json || (isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout()));
        ensure!(shows, "pando top watches on a terminal, and this is none; --once or --json looks once and prints");
        let mut client = crate::daemon_start::connected(root)?;
        let mut view = View::new(self.sort);
        view.filter = self.filter;
        let pause = Duration::from_secs(self.every);
        if !self.once && !self.json {
            watch(&mut client, view, pause)?;
            return Ok(0);
        }
        // Two looks: rates are between them.
        let mut used = client.call::<Used>(Method::Stats { name: None, history: false })?;
        view.take(used.machine, &used.guests);
        std::thread::sleep(pause);
        used = client.call::<Used>(Method::Stats { name: None, history: false })?;
        if self.json {
            print_json(&used)?;
        } else {
            view.take(used.machine, &used.guests);
            let width = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok().map(|size| size.ws_col);
            print(&text(&view, width.filter(|width| *width > 0).unwrap_or(WIDTH)))?;
        }
        Ok(0)
    }
}
