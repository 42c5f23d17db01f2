//! `pando tx diff`: what a transaction has changed.

use super::guest;
use crate::state_root::StateRoot;
use crate::table::print;
use anyhow::Context;
use pando_tx::{Change, PartChanges, TxName};
use std::fmt::Write;
use std::fs::File;
use std::io::Read;

/// A file larger than this is not shown as text.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Diff {
    /// The transaction's name
    name: TxName,
    /// The guest that it is in
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// Show the changes inside text files too
    #[arg(short, long)]
    patch: bool,
    /// As JSON
    #[arg(long, conflicts_with = "patch")]
    json: bool,
}

impl Diff {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let changes = pando_tx::changes_of_open(home, &self.name);
        let changes = changes.with_context(|| format!("cannot read the changes of '{}'", self.name))?;
        if self.json {
            let lines = changes.iter().flat_map(|part| part.changes.iter().map(|change| as_json(part, change)));
            crate::table::print_json(&lines.collect::<Vec<_>>())?;
        } else {
            show(&changes, self.patch)?;
        }
        Ok(0)
    }
}

/// Prints a line a path, and with `patch` what changed in text files.
pub(super) fn show(parts: &[PartChanges], patch: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    for part in parts {
        for change in &part.changes {
            let path = shown(part, change);
            let slash = if change.directory && path != "/" { "/" } else { "" };
            let _ = writeln!(text, "{} {}{slash}", change.sign, crate::printable::printable(&path));
            if patch && change.content {
                text += &unified(part, change, &path);
            }
        }
    }
    print(&text)
}

fn shown(part: &PartChanges, change: &Change) -> String {
    let path = part.part.live.join(change.path.as_path()).display().to_string();
    let path = path.trim_end_matches("/.");
    if path.is_empty() { "/".to_owned() } else { path.to_owned() }
}

fn as_json(part: &PartChanges, change: &Change) -> serde_json::Value {
    serde_json::json!({
        "change": change.sign, "path": shown(part, change), "directory": change.directory, "bytes": change.bytes,
    })
}

/// A file's content as text, empty if there is none; nothing if it is too large or no text.
fn text_of(file: std::io::Result<File>) -> Option<String> {
    let file = match file {
        Err(_) => return Some(String::new()),
        Ok(file) => file,
    };
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

fn unified(part: &PartChanges, change: &Change, path: &str) -> String {
    let (old, new) = (text_of(part.before(change)), text_of(part.after(change)));
    let (Some(old), Some(new)) = (old, new) else { return "  (no text, or too large to show)\n".to_owned() };
    let difference = similar::TextDiff::from_lines(&old, &new);
    let text = difference.unified_diff().header(&format!("a{path}"), &format!("b{path}")).to_string();
    crate::printable::printable_lines(&text)
}
