//! Whether there is room for more guests: said before any is begun.

use crate::case::{Case, Tag};
use crate::patience::{comes_true, eventually, seconds};
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("admission::what_clones_come_to_says_how_many_fit", what_clones_come_to_says_how_many_fit)
        .tags(&[Tag::Vm]),
    Case::new("admission::one_greedy_clone_does_not_keep_others_out", one_greedy_clone).tags(&[Tag::Vm]),
    Case::new("admission::another_image_of_the_name_begins_anew", another_image_of_the_name).tags(&[Tag::Vm]),
    Case::new("admission::promises_are_counted_before_a_start", promises_are_counted).tags(&[Tag::Vm]),
    Case::new("admission::a_word_that_makes_no_sense_is_refused", a_word_that_makes_no_sense).tags(&[Tag::Vm]),
];

/// Takes 24 MiB as soon as it is another guest than the one that was frozen, and at no moment more.
const GROWS: &str = "while [ \"$(hostname)\" = source ]; do sleep 0.05; done; \
    head -c 24m /dev/zero >/dev/shm/grown; while :; do sleep 1; done";

/// Takes 64 MiB where it is called greedy, and next to nothing elsewhere.
const SOME_GROW: &str = "while [ \"$(hostname)\" = source ]; do sleep 0.05; done; \
    if [ \"$(hostname)\" = greedy ]; then head -c 64m /dev/zero >/dev/shm/grown; fi; while :; do sleep 1; done";

/// Whether a clone was seen to come to as much: to so many MiB.
fn is_learned(sandbox: &Sandbox, mib: u64) -> bool {
    let text = std::fs::read_to_string(sandbox.places().state().join("learned.toml")).unwrap_or_default();
    let of_clones = text.split_once("[[\"image:warm@").map_or("", |(_, of)| of);
    let figures = of_clones.lines().filter_map(|line| line.split_once(" = "));
    let of_memory = figures.filter(|(key, _)| ["first", "steady"].contains(key));
    of_memory.filter_map(|(_, bytes)| bytes.parse().ok()).any(|bytes: u64| bytes > mib << 20)
}

/// An image of which one clone has been greedy.
fn greedy(sandbox: &Sandbox) {
    // On a slow machine it takes longer to be greedy.
    let settle = seconds(2).as_secs().max(5);
    sandbox.settings(&format!("[memory]\nadmit = \"learned\"\nguests_memory = \"112M\"\nsettle = {settle}\n"));
    sandbox.guest("source", &["--", "sh", "-c", SOME_GROW]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "greedy"]).ok();
    eventually("it is known what it has come to", || is_learned(sandbox, 60));
    sandbox.pando(["rm", "-f", "greedy"]).ok();
    sandbox
        .pando(["clone", "warm", "-n", "3"])
        .run()
        .ended_with(125)
        .complains_of(&["no room for 3 clones", "1 would fit"]);
}

fn one_greedy_clone(sandbox: &Sandbox) {
    greedy(sandbox);
    for name in ["a", "b", "c", "d"] {
        // Those before it have settled by then, and are counted for what they have.
        eventually("there is room for one more", || sandbox.pando(["clone", "warm", name]).run().code() == 0);
    }
    // By then most have come to little.
    eventually("there is room for many", || sandbox.pando(["clone", "warm", "many", "-n", "10"]).run().code() == 0);
}

fn another_image_of_the_name(sandbox: &Sandbox) {
    greedy(sandbox);
    sandbox.pando(["image", "rm", "warm"]).ok();
    assert!(!is_learned(sandbox, 0), "what was learned goes with the image");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "-n", "3"]).ok();
}

fn what_clones_come_to_says_how_many_fit(sandbox: &Sandbox) {
    sandbox.settings("[memory]\nadmit = \"learned\"\nguests_memory = \"112M\"\n");
    sandbox.guest("source", &["--", "sh", "-c", GROWS]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["rm", "-f", "source"]).ok();
    let learned = (0..3).any(|_| {
        // Nothing is known of the first: it is admitted.
        sandbox.pando(["clone", "warm", "first"]).ok();
        // After a second, or on a slow machine when it has settled.
        let is_learned = comes_true(|| is_learned(sandbox, 20));
        if !is_learned {
            // The next of its kind is watched once this one is forgotten by a new daemon.
            sandbox.pando(["rm", "-f", "first"]).ok();
            sandbox.end_daemon();
        }
        is_learned
    });
    assert!(learned, "it is not known what a clone comes to");
    let words = ["100 clones of image 'warm'", "would fit", "of 112M", "missing"];
    let refused = sandbox.pando(["clone", "warm", "-n", "100"]).run().ended_with(125).complains_of(&words);
    let fit = ["2", "3", "4"].map(|count| refused.err().contains(&format!(" {count} would fit")));
    assert!(fit.contains(&true), "{}", refused.err());
    let guests = sandbox.pando(["ls", "--quiet"]).ok();
    assert_eq!(guests.trim(), "first", "none of them was begun");
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    // Who would make room is named, where that is enough.
    sandbox.pando(["clone", "warm", "more", "-n", "2"]).run().ended_with(125).complains_of(&["stopping '"]);
    // What was learned lasts; and whoever knows better says so.
    sandbox.end_daemon();
    sandbox.pando(["clone", "warm", "more", "-n", "2"]).run().ended_with(125).complains_of(&["2 clones"]);
    sandbox.pando(["clone", "warm", "sold", "-n", "2", "--overbook", "3x"]).ok();
    sandbox.pando(["clone", "warm", "all", "-n", "2", "--admit", "always"]).ok();
}

fn promises_are_counted(sandbox: &Sandbox) {
    sandbox.settings("[memory]\nadmit = \"reserved\"\nguests_memory = \"128M\"\n");
    sandbox.guest("one", &["--memory", "80M"]);
    sandbox.create("other", &["--memory", "60M"]);
    let words = ["no room for guest 'other'", "60M", "80M of 128M", "12M are missing", "stopping 'one' (80M)"];
    sandbox.pando(["start", "other"]).run().ended_with(125).complains_of(&words);
    assert_eq!(sandbox.state("other"), "stopped");
    sandbox.run_sh(&["--memory", "49M"], "echo begun").run().ended_with(125).complains_of(&["no room", "49M"]);
    assert_eq!(sandbox.run_sh(&["--memory", "48M"], "echo begun").ok(), "begun\n");
    sandbox.pando(["stop", "--time", "0", "one"]).ok();
    sandbox.pando(["start", "other"]).ok();
    // Sold twice, there is room for both.
    sandbox.settings("[memory]\nadmit = \"reserved\"\nguests_memory = \"128M\"\noverbook = 2\n");
    sandbox.pando(["daemon", "reload"]).ok();
    sandbox.pando(["start", "one"]).ok();
}

fn a_word_that_makes_no_sense(sandbox: &Sandbox) {
    sandbox.settings("[memory]\nadmit = \"perhaps\"\noverbook = 0\nguests_memory = \"much\"\n");
    let said = sandbox.pando(["doctor"]).run().out();
    for words in ["admit = \"perhaps\"", "overbook = 0", "guests_memory = \"much\""] {
        assert!(said.contains(words), "no {words} in {said}");
    }
    sandbox.guest("source", &[]);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    let clone = |option: &str, word: &str| sandbox.pando(["clone", "warm", "one", option, word]).run().ended_with(125);
    clone("--admit", "perhaps").complains_of(&["'perhaps'", "learned"]);
    clone("--overbook", "0.5").complains_of(&["0.5", "3x"]);
}
