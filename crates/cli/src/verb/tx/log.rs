//! `pando tx log` and `pando tx show`: what was committed.

use super::report::bytes;
use super::review_text::time;
use super::{guest, review_json};
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print_json};
use anyhow::Context;
use pando_tx::Logged;
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(super) struct Log {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Those in this guest [default: those on the host]
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// Forget all of them, and free the room that they take
    #[arg(long, conflicts_with = "json")]
    clear: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The number of the commit, as `pando tx log` names it
    number: u64,
    /// The guest that it is in
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Log {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        if self.clear {
            let count = pando_tx::clear(home).context("cannot clear the log")?;
            super::recover::sweep_soon(home, None, None);
            println!("{count} forgotten");
            return Ok(0);
        }
        let logged = pando_tx::list(home).context("cannot read the log")?;
        if self.json {
            print_json(&logged.iter().map(object).collect::<Vec<_>>())?;
        } else {
            let mut table = Table::new(&[
                ("NUMBER", Lean::Right),
                ("TIME", Lean::Left),
                ("USER", Lean::Right),
                ("PATHS", Lean::Right),
                ("KEPT", Lean::Right),
                ("NAME", Lean::Left),
                ("COMMAND", Lean::Left),
            ]);
            logged.iter().for_each(|one| table.row(row(one)));
            table.print()?;
        }
        Ok(0)
    }
}

fn row(one: &Logged) -> [String; 7] {
    let about = &one.about;
    let seconds = pando_tx::Moment { nanoseconds: 0, ..about.when };
    let command = match about.undoes {
        Some(number) => format!("(undo of {number})"),
        None if about.command.is_empty() => "(entered)".to_owned(),
        None => about.command.join(" "),
    };
    [
        one.number.to_string(),
        time(seconds),
        about.uid.to_string(),
        one.paths.to_string(),
        bytes(one.bytes),
        about.name.to_string(),
        command,
    ]
}

fn object(one: &Logged) -> serde_json::Value {
    let about = &one.about;
    json!({
        "number": one.number,
        "name": about.name,
        "command": about.command,
        "time": time(about.when),
        "uid": about.uid,
        "undoes": about.undoes,
        "paths": one.paths,
        "kept_bytes": one.bytes,
    })
}

impl Show {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let entry = pando_tx::entry(home, self.number)?;
        let review = entry.review();
        if self.json {
            let lines = review.iter().flat_map(|part| part.entries.iter().map(|entry| review_json::entry(part, entry)));
            print_json(&lines.collect::<Vec<_>>())?;
        } else {
            super::diff::show(&review, false)?;
        }
        Ok(0)
    }
}
