//! `pando tx ls`: the transactions.

use super::report::bytes;
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print_json};
use crate::time_span::span;
use anyhow::Context;
use pando_kernel::process::identity::ProcessId;
use pando_tx::{Figures, Moment, Record, StateDirectory, Waiter};
use serde::Serialize;

/// What is said of a transaction to programs.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    record: &'a Record,
    /// Who waits for it for longer than a second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<Waiting>,
}

/// A process that waits for a transaction.
#[derive(Serialize)]
struct Waiting {
    pid: i32,
    command: String,
    since: Moment,
    object: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct Ls {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Those in this guest [default: those on the host]
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
}

impl Ls {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = super::guest::home(root, self.guest.as_deref())?;
        let records = home.records().context("cannot list the transactions")?;
        if self.json {
            let listed = |record| Listed { record, waiting: waiting(&home, record) };
            print_json(&records.iter().map(listed).collect::<Vec<_>>())?;
        } else {
            let mut table = Table::new(&[
                ("NAME", Lean::Left),
                ("AGE", Lean::Right),
                ("PROCESSES", Lean::Right),
                ("PATHS", Lean::Right),
                ("BYTES", Lean::Right),
                ("COMMAND", Lean::Left),
            ]);
            for record in &records {
                table.row(row(record, &waiting(&home, record)));
            }
            table.print()?;
            show_waiting(&home, &records)?;
        }
        Ok(0)
    }
}

fn waiting(home: &StateDirectory, record: &Record) -> Vec<Waiting> {
    let told = |one: Waiter| Some((command(one.process())?, one));
    let all = pando_tx::waiting_for(home, record).into_iter().filter_map(told);
    all.map(|(command, Waiter { pid, since, object, .. })| Waiting { pid, command, since, object }).collect()
}

/// What a process has been started with, or else what it is called; nothing where it has gone.
fn command(process: ProcessId) -> Option<String> {
    let line = |pid: i32| {
        let words = pando_kernel::process::read(pid, "cmdline")?;
        let words: Vec<_> = words.split_terminator('\0').collect();
        if words.is_empty() { pando_kernel::process::read(pid, "comm") } else { Ok(words.join(" ")) }
    };
    Some(process.opened(line).ok()?.trim_end().to_owned())
}

/// A second table, of those who wait, if any do.
fn show_waiting(home: &StateDirectory, records: &[Record]) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        ("WAITS FOR", Lean::Left),
        ("PID", Lean::Right),
        ("SINCE", Lean::Right),
        ("OBJECT", Lean::Left),
        ("COMMAND", Lean::Left),
    ]);
    let mut are_there = false;
    for record in records {
        for Waiting { pid, command, since, object } in waiting(home, record) {
            let age = span(Moment::now().seconds - since.seconds);
            table.row([record.name.to_string(), pid.to_string(), age, object, command]);
            are_there = true;
        }
    }
    if are_there {
        crate::table::print("\n")?;
        table.print()?;
    }
    Ok(())
}

fn row(record: &Record, waiting: &[Waiting]) -> [String; 6] {
    // Who looks at what a commit changes would wait as they do. It may be changing, or end, at this moment.
    let changes = waiting.is_empty().then(|| pando_tx::changes_now(record).ok()).flatten();
    let figures = changes.map(|changes| Figures::of(&changes));
    let unknown = || "-".to_owned();
    let age = Moment::now().seconds - record.begun.seconds;
    let command = if record.command.is_empty() { "(open)".to_owned() } else { record.command.join(" ") };
    [
        record.name.to_string(),
        span(age),
        pando_tx::processes(record).to_string(),
        figures.map_or_else(unknown, |figures| figures.paths.to_string()),
        figures.map_or_else(unknown, |figures| bytes(figures.bytes)),
        command,
    ]
}

/// The names of the transactions on the host.
pub(crate) fn open_transactions(root: &StateRoot) -> Vec<String> {
    let home = super::guest::home(root, None);
    let records = home.ok().and_then(|home| home.records().ok()).unwrap_or_default();
    records.iter().map(|record| record.name.to_string()).collect()
}
