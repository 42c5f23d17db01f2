//! More roots than a disk holds: a few are installed, each on its own, and the others are copies of them that go their
//! own way, made when they are wanted.

use super::{installation, roots};
use crate::debian_root;
use crate::settings::Settings;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many are installed.
const INSTALLED: usize = 4;

const SLIM: &str = include_str!("slim.sh");

/// Where the roots come from.
#[derive(Debug)]
pub(super) struct Supply {
    directory: PathBuf,
    templates: Vec<PathBuf>,
}

impl Supply {
    /// Installs the first ones, or takes copies of those that are given, and makes them as small as the papers'.
    pub(super) fn open(directory: &Path, settings: &Settings, packages: &[&str]) -> anyhow::Result<Self> {
        let installed = if settings.quick { 1 } else { INSTALLED };
        let number = if settings.trees.is_empty() { installed } else { settings.trees.len() };
        let templates: Vec<PathBuf> = (0..number).map(|number| directory.join(format!("template-{number}"))).collect();
        if settings.trees.is_empty() {
            debian_root::install(&templates[0], packages)?;
            installation::others(&templates[0], &templates[1..], packages)?;
        }
        settings.trees.iter().zip(&templates).try_for_each(|(given, template)| roots::copy(given, template))?;
        for template in &templates {
            let output = Command::new("sh").args(["-c", SLIM, "slim"]).arg(template).output()?;
            anyhow::ensure!(output.status.success(), "slim: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Self { directory: directory.to_owned(), templates })
    }

    /// How many were made one by one.
    pub(super) fn installed(&self) -> usize {
        self.templates.len()
    }

    /// One of them, to look at.
    pub(super) fn sample(&self) -> &Path {
        &self.templates[0]
    }

    /// The root of that number, on blocks of its own; it is made if it is not there yet.
    pub(super) fn tree(&self, number: usize) -> anyhow::Result<PathBuf> {
        self.made(number, roots::copy)
    }

    /// The same for a guest whose files the store will have, and not the tree, which goes: its files are those of
    /// others, under names of its own.
    pub(super) fn passing_tree(&self, number: usize) -> anyhow::Result<PathBuf> {
        self.made(number, roots::link)
    }

    fn made(&self, number: usize, make: fn(&Path, &Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
        let tree = self.directory.join(format!("tree-{number}"));
        if !tree.exists() {
            make(&self.templates[number % self.templates.len()], &tree)?;
            roots::go_own_way(&tree, number)?;
        }
        Ok(tree)
    }
}
