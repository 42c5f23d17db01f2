//! `pando unify`: share what guests have in common.

use super::Verb;
use crate::progress_line::ProgressLine;
use crate::replies::Unified;
use crate::size::size;
use crate::state_root::StateRoot;
use crate::table::{Lean, Table, print, print_json};
use anyhow::Context;
use pando_api::{Method, Unification};

#[derive(Debug, clap::Args)]
pub(crate) struct Unify {
    /// Only tell what would be saved
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Verb for Unify {
    const NAME: &'static str = "unify";
    const ABOUT: &'static str = "Share what the guests' own files have in common";
    const EXAMPLES: &'static str = "\
Examples:
  pando unify --dry-run       what would be saved
  pando unify                 guests at rest at once, running ones when they are next started";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Unify { dry_run: self.dry_run };
        client.send(method, true, Vec::new())?;
        let line = ProgressLine::new();
        let told = loop {
            let answer = client.receive::<Unified>().context("cannot unify the guests")?;
            answer.reply.progress.iter().for_each(|progress| line.show(progress));
            if !answer.continues {
                break answer.reply.unification.context("the daemon did not say what it did")?;
            }
        };
        drop(line);
        if self.json {
            print_json(&told)?;
        } else {
            table(&told).print()?;
            print(&format!("{} files looked at, {} of them read\n", told.files, told.read))?;
            let live: i64 = told.guests.iter().map(|guest| guest.live).sum();
            if live > 0 {
                print(&format!("{} of files in use share blocks now\n", size(live)))?;
            }
        }
        Ok(0)
    }
}

fn table(told: &Unification) -> Table {
    let mut table =
        Table::new(&[("NAME", Lean::Left), ("FILES", Lean::Right), ("SAVES", Lean::Right), ("OUTCOME", Lean::Left)]);
    for guest in &told.guests {
        table.row([guest.name.clone(), guest.files.to_string(), size(guest.saves), guest.outcome.clone()]);
    }
    table
}
