//! `pando move`: processes of one guest into another.

use super::Verb;
use crate::counted::counted;
use crate::replies;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Move {
    /// The processes, by their pids on the host; what is below them comes along
    #[arg(value_name = "PID", required = true)]
    pids: Vec<i32>,
    /// The guest that they go to
    #[arg(long, value_name = "GUEST")]
    to: String,
}

impl Verb for Move {
    const NAME: &'static str = "move";
    const ABOUT: &'static str = "Move running processes of one guest into another";
    const EXAMPLES: &'static str = "\
Examples:
  pando ps --json web | jq '.[].host_pid'
  pando move 4711 --to web2

They keep their pids inside, memory, open files and listeners; TCP connections are reset. Programs and libraries have to be in the other guest, too; files
that they have open are copied where it has none of that name. What cannot be moved is named, and runs on where it was.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Move { pids: self.pids, to: self.to.clone() };
        let moved =
            client.call::<replies::Moved>(method).with_context(|| format!("cannot move it to guest '{}'", self.to))?;
        let replies::Moved { from, processes, threads, pause_us } = moved;
        let (whole, tenths) = (pause_us / 1000, pause_us / 100 % 10);
        crate::table::print(&format!(
            "{}, {} moved from {from} to {}; they stood still for {whole}.{tenths} ms\n",
            counted(processes, "process", "processes"),
            counted(threads, "thread", "threads"),
            self.to
        ))?;
        Ok(0)
    }
}
