//! Commits of random changes, killed at random steps, and killed again while they are recovered: the tree is what it
//! was before or what it was to be after, and nothing else.
//!
//! `PANDO_TEST_COMMITS` says how many commits (default 150; the slow case goes on until 2,000 were killed),
//! `PANDO_TEST_SEED` which.

use crate::case::{Case, Tag, skip};
use crate::dice::{Dice, seed_of_this_run};
use crate::disorder::{self, Cleared};
use crate::line::{Ended, Line};
use crate::sandbox::Sandbox;
use crate::tree_state;
use std::path::Path;

/// How many commits are made where the environment does not say.
const COMMITS: u64 = 150;
const MANY: u64 = 2000;

/// How many commits a planted bug may stay hidden.
const HIDDEN: u64 = 400;

/// How often a recovery is killed before it is let go.
const KILLS: u32 = 4;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::commits_killed_at_random_steps", at_random_steps),
    Case::new("tx::commits_on_spares_killed_at_random_steps", on_spares),
    Case::new("tx::commits_of_what_was_in_memory_killed_at_random_steps", from_memory),
    Case::new("tx::2000_killed_commits", at_very_many_steps).tags(&[Tag::Slow]),
    Case::new("tx::a_commit_killed_at_each_of_its_steps", at_each_step).tags(&[Tag::Slow]),
    Case::new("tx::planted_bugs_are_found", planted_bugs_are_found).tags(&[Tag::Slow]),
];

/// What was seen.
#[derive(Debug, Default)]
struct Tally {
    unharmed: u64,
    killed: u64,
    killed_again: u64,
    before: u64,
    after: u64,
}

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Where the changes are until the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    OnDisk,
    InMemory,
}

impl Kept {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::OnDisk => &[],
            Self::InMemory => &["--in-memory=64M"],
        }
    }
}

/// The tree that is changed.
fn changed(sandbox: &Sandbox) -> Cleared {
    Cleared(sandbox.scratch().join("tree"))
}

fn at_random_steps(sandbox: &Sandbox) {
    let count = from_environment("PANDO_TEST_COMMITS", COMMITS);
    commits(sandbox, |_| Kept::OnDisk, |number, _| number < count);
}

fn from_memory(sandbox: &Sandbox) {
    let count = from_environment("PANDO_TEST_COMMITS", COMMITS);
    commits(sandbox, |_| Kept::InMemory, |number, _| number < count);
}

/// Beside a daemon, which makes the beginnings.
fn on_spares(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
    let count = from_environment("PANDO_TEST_COMMITS", COMMITS) / 2;
    commits(sandbox, |_| Kept::OnDisk, |number, _| number < count);
}

fn at_very_many_steps(sandbox: &Sandbox) {
    let killed = from_environment("PANDO_TEST_COMMITS", MANY);
    let kept = |number: u64| if number.is_multiple_of(3) { Kept::InMemory } else { Kept::OnDisk };
    commits(sandbox, kept, |number, tally| tally.killed < killed && number < killed * 4);
}

/// Makes commits as long as `goes_on` says so, of how many there were and what was seen; `kept` is asked for each.
fn commits(sandbox: &Sandbox, kept: impl Fn(u64) -> Kept, goes_on: impl Fn(u64, &Tally) -> bool) {
    let _changed = changed(sandbox);
    let seed = seed_of_this_run(1);
    let mut tally = Tally::default();
    let mut count = 0;
    while goes_on(count, &tally) {
        let number = count;
        count += 1;
        if let Err(difference) = one_commit(sandbox, seed * 1_000_000 + number, kept(number), None, &mut tally) {
            panic!("commit {number} of seed {seed}: {difference}");
        }
    }
    println!("     {tally:?}");
    assert!(tally.killed > count / 4 && tally.killed_again > 0, "the steps were missed: {tally:?}");
    assert!(tally.before > 0 && tally.after > 0, "only one outcome was seen: {tally:?}");
}

/// Not at random: a few commits, each killed at its first step, at its second, and so on until it comes to its end; and
/// of those that were left half done some killed at each step of their recovery.
fn at_each_step(sandbox: &Sandbox) {
    let _changed = changed(sandbox);
    let (mut commits, mut recoveries) = (0, 0);
    let seeds = [9_000_000, 9_000_001, 9_000_002];
    for (seed, kept) in seeds.map(|seed| (seed, Kept::OnDisk)).into_iter().chain([(9_000_000, Kept::InMemory)]) {
        for step in 0.. {
            let (ended, tree) = killed_at(sandbox, seed, kept, step);
            if ended.code() == 0 {
                break;
            }
            commits += 1;
            recover_and_compare(sandbox, seed, step, &tree);
        }
        for step in [6, 12, 18] {
            for again in 0.. {
                let (ended, tree) = killed_at(sandbox, seed, kept, step);
                assert_eq!(ended.code(), 137, "commit {seed} has fewer steps than {step}");
                let recovery = sandbox.pando(["tx", "recover"]).env("PANDO_TX_CRASH_STEP", again.to_string()).run();
                recover_and_compare(sandbox, seed, step, &tree);
                if recovery.code() == 0 {
                    break;
                }
                recoveries += 1;
            }
        }
    }
    println!("     {commits} commits and {recoveries} recoveries, killed at each step in turn");
    assert!(commits > 60 && recoveries > 20);
}

/// What a tree was, and what it was to be.
struct Trees([Vec<String>; 2]);

/// The same commit each time, killed at a step.
fn killed_at(sandbox: &Sandbox, seed: u64, kept: Kept, step: u64) -> (Ended, Trees) {
    let tree = sandbox.scratch().join("tree");
    disorder::clear(&tree);
    std::fs::create_dir(&tree).expect("a directory can be made");
    disorder::make_protectively(&tree, &mut Dice::new(seed), 60);
    let before = tree_state::lines(&tree);
    std::thread::sleep(std::time::Duration::from_millis(12));
    let line = sandbox.pando(["tx", "run", "-q", "--retry", "0", "--no-durable"]).args(kept.options()).args(["--"]);
    let line = line.args(disorder_words(seed, 40, &tree)).env("PANDO_TX_CRASH_STEP", step.to_string());
    let ended = line.run();
    if has_met_another_test(&ended) {
        return killed_at(sandbox, seed, kept, step);
    }
    assert!([0, 137].contains(&ended.code()), "seed {seed}, step {step}: {}", ended.err());
    let after = ended.out().lines().map(str::to_owned).collect();
    (ended, Trees([before, after]))
}

fn recover_and_compare(sandbox: &Sandbox, seed: u64, step: u64, trees: &Trees) {
    let said = sandbox.pando(["tx", "recover"]).ok();
    let now = tree_state::lines(&sandbox.scratch().join("tree"));
    // Whether it was committed only the last recovery that came to its end says.
    let fits = trees.0.iter().position(|tree| *tree == now);
    let wrong = compare(&now, &trees.0[1]).err().unwrap_or_default();
    assert!(fits.is_some(), "commit {seed}, killed at step {step}: neither before nor after: {wrong}");
    assert!(fits == Some(1) || !said.contains("committed, and in place") || trees.0[0] == trees.0[1], "{said}");
}

fn planted_bugs_are_found(sandbox: &Sandbox) {
    let _changed = changed(sandbox);
    for bug in ["wrong-order", "lost-hard-link", "replay-not-idempotent"] {
        let mut tally = Tally::default();
        let found = (0..HIDDEN)
            .find(|number| one_commit(sandbox, 7_000_000 + number, Kept::OnDisk, Some(bug), &mut tally).is_err());
        match found {
            Some(number) => println!("     {bug}: found by commit {number}"),
            None => panic!("{bug} was not found in {HIDDEN} commits: {tally:?}"),
        }
        // What the bug spoilt is no leftover of Pando's.
        let _ = sandbox.pando(["tx", "recover"]).run();
    }
}

/// Makes a tree, changes it in a transaction that is killed somewhere, recovers, and compares.
fn one_commit(sandbox: &Sandbox, seed: u64, kept: Kept, bug: Option<&str>, tally: &mut Tally) -> Result<(), String> {
    let tree = sandbox.scratch().join("tree");
    disorder::clear(&tree);
    std::fs::create_dir(&tree).expect("a directory can be made");
    let mut dice = Dice::new(seed);
    disorder::make_protectively(&tree, &mut dice, 60);
    let before = tree_state::lines(&tree);
    // Changes of the same timer tick would count as made by others while the transaction ran.
    std::thread::sleep(std::time::Duration::from_millis(12));
    let changes = [3, 10, 30, 60][dice.throw(4) as usize];
    // To carry what is in memory to the disk takes several times as many.
    let steps = (changes * 3 / 2 + 20) * if kept == Kept::InMemory { 5 } else { 1 };
    let step = if dice.throw(7) == 0 { dice.throw(8) } else { dice.throw(steps) };
    let plant = |line: Line| match bug {
        Some(bug) => line.env("PANDO_TX_PLANT", bug),
        None => line,
    };
    let words = disorder_words(seed, changes, &tree);
    let line = sandbox.pando(["tx", "run", "-q", "--retry", "0", "--no-durable"]).args(kept.options());
    let line = line.args(["--"]).args(words);
    let ended = plant(line.env("PANDO_TX_CRASH_STEP", step.to_string())).run();
    let after: Vec<String> = ended.out().lines().map(str::to_owned).collect();
    let committed = match ended.code() {
        0 => {
            tally.unharmed += 1;
            Some(true)
        }
        137 => {
            tally.killed += 1;
            recovered(sandbox, &mut dice, &plant, tally)?
        }
        _ if has_met_another_test(&ended) => return one_commit(sandbox, seed, kept, bug, tally),
        code if bug.is_some() => return Err(format!("exit code {code}: {}", ended.err())),
        code => panic!("seed {seed}: exit code {code}: {}", ended.err()),
    };
    let now = tree_state::lines(&tree);
    let committed = committed.unwrap_or_else(|| compare(&now, &before).is_err());
    *(if committed { &mut tally.after } else { &mut tally.before }) += 1;
    compare(&now, if committed { &after } else { &before })
}

/// Whether a transaction was lost because another test's disk, in which it had a part too, was taken away meanwhile.
fn has_met_another_test(ended: &Ended) -> bool {
    ended.code() == 125 && ended.err().contains("was unmounted by others")
}

/// The words of a program that disorders a tree: this one.
fn disorder_words(seed: u64, changes: u64, tree: &Path) -> [String; 5] {
    let program = std::env::current_exe().expect("this program has a path");
    let text = |path: &Path| path.to_str().expect("the path is text").to_owned();
    [text(&program), disorder::PROTECTIVE.to_owned(), (seed + 500_000).to_string(), changes.to_string(), text(tree)]
}

/// Recovers, killed a few times on the way; whether the transaction turned out to be committed. Nobody says so where
/// the daemon was first, which makes the next beginning.
fn recovered(
    sandbox: &Sandbox,
    dice: &mut Dice,
    plant: &impl Fn(Line) -> Line,
    tally: &mut Tally,
) -> Result<Option<bool>, String> {
    for kill in 0..=KILLS {
        let line = plant(sandbox.pando(["tx", "recover"]));
        let line = match dice.throw(3) {
            0 => line,
            _ if kill == KILLS => line,
            _ => line.env("PANDO_TX_CRASH_STEP", dice.throw(120).to_string()),
        };
        let ended = line.run();
        match ended.code() {
            137 => tally.killed_again += 1,
            0 if ended.out().is_empty() => return Ok(None),
            0 => return Ok(Some(!ended.out().contains("not committed"))),
            code => return Err(format!("recovery ended with {code}: {}", ended.err())),
        }
    }
    skip("a recovery that is not killed was killed")
}

fn compare(now: &[String], expected: &[String]) -> Result<(), String> {
    let missing = |from: &[String], other: &[String]| -> Vec<String> {
        from.iter().filter(|line| !other.contains(line)).take(8).cloned().collect()
    };
    let (lost, gained) = (missing(expected, now), missing(now, expected));
    if lost.is_empty() && gained.is_empty() { Ok(()) } else { Err(format!("expected {lost:#?}, found {gained:#?}")) }
}
