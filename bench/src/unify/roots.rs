//! The roots that guests run on: Debian systems, each in a tree of its own.

use super::installation;
use crate::interrupt;
use crate::settings::Settings;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Interpreters for the work.
const PACKAGES: [&str; 2] = ["perl", "python3-minimal"];

/// Some trees.
#[derive(Debug)]
pub(super) struct Roots {
    trees: Vec<PathBuf>,
    files: u64,
    story: String,
}

impl Roots {
    /// Makes `number` of them below a directory, each installed on its own; where a tree is given, or it has to be quick, copies of one. Then they go
    /// their own ways.
    pub(super) fn make(directory: &Path, settings: &Settings, number: usize) -> anyhow::Result<Self> {
        let trees: Vec<PathBuf> = (0..number).map(|number| directory.join(format!("tree-{number}"))).collect();
        let (first, others) = (&trees[0], &trees[1..]);
        match &settings.tree {
            Some(given) => copy(given, first)?,
            None => installation::first(first, &PACKAGES)?,
        }
        let are_copies = settings.tree.is_some() || settings.quick;
        if are_copies {
            others.iter().try_for_each(|tree| copy(first, tree))?;
        } else {
            installation::others(first, others, &PACKAGES)?;
        }
        for (number, tree) in trees.iter().enumerate() {
            go_own_way(tree, number)?;
        }
        let files = count(first)?;
        let (names, differing) = installation::compare(first, &trees[1])?;
        let made = if are_copies { "copies of one Debian root" } else { "Debian roots, installed one by one," };
        let story =
            format!("{number} {made} of {files} files; of {names} names {differing} are not the same in the first two");
        Ok(Self { trees, files, story })
    }

    pub(super) fn trees(&self) -> &[PathBuf] {
        &self.trees
    }

    /// Regular files in each.
    pub(super) fn files(&self) -> u64 {
        self.files
    }

    /// How they came to be, and how much they differ.
    pub(super) fn story(&self) -> &str {
        &self.story
    }
}

pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    interrupt::check()?;
    let done = Command::new("cp").args(["-a", "--reflink=never"]).args([from, to]).status()?;
    anyhow::ensure!(done.success(), "copying {} failed", from.display());
    Ok(())
}

/// What differs between systems that are in use.
pub(super) fn go_own_way(tree: &Path, number: usize) -> anyhow::Result<()> {
    std::fs::write(tree.join("etc/hostname"), format!("guest-{number}\n"))?;
    std::fs::write(tree.join("etc/machine-id"), format!("{number:032x}\n"))?;
    std::fs::write(tree.join("etc/own-key"), format!("{number:0600}\n"))?;
    Ok(std::fs::write(tree.join("var/log/install.log"), format!("{number:05000}\n"))?)
}

fn count(tree: &Path) -> anyhow::Result<u64> {
    let (mut files, mut todo) = (0, vec![tree.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            files += u64::from(kind.is_file());
            if kind.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    Ok(files)
}
