//! The daemon is killed at random moments while it freezes a guest: the guest's programs count on as if nothing had
//! been, every one of them.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::own_init;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    Case::new("freeze_kills::at_10_random_moments", |sandbox| at_random_moments(sandbox, 10)),
    Case::new("freeze_kills::of_an_init_at_10_random_moments", |sandbox| of_an_init(sandbox, 10)),
    Case::new("freeze_kills::of_an_init_at_200_random_moments", |sandbox| of_an_init(sandbox, 200)).tags(&[Tag::Slow]),
    Case::new("freeze_kills::at_200_random_moments", |sandbox| at_random_moments(sandbox, 200)).tags(&[Tag::Slow]),
];

/// How many programs count.
const PROGRAMS: usize = 6;

/// Each counts in a variable, has a child wait for it now and then, and says how far it has come. What it says is a
/// sum, too: a lost or a false step shows.
const COUNTERS: &str = r#"
for k in 1 2 3 4 5 6; do
    sh -c 'n=0; s=0; while :; do n=$((n+1)); s=$((s+n)); echo $n $s >/count-'$k'.new
        mv /count-'$k'.new /count-'$k'; sleep 0.02; done' &
done
wait
"#;

/// When the daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Anywhere in the command.
    Any,
    /// So many microseconds after the first program was seen to be stopped.
    Stopped(u64),
}

/// Most of the time in which a program stands still.
const STILL_US: u64 = 12_000;

/// How long one looks for a program that is stopped.
const LATEST: Duration = Duration::from_secs(2);

/// What each has counted to.
fn counts(sandbox: &Sandbox) -> Vec<u64> {
    let said = sandbox.exec_sh("source", "cat /count-1 /count-2 /count-3 /count-4 /count-5 /count-6").run();
    let count = |line: &str| {
        let (count, sum) = line.split_once(' ').unwrap_or_else(|| panic!("it counts: '{line}'"));
        let (count, sum): (u64, u64) = (count.parse().expect("a count"), sum.parse().expect("a sum"));
        assert_eq!(sum, count * (count + 1) / 2, "no step was lost, and none was taken twice");
        count
    };
    said.out().lines().map(count).collect()
}

/// The programs, as the host numbers them.
fn programs(sandbox: &Sandbox) -> Vec<i32> {
    let first = sandbox.first_process("source");
    let mut all: Vec<i32> = process::all()
        .into_iter()
        .filter(|one| one.words.iter().any(|word| word.starts_with("n=0; s=0;")))
        .map(|one| one.pid)
        .filter(|pid| process::status(*pid, "NSpid").is_some_and(|text| text.split_whitespace().count() > 1))
        .filter(|pid| same_namespace(*pid, first))
        .collect();
    all.sort_unstable();
    all
}

fn same_namespace(pid: i32, other: i32) -> bool {
    let link = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    link(pid).is_some() && link(pid) == link(other)
}

fn is_traced(pid: i32) -> bool {
    process::status(pid, "TracerPid").is_some_and(|tracer| tracer != "0")
}

fn at_random_moments(sandbox: &Sandbox, kills: usize) {
    sandbox.guest("source", &["--", "sh", "-c", COUNTERS]);
    killing(sandbox, kills);
}

/// The same of an init, which is stopped and made to tell its state as they are.
fn of_an_init(sandbox: &Sandbox, kills: usize) {
    own_init::scripted(sandbox, "source", COUNTERS);
    killing(sandbox, kills);
}

fn killing(sandbox: &Sandbox, kills: usize) {
    let (mut dice, _) = Dice::of_this_run();
    eventually("all of them count", || counts(sandbox).len() == PROGRAMS);
    let mut all = Vec::new();
    // One that is just forking looks like two.
    eventually("each is a process of its own", || {
        all = programs(sandbox);
        all.len() == PROGRAMS
    });
    let begun = Instant::now();
    sandbox.pando(["freeze", "source", "image", "--memory"]).ok();
    let whole = begun.elapsed().as_micros() as u64;
    let mut still = 0;
    for number in 0..kills {
        let moment = if number % 3 == 0 { Moment::Any } else { Moment::Stopped(dice.throw(STILL_US)) };
        still += usize::from(round(sandbox, &mut dice, moment, whole, &all));
    }
    println!("     killed {still} times of {kills} while a program was stopped");
    assert!(still > 0, "some of them are to be stopped when the daemon is killed");
    // It can be frozen as ever, and what is cloned from it counts on, too.
    sandbox.pando(["freeze", "source", "last", "--memory"]).ok();
    sandbox.pando(["clone", "last", "one"]).ok();
    eventually("the clone counts", || {
        sandbox.exec_sh("one", "a=$(cat /count-1); sleep 0.1; [ \"$a\" != \"$(cat /count-1)\" ]").run().code() == 0
    });
}

/// Begins to freeze, kills the daemon, and looks at what there is. Whether a program was stopped then.
fn round(sandbox: &Sandbox, dice: &mut Dice, moment: Moment, whole: u64, all: &[i32]) -> bool {
    sandbox.pando(["ls"]).ok();
    let daemon = sandbox.daemon().expect("a daemon runs");
    let before = counts(sandbox);
    let line = sandbox.pando(["freeze", "source", "half", "--memory"]).start();
    let begun = Instant::now();
    match moment {
        Moment::Any => std::thread::sleep(Duration::from_micros(dice.throw(whole))),
        Moment::Stopped(after) => {
            while !all.iter().any(|pid| is_traced(*pid)) && begun.elapsed() < LATEST {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(after));
        }
    }
    let stopped = all.iter().any(|pid| is_traced(*pid));
    process::kill(daemon);
    let ended = line.wait();
    assert!(matches!(ended.code(), 0 | 125), "{moment:?}: {}: {}", ended.code(), ended.err());
    eventually("nobody is traced any more", || !all.iter().any(|pid| is_traced(*pid)));
    eventually("the next daemon answers", || sandbox.pando(["ls"]).run().code() == 0);
    // One that forks is seen twice, for a moment.
    eventually(&format!("{moment:?}: the same programs run, and no snapshot of any"), || programs(sandbox) == all);
    assert_eq!(sandbox.state("source"), "running");
    eventually(&format!("{moment:?}: all of them count on"), || {
        let now = counts(sandbox);
        now.len() == PROGRAMS && now.iter().zip(&before).all(|(now, before)| now > before)
    });
    for pid in all {
        assert_eq!(dead_children(*pid), 0, "{moment:?}: none has a child that it does not know of");
    }
    stopped
}

/// Children of a program that have ended and that it was never told of: its own it waits for.
fn dead_children(pid: i32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<i32> = text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let lasting = |child: &&i32| {
        std::thread::sleep(Duration::from_millis(20));
        process::state(**child) == Some('Z')
    };
    children.iter().filter(|child| process::state(**child) == Some('Z')).filter(lasting).count()
}
