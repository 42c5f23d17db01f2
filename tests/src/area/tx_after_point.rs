//! What others can do, and see, between the point from which on a transaction is committed and the end of its commit: a
//! moment as a rule, and as long as nobody recovers it where its process was killed in between.

use crate::case::Case;
use crate::line::Line;
use crate::sandbox::Sandbox;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_after_point::no_content_is_there_before_its_rights", rights),
    Case::new("tx_after_point::what_others_write_is_kept", writes),
    Case::new("tx_after_point::directories_that_others_move_hold_nothing_up", moved),
    Case::new("tx_after_point::programs_that_others_execute_hold_nothing_up", executed),
];

/// What a recovery says of a transaction that was committed.
const COMMITTED: &str = "in place now";

/// More steps than any of these commits has.
const MOST: u64 = 200;

/// Runs a command in a transaction that is killed at a step; whether it was.
fn killed(sandbox: &Sandbox, at: &Path, step: u64, command: &str) -> bool {
    let line = sandbox.pando(["tx", "run", "--retry", "0", "-q", "--", "sh", "-ec", command]).directory(at);
    line.env("PANDO_TX_CRASH_STEP", step.to_string()).run().code() == 137
}

/// Has what was there before made anew, kills the commit at each of its steps, looks at what it leaves, and at what a
/// recovery makes of that, if it was committed; how often it was killed.
fn at_each_step(
    sandbox: &Sandbox,
    [before, command]: [&str; 2],
    mut look: impl FnMut(&Path, u64),
    mut after: impl FnMut(&Path, u64),
) -> u64 {
    let at = sandbox.scratch().join("live");
    for step in 0..MOST {
        let anew = format!("rm -rf --one-file-system {0}; mkdir {0}; cd {0}; {before}", at.display());
        Line::new("sh").args(["-ec", &anew]).ok();
        if !killed(sandbox, &at, step, command) {
            return step;
        }
        look(&at, step);
        if sandbox.pando(["tx", "recover"]).ok().contains(COMMITTED) {
            after(&at, step);
        }
        sandbox.pando(["tx", "run", "-q", "--", "true"]).ok();
    }
    panic!("it has more steps than that");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o7777)
}

fn contains(path: &Path, text: &str) -> bool {
    fs::read(path).is_ok_and(|content| content.windows(text.len()).any(|part| part == text.as_bytes()))
}

/// A file that is closed and then written to, a directory that is closed before something comes into it, a set-user-id
/// program that becomes another, and one that changes hands: no state that the command made gave others more.
fn rights(sandbox: &Sandbox) {
    let before = "echo public >f; chmod 644 f; mkdir -m 755 d; echo tool >tool; chmod 4755 tool
        echo theirs >given; chmod 664 given; chown 65534:65534 given; mkdir -m 777 open";
    let command = "chmod 600 f; echo secret >f; chmod 700 d; echo secret >d/key; chmod 755 tool; echo other >tool
        chown 0:0 given; chmod 644 given; echo secret >given; chmod 755 open; echo program >open/program";
    let mut seen = 0;
    let look = |at: &Path, step| {
        let is_new = |name: &str, text: &str| contains(&at.join(name), text);
        let uid = |name: &str| fs::metadata(at.join(name)).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
        assert!(!is_new("f", "secret") || mode(&at.join("f")) & 0o077 == 0, "step {step}: f can be read");
        assert!(!at.join("d/key").exists() || mode(&at.join("d")) & 0o077 == 0, "step {step}: d can be entered");
        assert!(!is_new("tool", "other") || mode(&at.join("tool")) & 0o6000 == 0, "step {step}: tool is root's still");
        assert!(!is_new("given", "secret") || uid("given").is_ok_and(|uid| uid == 0), "step {step}: given is theirs");
        assert!(!at.join("open/program").exists() || mode(&at.join("open")) & 0o022 == 0, "step {step}: open is open");
        seen += usize::from(is_new("f", "secret") || is_new("tool", "other"));
    };
    let mut whole = 0;
    let killed = at_each_step(sandbox, [before, command], look, |at, step| {
        let modes = ["f", "d", "tool", "given", "open"].map(|name| mode(&at.join(name)));
        assert_eq!(modes, [0o600, 0o700, 0o755, 0o644, 0o755], "step {step}");
        whole += 1;
    });
    assert!(seen > 0 && whole > 0, "killed {killed} times, {seen} times with new content in place");
}

/// Whatever others write after the commit point, before somebody recovers the commit, is to be found.
fn writes(sandbox: &Sandbox) {
    let before = "mkdir -p gone/in; echo old >log; echo o >gone/f; echo o >over; echo o >removed";
    let command = "echo tx >>log; chmod 640 log; rm -r gone; rm removed; echo n >over.n; mv over.n over";
    let at_once = "echo operator >>log; test ! -d gone || echo operator >gone/in/precious
        echo operator >>over; test ! -e removed || echo operator >>removed";
    let at = sandbox.scratch().join("live");
    let found = |name: &str| {
        let script = format!("grep -rl operator . | grep -c '^./{name}' || true");
        Line::new("sh").args(["-c", &script]).directory(&at).ok().trim().parse::<u32>().expect("a number")
    };
    for step in 0..MOST {
        let anew = format!("rm -rf --one-file-system {0}; mkdir {0}; cd {0}; {before}", at.display());
        Line::new("sh").args(["-ec", &anew]).ok();
        if !killed(sandbox, &at, step, command) {
            assert!(step > 10, "it was killed {step} times only");
            return;
        }
        let had = [("gone", at.join("gone").is_dir()), ("removed", at.join("removed").exists())];
        Line::new("sh").args(["-ec", at_once]).directory(&at).ok();
        let is_committed = sandbox.pando(["tx", "recover"]).ok().contains(COMMITTED);
        for name in ["log", "over"].into_iter().chain(had.into_iter().filter(|(_, had)| *had).map(|(name, _)| name)) {
            assert!(found(name) > 0, "step {step}: what was written to {name} is lost");
        }
        let has_changed = contains(&at.join("log"), "tx") && contains(&at.join("over"), "n");
        assert_eq!(has_changed, is_committed, "step {step}");
    }
    panic!("it has more steps than that");
}

/// A user moves a directory of his, removes it, or puts something else in its place.
fn moved(sandbox: &Sandbox) {
    let before = "mkdir -p sub/d1 sub/d2; echo old >sub/d1/old; echo 1 >other";
    let command = "echo new >sub/d1/f; mkdir sub/d2/n; echo new >sub/d2/n/f; mv other sub/d2/other; rm sub/d1/old";
    for change in
        ["mv sub else", "rm -rf sub", "mv sub else; ln -s /nowhere sub", "mv sub else; echo file >sub", "mv sub/d1 d1"]
    {
        let mut committed = 0;
        let meddle = |at: &Path, _| drop(Line::new("sh").args(["-ec", change]).directory(at).ok());
        at_each_step(sandbox, [before, command], meddle, |at, step| {
            let found = Line::new("sh").args(["-c", "grep -rlx new . | wc -l"]).directory(at).ok();
            // What had its place already went with the directory.
            assert!(change.starts_with("rm") || found.trim() == "2", "{change}, step {step}: {found}");
            committed += 1;
        });
        assert!(committed > 0, "{change}");
    }
}

/// A program that is changed in place, and that somebody begins to run.
fn executed(sandbox: &Sandbox) {
    let busybox = Path::new(sandbox.busybox()).join("bin/busybox");
    let before = format!("cp {} program; chmod 755 program; echo old >last", busybox.display());
    let command = "cat /etc/hostname >program; chmod 750 program; echo new >last";
    let mut running = Vec::new();
    let run = |at: &Path, _| {
        if fs::metadata(at.join("program")).is_ok_and(|found| found.len() > 100_000) {
            let script = format!("exec {} sleep 1000", at.join("program").display());
            running.push(Line::new("sh").args(["-c", &script]).start());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    let mut committed = 0;
    at_each_step(sandbox, [&before, command], run, |at, step| {
        let is_new = fs::metadata(at.join("program")).is_ok_and(|found| found.len() < 1000);
        let found = (is_new, mode(&at.join("program")), contains(&at.join("last"), "new"));
        assert_eq!(found, (true, 0o750, true), "step {step}");
        committed += 1;
    });
    assert!(!running.is_empty() && committed > 0, "it was never run");
}
