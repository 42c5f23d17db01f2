//! Who is frozen more than once: what was interrupted goes on each time, in the source and in all clones, and in clones
//! of those.

use super::freeze::{NEEDS, TOLD, all_are_right, clone_into, frozen, frozen_untold, stage};
use crate::case::Case;
use crate::sandbox::Sandbox;
use crate::spaces::Space;
use pando_freeze::image::{Image, Thread};
use pando_freeze::{FreezeError, Frozen};

const fn case(name: &'static str, show: fn(&Sandbox)) -> Case {
    Case::new(name, show).needs(NEEDS)
}

pub(crate) const CASES: &[Case] = &[
    case("frozen_again::calls_that_were_interrupted_twice_go_on", |sandbox| {
        twice(sandbox, include_str!("../../fixtures/waiting.py"), frozen);
    }),
    // Which call it was is then known where a program's instructions say so.
    case("frozen_again::and_where_nobody_tells_of_them", |sandbox| {
        twice(sandbox, &include_str!("../../fixtures/waiting.py").replace("RAW = True", "RAW = False"), frozen_untold);
    }),
    Case::new("frozen_again::less_is_left_of_a_wait_each_time", less_is_left_each_time).needs(TOLD),
    case("frozen_again::settings_are_kept_by_clones_of_clones", |sandbox| {
        twice(sandbox, include_str!("../../fixtures/settings.py"), frozen);
    }),
];

/// Threads that wait for a time, and what is told of the program that each is in.
fn waiting(image: &Image) -> Vec<(i32, u64, Vec<u64>)> {
    let threads = image.processes.iter().flat_map(|process| &process.threads);
    let waits = |thread: &Thread| Some((thread.tid, thread.left?, thread.registers.clone()));
    threads.filter_map(waits).collect()
}

/// A clone goes on where its source was, and the clone of that where it was then; and as far as their programs can see
/// they make the same call.
fn less_is_left_each_time(sandbox: &Sandbox) {
    const WAITS: usize = 6;
    let stage = stage(sandbox);
    let mut spaces = vec![Space::new()];
    let _actor = spaces[0].play(include_str!("../../fixtures/waiting.py"), &stage);
    let mut before: Option<Vec<(i32, u64, Vec<u64>)>> = None;
    for _ in 0..4 {
        let frozen = frozen(&spaces[spaces.len() - 1]).unwrap_or_else(|error| panic!("{error}"));
        let waits = waiting(&frozen.image);
        assert_eq!(waits.len(), WAITS);
        for ((tid, left, registers), (same, earlier, had)) in waits.iter().zip(before.iter().flatten()) {
            assert_eq!((tid, registers), (same, had));
            assert!(left < earlier, "thread {tid} has {left} ns left, and had {earlier}");
        }
        before = Some(waits);
        let clone = Space::new();
        clone_into(&frozen, &clone);
        spaces.push(clone);
    }
    all_are_right(&stage, &spaces.iter().collect::<Vec<_>>());
}

/// Freezes a source twice, and a clone of the second image twice; each image has a clone.
fn twice(sandbox: &Sandbox, script: &str, freeze: fn(&Space) -> Result<Frozen, FreezeError>) {
    let stage = stage(sandbox);
    let mut spaces = vec![Space::new()];
    let _actor = spaces[0].play(script, &stage);
    for frozen in [0, 0, 2, 2, 4] {
        let frozen = freeze(&spaces[frozen]).unwrap_or_else(|error| panic!("{error}"));
        let clone = Space::new();
        clone_into(&frozen, &clone);
        spaces.push(clone);
    }
    all_are_right(&stage, &spaces.iter().collect::<Vec<_>>());
}
