//! TCP connections of guests that are frozen to end there, by a daemon that is killed meanwhile.

use super::NEEDS;
use super::addresses::wire;
use super::connections::{NEEDS_PRIVATE, NUMBERED, clients, listens, serve, tree, turns, withheld};
use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    Case::new("network::connections_last_where_a_freeze_came_to_nothing", |sandbox| {
        let options = ["--from", &tree(sandbox), "--address", "10.9.0.5", "--start"];
        a_freeze_came_to_nothing(sandbox, &options, ("10.9.0.5", 80));
        assert!(!withheld(sandbox), "nothing is withheld any more");
    })
    .needs(NEEDS),
    Case::new("private::connections_last_where_a_freeze_came_to_nothing", |sandbox| {
        let options = ["--from", &tree(sandbox), "--net", "private", "--publish", "8080:80", "--start"];
        a_freeze_came_to_nothing(sandbox, &options, ("10.9.0.1", 8080));
        assert!(!sandbox.places().run().join("net/away/warm.toml").exists());
    })
    .needs(NEEDS_PRIVATE),
    Case::new("network::connections_last_when_the_daemon_is_killed_at_8_random_moments", |sandbox| killed(sandbox, 8))
        .needs(NEEDS),
    Case::new("network::connections_last_when_the_daemon_is_killed_at_80_random_moments", |sandbox| {
        killed(sandbox, 80)
    })
    .needs(NEEDS)
    .tags(&[Tag::Slow]),
];

/// The daemon is killed before the guest has ended: it runs on, with its connections as they were, and later freezes
/// are as good as any.
fn a_freeze_came_to_nothing(sandbox: &Sandbox, options: &[&str], (ip, port): (&str, u16)) {
    let wire = wire(sandbox);
    serve(sandbox, options);
    let said = sandbox.scratch().join("said");
    eventually("it listens", || listens(&wire, ip, port));
    let _clients = clients(&wire, &NUMBERED, ip, port, &said);
    let go_on = |what: &str| {
        let before = turns(&said);
        eventually(what, || turns(&said) > before + 3);
        sandbox.pando(["exec", "web", "--", "cat", "/reuse"]).ok()
    };
    let reuse = go_on("clients are answered");
    assert!(reuse.contains("01"), "{reuse}");
    // Nothing reaches the guest by then, and nobody is left who would change that. At the later one the image is there,
    // and connections are in repair.
    for moment in ["freeze.withheld", "freeze.kept"] {
        sandbox.end_daemon();
        let daemon = wire.pando(sandbox, ["daemon"]).env("PANDO_CRASH_AT", moment).start();
        eventually("the daemon listens", || std::os::unix::net::UnixStream::connect(sandbox.places().socket()).is_ok());
        sandbox.pando(["freeze", "web", "warm", "--stop"]).run().ended_with(125);
        daemon.wait().ended_with(137);
        wire.pando(sandbox, ["ls"]).ok();
        assert_eq!(sandbox.state("web"), "running");
        assert_eq!(
            go_on(&format!("{moment}: they are answered again")),
            reuse,
            "{moment}: their options are as they were"
        );
    }
    sandbox.pando(["image", "rm", "warm"]).ok();
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    sandbox.pando(["restore", "warm"]).ok();
    assert_eq!(go_on("they are answered after a restore"), reuse, "their options are restored");
}

/// Within so many microseconds of its image's being there a guest ends.
const ENDING_US: u64 = 4_000;

/// How long one waits for that image.
const LATEST: Duration = Duration::from_secs(2);

/// Whenever the daemon is killed in a freeze that ends the guest: either it runs on, or its image brings it back, with
/// its connections.
fn killed(sandbox: &Sandbox, kills: usize) {
    let wire = wire(sandbox);
    serve(sandbox, &["--from", &tree(sandbox), "--address", "10.9.0.5", "--start"]);
    let said = sandbox.scratch().join("said");
    eventually("it listens", || listens(&wire, "10.9.0.5", 80));
    let _clients = clients(&wire, &NUMBERED, "10.9.0.5", 80, &said);
    // One that is only being made does not last.
    eventually("all clients are answered", || turns(&said) > 3);
    let (mut dice, _) = Dice::of_this_run();
    let begun = Instant::now();
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    let whole = begun.elapsed().as_micros() as u64;
    sandbox.pando(["restore", "warm"]).ok();
    let (mut restored, mut rounds) = (0, 0);
    // On a machine that has other work most kills may come too late; a round more for each that is missing then.
    while rounds < kills || rounds < 8 * kills && (restored == 0 || restored == rounds) {
        let number = rounds;
        rounds += 1;
        let _ = sandbox.pando(["image", "rm", "warm"]).run();
        let before = turns(&said);
        eventually("clients are answered", || turns(&said) > before + 3);
        let daemon = sandbox.daemon().expect("a daemon runs");
        // On the wire's machine, as the daemon: a call that nobody has read is made again, to a daemon that it starts.
        let line = wire.pando(sandbox, ["freeze", "web", "warm", "--stop"]).start();
        // Every other time in the moments in which it ends, which are few.
        let (begun, ending) = (Instant::now(), number % 2 == 1);
        let image = sandbox.places().images().join("warm");
        while ending && !image.exists() && begun.elapsed() < LATEST {
            std::hint::spin_loop();
        }
        let within = if ending { ENDING_US } else { whole };
        // Sooner where each came too late.
        let moment = dice.throw(if restored == number { within >> number.min(8) } else { within }.max(1));
        std::thread::sleep(Duration::from_micros(moment));
        process::kill(daemon);
        line.wait();
        wire.pando(sandbox, ["ls"]).ok();
        if sandbox.state("web") == "stopped" {
            sandbox.pando(["restore", "--replace", "warm"]).ok();
            restored += 1;
        }
        let before = turns(&said);
        eventually(&format!("round {number}, after {moment} µs: they are answered on the same connections"), || {
            turns(&said) > before + 3
        });
        assert!(!withheld(sandbox), "round {number}, after {moment} µs: nothing is withheld any more");
    }
    println!("     {restored} of {rounds} times the guest had ended");
    assert!(0 < restored && restored < rounds, "sometimes it has ended, and sometimes not: {restored} of {rounds}");
}
