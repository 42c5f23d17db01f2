//! Every escape by every way in on every wall.
//!
//! ```text
//!   table: escapes, walls ──┐
//!                           ├──▶ a cell: held · through · none, with the reason why there is none
//!   ways: verbs ────────────┘
//!   controls: each escape, where nothing holds it: through
//! ```

use super::Marker;
use super::table::{Bait, ESCAPES, Escape, WALLS, Wall};
use super::ways::{Attempt, Entered, Stage, WAYS, Way, values};
use crate::area::attacks::{self, GOT_THROUGH};
use crate::area::crash::daemon_with;
use crate::sandbox::Sandbox;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A cell: what came of every attempt.
enum Cell {
    Held,
    Through(Vec<String>),
    None(&'static str),
}

/// In every run: guests of the usual profile, with ids of their own and with the host's.
pub(super) fn selection(sandbox: &Sandbox) {
    hold(sandbox, &WALLS[..2], 4..=7);
}

pub(super) fn whole(sandbox: &Sandbox) {
    hold(sandbox, &WALLS, 3..=12);
}

/// Each where nothing holds it.
pub(super) fn controls(sandbox: &Sandbox) {
    let marker = Marker::lay(sandbox);
    let mut silent = Vec::new();
    for escape in present() {
        // Each puts its own into a tree of its own.
        let tree = attacks::tree(sandbox);
        let ended = attacks::on_the_host(sandbox, &tree, &escape.control, &words(escape, &marker));
        if ended.code() != GOT_THROUGH {
            silent.push(format!("{}: {} {}{}", escape.name, ended.code(), ended.out(), ended.err()));
        }
        pando_kernel::file::tree_removal::remove_tree(&tree).expect("it is ours");
    }
    assert!(silent.is_empty(), "these prove nothing:\n{}", silent.join("\n"));
}

/// The matrix would notice: where a descriptor of the host's is left open, it is found by each way in that gives a
/// process its standard descriptors.
pub(super) fn planted(sandbox: &Sandbox) {
    sandbox.end_daemon();
    let daemon = daemon_with(sandbox, "PANDO_PLANT", "hosts-root-as-input");
    let stage = set_up(sandbox, 4..=4);
    let blind: Vec<&str> = WAYS
        .iter()
        .filter(|way| ["run", "exec", "stop", "hooks", "tx"].contains(&way.name))
        .filter(|way| {
            let attempt = Attempt { bait: Bait::Inside, value: String::new(), command: &["/bin/all".into()] };
            let entered = (way.enter)(&stage, WALLS[0], &attempt);
            let through = |cell: Cell| matches!(cell, Cell::Through(_));
            let left_open = |escape: &&Escape| escape.bait == Bait::Inside && escape.words.starts_with("from-here");
            !present().filter(left_open).any(|escape| through(told(&entered, escape, WALLS[0], way)))
        })
        .map(|way| way.name)
        .collect();
    sandbox.end_daemon();
    daemon.wait();
    assert!(blind.is_empty(), "by these the host's root was not found although it was open: {blind:?}");
}

fn is_present(escape: &Escape) -> bool {
    escape.on.is_none_or(|path| Path::new(path).exists())
}

fn present() -> impl Iterator<Item = &'static Escape> {
    ESCAPES.iter().filter(|escape| is_present(escape))
}

fn words(escape: &Escape, marker: &Marker) -> Vec<String> {
    let word =
        |word: &str| if word == "{marker}" { marker.path.to_string_lossy().into_owned() } else { word.to_owned() };
    escape.words.split(' ').map(word).collect()
}

/// The program that tries all that can be tried from inside, one after the other.
fn lay_tries(tree: &Path, marker: &Marker) {
    let mut script = "#!/bin/busybox sh\n".to_owned();
    for escape in present().filter(|escape| escape.bait == Bait::Inside) {
        let words = words(escape, marker).join(" ");
        let _ = writeln!(script, "/bin/attack {words} >/dev/null 2>&1; echo \"$? {}\"", escape.name);
    }
    script.push_str("echo all\n");
    std::fs::write(tree.join("bin/all"), script).expect("a file");
    std::fs::set_permissions(tree.join("bin/all"), PermissionsExt::from_mode(0o755)).expect("it is ours");
}

fn set_up(sandbox: &Sandbox, descriptors: std::ops::RangeInclusive<u32>) -> Stage<'_> {
    let marker = Marker::lay(sandbox);
    let tree = attacks::tree(sandbox);
    for directory in ["app", "sbin"] {
        std::fs::create_dir_all(tree.join(directory)).expect("a directory");
    }
    // A login shell would go home.
    std::fs::write(tree.join("etc/passwd"), "root:x:0:0:root:/nowhere:/bin/sh\n").expect("a file");
    lay_tries(&tree, &marker);
    Stage { sandbox, tree, marker, descriptors, export: RefCell::default() }
}

fn hold(sandbox: &Sandbox, walls: &[Wall], descriptors: std::ops::RangeInclusive<u32>) {
    let stage = set_up(sandbox, descriptors);
    let mut cells = BTreeMap::new();
    for wall in walls {
        for way in WAYS {
            fill(&stage, *wall, way, &mut cells);
        }
    }
    assert_eq!(std::fs::read_to_string(&stage.marker.path).expect("it is there"), Marker::TEXT);
    let through = report(walls, &cells);
    assert!(through.is_empty(), "these got through:\n{}", through.join("\n"));
}

type Cells = BTreeMap<(&'static str, &'static str, &'static str), Cell>;

/// All cells of a wall and a way.
fn fill(stage: &Stage<'_>, wall: Wall, way: &Way, cells: &mut Cells) {
    let inside =
        (way.enter)(stage, wall, &Attempt { bait: Bait::Inside, value: String::new(), command: &["/bin/all".into()] });
    for escape in present() {
        let cell = match escape.bait {
            Bait::Inside => told(&inside, escape, wall, way),
            _ => tempted(stage, wall, way, escape),
        };
        cells.insert((escape.name, way.name, wall.name), cell);
    }
}

/// What the one process that tried everything from inside said of an escape.
fn told(inside: &Entered, escape: &Escape, wall: Wall, way: &Way) -> Cell {
    match inside {
        Err(why) => Cell::None(why),
        Ok(outcome) => {
            let (place, said) = (format!("{} by {} in {}", escape.name, way.name, wall.name), &outcome.report);
            assert!(
                said.lines().any(|line| line == "all"),
                "{place}: it did not try everything: {} {said}",
                outcome.code
            );
            let code = said.lines().find_map(|line| line.strip_suffix(escape.name)?.trim().parse().ok());
            if code == Some(GOT_THROUGH) { Cell::Through(vec![String::new()]) } else { Cell::Held }
        }
    }
}

fn tempted(stage: &Stage<'_>, wall: Wall, way: &Way, escape: &Escape) -> Cell {
    let command: Vec<String> = std::iter::once("/bin/attack".to_owned()).chain(words(escape, &stage.marker)).collect();
    let mut through = Vec::new();
    for value in values(stage, escape.bait) {
        let attempt = Attempt { bait: escape.bait, value, command: &command };
        match (way.enter)(stage, wall, &attempt) {
            Err(why) => return Cell::None(why),
            Ok(outcome) if outcome.code == GOT_THROUGH => through.push(attempt.value),
            Ok(_) => {}
        }
    }
    if through.is_empty() { Cell::Held } else { Cell::Through(through) }
}

/// Prints a table a wall, and why there are no more cells. What got through is the answer.
fn report(walls: &[Wall], cells: &Cells) -> Vec<String> {
    let (mut held, mut through, mut none) = (0, Vec::new(), BTreeMap::<_, usize>::new());
    let mut text = String::new();
    for wall in walls {
        let names: Vec<&str> = WAYS.iter().map(|way| way.name).collect();
        let _ = writeln!(text, "{} (. held, X through, - there is no such cell): {}", wall.name, names.join(", "));
        for escape in present() {
            let mut line = String::new();
            for way in WAYS {
                line.push(match &cells[&(escape.name, way.name, wall.name)] {
                    Cell::Held => {
                        held += 1;
                        '.'
                    }
                    Cell::Through(by) => {
                        through.push(format!("{} by {} in {} {}", escape.name, way.name, wall.name, by.join(", ")));
                        'X'
                    }
                    Cell::None(why) => {
                        *none.entry((way.name, *why)).or_default() += 1;
                        '-'
                    }
                });
            }
            let _ = writeln!(text, "  {line}  {}", escape.name);
        }
    }
    for escape in ESCAPES.iter().filter(|escape| !is_present(escape)) {
        let _ = writeln!(text, "passed over: {}: this host has no {}", escape.name, escape.on.unwrap_or_default());
    }
    let _ = writeln!(text, "{held} held, {} through; {} that cannot be:", through.len(), none.values().sum::<usize>());
    for ((way, why), count) in none {
        let _ = writeln!(text, "  {count} by {way}: {why}");
    }
    eprint!("{text}");
    through
}
