//! The roots that guests run on: Debian systems, each in a tree of its own.

use super::installation;
use crate::settings::Settings;
use crate::{debian_root, interrupt};
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
    /// Makes `number` of them below a directory, each installed on its own; where some are given, copies of these in
    /// turn, and of one where it has to be quick. Then they go their own ways.
    pub(super) fn make(directory: &Path, settings: &Settings, number: usize) -> anyhow::Result<Self> {
        let trees: Vec<PathBuf> = (0..number).map(|number| directory.join(format!("tree-{number}"))).collect();
        let (first, others) = (&trees[0], &trees[1..]);
        let apart = match settings.trees.as_slice() {
            [] => {
                debian_root::install(first, &PACKAGES)?;
                let apart = if settings.quick { 1 } else { number };
                installation::others(first, &trees[1..apart], &PACKAGES)?;
                others[apart - 1..].iter().try_for_each(|tree| copy(first, tree))?;
                apart
            }
            given => {
                trees.iter().zip(given.iter().cycle()).try_for_each(|(tree, given)| copy(given, tree))?;
                given.len().min(number)
            }
        };
        for (number, tree) in trees.iter().enumerate() {
            go_own_way(tree, number)?;
        }
        let files = count(first)?;
        let (names, differing) = installation::compare(first, &trees[1])?;
        let story = format!(
            "{number} Debian roots of {files} files, {apart} of them made one by one and the others copies with files of their own; of {names} names \
             {differing} are not the same in the first two"
        );
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
    duplicate(&["-a", "--reflink=never"], from, to)
}

/// The same with hard links in the place of files.
pub(super) fn link(from: &Path, to: &Path) -> anyhow::Result<()> {
    duplicate(&["-al"], from, to)
}

fn duplicate(options: &[&str], from: &Path, to: &Path) -> anyhow::Result<()> {
    interrupt::check()?;
    let done = Command::new("cp").args(options).args([from, to]).status()?;
    anyhow::ensure!(done.success(), "copying {} failed", from.display());
    Ok(())
}

/// What differs between systems that are in use.
pub(super) fn go_own_way(tree: &Path, number: usize) -> anyhow::Result<()> {
    let own = [
        ("etc/hostname", format!("guest-{number}\n")),
        ("etc/machine-id", format!("{number:032x}\n")),
        ("etc/own-key", format!("{number:0600}\n")),
        ("var/log/install.log", format!("{number:05000}\n")),
    ];
    for (name, text) in own {
        let path = tree.join(name);
        // It may be a link to the file of another tree.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::write(&path, text)?,
        }
    }
    Ok(())
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
