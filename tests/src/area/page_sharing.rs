//! Pages that clones have written apart, and that became equal: they are one again, for who may share them.

use crate::case::{Case, skip};
use crate::dice::Dice;
use crate::line::Line;
use crate::need::Need;
use crate::patience::{comes_true, eventually};
use crate::process;
use crate::sandbox::Sandbox;
use pando_kernel::memory::ksm::{self, Pace};
use rustix::process::Signal;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) const CASES: &[Case] = &[
    Case::new("page_sharing::what_clones_write_alike_is_one_again", what_clones_write_alike_is_one_again)
        .needs(&[Need::Root]),
    Case::new("page_sharing::one_image_at_a_time_and_no_strict_guest", one_image_at_a_time_and_no_strict_guest)
        .needs(&[Need::Root]),
    Case::new("page_sharing::nothing_is_merged_beside_a_stranger", nothing_is_merged_beside_a_stranger)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("page_sharing::a_killed_daemon_leaves_the_merger_as_it_was", a_killed_daemon_leaves_the_merger)
        .needs(&[Need::Root]),
    Case::new("page_sharing::what_was_written_is_read_whoever_is_killed", what_was_written_is_read)
        .needs(&[Need::Root]),
];

/// Writes as much as it is told to whenever it is told, and says what it has.
const WRITER: &str = "while :; do \
    if [ -e /tmp/write ]; then letter=$(cat /tmp/write); rm /tmp/write; x=$(head -c 24m /dev/zero | tr '\\0' \"$letter\"); fi; \
    if [ -e /tmp/ask ]; then rm /tmp/ask; printf %s \"$x\" | md5sum >/tmp/said.new; mv /tmp/said.new /tmp/said; fi; \
    sleep 0.1; done";

/// Looks often, and rests little.
const EAGER: &str = "[memory]\nshare = \"clones\"\nshare_every = 1\nshare_processor = 100\nshare_hot = 100\n";

/// Whoever has it is the only test that has the machine's merger run.
static MERGER: Mutex<()> = Mutex::new(());

/// How the machine's merger is. It is everybody's, so that one that runs is not taken for ours.
fn merger() -> (Pace, MutexGuard<'static, ()>) {
    let alone = MERGER.lock().unwrap_or_else(PoisonError::into_inner);
    let is_nobodys = || ksm::pace().is_ok_and(|pace| pace.run != 1) && strangers().is_empty();
    comes_true(is_nobodys);
    let pace = match ksm::pace() {
        Ok(pace) if is_nobodys() => pace,
        Ok(_) => skip("somebody else merges pages on this machine now"),
        Err(_) => skip("this kernel was built without KSM"),
    };
    (pace, alone)
}

/// Processes that offer memory.
fn strangers() -> Vec<i32> {
    let all = process::all().into_iter().map(|process| process.pid);
    all.filter(|pid| ksm::has_offered(*pid).unwrap_or(false)).collect()
}

fn frozen(sandbox: &Sandbox, image: &str, options: &[&str]) {
    let words: Vec<&str> = options.iter().copied().chain(["--", "sh", "-c", WRITER]).collect();
    let source = format!("{image}-source");
    sandbox.guest(&source, &words);
    sandbox.pando(["freeze", &source, image]).ok();
    sandbox.pando(["rm", "-f", &source]).ok();
}

fn write(sandbox: &Sandbox, clone: &str, letter: &str) {
    sandbox.exec_sh(clone, &format!("echo {letter} >/tmp/w && mv /tmp/w /tmp/write")).ok();
    eventually("it was told", || sandbox.exec_sh(clone, "test ! -e /tmp/write").run().code() == 0);
}

fn said(sandbox: &Sandbox, clone: &str) -> String {
    sandbox.exec_sh(clone, "rm -f /tmp/said; touch /tmp/ask").ok();
    eventually("it has said", || sandbox.exec_sh(clone, "test -s /tmp/said").run().code() == 0);
    sandbox.exec_sh(clone, "cat /tmp/said").ok()
}

fn processes(sandbox: &Sandbox, guest: &str) -> Vec<i32> {
    let first = sandbox.first_process(guest);
    let is_below = |pid: i32| pid == first || process::parent(pid) == Some(first);
    process::all().into_iter().map(|process| process.pid).filter(|pid| is_below(*pid)).collect()
}

/// Pages of a guest that are one with others.
fn merged(sandbox: &Sandbox, guest: &str) -> u64 {
    processes(sandbox, guest).into_iter().filter_map(|pid| ksm::merged_pages(pid).ok()).sum()
}

/// Whether anything of a guest is offered to be merged.
fn is_offered(sandbox: &Sandbox, guest: &str) -> bool {
    let smaps = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    processes(sandbox, guest).into_iter().any(|pid| smaps(pid).contains(" mg"))
}

/// Pages of 4 KiB of what is written: most of them have to be one.
const MOST: u64 = 24 * 256 * 3 / 4;

fn what_clones_write_alike_is_one_again(sandbox: &Sandbox) {
    let (before, _alone) = merger();
    sandbox.settings(EAGER);
    frozen(sandbox, "warm", &[]);
    sandbox.pando(["clone", "warm", "-n", "3"]).ok();
    let clones = ["warm-1", "warm-2", "warm-3"];
    clones.iter().for_each(|clone| write(sandbox, clone, "a"));
    for clone in clones {
        eventually("its pages are one with others'", || merged(sandbox, clone) > MOST);
    }
    // Each has what it wrote, and what one writes from now on the others do not see.
    write(sandbox, "warm-2", "b");
    let answers = clones.map(|clone| said(sandbox, clone));
    assert!(answers[0] == answers[2] && answers[0] != answers[1], "{answers:?}");
    // What is equal by then is merged too, and can be frozen and cloned as ever.
    write(sandbox, "warm-2", "a");
    eventually("it is one with the others again", || merged(sandbox, "warm-2") > MOST);
    sandbox.pando(["freeze", "warm-2", "later"]).ok();
    sandbox.pando(["clone", "later", "last"]).ok();
    assert_eq!([said(sandbox, "last"), said(sandbox, "warm-2")], [answers[0].clone(), answers[0].clone()]);
    let events = sandbox.daemon_log();
    assert!(!events.contains("not shared"), "{events}");
    sandbox.settings("");
    sandbox.pando(["daemon", "reload"]).ok();
    eventually("the merger is as it was", || ksm::pace().is_ok_and(|now| now == before));
}

fn one_image_at_a_time_and_no_strict_guest(sandbox: &Sandbox) {
    let (_, _alone) = merger();
    sandbox.settings(EAGER);
    frozen(sandbox, "closed", &["--profile", "strict"]);
    sandbox.pando(["clone", "closed", "-n", "2"]).ok();
    ["closed-1", "closed-2"].iter().for_each(|clone| write(sandbox, clone, "a"));
    frozen(sandbox, "one", &[]);
    sandbox.pando(["clone", "one", "-n", "2"]).ok();
    ["one-1", "one-2"].iter().for_each(|clone| write(sandbox, clone, "a"));
    eventually("pages of one image are offered", || is_offered(sandbox, "one-1") && is_offered(sandbox, "one-2"));
    frozen(sandbox, "other", &[]);
    sandbox.pando(["clone", "other", "-n", "2"]).ok();
    ["other-1", "other-2"].iter().for_each(|clone| write(sandbox, clone, "a"));
    // Whatever is merged by now the other image's clones would have been, too.
    eventually("they are merged", || merged(sandbox, "one-1") > MOST && merged(sandbox, "one-2") > MOST);
    for guest in ["closed-1", "closed-2", "other-1", "other-2"] {
        assert!(!is_offered(sandbox, guest), "pages of {guest} could be one with others'");
    }
    sandbox.pando(["rm", "-f", "one-1", "one-2"]).ok();
    eventually("it is another image's turn", || is_offered(sandbox, "other-1") && is_offered(sandbox, "other-2"));
    assert!(!is_offered(sandbox, "closed-1"));
    // In good order: the merger is left as it was found.
    sandbox.end_daemon();
}

/// A process of the host, or in another guest, that offers memory.
const STRANGER: &str = "import mmap, time; m = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); \
    m.write(b'a' * (1 << 20)); m.madvise(mmap.MADV_MERGEABLE); time.sleep(1000)";

fn nothing_is_merged_beside_a_stranger(sandbox: &Sandbox) {
    let (_, _alone) = merger();
    let stranger = Line::new("python3").args(["-c", STRANGER]).start();
    eventually("it offers memory", || ksm::has_offered(stranger.pid()).unwrap_or(false));
    sandbox.settings(EAGER);
    frozen(sandbox, "warm", &[]);
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    let clones = ["warm-1", "warm-2"];
    clones.iter().for_each(|clone| write(sandbox, clone, "a"));
    eventually("it is seen", || sandbox.daemon_log().contains("somebody else offers memory"));
    assert!(clones.iter().all(|clone| !is_offered(sandbox, clone)));
    process::kill(stranger.pid());
    eventually("its turn comes", || clones.iter().all(|clone| is_offered(sandbox, clone)));
    sandbox.end_daemon();
}

/// What the kernel's merger goes by. Counters are none of it.
fn merger_settings() -> Vec<(&'static str, Option<String>)> {
    const NAMES: [&str; 9] = [
        "run",
        "pages_to_scan",
        "sleep_millisecs",
        "merge_across_nodes",
        "use_zero_pages",
        "max_page_sharing",
        "stable_node_chains_prune_millisecs",
        "smart_scan",
        "advisor_mode",
    ];
    NAMES.map(|name| (name, std::fs::read_to_string(format!("/sys/kernel/mm/ksm/{name}")).ok())).into()
}

/// The digest of what a clone has that was told to write a letter.
fn digest(letter: &str) -> String {
    let make = format!("head -c 24m /dev/zero | tr '\\0' {letter} | md5sum");
    Line::new("sh").args(["-c", &make]).ok()
}

fn kill_daemon(sandbox: &Sandbox) {
    if let Some(daemon) = sandbox.daemon() {
        process::kill(daemon);
        eventually("the daemon has ended", || !process::is_alive(daemon));
    }
}

fn kill_holder(sandbox: &Sandbox, image: &str) {
    let inspected: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["image", "inspect", image]).ok()).expect("inspect prints JSON");
    if let Some(holder) = inspected["holder"].as_i64() {
        process::kill(i32::try_from(holder).expect("a pid fits"));
    }
}

/// Clones write what others have too, again and again, while it is merged and parted and whoever does that is killed.
fn what_was_written_is_read(sandbox: &Sandbox) {
    const LETTERS: [&str; 3] = ["a", "b", "c"];
    let (_, _alone) = merger();
    let before = merger_settings();
    sandbox.settings(EAGER);
    frozen(sandbox, "warm", &[]);
    sandbox.pando(["clone", "warm", "-n", "5"]).ok();
    let clones: Vec<String> = (1..=5).map(|number| format!("warm-{number}")).collect();
    let digests = LETTERS.map(digest);
    let (mut dice, _) = Dice::of_this_run();
    for round in 0..5 {
        let chosen: Vec<usize> = clones.iter().map(|_| dice.throw(LETTERS.len() as u64) as usize).collect();
        clones.iter().zip(&chosen).for_each(|(clone, letter)| write(sandbox, clone, LETTERS[*letter]));
        eventually("some of it is one again", || clones.iter().any(|clone| merged(sandbox, clone) > 0));
        match round {
            1 | 3 => kill_daemon(sandbox),
            2 => kill_holder(sandbox, "warm"),
            _ => {}
        }
        for (clone, letter) in clones.iter().zip(&chosen) {
            assert_eq!(said(sandbox, clone), digests[*letter], "round {round}, {clone}");
        }
        // With a clone the image is in memory again, and what is written next is looked at.
        sandbox.pando(["clone", "warm", "passing"]).ok();
        sandbox.pando(["rm", "-f", "passing"]).ok();
    }
    sandbox.end_daemon();
    assert_eq!(merger_settings(), before);
}

fn a_killed_daemon_leaves_the_merger(sandbox: &Sandbox) {
    let (before, _alone) = merger();
    let daemon = super::crash::daemon_with(sandbox, "PANDO_CRASH_AT", "sharing.merging");
    frozen(sandbox, "warm", &[]);
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    let clones = ["warm-1", "warm-2"];
    clones.iter().for_each(|clone| write(sandbox, clone, "a"));
    sandbox.settings(EAGER);
    process::signal(daemon.pid(), Signal::HUP);
    daemon.wait().ended_with(137);
    assert_eq!(ksm::pace().ok().map(|now| now.run), Some(1), "nobody was there to stop it");
    sandbox.settings("");
    let answers = clones.map(|clone| said(sandbox, clone));
    assert_eq!(answers[0], answers[1]);
    assert_eq!(ksm::pace().ok(), Some(before), "the next daemon puts it back before anything else");
}
