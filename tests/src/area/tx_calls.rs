//! Calls of all kinds that files have: in a transaction they are answered as without one, what is committed is the tree
//! that they would have left, and an abort leaves the tree that was there.
//!
//! `PANDO_TEST_SEEDS` says how many seeds (default 3, the slow cases 40), `PANDO_TEST_CALLS` how many calls of each
//! (default 250, the slow ones 1,500), `PANDO_TEST_SEED` which.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::file_calls::{self, WORD};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::tree_state;
use std::path::{Path, PathBuf};

const EXT4: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")];
const XFS: &[Need] = &[Need::Root, Need::Program("mkfs.xfs", "xfsprogs")];
const BTRFS: &[Need] = &[Need::Root, Need::Program("mkfs.btrfs", "btrfs-progs")];
const FORMATS: [&[&str]; 3] = [&["mkfs.ext4", "-q", "-b", "4096"], &["mkfs.xfs", "-q"], &["mkfs.btrfs", "-q"]];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_calls::on_ext4", |sandbox| on_a_disk(sandbox, FORMATS[0], &[], FEW)).needs(EXT4),
    Case::new("tx_calls::on_xfs", |sandbox| on_a_disk(sandbox, FORMATS[1], &[], FEW)).needs(XFS),
    Case::new("tx_calls::on_btrfs", |sandbox| on_a_disk(sandbox, FORMATS[2], &[], FEW)).needs(BTRFS),
    Case::new("tx_calls::in_memory", |sandbox| on_a_disk(sandbox, FORMATS[0], MEMORY, FEW)).needs(EXT4),
    Case::new("tx_calls::in_a_guest", |sandbox| in_a_guest(sandbox, FEW)),
    Case::new("tx_calls::on_a_guests_layer", |sandbox| on_a_layer(sandbox, (2, FEW.1))),
    Case::new("tx_calls::many_on_a_guests_layer", |sandbox| on_a_layer(sandbox, MANY)).tags(SLOW),
    Case::new("tx_calls::many_on_ext4", |sandbox| on_a_disk(sandbox, FORMATS[0], &[], MANY)).needs(EXT4).tags(SLOW),
    Case::new("tx_calls::many_on_xfs", |sandbox| on_a_disk(sandbox, FORMATS[1], &[], MANY)).needs(XFS).tags(SLOW),
    Case::new("tx_calls::many_on_btrfs", |sandbox| on_a_disk(sandbox, FORMATS[2], &[], MANY)).needs(BTRFS).tags(SLOW),
    Case::new("tx_calls::many_in_memory", |sandbox| on_a_disk(sandbox, FORMATS[0], MEMORY, MANY))
        .needs(EXT4)
        .tags(SLOW),
    Case::new("tx_calls::many_in_a_guest", |sandbox| in_a_guest(sandbox, MANY)).tags(SLOW),
    Case::new("tx_calls::mistakes_are_noticed", mistakes).needs(EXT4),
];

const SLOW: &[Tag] = &[Tag::Slow];
const MEMORY: &[&str] = &["--in-memory=256M"];

/// Seeds, and calls of each.
const FEW: (u64, u64) = (3, 250);
const MANY: (u64, u64) = (40, 1500);

/// Where this program is in the guest.
const HERE: &str = "/usr/bin/pando-tests";

/// Where it happens: two trees that are made alike, in one of which there are transactions.
struct Stage<'a> {
    sandbox: &'a Sandbox,
    at: PathBuf,
    options: &'static [&'static str],
    guest: bool,
    kinds: &'static str,
    plant: Option<&'static str>,
    /// Whether the kernel counts the names of a file rightly. An overlay does not, of one that has several in a lower
    /// layer: `ln one y; rm one; ln y d/x; mv d/x two; rm -r d` leaves two names and a count of three, without any
    /// transaction.
    counts: bool,
}

impl Stage<'_> {
    /// This program, there.
    fn program(&self) -> PathBuf {
        if self.guest { HERE.into() } else { std::env::current_exe().expect("this program has a path") }
    }

    fn transaction(&self) -> Line {
        let line = self.sandbox.pando(["tx", "run", "-q", "--no-durable", "--retry", "0"]).args(self.options);
        let line = if self.guest { line.args(["--guest", "g"]) } else { line };
        let line = match self.plant {
            Some(plant) => line.env("PANDO_TX_PLANT", plant),
            None => line,
        };
        line.args(["--"])
    }

    fn line(&self, inside: bool) -> Line {
        match (inside, self.guest) {
            (false, false) => Line::new(self.program()),
            (false, true) => self.sandbox.pando(["exec", "g", "--", HERE]),
            (true, _) => self.transaction().args([self.program()]),
        }
    }

    /// Makes calls in a tree; their answers.
    fn make(&self, inside: bool, tree: &Path, seed: u64, count: u64) -> String {
        let line = self.line(inside).args([WORD, "make", &seed.to_string(), &count.to_string()]).args([tree]);
        line.args([self.kinds]).limit(600).ok()
    }

    fn state(&self, tree: &Path) -> String {
        let state = self.line(false).args([WORD, "state"]).args([tree]).limit(120).ok();
        if self.counts {
            return state;
        }
        // `links PATH COUNT TIME DATA`: which names are one file other lines say.
        let without_count = |line: &str| {
            let words = line.split(' ').enumerate();
            let words: Vec<&str> =
                words.filter(|(at, _)| *at != 2 || !line.starts_with("links ")).map(|(_, word)| word).collect();
            words.join(" ")
        };
        state.lines().map(without_count).collect::<Vec<_>>().join("\n")
    }

    fn shell(&self, script: &str) {
        let line = if self.guest { self.sandbox.pando(["exec", "g", "--"]) } else { Line::new("env") };
        line.args(["sh", "-c", script]).ok();
    }

    /// The first difference of a seed's.
    fn difference(&self, seed: u64, calls: u64) -> Option<String> {
        let (inside, native) = (self.at.join("inside"), self.at.join("native"));
        let (one, other) = (inside.display(), native.display());
        self.shell(&format!("rm -rf {one} {other}; mkdir {one} {other}; chmod 755 {one} {other}"));
        for tree in [&inside, &native] {
            self.make(false, tree, seed, calls / 3);
        }
        self.compared(seed, calls)
    }

    /// The same where both trees were made.
    fn compared(&self, seed: u64, calls: u64) -> Option<String> {
        let (inside, native) = (self.at.join("inside"), self.at.join("native"));
        // What was made within one tick of the clock would count as made by others.
        std::thread::sleep(std::time::Duration::from_millis(12));
        let same = |what: &str, mine: &str, native: &str| first_difference(what, mine, native, file_calls::is_as);
        let before = same("before", &self.state(&inside), &self.state(&native));
        assert_eq!(before, None, "seed {seed}: the same is not made twice");
        let left = self.aborted(&inside, seed, calls);
        let answers = self.make(true, &inside, seed + 1, calls);
        let expected = self.make(false, &native, seed + 1, calls);
        left.or_else(|| same("answered", &answers, &expected))
            .or_else(|| same("left", &self.state(&inside), &self.state(&native)))
    }

    /// What is other after an abort.
    fn aborted(&self, tree: &Path, seed: u64, calls: u64) -> Option<String> {
        // In a guest its files are looked at from within.
        let look = || if self.guest { self.state(tree) } else { tree_state::exact(tree).join("\n") };
        let before = look();
        let program = self.program();
        let line = self.transaction().args(["sh", "-c", "\"$@\" >/dev/null; exit 3", "sh"]).args([&program]);
        let line = line.args([WORD, "make", &(seed + 2).to_string(), &calls.to_string()]);
        line.args([tree]).args([self.kinds]).limit(600).run().ended_with(3);
        first_difference("aborted", &look(), &before, str::eq)
    }
}

fn first_difference(what: &str, mine: &str, native: &str, same: fn(&str, &str) -> bool) -> Option<String> {
    let lines = mine.lines().zip(native.lines()).find(|(mine, native)| !same(mine, native));
    let lengths = (mine.lines().count(), native.lines().count());
    let found =
        lines.map(|(mine, native)| format!("{what}:\n  in a transaction: {mine}\n  without one:      {native}"));
    found.or_else(|| (lengths.0 != lengths.1).then(|| format!("{what}: {lengths:?} lines")))
}

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn compared(stage: &Stage, (seeds, calls): (u64, u64)) {
    let (seeds, calls) = (from_environment("PANDO_TEST_SEEDS", seeds), from_environment("PANDO_TEST_CALLS", calls));
    let (mut dice, first) = Dice::of_this_run();
    let mut others = Vec::new();
    for number in 0..seeds {
        // The first is the one that was printed: alone it is found again at once.
        let seed = if number == 0 { first % (1 << 40) } else { dice.throw(1 << 40) };
        others.extend(stage.difference(seed, calls).map(|found| format!("seed {seed}: {found}")));
    }
    println!("     {seeds} seeds of {calls} calls, {} of them other than without a transaction", others.len());
    assert!(others.is_empty(), "{}", others.join("\n"));
}

fn on_a_disk(sandbox: &Sandbox, format: &[&str], options: &'static [&'static str], many: (u64, u64)) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 400, format, "");
    let kinds = if options.is_empty() { "all" } else { "everywhere" };
    compared(&Stage { sandbox, at: disk.at.clone(), options, guest: false, kinds, plant: None, counts: true }, many);
}

fn in_a_guest(sandbox: &Sandbox, many: (u64, u64)) {
    let program = std::env::current_exe().expect("this program has a path");
    sandbox.guest("g", &["-v", &format!("{}:{HERE}:ro", program.display())]);
    compared(
        &Stage {
            sandbox,
            at: "/srv".into(),
            options: &[],
            guest: true,
            kinds: "everywhere",
            plant: None,
            counts: true,
        },
        many,
    );
}

/// Trees that lie in a layer of the guest's: all that is done to them copies it first, in the transaction and without
/// one.
fn on_a_layer(sandbox: &Sandbox, (seeds, calls): (u64, u64)) {
    let (seeds, calls) = (from_environment("PANDO_TEST_SEEDS", seeds), from_environment("PANDO_TEST_CALLS", calls));
    let program = std::env::current_exe().expect("this program has a path");
    let root = sandbox.scratch().join("root");
    let (mut dice, first) = Dice::of_this_run();
    let mut others = Vec::new();
    let seeds: Vec<u64> = (0..seeds)
        .map(|number| if number == 0 { first % (1 << 40) } else { dice.throw(1 << 40) })
        .chain([ONLY_AN_ACCESS_LIST])
        .collect();
    for seed in &seeds {
        let seed = *seed;
        let copy = "rm -rf \"$2\"; cp -a \"$1\" \"$2\"; mkdir \"$2/srv/inside\" \"$2/srv/native\"";
        Line::new("sh").args(["-ec", copy, "sh", sandbox.busybox()]).args([&root]).ok();
        for tree in ["inside", "native"] {
            let line = Line::new(&program).args([WORD, "make", &seed.to_string(), &(calls / 3).to_string()]);
            line.args([root.join("srv").join(tree)]).args(["everywhere"]).ok();
        }
        let from = root.display().to_string();
        let volume = format!("{}:{HERE}:ro", program.display());
        sandbox.pando(["create", "g", "--from", &from, "-v", &volume]).limit(120).ok();
        sandbox.pando(["start", "g"]).ok();
        let stage = Stage {
            sandbox,
            at: "/srv".into(),
            options: &[],
            guest: true,
            kinds: "everywhere",
            plant: None,
            counts: false,
        };
        others.extend(stage.compared(seed, calls).map(|found| format!("seed {seed}: {found}")));
        sandbox.pando(["rm", "--force", "g"]).ok();
    }
    println!("     {} seeds of {calls} calls, {} of them other than without a transaction", seeds.len(), others.len());
    assert!(others.is_empty(), "{}", others.join("\n"));
}

/// Of one object in a layer nothing but its access list is changed.
const ONLY_AN_ACCESS_LIST: u64 = 99_570_942_167;

/// Commits that leave something out: some seed shows it.
fn mistakes(sandbox: &Sandbox) {
    const MOST: u64 = 40;
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 400, FORMATS[0], "");
    for plant in ["lost-hard-link", "lost-attribute", "lost-time", "lost-mode", "filled-holes", "lost-removal"] {
        let at = disk.at.clone();
        let stage = Stage { sandbox, at, options: &[], guest: false, kinds: "all", plant: Some(plant), counts: true };
        let found = (1..=MOST).find(|seed| stage.difference(*seed * 10, 120).is_some());
        println!("     {plant}: found by seed {found:?}");
        assert!(found.is_some(), "{plant} is not noticed");
    }
}
