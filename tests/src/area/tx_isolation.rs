//! Transactions on the host beside others who work on the same files. The gate keeps nobody from changing names: what
//! comes between the last look of a commit and its end is counted and told. Everything else is validated: every command
//! ends, and a transaction that was said to be aborted has left nothing.

use crate::case::{Case, Tag};
use crate::history::{self, Verdict};
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::histories_on_the_host", history_on_the_host),
    Case::new("tx::1000_histories_on_the_host", long_history_on_the_host).tags(&[Tag::Slow]),
];

fn history_on_the_host(sandbox: &Sandbox) {
    make_history(sandbox, 12);
}

fn long_history_on_the_host(sandbox: &Sandbox) {
    make_history(sandbox, 1000);
}

fn make_history(sandbox: &Sandbox, count: u64) {
    let program = std::env::current_exe().expect("this program has a path");
    let directory = sandbox.scratch().join("history");
    history::begin(&directory).expect("a directory can be made");
    let part = |line: Line, words: &[&str]| line.args([history::WORD]).args(words).limit(3600);
    let outsiders =
        ["a", "b"].map(|me| (me, part(Line::new(&program), &["outsider", text(&directory), me, "800"]).start()));
    let log = || std::fs::read_to_string(directory.join("log")).expect("the history can be read");
    eventually("the outsiders are at work", || log().lines().count() > 3);
    let mut committed = BTreeSet::new();
    for id in 0..count {
        let line = sandbox.pando(["tx", "run", "--no-durable", "--retry", "8", "--"]).args([&program]);
        let ended = part(line, &["transaction", text(&directory), &id.to_string()]).run();
        match ended.code() {
            0 => drop(committed.insert(id)),
            125 => drop(ended.complains_of(&["nothing was changed"])),
            code => panic!("transaction {id} ended with {code}: {}", ended.err()),
        }
    }
    std::fs::write(directory.join("stop"), "").expect("a file can be written");
    let written: BTreeMap<String, u64> = outsiders
        .map(|(me, started)| {
            let count = started.wait().succeeded().out().trim().parse().expect("it says a number");
            (me.to_owned(), count)
        })
        .into();
    let Verdict { transactions, misplaced, lost } = history::judge(&log(), &committed, &written);
    println!(
        "     {count} transactions, {} committed, {transactions} in the history beside {written:?}",
        committed.len()
    );
    println!("     hit between validation and the end of the commit: {} misplaced, {lost} lines lost", misplaced.len());
    let ids = |line: &str| line.split(' ').nth(1).and_then(|id| id.parse().ok());
    let strangers = log()
        .lines()
        .filter(|line| line.starts_with("t "))
        .filter_map(ids)
        .filter(|id| !committed.contains(id))
        .count();
    assert_eq!(strangers, 0, "a transaction that was aborted is in the history");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is text")
}
