//! `pando ls`: the guests.

use super::Verb;
use crate::guest_filter::{Filter, fits};
use crate::replies::{Guests, StoreUsed};
use crate::size::size;
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print, print_json};
use crate::template::Template;
use crate::time_span::span;
use anyhow::Context;
use pando_api::{GuestState, GuestStatus, Method, StoreUsage};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// Names only
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Only those that are so: name=PART, status=STATE, source=SOURCE, exited=CODE, health=STATE,
    /// label=NAME[=VALUE]
    #[arg(short, long, value_name = "KEY=VALUE")]
    filter: Vec<Filter>,
    /// A line each in these words, such as '{{.name}} {{.state}}'
    #[arg(long, value_name = "TEMPLATE", conflicts_with_all = ["json", "quiet", "size"])]
    format: Option<Template>,
    /// With what each takes of the disk: its own, and what it shares with others
    #[arg(short, long, conflicts_with = "quiet")]
    size: bool,
    /// Accepted for the habit: stopped guests are always listed
    #[arg(short, long, hide = true)]
    all: bool,
}

impl Verb for Ls {
    const NAME: &'static str = "ls";
    const ABOUT: &'static str = "List the guests";
    const EXAMPLES: &'static str = "\
Examples:
  pando ls
  pando ls -q                                          names only
  pando ls --size
  pando rm $(pando ls -q --filter status=stopped)      those that do not run
  pando ls --filter label=tier=front --format '{{.name}} {{.pid}}'
  pando ls --json | jq -r '.[] | select(.state == \"running\") | .name'";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let guests = client.call::<Guests>(Method::List {}).context("cannot list the guests")?.guests;
        let guests: Vec<_> = guests.into_iter().filter(|guest| fits(&self.filter, guest)).collect();
        if let Some(format) = &self.format {
            let line = |guest| format.fill(&serde_json::to_value(guest)?);
            print(&guests.iter().map(line).collect::<anyhow::Result<String>>()?)?;
        } else if self.size {
            let mut usage =
                client.call::<StoreUsed>(Method::Usage {}).context("cannot add up what the guests take")?.usage;
            usage.guests.retain(|used| guests.iter().any(|guest| guest.name == used.name));
            if self.json { print_json(&usage.guests)? } else { sizes(&usage).print()? }
        } else if self.json {
            print_json(&guests)?;
        } else if self.quiet {
            print(&guests.iter().map(|guest| format!("{}\n", guest.name)).collect::<String>())?;
        } else {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            table(&guests, i64::try_from(now).unwrap_or(i64::MAX)).print()?;
            if let Some(shortage) = pando_daemon::shortage(&root.directory().join("var/lib/pando")) {
                eprintln!("pando: {}", crate::printable::printable(&shortage));
            }
            for (name, trouble) in guests.iter().filter_map(|guest| Some((&guest.name, guest.trouble.as_ref()?))) {
                eprintln!("pando: guest '{name}': {}", crate::printable::printable(trouble));
            }
        }
        Ok(0)
    }
}

fn sizes(usage: &StoreUsage) -> Table {
    let mut table = Table::new(&[("NAME", Lean::Left), ("OWN", Lean::Right), ("SHARED", Lean::Right)]);
    for guest in &usage.guests {
        table.row([guest.name.clone(), size(guest.own), size(guest.shared)]);
    }
    table
}

/// A command, with an empty argument as a shell has it: it would not be seen.
fn words(command: &[String]) -> String {
    let words = command.iter().map(|word| if word.is_empty() { "''" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn table(guests: &[GuestStatus], now: i64) -> Table {
    let mut table = Table::new(&[
        ("NAME", Lean::Left),
        ("STATE", Lean::Left),
        ("PID", Lean::Right),
        ("UPTIME", Lean::Right),
        ("SOURCE", Lean::Left),
        ("COMMAND", Lean::Left),
    ]);
    for guest in guests {
        let state = match (guest.state, guest.exit_code) {
            (GuestState::Stopped, Some(code)) if guest.oom_kills.is_some() => {
                format!("stopped ({code}, out of memory)")
            }
            (GuestState::Stopped, Some(code)) => format!("stopped ({code})"),
            (state, _) if guest.paused => format!("{state} (paused)"),
            (state, _) => match &guest.health {
                Some(health) => format!("{state} ({})", health.status),
                None => state.to_string(),
            },
        };
        let state = match guest.next_start {
            Some(due) => format!("{state}, again in {}", span((due - now).max(0))),
            None => state,
        };
        table.row([
            guest.name.clone(),
            state,
            guest.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            guest.started.map_or_else(|| "-".to_owned(), |started| span(now - started)),
            guest.source.clone(),
            words(&guest.command),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::{Health, Wellbeing};
    use std::collections::BTreeMap;

    #[test]
    fn a_guest_is_a_line() {
        let running = GuestStatus {
            name: "web".into(),
            state: GuestState::Running,
            paused: false,
            pid: Some(77),
            source: "host".into(),
            ephemeral: false,
            created: 0,
            started: Some(1000),
            exit_code: None,
            oom_kills: None,
            health: None,
            restarts: None,
            next_start: None,
            labels: BTreeMap::new(),
            command: vec!["sleep".into(), "1".into()],
            trouble: None,
        };
        let stopped = GuestStatus {
            state: GuestState::Stopped,
            pid: None,
            started: None,
            exit_code: Some(143),
            ..running.clone()
        };
        let health = Health { status: Wellbeing::Unhealthy, ..Health::default() };
        let ill = GuestStatus { health: Some(health), ..running.clone() };
        let waiting = GuestStatus { next_start: Some(1063), restarts: Some(1), ..stopped.clone() };
        let expected = "\
NAME  STATE                       PID  UPTIME  SOURCE  COMMAND
web   running                      77   1m 1s  host    sleep 1
web   running (unhealthy)          77   1m 1s  host    sleep 1
web   stopped (143)                 -       -  host    sleep 1
web   stopped (143), again in 2s    -       -  host    sleep 1
";
        assert_eq!(table(&[running, ill, stopped, waiting], 1061).text(None), expected);
    }
}
