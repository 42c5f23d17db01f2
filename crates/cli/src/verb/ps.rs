//! `pando ps`: processes, whose they are and what they use.

use super::Verb;
use crate::replies::Processes;
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print_json};
use crate::time_span::cpu;
use anyhow::Context;
use pando_api::{Method, ProcessEntry};

#[derive(Debug, clap::Args)]
pub(crate) struct Ps {
    /// The guest [default: every guest]
    #[arg(conflicts_with_all = ["all", "host"])]
    name: Option<String>,
    /// Every guest's
    #[arg(short, long, conflicts_with = "host")]
    all: bool,
    /// The host's own, without those of guests
    #[arg(long)]
    host: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Verb for Ps {
    const NAME: &'static str = "ps";
    const ABOUT: &'static str = "List the processes of guests";
    const EXAMPLES: &'static str = "\
Examples:
  pando ps web
  pando ps --all
  pando ps --host               the processes that belong to no guest
  pando ps --json web | jq '.[].host_pid'";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Processes { name: self.name, host: self.host };
        let processes = client.call::<Processes>(method).context("cannot list the processes")?.processes;
        if self.json {
            print_json(&processes)?
        } else {
            table(&processes).print()?
        }
        Ok(0)
    }
}

fn table(processes: &[ProcessEntry]) -> Table {
    let mut table = Table::new(&[
        ("GUEST", Lean::Left),
        ("HOST-PID", Lean::Right),
        ("PID", Lean::Right),
        ("PPID", Lean::Right),
        ("UID", Lean::Right),
        ("S", Lean::Left),
        ("CPU", Lean::Right),
        ("RSS-KIB", Lean::Right),
        ("COMMAND", Lean::Left),
    ]);
    for process in processes {
        table.row([
            if process.guest.is_empty() { "-".to_owned() } else { process.guest.clone() },
            process.host_pid.to_string(),
            process.pid.to_string(),
            process.ppid.to_string(),
            process.uid.to_string(),
            process.state.clone(),
            cpu(process.cpu_ms),
            process.rss_kib.to_string(),
            process.command.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_cannot_write_on_the_terminal() {
        let process = ProcessEntry {
            guest: String::new(),
            host_pid: 9,
            pid: 1,
            ppid: 0,
            uid: 0,
            state: "S".into(),
            cpu_ms: 1230,
            rss_kib: 64,
            command: "\u{1b}]52;c;evil\u{7}".into(),
        };
        let text = table(&[process]).text(None);
        assert!(!text.contains('\u{1b}') && text.contains("0:01.23"), "{text}");
    }
}
