//! --restart, boot.autostart: guests that are started again after their end, and as the machine boots.

use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("restarts::a_failure_is_followed_by_so_many_starts", a_failure_is_followed_by_so_many_starts),
    Case::new("restarts::success_is_no_failure", success_is_no_failure),
    Case::new("restarts::what_is_stopped_stays_so", what_is_stopped_stays_so),
    Case::new("restarts::a_pause_can_be_cut_short", a_pause_can_be_cut_short),
    Case::new("restarts::the_next_daemon_keeps_them", the_next_daemon_keeps_them),
    Case::new("restarts::at_boot_in_order", at_boot_in_order),
    Case::new("restarts::it_is_set_and_shown", it_is_set_and_shown),
    Case::new("restarts::a_guest_of_run_has_none", a_guest_of_run_has_none),
    Case::new("restarts::one_that_reboots_for_ever_is_ended_all_the_same", reboots_for_ever),
];

/// How many lives it has had: each prints a line into the log.
fn lives(sandbox: &Sandbox, name: &str) -> usize {
    sandbox.pando(["logs", name]).ok().lines().count()
}

fn restarts(sandbox: &Sandbox, name: &str) -> u64 {
    sandbox.status(name).expect("it is there")["restarts"].as_u64().unwrap_or(0)
}

/// Whether it runs, with another first process than this one.
fn runs_anew(sandbox: &Sandbox, name: &str, before: i32) -> bool {
    sandbox.status(name).expect("it is there")["pid"].as_i64().is_some_and(|pid| pid != i64::from(before))
}

fn is_due(sandbox: &Sandbox, name: &str) -> bool {
    !sandbox.status(name).expect("it is there")["next_start"].is_null()
}

fn a_failure_is_followed_by_so_many_starts(sandbox: &Sandbox) {
    sandbox.guest("job", &["--restart", "on-failure:2", "--", "sh", "-c", "echo life; exit 3"]);
    eventually("it was started twice more", || lives(sandbox, "job") == 3);
    sandbox.becomes("job", "stopped");
    eventually("nothing is due", || !is_due(sandbox, "job"));
    assert_eq!((lives(sandbox, "job"), restarts(sandbox, "job")), (3, 2));
    assert_eq!(sandbox.status("job").expect("it is there")["exit_code"], 3);
    // Whoever starts it has it count from the beginning.
    sandbox.pando(["start", "job"]).ok();
    eventually("it was started twice more", || lives(sandbox, "job") == 6);
}

fn success_is_no_failure(sandbox: &Sandbox) {
    let script = "echo life; [ -e /srv/again ] && exit 0; : >/srv/again; exit 1";
    sandbox.guest("job", &["--restart", "on-failure", "--", "sh", "-c", script]);
    eventually("it has succeeded", || lives(sandbox, "job") == 2 && sandbox.state("job") == "stopped");
    assert!(!is_due(sandbox, "job"));
    // A command that cannot be run is said, and not tried again and again.
    sandbox.create("none", &["--restart", "always", "--", "no-such-command"]);
    sandbox.pando(["start", "none"]).run().ended_with(125).complains_of(&["no-such-command"]);
    assert!(!is_due(sandbox, "none"));
}

fn what_is_stopped_stays_so(sandbox: &Sandbox) {
    for end in [&["stop", "-t", "0"][..], &["kill"], &["freeze", "--stop"]] {
        sandbox.guest("web", &["--restart", "always", "--", "sh", "-c", "echo life; sleep 1000"]);
        let first = sandbox.first_process("web");
        // An end that nobody asked for is followed by a start.
        process::kill(first);
        eventually("it runs again", || runs_anew(sandbox, "web", first));
        sandbox.pando(end).args(["web"]).ok();
        sandbox.becomes("web", "stopped");
        assert!(!is_due(sandbox, "web"), "{end:?}");
        sandbox.end_daemon();
        assert_eq!((sandbox.state("web"), is_due(sandbox, "web")), ("stopped".to_owned(), false), "{end:?}");
        sandbox.pando(["rm", "web"]).ok();
    }
}

fn a_pause_can_be_cut_short(sandbox: &Sandbox) {
    sandbox.guest("web", &["--restart", "always", "--", "sh", "-c", "echo life; exit 1"]);
    eventually("its pauses are long", || restarts(sandbox, "web") >= 6 && is_due(sandbox, "web"));
    let shown = sandbox.pando(["ls"]).ok();
    assert!(shown.contains("stopped (1), again in"), "{shown}");
    sandbox.pando(["stop", "web"]).ok();
    assert!(!is_due(sandbox, "web"));
    sandbox.pando(["start", "web"]).ok();
    eventually("it is started again, counted from the beginning", || restarts(sandbox, "web") == 2);
    eventually("its next start is due", || is_due(sandbox, "web"));
    sandbox.pando(["rm", "-f", "web"]).ok();
    assert_eq!(sandbox.state("web"), "absent");
}

fn the_next_daemon_keeps_them(sandbox: &Sandbox) {
    sandbox.guest("web", &["--restart", "unless-stopped", "--", "sh", "-c", "echo life; sleep 1000"]);
    sandbox.guest("done", &["--restart", "on-failure", "--", "sh", "-c", "until [ -e /go ]; do sleep 0.1; done"]);
    sandbox.guest("plain", &["--", "sleep", "1000"]);
    sandbox.exec_sh("done", "(sleep 1; : >/go) &").ok();
    let first = sandbox.first_process("web");
    let plain = sandbox.first_process("plain");
    sandbox.end_daemon();
    process::kill(first);
    process::kill(plain);
    eventually("it runs again", || runs_anew(sandbox, "web", first));
    sandbox.becomes("done", "stopped");
    assert_eq!((sandbox.state("plain"), is_due(sandbox, "done")), ("stopped".to_owned(), false));
    // One that waits for its next life when the daemon goes is not forgotten.
    sandbox.guest("poor", &["--restart", "always", "--", "sh", "-c", "echo life; exit 1"]);
    eventually("its pauses are long", || restarts(sandbox, "poor") >= 6 && is_due(sandbox, "poor"));
    let before = lives(sandbox, "poor");
    sandbox.end_daemon();
    eventually("it is started again", || lives(sandbox, "poor") > before);
    assert!(restarts(sandbox, "poor") >= 6, "what counts its lives goes on");
}

fn at_boot_in_order(sandbox: &Sandbox) {
    for (name, options) in [
        ("always", &["--restart", "always"][..]),
        ("stopped", &["--restart", "unless-stopped"]),
        ("up", &["--restart", "unless-stopped"]),
        ("failed", &["--restart", "on-failure"]),
        ("auto", &[]),
        ("first", &[]),
        ("plain", &[]),
    ] {
        let options: Vec<&str> = options.iter().copied().chain(["--", "sleep", "1000"]).collect();
        sandbox.guest(name, &options);
    }
    sandbox.pando(["set", "auto", "boot.autostart=true", "boot.delay=1"]).ok();
    sandbox.pando(["set", "first", "boot.autostart=true", "boot.priority=7", "boot.delay=1"]).ok();
    sandbox.pando(["stop", "-t", "0", "always", "stopped", "auto", "first", "plain"]).ok();
    // As after a power failure: what ran has ended, and the notes are of another boot.
    let running = [sandbox.first_process("up"), sandbox.first_process("failed")];
    let seeds = running.map(|first| process::parent(first).expect("the first process has one"));
    sandbox.end_daemon();
    running.into_iter().chain(seeds).for_each(process::kill);
    eventually("nothing runs", || !seeds.into_iter().any(process::is_alive));
    let places = sandbox.places();
    std::fs::write(places.state().join("boot"), "another").expect("the state is the test's");
    for note in std::fs::read_dir(places.running()).expect("it is there").flatten() {
        let text = std::fs::read_to_string(note.path()).expect("a note");
        let mut note_of_before: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        note_of_before["boot"] = "another".into();
        std::fs::write(note.path(), note_of_before.to_string()).expect("the state is the test's");
    }
    for name in ["always", "auto", "first", "up"] {
        sandbox.becomes(name, "running");
    }
    for name in ["stopped", "failed", "plain"] {
        assert_eq!(sandbox.state(name), "stopped", "{name}");
    }
    let started = |name: &str| sandbox.status(name).expect("it is there")["started"].as_i64();
    assert!(started("first") < started("always") && started("auto") < started("up"), "by priority, then by name");
    // A daemon of the same boot starts nothing that was stopped.
    sandbox.pando(["stop", "-t", "0", "always", "auto"]).ok();
    sandbox.end_daemon();
    assert_eq!((sandbox.state("always"), sandbox.state("auto")), ("stopped".to_owned(), "stopped".to_owned()));
}

fn it_is_set_and_shown(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sh", "-c", "echo life; sleep 1000"]);
    sandbox.pando(["set", "web", "restart=always"]).run().succeeded().says("restart: now\n");
    assert_eq!(sandbox.inspect("web")["spec"]["restart"], "always");
    process::kill(sandbox.first_process("web"));
    eventually("it has a second life", || lives(sandbox, "web") == 2);
    sandbox.pando(["set", "web", "restart="]).ok();
    process::kill(sandbox.first_process("web"));
    sandbox.becomes("web", "stopped");
    assert!(!is_due(sandbox, "web"));
    for wrong in ["restart=never", "restart=on-failure:0", "boot.autostart=perhaps"] {
        sandbox.pando(["set", "web", wrong]).run().ended_with(125);
    }
    let wrong = sandbox.pando(["create", "x", "--from", sandbox.busybox(), "--restart", "sometimes"]).run();
    wrong.ended_with(125).complains_of(&["sometimes", "unless-stopped"]);
}

fn a_guest_of_run_has_none(sandbox: &Sandbox) {
    let words = ["run", "-d", "--restart", "always", "--from", sandbox.busybox(), "--", "sleep", "1000"];
    sandbox.pando(words).run().ended_with(125).complains_of(&["pando create"]);
    assert_eq!(sandbox.pando(["ls", "-q"]).ok(), "");
}

/// A guest whose init does nothing but reboot: whoever wants it to be at rest is obeyed, and it takes its time.
fn reboots_for_ever(sandbox: &Sandbox) {
    let init = sandbox.scratch().join("init");
    std::fs::write(&init, "#!/bin/sh\necho life >>/lives\nexec /bin/busybox reboot -f\n").expect("a file");
    std::fs::set_permissions(&init, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    sandbox.create("rb", &["--profile", "system", "--init", "/bin/own-init"]);
    sandbox.pando(["cp"]).args([init.as_os_str(), "rb:/bin/own-init".as_ref()]).ok();
    let lives = || sandbox.pando(["cp", "rb:/lives", "-"]).run().out().matches("life").count();
    for (round, end) in
        [&["stop", "-t", "2"][..], &["kill"], &["stop", "-t", "0"], &["kill"], &["stop"]].iter().enumerate()
    {
        sandbox.pando(["start", "rb"]).ok();
        // At different moments of a life, and of the pause after it.
        std::thread::sleep(std::time::Duration::from_millis(150 * round as u64));
        sandbox.pando(*end).args(["rb"]).ok();
        sandbox.becomes("rb", "stopped");
        let seen = lives();
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!((sandbox.state("rb").as_str(), lives()), ("stopped", seen), "{end:?}: it goes on");
    }
    // A kill finds it in whichever state, also in one that nobody has noticed yet.
    for round in 0..24 {
        sandbox.pando(["start", "rb"]).ok();
        std::thread::sleep(std::time::Duration::from_millis(17 * (round / 2)));
        sandbox.pando(if round % 2 == 0 { &["kill"][..] } else { &["stop", "-t", "1"] }).args(["rb"]).ok();
        sandbox.becomes("rb", "stopped");
    }
    sandbox.pando(["kill", "rb"]).run().ended_with(125).complains_of(&["not running"]);
    let before = lives();
    sandbox.pando(["start", "rb"]).ok();
    std::thread::sleep(std::time::Duration::from_secs(3));
    sandbox.pando(["rm", "--force", "rb"]).ok();
    assert!(before > 5 && sandbox.status("rb").is_none(), "it is there still after {before} lives");
}
