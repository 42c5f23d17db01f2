//! A Debian system as `pando create --from debian:` installs it.

use anyhow::Context;
use pando_guest::source::{Options, Progress, Source, materialize};
use std::path::Path;

const SUITE: &str = "bookworm";

/// Who builds a root in a benchmark waits in silence.
struct Silent;

impl Progress for Silent {
    fn stage(&self, _: &str) {}
    fn advance(&self, _: u64, _: Option<u64>) {}
}

/// Installs one in a directory that is not there yet, with packages besides the essential ones.
pub(crate) fn install(at: &Path, packages: &[&str]) -> anyhow::Result<()> {
    std::fs::create_dir(at)?;
    let packages = packages.iter().map(|name| (*name).to_owned()).collect();
    let debian = Source::Debian { suite: SUITE.to_owned(), packages };
    materialize(&debian, at, &Options::default(), &Silent).context("installing a Debian root").map(drop)
}
