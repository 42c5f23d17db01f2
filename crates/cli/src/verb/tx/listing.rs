//! `pando tx ls`: the transactions.

use super::report::bytes;
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print_json};
use crate::time_span::span;
use anyhow::Context;
use pando_tx::{Figures, Moment, Record};

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
            print_json(&records)?;
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
                table.row(row(record));
            }
            table.print()?;
        }
        Ok(0)
    }
}

fn row(record: &Record) -> [String; 6] {
    // It may be changing, or end, at this moment.
    let figures = pando_tx::changes_now(record).ok().map(|changes| Figures::of(&changes));
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
