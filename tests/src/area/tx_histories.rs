//! Histories of two to six transactions at once, alone and beside outsiders: there is an order, one after another, that
//! explains what each of them was told.
//!
//! `PANDO_TEST_ROUNDS` says how many rounds (default 12, the slow cases 500), `PANDO_TEST_SEED` which. On the host,
//! where a gate has those wait who open what is changed and nobody else, what outsiders do between the last look of a
//! commit and its end is counted and printed.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::serial_order::{Done, History, Order, Scene, WORD, order};
use crate::small_disk::SmallDisk;
use std::path::{Path, PathBuf};

const XFS: &[Need] = &[Need::Root, Need::Program("mkfs.xfs", "xfsprogs")];
const EXT4: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_histories::on_the_host", |sandbox| {
        judged(sandbox, &Stage::on_host(sandbox.scratch()), rounds(12), &MAKE_UP)
    }),
    Case::new("tx_histories::in_memory", |sandbox| {
        judged(sandbox, &Stage::in_memory(sandbox.scratch()), rounds(12), &MAKE_UP)
    }),
    Case::new("tx_histories::in_a_guest", |sandbox| in_a_guest(sandbox, rounds(12))),
    Case::new("tx_histories::many_on_ext4", |sandbox| on_a_disk(sandbox, &["mkfs.ext4", "-q"]))
        .needs(EXT4)
        .tags(&[Tag::Slow]),
    Case::new("tx_histories::many_on_xfs", |sandbox| on_a_disk(sandbox, &["mkfs.xfs", "-q"]))
        .needs(XFS)
        .tags(&[Tag::Slow]),
    Case::new("tx_histories::many_in_memory", |sandbox| {
        judged(sandbox, &Stage::in_memory(sandbox.scratch()), rounds(500), &MAKE_UP)
    })
    .tags(&[Tag::Slow]),
    Case::new("tx_histories::many_in_a_guest", |sandbox| in_a_guest(sandbox, rounds(500))).tags(&[Tag::Slow]),
    Case::new("tx_histories::mistakes_are_noticed", mistakes).tags(&[Tag::Slow]),
];

/// Where this program is in the guest.
const HERE: &str = "/usr/bin/pando-tests";

/// Of those that were hit on the host while a commit was applied: one of so many rounds beside outsiders, or more.
const HIT: usize = 10;

fn rounds(usual: u64) -> u64 {
    std::env::var("PANDO_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Where histories take place.
struct Stage {
    at: PathBuf,
    program: PathBuf,
    options: &'static [&'static str],
    guest: bool,
}

impl Stage {
    fn on_host(at: PathBuf) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        Self { at, program, options: &[], guest: false }
    }

    fn in_memory(at: PathBuf) -> Self {
        Self { options: &["--in-memory=16M"], ..Self::on_host(at) }
    }

    /// This program with a part, outside of a transaction.
    fn outside(&self, sandbox: &Sandbox, part: &str, root: &Path, more: &[String]) -> Line {
        let line = if self.guest {
            sandbox.pando(["exec", "g", "--"]).args([&self.program])
        } else {
            Line::new(&self.program)
        };
        line.args([WORD, part]).args([root]).args(more)
    }

    /// The same in a transaction.
    fn inside(&self, sandbox: &Sandbox, root: &Path, seed: u64) -> Line {
        let line = sandbox.pando(["tx", "run", "--no-durable", "--retry", "1", "--output", "commit"]);
        let line = line.args(self.options).args(if self.guest { &["--guest", "g"][..] } else { &[] });
        line.args(["--"]).args([&self.program]).args([WORD, "transaction"]).args([root]).args([seed.to_string()])
    }
}

/// How many of each are at work in a round.
struct MakeUp {
    transactions: u64,
    outsiders: u64,
    /// What Pando is told to do wrong.
    plant: Option<&'static str>,
}

const MAKE_UP: MakeUp = MakeUp { transactions: 6, outsiders: 2, plant: None };

/// What came of a round.
struct Round {
    order: Order,
    outsiders: usize,
    committed: usize,
    lost: usize,
    words: String,
}

/// What an actor does: a transaction after another, or an outsider's steps.
fn act(
    sandbox: &Sandbox,
    stage: &Stage,
    root: &Path,
    seed: u64,
    plant: Option<&str>,
    inside: bool,
) -> (Vec<Vec<Done>>, usize) {
    let line = |line: Line| match plant {
        Some(plant) => line.env("PANDO_TX_PLANT", plant).limit(60),
        None => line.limit(60),
    };
    if !inside {
        let ended = line(stage.outside(sandbox, "outsider", root, &[seed.to_string()])).run().succeeded();
        return (Done::all(&ended.out()).into_iter().map(|done| vec![done]).collect(), 0);
    }
    let (mut units, mut lost) = (Vec::new(), 0);
    for number in 0..1 + seed % 2 {
        let ended = line(stage.inside(sandbox, root, seed + 1_000_003 * number)).run();
        match ended.code() {
            0 => units.push(Done::all(&ended.out())),
            125 if ended.err().contains("nothing was changed") => lost += 1,
            code => panic!("seed {seed}: a transaction ended with {code}: {}", ended.err()),
        }
    }
    (units, lost)
}

/// One round, of a seed.
fn round(sandbox: &Sandbox, stage: &Stage, seed: u64, make_up: &MakeUp) -> Round {
    let mut dice = Dice::new(seed);
    let root = stage.at.join(format!("h{seed}"));
    stage.outside(sandbox, "begin", &root, &[]).ok();
    let scene = || Scene::from_text(&stage.outside(sandbox, "scene", &root, &[]).ok());
    let before = scene();
    // What is made within one tick of the clock would count as made by others.
    std::thread::sleep(std::time::Duration::from_millis(12));
    let inside = 2 + dice.throw(make_up.transactions - 1);
    // Every other round is the transactions' alone.
    let outsiders = if dice.throw(2) == 0 { 0 } else { dice.throw(make_up.outsiders + 1) };
    let seeds: Vec<(u64, bool)> =
        (0..inside + outsiders).map(|number| (dice.throw(1 << 40), number < inside)).collect();
    let acted: Vec<(Vec<Vec<Done>>, usize)> = std::thread::scope(|scope| {
        let start = |(seed, is_inside): &(u64, bool)| {
            let (seed, is_inside, root) = (*seed, *is_inside, &root);
            scope.spawn(move || act(sandbox, stage, root, seed, make_up.plant, is_inside))
        };
        let started: Vec<_> = seeds.iter().map(start).collect();
        started.into_iter().map(|one| one.join().expect("it did not panic")).collect()
    });
    let after = scene();
    let lost = acted.iter().map(|(_, lost)| lost).sum();
    let history: History = acted.into_iter().map(|(units, _)| units).collect();
    let committed = history.iter().take(inside as usize).map(Vec::len).sum();
    let shown: Vec<String> = history.iter().map(|units| format!("{units:?}")).collect();
    let words = format!("seed {seed}, before:\n{}{}\nafter:\n{}", before.text(), shown.join("\n"), after.text());
    let clear = if stage.guest { sandbox.pando(["exec", "g", "--"]) } else { Line::new("env") };
    clear.args(["rm", "-rf"]).args([&root]).ok();
    Round { order: order(&before, &history, &after), outsiders: outsiders as usize, committed, lost, words }
}

fn judged(sandbox: &Sandbox, stage: &Stage, count: u64, make_up: &MakeUp) {
    let (mut dice, _) = Dice::of_this_run();
    let (mut committed, mut lost, mut beside, mut hit, mut unknown) = (0, 0, 0, 0, 0);
    for _ in 0..count {
        let round = round(sandbox, stage, dice.throw(1 << 40), make_up);
        committed += round.committed;
        lost += round.lost;
        beside += usize::from(round.outsiders > 0);
        match round.order {
            Order::Found => {}
            Order::Unknown => unknown += 1,
            // The gate keeps nobody from changing names.
            Order::None if round.outsiders > 0 && !stage.guest => {
                println!("     hit between validation and the end of a commit: {}", round.words);
                hit += 1;
            }
            Order::None => panic!("no order explains this: {}", round.words),
        }
    }
    println!(
        "     {count} rounds, {beside} of them beside outsiders: {committed} transactions committed, {lost} lost; {hit} rounds hit, {unknown} too long to judge"
    );
    assert!(hit * HIT <= beside + HIT, "more than what lies between validation and the end of commits can explain");
    assert!(committed > 0 && unknown * 20 <= count, "they were not judged");
}

fn on_a_disk(sandbox: &Sandbox, format: &[&str]) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 400, format, "");
    judged(sandbox, &Stage::on_host(disk.at.clone()), rounds(500), &MAKE_UP);
}

fn in_a_guest(sandbox: &Sandbox, count: u64) {
    let program = std::env::current_exe().expect("this program has a path");
    sandbox.guest("g", &["-v", &format!("{}:{HERE}:ro", program.display())]);
    let stage = Stage { at: "/srv".into(), program: HERE.into(), options: &[], guest: true };
    judged(sandbox, &stage, count, &MAKE_UP);
}

/// Transactions that look at less: some round has no order.
fn mistakes(sandbox: &Sandbox) {
    const MOST: u64 = 300;
    let stage = Stage::on_host(sandbox.scratch());
    for plant in ["blind-changes", "blind-reads", "blind-lists", "blind-names"] {
        let make_up = MakeUp { outsiders: 0, plant: Some(plant), ..MAKE_UP };
        let found = (1..=MOST).find(|seed| round(sandbox, &stage, *seed, &make_up).order == Order::None);
        println!("     {plant}: found in round {found:?}");
        assert!(found.is_some(), "{plant} is not noticed");
    }
}
