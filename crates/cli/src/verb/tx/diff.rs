//! `pando tx diff`: what a transaction has changed.

use super::review_text::path_of;
use super::{guest, quoted, review_json, review_text};
use crate::state_root::StateRoot;
use crate::table::print;
use anyhow::Context;
use pando_tx::{Look, PartReview, Reviewed, TxName};
use rustix::fs::FileType;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

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
    /// Write what it has changed to FILE, as a layer of a container image is written (tar); '-' is the standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["patch", "json"])]
    export: Option<PathBuf>,
}

impl Diff {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let review = pando_tx::review_of_open(home, &self.name);
        let review = review.with_context(|| format!("cannot read the changes of '{}'", self.name))?;
        if let Some(file) = &self.export {
            super::export::write(&review, file)?;
        } else if self.json {
            let lines = review.iter().flat_map(|part| part.entries.iter().map(|entry| review_json::entry(part, entry)));
            crate::table::print_json(&lines.collect::<Vec<_>>())?;
        } else {
            show(&review, self.patch)?;
        }
        Ok(0)
    }
}

/// Prints a line a path with what changes beside its content, and with `patch` what changed in text files.
pub(super) fn show(parts: &[PartReview], patch: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    for part in parts {
        for entry in &part.entries {
            text += &review_text::entry(part, entry);
            if patch && entry.content {
                text += &unified(part, entry);
            }
        }
    }
    print(&text)
}

/// A file's content as text, empty if there is none; nothing if it is too large or no text.
fn text_of(file: std::io::Result<File>) -> Option<String> {
    let file = match file {
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(String::new()),
        Err(_) => return None,
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

fn unified(part: &PartReview, entry: &Reviewed) -> String {
    let old = match &entry.old {
        // Of what comes in the place of something else there is no text before.
        Some(old) if old.kind != FileType::RegularFile => Some(String::new()),
        _ => text_of(part.before(entry)),
    };
    let (Some(old), Some(new)) = (old, text_of(part.after(entry))) else {
        let size = |look: &Option<Look>| look.as_ref().map_or(0, |look| look.size);
        return format!("    no text, or too large to show: {} → {} bytes\n", size(&entry.old), size(&entry.new));
    };
    let name = |side: &str, path| quoted::path(&[side.as_bytes(), &path_of(part, path)].concat());
    let before = name("a", entry.moved_from.as_ref().unwrap_or(&entry.path));
    let difference = similar::TextDiff::from_lines(&old, &new);
    let text = difference.unified_diff().header(&before, &name("b", &entry.path)).to_string();
    quoted::lines(&text)
}
