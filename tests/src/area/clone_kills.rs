//! While clones are made the daemon, the spawner, the image's holder, or the process that it makes a clone with is
//! killed, at random moments: the clone runs or nothing is left of it, the source runs on, and the image stays good.

use super::crash::settled;
use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::own_init;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;
use rustix::process::Signal;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_kills::nobody_is_forked_beside_a_maker", nobody_is_forked_beside_a_maker),
    Case::new("clone_kills::at_15_random_moments", |sandbox| at_random_moments(sandbox, 15)),
    Case::new("clone_kills::of_an_init_at_15_random_moments", |sandbox| of_an_init(sandbox, 15)),
    Case::new("clone_kills::of_mounts_of_its_own_at_15_random_moments", |sandbox| of_own_mounts(sandbox, 15)),
    Case::new("clone_kills::of_an_init_at_400_random_moments", |sandbox| of_an_init(sandbox, 400)).tags(&[Tag::Slow]),
    Case::new("clone_kills::at_400_random_moments", |sandbox| at_random_moments(sandbox, 400)).tags(&[Tag::Slow]),
];

/// Within how many microseconds after the command's start.
const WITHIN: u64 = 25_000;

/// How long after it one looks for the process that makes the clone.
const LATEST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Daemon,
    Spawner,
    Holder,
    /// What the holder makes the clone with.
    Child,
}

const VICTIMS: [Victim; 4] = [Victim::Daemon, Victim::Spawner, Victim::Holder, Victim::Child];

fn holder(sandbox: &Sandbox) -> Option<i32> {
    let inspected = sandbox.pando(["image", "inspect", "image"]).ok();
    let inspected: serde_json::Value = serde_json::from_str(&inspected).expect("inspect prints JSON");
    inspected["holder"].as_i64().and_then(|pid| i32::try_from(pid).ok())
}

/// What the holder makes a clone with, while there is such a process.
fn child(holder: i32) -> Option<i32> {
    children(holder).first().copied()
}

fn children(holder: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Whom to kill, or whose child.
fn find(sandbox: &Sandbox, victim: Victim) -> Option<i32> {
    match victim {
        Victim::Daemon => sandbox.daemon(),
        Victim::Spawner => sandbox.spawner(),
        Victim::Holder | Victim::Child => holder(sandbox),
    }
}

#[track_caller]
fn lives(sandbox: &Sandbox, name: &str) {
    assert!(sandbox.exec_sh(name, "tr '\\0' ' ' </proc/2/cmdline").ok().starts_with("sleep 100000"));
}

fn at_random_moments(sandbox: &Sandbox, kills: usize) {
    sandbox.guest("source", &["--", "sleep", "100000"]);
    killing(sandbox, kills);
}

fn of_an_init(sandbox: &Sandbox, kills: usize) {
    own_init::scripted(sandbox, "source", "sleep 100000 & wait");
    eventually("it is up", || sandbox.exec_sh("source", "grep -q sleep /proc/2/cmdline").run().code() == 0);
    killing(sandbox, kills);
}

fn of_own_mounts(sandbox: &Sandbox, kills: usize) {
    let service = "mkdir -p /srv /mnt; mount -t tmpfs tmpfs /srv; mount --bind /etc /mnt; cd /srv; exec sleep 100000";
    let script = format!("unshare -m sh -c '{service}' & wait");
    own_init::scripted(sandbox, "source", &script);
    eventually("it is up", || sandbox.exec_sh("source", "grep -q sleep /proc/2/cmdline").run().code() == 0);
    killing(sandbox, kills);
}

fn killing(sandbox: &Sandbox, kills: usize) {
    let (mut dice, seed) = Dice::of_this_run();
    sandbox.pando(["freeze", "source", "image", "--wait"]).ok();
    let before = World::of(sandbox);
    let mut killed = Vec::new();
    for _ in 0..kills * 4 {
        if killed.len() >= kills {
            break;
        }
        // Each as often as the others.
        let first = dice.throw(VICTIMS.len() as u64) as usize;
        let turns = VICTIMS.into_iter().cycle().skip(first).take(VICTIMS.len());
        let victim = turns.min_by_key(|victim| killed.iter().filter(|one| *one == victim).count());
        let victim = victim.expect("there are victims");
        if round(sandbox, &mut dice, victim) {
            killed.push(victim);
        }
    }
    before.comes_back(sandbox, &format!("PANDO_TEST_SEED={seed}: killed {killed:?}"));
    assert_eq!(killed.len(), kills, "there was too seldom anybody to be killed");
    for victim in VICTIMS {
        println!("     killed {victim:?} {} times", killed.iter().filter(|one| **one == victim).count());
    }
}

/// Makes a clone, kills somebody meanwhile, and looks at what there is. Whether anybody was killed.
fn round(sandbox: &Sandbox, dice: &mut Dice, victim: Victim) -> bool {
    // Now there are a daemon, its spawner, and a holder, and none or one of the clones that are made ahead.
    sandbox.pando(["clone", "image", "earlier", "-n", "2"]).ok();
    let mut found = find(sandbox, victim);
    let line = sandbox.pando(["clone", "image", "subject"]).start();
    let begun = Instant::now();
    if let (Victim::Child, Some(holder)) = (victim, found.take_if(|_| victim == Victim::Child)) {
        while found.is_none() && begun.elapsed() < LATEST {
            found = child(holder);
        }
        // It takes less than a millisecond.
        std::thread::sleep(Duration::from_micros(dice.throw(300)));
    } else {
        std::thread::sleep(Duration::from_micros(dice.throw(WITHIN)));
    }
    let found = found.filter(|pid| process::is_alive(*pid));
    found.into_iter().for_each(process::kill);
    let ended = line.wait();
    assert!(matches!(ended.code(), 0 | 125), "{victim:?}: {}: {}", ended.code(), ended.err());
    eventually("the next daemon answers", || sandbox.pando(["ls"]).run().code() == 0);
    for name in ["earlier-1", "earlier-2"] {
        eventually("the earlier ones go", || {
            sandbox.pando(["rm", "--force", name]).run();
            sandbox.status(name).is_none()
        });
    }
    let state = settled(sandbox);
    match state.as_str() {
        "absent" => {}
        "running" => lives(sandbox, "subject"),
        _ => panic!("{victim:?} killed: the clone is {state}"),
    }
    if state != "absent" {
        sandbox.pando(["rm", "--force", "subject"]).ok();
    }
    lives(sandbox, "source");
    found.is_some()
}

/// Two tasks of the holder's, in its memory, make a clone. Where the first is killed the second runs on: until that has
/// ended no other may be made, which would have the same stack.
fn nobody_is_forked_beside_a_maker(sandbox: &Sandbox) {
    const TRIES: usize = 200;
    sandbox.guest("source", &["--", "sleep", "100000"]);
    sandbox.pando(["freeze", "source", "image", "--wait"]).ok();
    let holder = holder(sandbox).expect("it is held");
    let mut caught = None;
    for _ in 0..TRIES {
        let line = sandbox.pando(["clone", "image", "subject"]).start();
        if let Some(maker) = lone_maker(holder) {
            caught = Some((line, maker));
            break;
        }
        line.wait();
        sandbox.pando(["rm", "--force", "subject"]).run();
    }
    let (line, maker) = caught.expect("now and then one is stopped before it has ended");
    let other = sandbox.pando(["clone", "image", "other"]).start();
    sandbox.pando(["ls"]).ok();
    // The killed one may be waited for a while, and what the kernel lists of children is not exact meanwhile.
    let living: Vec<i32> = children(holder).into_iter().filter(|pid| process::is_alive(*pid)).collect();
    assert_eq!(living, [maker.0]);
    drop(maker);
    for line in [line, other] {
        let ended = line.wait();
        assert!(matches!(ended.code(), 0 | 125), "{}: {}", ended.code(), ended.err());
    }
    sandbox.pando(["clone", "image", "later"]).ok();
    lives(sandbox, "later");
    lives(sandbox, "source");
}

/// A stopped process. Dropped, it goes on.
struct Paused(i32);

impl Drop for Paused {
    fn drop(&mut self) {
        process::signal(self.0, Signal::CONT);
    }
}

/// A clone's maker, stopped, after who made it was killed. `None` if it was too quick.
fn lone_maker(holder: i32) -> Option<Paused> {
    let begun = Instant::now();
    while begun.elapsed() < LATEST {
        let &[entrant, maker] = &children(holder)[..] else { continue };
        process::signal(maker, Signal::STOP);
        let paused = Paused(maker);
        process::kill(entrant);
        eventually("the killed one has ended", || !process::is_alive(entrant));
        let mut state = None;
        eventually("the other has stopped or ended", || {
            state = process::state(maker);
            matches!(state, None | Some('T'))
        });
        return state.map(|_| paused);
    }
    None
}
