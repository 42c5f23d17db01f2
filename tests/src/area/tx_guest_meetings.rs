//! Transactions inside a guest that meet each other or outsiders: who is favoured, and what a command that is run again
//! reads and says.

use crate::case::Case;
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::io::Write;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_guest_meetings::one_that_lost_is_stopped_at_once", stopped_at_once),
    Case::new("tx_guest_meetings::the_first_that_commits_is_favoured_if_the_settings_say_so", first),
    Case::new("tx_guest_meetings::the_oldest_is_favoured_if_the_settings_say_so", oldest),
    Case::new("tx_guest_meetings::what_was_read_is_read_again", reads_again),
    Case::new("tx_guest_meetings::a_command_that_fails_by_what_others_were_doing_is_run_again", misled),
    Case::new("tx_guest_meetings::output_is_held_until_the_commit", holds_output),
];

/// Counts on, and then waits for the end of its input.
const COUNTS: &str = "cd /srv; read n <count; echo $((n + 1)) >count";

fn guest(sandbox: &Sandbox, contention: &str) {
    sandbox.settings(&format!("[transactions]\ncontention = \"{contention}\"\n"));
    sandbox.guest("g", &[]);
    sandbox.exec_sh("g", "echo 0 >/srv/count").ok();
}

fn run(sandbox: &Sandbox, options: &[&str], script: &str) -> Line {
    sandbox.pando(["tx", "run", "--guest", "g"]).args(options).args(["--", "sh", "-c", script])
}

/// Whether a transaction in the guest has a file of that name and content.
fn has(sandbox: &Sandbox, name: &str, content: &str) -> bool {
    let at = sandbox.places().guests().join("g/tx");
    let path = format!("*/upper/srv/{name}");
    let found = Line::new("find").args([at.as_path()]).args(["-path", &path, "-exec", "cat", "{}", ";"]).run();
    found.out().contains(content)
}

fn count(sandbox: &Sandbox) -> String {
    sandbox.exec_sh("g", "cat /srv/count").ok()
}

/// The command that has lost would sleep for longer than the test may take.
fn stopped_at_once(sandbox: &Sandbox) {
    guest(sandbox, "priority");
    let loser = run(sandbox, &[], &format!("{COUNTS}; test -e again || exec sleep 1000")).start();
    eventually("the first has counted", || has(sandbox, "count", "1"));
    run(sandbox, &[], &format!("{COUNTS}; touch again")).run().succeeded().complains_of(&["0 retries"]);
    let words = ["count was changed by another transaction; running it again", "1 retry"];
    loser.wait().succeeded().complains_of(&words);
    assert_eq!(count(sandbox), "2\n");
}

fn first(sandbox: &Sandbox) {
    guest(sandbox, "first");
    meet(sandbox, false);
}

fn oldest(sandbox: &Sandbox) {
    guest(sandbox, "oldest");
    meet(sandbox, true);
}

/// One has counted, and lingers; another counts and commits. Either that one waits for the first, or the first is run
/// again.
fn meet(sandbox: &Sandbox, waits: bool) {
    let earlier = run(sandbox, &[], &format!("{COUNTS}; read line || true")).start_with_open_input();
    eventually("the first has counted", || has(sandbox, "count", "1"));
    let mut later = run(sandbox, &[], &format!("{COUNTS}; echo y >later")).start();
    if waits {
        eventually("the second has counted", || has(sandbox, "later", "y"));
        std::thread::sleep(std::time::Duration::from_millis(700));
        assert!(!later.has_ended() && count(sandbox) == "0\n");
    } else {
        eventually("the second has committed", || later.has_ended());
        assert_eq!(count(sandbox), "1\n");
    }
    let [earlier, later] = [earlier.close_input().wait().succeeded(), later.wait().succeeded()];
    let (favoured, other) = if waits { (earlier, later) } else { (later, earlier) };
    favoured.complains_of(&["0 retries"]);
    other.complains_of(&["1 retry"]);
    assert_eq!(count(sandbox), "2\n");
}

/// A pipe is empty once it was read: what came through it comes again.
fn reads_again(sandbox: &Sandbox) {
    guest(sandbox, "priority");
    let script = "read word; cat /srv/count; echo $word >/srv/word; read rest || true; echo $rest >>/srv/word";
    let mut started = run(sandbox, &[], script).start_with_open_input();
    started.input().write_all(b"word\n").expect("it reads");
    eventually("it has read", || has(sandbox, "word", "word"));
    sandbox.exec_sh("g", "echo 7 >/srv/count").ok();
    started.input().write_all(b"rest\n").expect("it reads");
    let ended = started.close_input().wait().succeeded();
    ended.complains_of(&["count was changed by others; running it again", "1 retry"]).says("0\n7\n");
    assert_eq!(sandbox.exec_sh("g", "cat /srv/word").ok(), "word\nrest\n");
}

fn misled(sandbox: &Sandbox) {
    guest(sandbox, "priority");
    let put =
        |content: &str| sandbox.exec_sh("g", &format!("echo {content} >/srv/count; echo {content} >/srv/other")).ok();
    let script = "cd /srv; cat count >seen; read line || true; cmp seen other || exit 3; echo done >result";
    for (retries, code) in [("1", 0), ("0", 3)] {
        put("7");
        let started = run(sandbox, &["--retry", retries], script).start_with_open_input();
        eventually("the first attempt has read the file", || has(sandbox, "seen", "7"));
        put("8");
        let ended = started.close_input().wait().ended_with(code);
        assert_eq!(
            ended.err().contains("was changed by others; running it again (1 of 1)"),
            code == 0,
            "{}",
            ended.err()
        );
    }
    assert_eq!(sandbox.exec_sh("g", "cat /srv/result").ok(), "done\n");
}

fn holds_output(sandbox: &Sandbox) {
    guest(sandbox, "priority");
    let held = |script: &str| run(sandbox, &["--output", "commit"], script).run();
    held("echo said; exit 3").ended_with(3).says("");
    held("echo said").succeeded().says("said\n");
}
