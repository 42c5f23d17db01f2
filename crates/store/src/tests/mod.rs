//! Trees through the store and back.

mod collection;
mod damage;
mod equality;
mod farm;
mod sharing;
mod survey;
mod tree;

use crate::{Imported, Store, Taking};
use std::path::PathBuf;
use tempfile::TempDir;

/// A store in a directory that goes away.
struct Trial {
    directory: TempDir,
    store: Store,
}

impl Trial {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store")).unwrap();
        Self { directory, store }
    }

    /// Where a test makes a tree.
    fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn import(&self, name: &str) -> Imported {
        self.store.import(&self.place(name), Taking::Copy).unwrap()
    }
}

/// Whether to go on: what needs root cannot be seen without.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: this needs root");
    }
    root
}
