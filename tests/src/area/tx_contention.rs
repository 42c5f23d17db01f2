//! Transactions on the host that meet: who goes on, and when the other one knows.

use crate::case::Case;
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_contention::one_that_lost_is_stopped_at_once", stopped_at_once),
    Case::new("tx_contention::the_first_that_commits_is_favoured_among_equals", first_among_equals),
    Case::new("tx_contention::the_higher_priority_is_favoured", priority),
    Case::new("tx_contention::the_oldest_is_favoured_if_the_settings_say_so", oldest),
    Case::new("tx_contention::nothing_passes_outside_of_one_that_lost", nothing_passes),
    Case::new("tx_contention::a_policy_that_is_none_is_said", no_policy),
];

fn files(sandbox: &Sandbox) -> PathBuf {
    let directory = sandbox.scratch();
    fs::write(directory.join("count"), "0\n").expect("a file can be written");
    directory
}

fn policy(sandbox: &Sandbox, text: &str) {
    let directory = sandbox.root().join("etc/pando");
    fs::create_dir_all(&directory).expect("a directory can be made");
    fs::write(directory.join("pando.toml"), text).expect("a file can be written");
}

/// A transaction as a process of this nice value.
fn run(sandbox: &Sandbox, nice: u32, directory: &Path, script: &str) -> Line {
    let line = Line::new("nice").args(["-n", &nice.to_string()]).args([sandbox.program()]);
    let line = line.args(["--root"]).args([sandbox.root()]).args(["tx", "run", "--", "sh", "-c", script]);
    line.directory(directory)
}

/// Counts on, and then waits for a line of its input.
const COUNTS: &str = "read n <count; echo $((n + 1)) >count; echo counted; read line || true";

/// Whether the transaction of such a script has counted.
fn has_counted(sandbox: &Sandbox) -> bool {
    have_counted(sandbox) > 0
}

/// How many have counted. One that has ended may be there still, thrown away.
fn have_counted(sandbox: &Sandbox) -> usize {
    let at = sandbox.root().join("var/lib/pando/tx");
    Line::new("find")
        .args([at.as_path()])
        .args(["-name", ".trash", "-prune", "-o", "-path", "*/upper/*/count", "-size", "-2", "-print"])
        .run()
        .out()
        .lines()
        .count()
}

fn count(directory: &Path) -> String {
    fs::read_to_string(directory.join("count")).expect("a file can be read")
}

/// The command that has lost would sleep for longer than the test may take.
fn stopped_at_once(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let script = format!("{}; test -e again || exec sleep 1000", COUNTS.replace("; read line || true", ""));
    let loser = run(sandbox, 0, &directory, &script).start();
    eventually("the first has counted", || has_counted(sandbox));
    let winner = "read n <count; echo $((n + 1)) >count; touch again";
    run(sandbox, 0, &directory, winner).run().succeeded().complains_of(&["0 retries"]);
    let ended = loser.wait().succeeded();
    ended.complains_of(&["count was changed by another transaction; running it again", "1 retry"]);
    assert_eq!(count(&directory), "2\n");
}

fn first_among_equals(sandbox: &Sandbox) {
    meet(sandbox, 0, 0, false);
}

fn priority(sandbox: &Sandbox) {
    meet(sandbox, 5, 0, false);
    // Whoever wants the favour of another policy says so: the same pair.
    policy(sandbox, "[transactions]\ncontention = \"first\"\n");
    meet(sandbox, 5, 0, false);
    policy(sandbox, "[transactions]\ncontention = \"priority\"\n");
    meet(sandbox, 0, 5, true);
}

fn oldest(sandbox: &Sandbox) {
    policy(sandbox, "[transactions]\ncontention = \"oldest\"\n");
    meet(sandbox, 0, 0, true);
}

/// One has counted, and lingers; another counts and commits. Either that one waits for the first, or the first is run
/// again.
fn meet(sandbox: &Sandbox, first: u32, second: u32, waits: bool) {
    let directory = files(sandbox);
    let earlier = run(sandbox, first, &directory, COUNTS).start_with_open_input();
    eventually("the first has counted", || has_counted(sandbox));
    let mut later = run(sandbox, second, &directory, "read n <count; echo $((n + 1)) >count").start();
    if waits {
        // It has read what the first will change.
        eventually("the second has counted", || have_counted(sandbox) == 2);
        std::thread::sleep(std::time::Duration::from_millis(700));
        assert!(!later.has_ended() && count(&directory) == "0\n");
    } else {
        eventually("the second has committed", || later.has_ended());
        assert_eq!(count(&directory), "1\n");
    }
    let [earlier, later] = [earlier.close_input().wait().succeeded(), later.wait().succeeded()];
    let (favoured, other) = if waits { (earlier, later) } else { (later, earlier) };
    favoured.complains_of(&["0 retries"]);
    other.complains_of(&["1 retry"]);
    assert_eq!(count(&directory), "2\n");
}

/// What it has read is changed by an outsider, which only a look can tell: there is one before it reaches a server.
fn nothing_passes(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let server = TcpListener::bind("127.0.0.1:0").expect("a port can be had");
    server.set_nonblocking(true).expect("it can be asked without waiting");
    let port = server.local_addr().expect("it has an address").port();
    let connects = format!("exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
    let started = run(sandbox, 0, &directory, &format!("{COUNTS}; {connects}")).start_with_open_input();
    eventually("the command has counted", || has_counted(sandbox));
    fs::write(directory.join("count"), "7\n").expect("a file can be written");
    let ended = started.close_input().wait().succeeded();
    ended.complains_of(&["count was changed by others; running it again", "1 connection had passed"]);
    assert!(server.accept().is_ok(), "the second run connects");
    assert_eq!(server.accept().map_err(|error| error.kind()).err(), Some(ErrorKind::WouldBlock));
    assert_eq!(count(&directory), "8\n");
}

fn no_policy(sandbox: &Sandbox) {
    policy(sandbox, "[transactions]\ncontention = \"youngest\"\n");
    let ended = sandbox.pando(["tx", "run", "--", "true"]).run().ended_with(125);
    ended.complains_of(&["pando.toml", "youngest"]);
}
