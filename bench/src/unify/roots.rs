//! The roots that guests run on: Debian systems, each in a tree of its own.

use anyhow::Context;
use pando_guest::source::{Options, Progress, Source, materialize};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Interpreters for the work.
const PACKAGES: [&str; 2] = ["perl", "python3-minimal"];

/// Some trees.
#[derive(Debug)]
pub(super) struct Roots {
    trees: Vec<PathBuf>,
    files: u64,
}

/// Who builds a root in a benchmark waits in silence.
struct Silent;

impl Progress for Silent {
    fn stage(&self, _: &str) {}
    fn advance(&self, _: u64, _: Option<u64>) {}
}

impl Roots {
    /// Makes `number` of them below a directory: the first is built, or copied from `given`, and the others are copies of it that then go their own way.
    pub(super) fn make(directory: &Path, given: Option<&Path>, number: usize) -> anyhow::Result<Self> {
        let template = directory.join("template");
        build(&template, given, &PACKAGES)?;
        Self::of_template(directory, template, number)
    }

    /// The same of a template that lies in that directory, and is the first of them afterwards.
    pub(super) fn of_template(directory: &Path, template: PathBuf, number: usize) -> anyhow::Result<Self> {
        let at = |number: usize| directory.join(format!("tree-{number}"));
        let first = at(0);
        std::fs::rename(template, &first)?;
        for number in 1..number {
            crate::interrupt::check()?;
            copy(&first, &at(number))?;
            go_own_way(&at(number), number)?;
        }
        let files = count(&first)?;
        Ok(Self { trees: (0..number).map(at).collect(), files })
    }

    pub(super) fn trees(&self) -> &[PathBuf] {
        &self.trees
    }

    /// Regular files in each.
    pub(super) fn files(&self) -> u64 {
        self.files
    }
}

/// Builds a Debian root with packages, or takes a copy of the one that is given.
pub(super) fn build(at: &Path, given: Option<&Path>, packages: &[&str]) -> anyhow::Result<()> {
    if let Some(given) = given {
        return copy(given, at);
    }
    std::fs::create_dir(at)?;
    let packages = packages.iter().map(|name| (*name).to_owned()).collect();
    let debian = Source::Debian { suite: "bookworm".to_owned(), packages };
    materialize(&debian, at, &Options::default(), &Silent).context("building a Debian root").map(drop)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let done = Command::new("cp").args(["-a", "--reflink=never"]).args([from, to]).status()?;
    anyhow::ensure!(done.success(), "copying {} failed", from.display());
    Ok(())
}

/// What differs between systems that were installed one by one.
fn go_own_way(tree: &Path, number: usize) -> anyhow::Result<()> {
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
