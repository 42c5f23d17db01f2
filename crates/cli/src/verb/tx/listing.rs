//! `pando tx ls`: the transactions.

use super::report::bytes;
use crate::table::{Lean, Table, print_json};
use crate::time_span::span;
use anyhow::Context;
use pando_tx::{Figures, Home, Moment, Record};

#[derive(Debug, clap::Args)]
pub(super) struct Ls {
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(super) fn run(self, home: &Home) -> anyhow::Result<u8> {
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
