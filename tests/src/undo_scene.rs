//! A tree in a sandbox whose commits are kept and undone.

use crate::disorder::{self, Cleared};
use crate::line::{Ended, Line};
use crate::sandbox::Sandbox;
use crate::tree_state;
use std::fs;
use std::path::PathBuf;

/// A tree in a sandbox whose settings have everything kept.
pub(crate) struct Scene<'a> {
    sandbox: &'a Sandbox,
    pub(crate) tree: PathBuf,
    _cleared: Cleared,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox, keep: &str) -> Self {
        sandbox.settings(&format!("[transactions]\nkeep = \"{keep}\"\n"));
        let tree = sandbox.scratch().join("tree");
        disorder::clear(&tree);
        fs::create_dir_all(&tree).expect("a directory can be made");
        Self { sandbox, _cleared: Cleared(tree.clone()), tree }
    }

    pub(crate) fn sh(&self, script: &str) {
        let line = Line::new("sh").args(["-ec", script]).directory(&self.tree);
        line.ok();
    }

    /// Runs a script as a transaction.
    pub(crate) fn commit(&self, script: &str) {
        settle();
        let line = self.sandbox.pando(["tx", "run", "-q", "--no-durable", "--", "sh", "-ec", script]);
        line.directory(&self.tree).ok();
    }

    pub(crate) fn undo(&self, number: u64, options: &[&str]) -> Ended {
        settle();
        let line = self.sandbox.pando(["tx", "undo", &number.to_string(), "--no-durable"]).args(options);
        line.directory(&self.tree).run()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        tree_state::lines(&self.tree)
    }

    /// The numbers in the log, the oldest first.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let text = self.sandbox.pando(["tx", "log", "--json"]).ok();
        let all: Vec<serde_json::Value> = serde_json::from_str(&text).expect("it is JSON");
        all.iter().map(|one| one["number"].as_u64().expect("each has a number")).collect()
    }
}

/// Changes of the same timer tick would count as made by others while the transaction ran.
pub(crate) fn settle() {
    std::thread::sleep(std::time::Duration::from_millis(12));
}

/// Fails where a tree is not as expected, by what differs.
pub(crate) fn same(now: &[String], expected: &[String], about: &str) {
    let missing = |from: &[String], other: &[String]| -> Vec<String> {
        from.iter().filter(|line| !other.contains(line)).take(8).cloned().collect()
    };
    let (lost, gained) = (missing(expected, now), missing(now, expected));
    assert!(lost.is_empty() && gained.is_empty(), "{about}: expected {lost:#?}, found {gained:#?}");
}
