//! The daemon and the spawner are killed at random moments while commands are at work.

use crate::case::Case;
use crate::dice::Dice;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::World;
use std::time::Duration;

/// How often something is killed.
const KILLS: u32 = 200;

/// Within how many microseconds after a command's start.
const WITHIN: u64 = 40_000;

const NAMES: [&str; 3] = ["a", "b", "c"];

pub(crate) const CASES: &[Case] = &[
    Case::new("crash::at_200_random_moments", at_random_moments),
    Case::new("crash::a_guests_seed_is_killed", a_guests_seed_is_killed),
    Case::new("crash::a_guests_first_process_is_killed", a_guests_first_process_is_killed),
    Case::new("crash::what_ends_while_no_daemon_runs", what_ends_while_no_daemon_runs),
];

fn at_random_moments(sandbox: &Sandbox) {
    let (mut dice, seed) = Dice::of_this_run();
    sandbox.guest("steady", &["--", "sh", "-c", "echo up; exec sleep 100000"]);
    let steady = sandbox.first_process("steady");
    let before = World::of(sandbox);
    let (mut daemons, mut spawners) = (0, 0);
    while daemons + spawners < KILLS {
        let spare_daemon = dice.throw(4) == 0;
        // A daemon has a spawner as soon as it was asked for a guest.
        let warm = if spare_daemon { sandbox.run_sh(&[], "true") } else { sandbox.pando(["ls"]) };
        warm.ok();
        let victim = if spare_daemon { sandbox.spawner() } else { sandbox.daemon() };
        let line = random_line(sandbox, &mut dice).start();
        std::thread::sleep(Duration::from_micros(dice.throw(WITHIN)));
        if let Some(pid) = victim {
            process::kill(pid);
            *(if spare_daemon { &mut spawners } else { &mut daemons }) += 1;
        }
        let ended = line.wait();
        assert!(matches!(ended.code(), 0 | 3 | 125 | 137), "{}: {}", ended.code(), ended.err());
        // Killed while it was starting a program, a daemon leaves its socket to that for an instant: who connects just
        // then gets no answer.
        eventually("the next daemon answers", || sandbox.pando(["ls"]).run().code() == 0);
        assert_eq!(sandbox.first_process("steady"), steady);
    }
    for name in NAMES {
        works(sandbox, name);
    }
    assert_eq!(sandbox.pando(["logs", "steady"]).ok(), "up\n");
    before.comes_back(sandbox, &format!("PANDO_TEST_SEED={seed}: the daemon was killed {daemons} times"));
    println!("     killed the daemon {daemons} times and the spawner {spawners} times");
}

fn random_line(sandbox: &Sandbox, dice: &mut Dice) -> crate::line::Line {
    let name = NAMES[dice.throw(NAMES.len() as u64) as usize];
    match dice.throw(8) {
        0 | 1 => sandbox.pando(["create", name, "--from", sandbox.busybox(), "--start", "--", "sleep", "100000"]),
        2 => sandbox.pando(["start", name]),
        3 => sandbox.exec_sh(name, "echo x >>/srv/x; exit 3"),
        4 => sandbox.pando(["stop", "--time", "1", name]),
        5 => sandbox.pando(["rm", "--force", name]),
        6 => sandbox.pando(["restart", "--time", "1", name]),
        _ => sandbox.run_sh(&[], "echo hello; exit 3"),
    }
}

/// Whatever was left of a guest, it is one: it can be started, entered, stopped and removed.
fn works(sandbox: &Sandbox, name: &str) {
    eventually("it is in no state between", || !matches!(sandbox.state(name).as_str(), "starting" | "stopping"));
    let state = sandbox.state(name);
    if state == "absent" {
        return;
    }
    if state == "stopped" {
        sandbox.pando(["start", name]).ok();
    }
    sandbox.exec_sh(name, "echo works").run().succeeded().says("works\n");
    sandbox.pando(["stop", "--time", "1", name]).ok();
    sandbox.pando(["rm", name]).ok();
}

/// The seed of a guest: it sits in its groups, and outside of its pid namespace.
fn seed_of(sandbox: &Sandbox, name: &str) -> i32 {
    process::parent(sandbox.first_process(name)).expect("its first process has a parent")
}

fn a_guests_seed_is_killed(sandbox: &Sandbox) {
    let before = World::of(sandbox);
    sandbox.guest("web", &[]);
    let first = sandbox.first_process("web");
    process::kill(seed_of(sandbox, "web"));
    // The guest cannot be entered any more without its seed: it goes down, or it goes on and can be stopped.
    let ended = sandbox.exec_sh("web", "true").run();
    assert!(matches!(ended.code(), 0 | 125), "{}", ended.err());
    eventually("the guest has an end", || sandbox.pando(["stop", "--time", "1", "web"]).run().code() == 0);
    sandbox.becomes("web", "stopped");
    eventually("its first process is gone", || !process::is_alive(first));
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "echo again").run().says("again\n");
    sandbox.pando(["rm", "-f", "web"]).ok();
    before.comes_back(sandbox, "the guest whose seed was killed is removed");
}

fn a_guests_first_process_is_killed(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    let running = sandbox.exec_sh("web", ": >/ready; exec sleep 100000").start();
    sandbox.exec_sh("web", "until [ -e /ready ]; do sleep 0.05; done").ok();
    process::kill(sandbox.first_process("web"));
    running.wait().ended_with(137);
    sandbox.becomes("web", "stopped");
    assert_eq!(sandbox.status("web").expect("it is there")["exit_code"], 137);
    sandbox.end_daemon();
    let left = sandbox.processes();
    assert!(left.is_empty(), "{left:?}");
    sandbox.pando(["start", "web"]).ok();
    assert_eq!(sandbox.state("web"), "running");
}

/// No daemon sees it, and the next one knows all the same.
fn what_ends_while_no_daemon_runs(sandbox: &Sandbox) {
    let script = "until [ -e /go ]; do sleep 0.05; done; echo last words; exit 7";
    sandbox.guest("job", &["--", "sh", "-c", script]);
    let first = sandbox.first_process("job");
    let go = sandbox.places().guests().join("job/files/upper/go");
    for end in [Sandbox::end_daemon as fn(&Sandbox), |sandbox| sandbox.daemon().into_iter().for_each(process::kill)] {
        let first = if process::is_alive(first) { first } else { sandbox.first_process("job") };
        sandbox.exec_sh("job", "(sleep 1; : >/go) >/dev/null 2>&1 &").ok();
        end(sandbox);
        eventually("it ends by itself", || !process::is_alive(first));
        assert!(go.exists());
        sandbox.becomes("job", "stopped");
        assert_eq!(sandbox.status("job").expect("it is there")["exit_code"], 7);
        assert!(sandbox.pando(["logs", "job"]).ok().ends_with("last words\n"));
        sandbox.pando(["rm", "job"]).ok();
        sandbox.guest("job", &["--", "sh", "-c", script]);
    }
}
