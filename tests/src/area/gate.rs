//! The gate on the host: whoever opens, reads, lists or executes what a commit changes sees the state before it or the
//! state after it, waits meanwhile, and goes on whatever becomes of Pando.
//!
//! `PANDO_TEST_COMMITS` says how many commits are observed (default 60, the slow case 2,000; 8 with `bpf`), and how
//! many are killed (default 12, the slow case 300; 4 with `bpf`).

use crate::case::{Case, Tag, skip};
use crate::dice::Dice;
use crate::line::Line;
use crate::observed_states::{Course, Observer};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) const CASES: &[Case] = &[
    Case::new("gate::nobody_sees_a_part_of_a_commit", |sandbox| seen_whole(sandbox, "fanotify", commits(60))),
    Case::new("gate::nobody_sees_a_part_of_2000_commits", |sandbox| seen_whole(sandbox, "fanotify", commits(2000)))
        .tags(&[Tag::Slow]),
    Case::new("gate::nobody_who_looks_at_names_sees_a_part", |sandbox| seen_whole(sandbox, "bpf", commits(8)))
        .tags(&[Tag::Vm]),
    Case::new("gate::without_one_parts_are_seen", parts_are_seen),
    Case::new("gate::nobody_waits_for_a_pando_that_was_killed", |sandbox| killed(sandbox, "fanotify", commits(12))),
    Case::new("gate::nobody_waits_for_any_of_300_that_were_killed", |sandbox| {
        killed(sandbox, "fanotify", commits(300))
    })
    .tags(&[Tag::Slow]),
    Case::new("gate::nobody_stays_suspended_by_a_pando_that_was_killed", |sandbox| killed(sandbox, "bpf", commits(4)))
        .tags(&[Tag::Vm]),
    Case::new("gate::many_at_once_wait_and_go_on", |sandbox| many_at_once(sandbox, "fanotify")),
    Case::new("gate::many_at_once_are_suspended_and_go_on", |sandbox| many_at_once(sandbox, "bpf")).tags(&[Tag::Vm]),
    Case::new("gate::who_waits_can_be_killed", |sandbox| can_be_killed(sandbox, "fanotify")),
    Case::new("gate::who_is_suspended_can_be_killed", |sandbox| can_be_killed(sandbox, "bpf")).tags(&[Tag::Vm]),
    Case::new("gate::nobody_waits_for_longer_than_allowed", |sandbox| not_for_long(sandbox, "fanotify")),
    Case::new("gate::nobody_is_suspended_for_longer_than_allowed", |sandbox| not_for_long(sandbox, "bpf"))
        .tags(&[Tag::Vm]),
    Case::new("gate::who_waits_for_long_is_named", |sandbox| is_named(sandbox, "fanotify")),
    Case::new("gate::who_is_suspended_for_long_is_named", |sandbox| is_named(sandbox, "bpf")).tags(&[Tag::Vm]),
    Case::new("gate::who_stands_still_sees_no_part", standing_still).tags(&[Tag::VmAlone]),
    Case::new("gate::one_is_chosen_by_name_or_refused", chosen),
];

/// Observers at once.
const OBSERVERS: u64 = 2;

/// Outsiders who run into a gate at once.
const MANY: usize = 500;

/// Has the gate be closed for some seconds before the last look.
pub(super) const SLOW: (&str, &str) = ("PANDO_TX_PLANT", "slow-gate");

fn commits(usual: u64) -> u64 {
    std::env::var("PANDO_TEST_COMMITS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A commit by `--gate GATE` that does not wait for the disk, and does not lapse on a machine that is slow.
fn commit(sandbox: &Sandbox, gate: &str, directory: &Path, script: &str) -> Line {
    let options = ["tx", "run", "--no-durable", "--hold-timeout", "60", "--gate", gate, "--", "sh", "-c", script];
    sandbox.pando(options).directory(directory)
}

pub(super) fn needs(sandbox: &Sandbox, gate: &str) {
    let ended = sandbox.pando(["tx", "run", "--gate", gate, "--", "true"]).run();
    if ended.code() == 125 && ended.err().contains("there is no gate") {
        skip(ended.err().trim().trim_start_matches("pando: "));
    }
    ended.succeeded().complains_of(&[&format!("gate {gate}, ")]);
}

/// The tree that commits change, made by the first of a course.
fn begun(sandbox: &Sandbox, course: &Course, dice: &mut Dice) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    std::fs::create_dir(&tree).expect("a directory can be made");
    Line::new("sh").args(["-c", &course.script(0, dice)]).directory(&tree).ok();
    // What is made within one tick of the clock would count as made by others.
    std::thread::sleep(std::time::Duration::from_millis(12));
    tree
}

/// Does `what` beside observers, until it is done: how often they have seen something, and what does not fit together.
/// Whether they look at names too is `names`.
fn observed(course: &Course, tree: &Path, seed: u64, names: bool, what: impl FnOnce(&AtomicU64)) -> (u64, Vec<String>) {
    let (over, mixed_so_far) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let observe = |number: u64| {
            let (over, mixed_so_far) = (&over, &mixed_so_far);
            scope.spawn(move || {
                let observer = Observer::new(course, tree, seed + number);
                let mut observer = if names { observer.with_names() } else { observer };
                while !over.load(Ordering::Relaxed) {
                    observer.look();
                    mixed_so_far.fetch_max(observer.mixed.len() as u64, Ordering::Relaxed);
                }
                (observer.seen, observer.mixed)
            })
        };
        let observers: Vec<_> = (0..OBSERVERS).map(observe).collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| what(&mixed_so_far)));
        over.store(true, Ordering::Relaxed);
        let told = observers.into_iter().map(|one| one.join().expect("it did not panic"));
        let (seen, mixed): (Vec<_>, Vec<_>) = told.unzip();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
        (seen.iter().sum(), mixed.concat())
    })
}

fn seen_whole(sandbox: &Sandbox, gate: &str, count: u64) {
    needs(sandbox, gate);
    let (mut dice, seed) = Dice::of_this_run();
    let course = Course::of(count, &mut dice);
    let tree = begun(sandbox, &course, &mut dice);
    let looks_at_names = gate == "bpf";
    let (seen, mixed) = observed(&course, &tree, seed, looks_at_names, |_| {
        for number in 1..=count {
            let script = course.script(number, &mut dice);
            let ended = commit(sandbox, gate, &tree, &script).run().succeeded();
            ended.complains_of(&["committed: ", &format!("gate {gate}, ")]);
        }
    });
    println!("     {count} commits, {seen} observations");
    assert!(mixed.is_empty(), "{} of {seen} are mixed: {:?}", mixed.len(), &mixed[..mixed.len().min(5)]);
    assert!(seen > count * 20, "too little was observed: {seen}");
}

/// The same observers find parts of commits where there is no gate.
fn parts_are_seen(sandbox: &Sandbox) {
    const MOST: u64 = 300;
    let (mut dice, seed) = Dice::of_this_run();
    let course = Course::of(MOST, &mut dice);
    let tree = begun(sandbox, &course, &mut dice);
    let mut made = 0;
    let (seen, mixed) = observed(&course, &tree, seed, false, |mixed| {
        while made < MOST && mixed.load(Ordering::Relaxed) == 0 {
            made += 1;
            let script = course.script(made, &mut dice);
            commit(sandbox, "none", &tree, &script).run().succeeded().complains_of(&["committed: ", "gate none"]);
        }
    });
    println!("     {made} commits, {seen} observations, {} mixed: {:?}", mixed.len(), mixed.first());
    assert!(!mixed.is_empty(), "observers that see no part of a commit without a gate prove nothing with one");
}

/// Commits that are killed at random steps: whoever has waited goes on.
fn killed(sandbox: &Sandbox, gate: &str, count: u64) {
    const STEPS: u64 = 60;
    needs(sandbox, gate);
    let (mut dice, seed) = Dice::of_this_run();
    let course = Course::of(count, &mut dice);
    let tree = begun(sandbox, &course, &mut dice);
    let over = AtomicBool::new(false);
    let looks: Vec<AtomicU64> = (0..OBSERVERS).map(|_| AtomicU64::new(0)).collect();
    let mut died = 0;
    std::thread::scope(|scope| {
        for (number, looks) in looks.iter().enumerate() {
            let mut observer = Observer::new(&course, &tree, seed + number as u64);
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    observer.look();
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 1..=count {
                let (step, script) = (dice.throw(STEPS).to_string(), course.script(number, &mut dice));
                let ended = commit(sandbox, gate, &tree, &script).env("PANDO_TX_CRASH_STEP", &step).run();
                died += u64::from(ended.code() != 0);
                let before: Vec<u64> = looks.iter().map(|one| one.load(Ordering::Relaxed)).collect();
                let go_on = || looks.iter().zip(&before).all(|(now, then)| now.load(Ordering::Relaxed) > then + 1);
                eventually(&format!("they go on after a death at step {step}"), go_on);
                sandbox.pando(["tx", "recover"]).ok();
            }
        }));
        over.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    println!("     {died} of {count} were killed");
    assert!(died * 4 > count, "too few were killed");
}

/// A directory with a file, a program and a directory, and a commit that changes all three with a gate that is closed
/// for seconds.
fn slow_commit(sandbox: &Sandbox, gate: &str, options: &[&str]) -> (PathBuf, Line) {
    let directory = sandbox.scratch();
    std::fs::create_dir(directory.join("d")).expect("a directory can be made");
    std::fs::write(directory.join("f"), "old\n").expect("a file can be written");
    std::fs::copy("/bin/true", directory.join("program")).expect("a program can be copied");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let script = "echo new >f; echo >d/new; chmod 711 program";
    let line =
        sandbox.pando(["tx", "run", "--no-durable", "--gate", gate]).args(options).args(["--", "sh", "-c", script]);
    let line = line.directory(&directory).env(SLOW.0, SLOW.1);
    (directory, line)
}

/// Whether a process waits in the kernel for what a gate answers.
pub(super) fn waits_for_an_answer(child: &std::process::Child) -> bool {
    let at = std::fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
    at.contains("fanotify") || at.contains("fuse") || at == "request_wait_answer"
}

/// Waits until somebody who opens the file has to wait for it.
pub(super) fn until_closed(file: &Path) -> std::process::Child {
    let mut waits = None;
    eventually("the gate is closed", || {
        let mut child = Command::new("cat").arg(file).stdout(std::process::Stdio::null()).spawn().expect("cat starts");
        while child.try_wait().expect("it is a child").is_none() {
            if waits_for_an_answer(&child) {
                waits = Some(child);
                return true;
            }
        }
        false
    });
    waits.expect("it came true")
}

fn many_at_once(sandbox: &Sandbox, gate: &str) {
    needs(sandbox, gate);
    let (directory, line) = slow_commit(sandbox, gate, &["--hold-timeout", "60"]);
    let started = line.limit(120).start();
    let first = until_closed(&directory.join("f"));
    let told: Vec<String> = std::thread::scope(|scope| {
        let outsider = |number: usize| {
            let at = |name: &str| directory.join(name);
            scope.spawn(move || match number % 4 {
                0 => std::fs::read_to_string(at("f")).expect("it can be read"),
                1 => std::fs::File::options()
                    .read(true)
                    .write(true)
                    .open(at("f"))
                    .map(|_| "new\n".into())
                    .expect("opened"),
                2 => {
                    let names = std::fs::read_dir(at("d")).expect("it can be listed");
                    if names.count() == 1 { "new\n".into() } else { "not there".into() }
                }
                _ => {
                    std::fs::File::open(at("program")).expect("it can be opened");
                    "new\n".into()
                }
            })
        };
        let outsiders: Vec<_> = (0..MANY).map(outsider).collect();
        outsiders.into_iter().map(|one| one.join().expect("it did not panic")).collect()
    });
    let early: Vec<_> = told.iter().enumerate().filter(|(_, word)| *word != "new\n").take(5).collect();
    assert!(early.is_empty(), "these did not wait: {early:?}");
    started.wait().succeeded().complains_of(&[&format!("gate {gate}, ")]);
    assert!(crate::line::end_of(&mut { first }, crate::patience::seconds(20)).is_some_and(|status| status.success()));
    assert!(Command::new(directory.join("program")).status().is_ok_and(|status| status.success()));
}

fn can_be_killed(sandbox: &Sandbox, gate: &str) {
    needs(sandbox, gate);
    let (directory, line) = slow_commit(sandbox, gate, &["--hold-timeout", "60"]);
    let mut started = line.limit(120).start();
    let mut waits = until_closed(&directory.join("f"));
    waits.kill().expect("it is a child");
    assert!(!waits.wait().expect("it is a child").success());
    // One that executes what is held.
    let mut executes =
        Command::new("sh").args(["-c", "exec ./program"]).current_dir(&directory).spawn().expect("sh starts");
    while !waits_for_an_answer(&executes) && executes.try_wait().expect("it is a child").is_none() {}
    executes.kill().expect("it is a child");
    let killed = !executes.wait().expect("it is a child").success();
    assert!(killed || started.has_ended(), "it did not wait");
    started.wait().succeeded();
}

fn not_for_long(sandbox: &Sandbox, gate: &str) {
    needs(sandbox, gate);
    let (directory, line) = slow_commit(sandbox, gate, &["--hold-timeout", "1"]);
    let mut started = line.limit(120).start();
    let mut waits = until_closed(&directory.join("f"));
    assert!(waits.wait().expect("it is a child").success());
    assert!(!started.has_ended(), "it was let go before the commit had ended");
    started
        .wait()
        .succeeded()
        .complains_of(&["committed: ", &format!("gate {gate} (open before the end: it took too long)")]);
    let again = sandbox.pando([
        "tx",
        "run",
        "--strict",
        "--gate",
        gate,
        "--hold-timeout",
        "1",
        "--",
        "sh",
        "-c",
        "echo newer >f",
    ]);
    let ended = again.directory(&directory).env(SLOW.0, SLOW.1).run().ended_with(125);
    ended.complains_of(&["nothing was changed", "--hold-timeout"]);
    assert_eq!(std::fs::read_to_string(directory.join("f")).expect("it can be read"), "new\n");
}

/// `tx ls` names a process that waits for longer than a second, and nobody once it has gone.
fn is_named(sandbox: &Sandbox, gate: &str) {
    needs(sandbox, gate);
    let (directory, line) = slow_commit(sandbox, gate, &["--name", "slow", "--hold-timeout", "300"]);
    let line = line.env("PANDO_TX_PLANT", "gate-until-opened");
    let started = line.limit(400).start();
    let file = directory.join("f");
    let mut waits = until_closed(&file);
    let (pid, path) = (waits.id(), file.display().to_string());
    let listed = || {
        let all: serde_json::Value = serde_json::from_str(&sandbox.pando(["tx", "ls", "--json"]).ok()).expect("JSON");
        all[0]["waiting"].as_array().cloned().unwrap_or_default()
    };
    let mut waiting = Vec::new();
    eventually("it is named", || {
        waiting = listed();
        !waiting.is_empty()
    });
    let one = waiting.iter().find(|one| one["pid"] == pid).expect("whoever waits is named");
    assert_eq!((one["command"].as_str(), one["object"].as_str()), (Some(&*format!("cat {path}")), Some(&*path)));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(one["since"]["seconds"].as_u64().is_some_and(|since| since < now && since + 600 > now), "{one}");
    let table = sandbox.pando(["tx", "ls"]).ok();
    let line = table.lines().find(|line| line.contains(&pid.to_string())).expect("a line names it");
    assert!(line.starts_with("slow ") && line.contains(&path), "{table}");
    waits.kill().expect("it is a child");
    waits.wait().expect("it is a child");
    assert!(listed().is_empty(), "one that has gone waits for nothing");
    std::fs::write(sandbox.root().join("var/lib/pando/tx/slow/open-gate"), "").expect("a file can be written");
    started.wait().succeeded();
}

/// The unified hierarchy of control groups.
fn hierarchy() -> PathBuf {
    let found = pando_kernel::cgroup::Hierarchies::detect().ok().and_then(|found| found.unified);
    found.expect("freezing takes groups of version 2")
}

/// Every process in a group, as systemd has it, until this is dropped.
struct Grouped(PathBuf);

impl Grouped {
    fn begin() -> Self {
        let group = hierarchy().join("pando-test-grouped");
        std::fs::create_dir(&group).expect("a group can be made");
        let grouped = Self(group);
        grouped.gather();
        grouped
    }

    /// Moves all that are in no group, also those who were forked by one that was about to be moved, or end just now.
    fn gather(&self) {
        eventually("all are in a group", || self.carry(&hierarchy(), &self.0) == 0);
    }

    /// Moves the processes of one group to another, but for the kernel's threads, which have no program; how many there
    /// were.
    fn carry(&self, from: &Path, to: &Path) -> usize {
        let pids = std::fs::read_to_string(from.join("cgroup.procs")).expect("the group is there");
        let is_process = |pid: &&str| Path::new(&format!("/proc/{pid}/exe")).exists();
        // It may have ended.
        pids.lines().filter(is_process).map(|pid| drop(std::fs::write(to.join("cgroup.procs"), pid))).count()
    }
}

impl Drop for Grouped {
    fn drop(&mut self) {
        self.carry(&self.0, &hierarchy());
        eventually("the group is empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// A control group with a process that observes.
struct Apart {
    group: PathBuf,
    observer: Option<crate::line::Started>,
}

impl Apart {
    fn begin(name: &str, words: &[String]) -> Self {
        let group = hierarchy().join(format!("pando-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&group).expect("a group can be made");
        let program = std::env::current_exe().expect("this program has a path");
        let script = "echo $$ >$0/cgroup.procs && exec \"$@\"";
        let line = Line::new("sh").args(["-c", script]).args([&group]).args([&program]);
        let observer = line.args([crate::observed_states::WORD]).args(words).limit(3600).start_with_open_input();
        Self { group, observer: Some(observer) }
    }

    fn stands_still(&self) -> bool {
        let events = std::fs::read_to_string(self.group.join("cgroup.events")).expect("the group is there");
        events.lines().any(|line| line == "frozen 1")
    }

    /// What it has seen, and what of that is mixed.
    fn end(mut self) -> (u64, Vec<String>) {
        let observer = self.observer.take().expect("it has begun");
        let told = observer.close_input().wait().succeeded().out();
        let mut lines = told.lines().map(str::to_owned);
        let seen = lines.next().and_then(|line| line.parse().ok()).expect("it says how much it has seen");
        (seen, lines.collect())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.observer.take());
        let _ = std::fs::write(self.group.join("cgroup.kill"), "1");
        eventually("its group is empty", || std::fs::remove_dir(&self.group).is_ok());
    }
}

/// Observers in a group of their own, who look at names as well: they see one state after another, go on when Pando is
/// killed, and find parts of commits where they do not stand still.
fn standing_still(sandbox: &Sandbox) {
    const COMMITS: u64 = 24;
    const KILLED: u64 = 8;
    let freeze = || sandbox.pando(["tx", "run", "--gate", "freeze", "--", "true"]).run();
    freeze().ended_with(125).complains_of(&["there is no gate 'freeze' here: ", "root group"]);
    let grouped = Grouped::begin();
    freeze().succeeded().complains_of(&["gate freeze"]);
    let seed = crate::dice::seed_of_this_run(20_261_126);
    let course = Course::of(COMMITS + KILLED, &mut Dice::new(seed));
    let mut dice = Dice::new(seed + 1);
    let tree = begun(sandbox, &course, &mut dice);
    let words = [tree.display().to_string(), (COMMITS + KILLED).to_string(), seed.to_string()];
    let apart = Apart::begin("observer", &words);
    for number in 1..=COMMITS {
        let script = course.script(number, &mut dice);
        grouped.gather();
        commit(sandbox, "freeze", &tree, &script).run().succeeded().complains_of(&["committed: ", "gate freeze, "]);
        assert!(!apart.stands_still());
    }
    let (seen, mixed) = apart.end();
    println!("     {COMMITS} commits, {seen} observations");
    assert!(mixed.is_empty(), "{} of {seen} are mixed: {:?}", mixed.len(), &mixed[..mixed.len().min(5)]);
    let apart = Apart::begin("killed", &words);
    let mut died = 0;
    for number in COMMITS + 1..=COMMITS + KILLED {
        let (step, script) = (dice.throw(60).to_string(), course.script(number, &mut dice));
        let ended = commit(sandbox, "freeze", &tree, &script).env("PANDO_TX_CRASH_STEP", &step).run();
        died += u64::from(ended.code() != 0);
        eventually(&format!("they go on after a death at step {step}"), || !apart.stands_still());
        sandbox.pando(["tx", "recover"]).ok();
    }
    assert!(apart.end().0 > 0 && died * 4 > KILLED, "{died} of {KILLED} were killed");
}

fn chosen(sandbox: &Sandbox) {
    let run = |options: &[&str]| sandbox.pando(["tx", "run"]).args(options).args(["--", "true"]).run();
    run(&["--gate", "none"]).succeeded().complains_of(&["gate none"]);
    run(&["--gate", "none", "--strict"]).ended_with(125).complains_of(&["--strict refuses"]);
    let bpf = run(&["--gate", "bpf"]);
    match bpf.code() {
        0 => bpf.complains_of(&["gate bpf, "]),
        _ => bpf.ended_with(125).complains_of(&["there is no gate 'bpf' here: ", "pando doctor"]),
    };
    run(&["--gate", "door"]).complains_of(&["'door' is no gate", "auto"]);
    run(&["--gate", "freeze", "--hold-timeout", "60"]).complains_of(&["freeze"]);
    run(&["--hold-timeout", "0"]).complains_of(&["number of seconds"]);
    sandbox.settings("[transactions]\ngate = 'none'\n");
    run(&[]).succeeded().complains_of(&["gate none"]);
    run(&["--strict"]).ended_with(125);
    // Without the right to it there is none.
    sandbox.settings("[transactions]\n");
    needs(sandbox, "fanotify");
    run(&["--strict", "--gate", "fanotify"]).succeeded().complains_of(&["gate fanotify"]);
    for (name, begin, words) in
        [("one", &["--strict", "--gate", "fanotify"][..], "gate fanotify"), ("two", &["--gate", "none"], "gate none")]
    {
        sandbox.pando(["tx", "begin", name]).ok();
        let file = sandbox.scratch().join(name);
        sandbox.pando(["tx", "enter", name, "--", "touch"]).args([&file]).ok();
        sandbox.pando(["tx", "commit"]).args(begin).args([name]).run().succeeded().complains_of(&[words]);
        assert!(file.exists());
    }
}
