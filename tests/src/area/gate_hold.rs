//! The gate `hold`: whoever outside would change what a transaction has touched waits for the transaction, instead of
//! dooming it, and for no longer than is allowed.

use super::gate::{needs, waits_for_an_answer};
use crate::case::{Case, Tag};
use crate::line::{Line, Started};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) const CASES: &[Case] = &[
    Case::new("gate::who_would_change_what_was_touched_waits", changes_wait).tags(&[Tag::Vm]),
    Case::new("gate::who_has_waited_for_too_long_dooms", too_long).tags(&[Tag::Vm]),
    Case::new("gate::a_higher_priority_dooms_instead_of_waiting", priority).tags(&[Tag::Vm]),
    Case::new("gate::what_has_lost_its_retries_holds", lost_retries).tags(&[Tag::Vm]),
    Case::new("gate::transactions_and_outsiders_do_not_wait_in_a_ring", no_ring).tags(&[Tag::Vm]),
    Case::new("gate::nobody_is_held_by_a_pando_that_was_killed", killed).tags(&[Tag::Vm]),
    Case::new("gate::hold_is_refused_by_name", refused),
];

const FILES: &[&str] = &["f", "g", "m", "u", "r", "l", "t", "beside"];

/// What others do to these files, each of which has to wait.
const CHANGES: &[&str] = &[
    "echo other >>f",
    ": >g",
    "exec chmod 600 m",
    "exec rm u",
    "exec mv r r2",
    "exec ln l l2",
    "exec touch t",
    "exec mkdir listed/new",
];

/// A directory with the files.
fn scene(sandbox: &Sandbox) -> PathBuf {
    let directory = sandbox.scratch();
    std::fs::create_dir(directory.join("listed")).expect("a directory can be made");
    for name in FILES {
        std::fs::write(directory.join(name), "old\n").expect("a file can be written");
    }
    std::thread::sleep(std::time::Duration::from_millis(12));
    directory
}

/// A transaction that has run this script of a shell, and then waits for a line before it writes `result`.
fn held(sandbox: &Sandbox, directory: &Path, options: &[&str], script: &str) -> Started {
    let script = format!("{script}; touch ready; read line; echo done >result");
    let line = sandbox.pando(["tx", "run", "--name", "one", "--no-durable"]).args(options);
    let line = line.args(["--", "sh", "-c", &script]).directory(directory).limit(300);
    let started = line.start_with_open_input();
    until_touched(sandbox, directory);
    started
}

/// Waits until the transaction's script has come to its wait.
fn until_touched(sandbox: &Sandbox, directory: &Path) {
    let upper = sandbox.root().join("var/lib/pando/tx/one/part-0/upper");
    let ready = upper.join(directory.join("ready").strip_prefix("/").expect("an absolute path"));
    eventually("the command has touched all that it touches", || ready.exists());
}

fn outside(directory: &Path, script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(directory).stdout(Stdio::null());
    command.spawn().expect("sh starts")
}

fn succeeds(mut child: Child) -> bool {
    crate::line::end_of(&mut child, crate::patience::seconds(20)).is_some_and(|status| status.success())
}

fn until_it_waits(child: &mut Child, what: &str) {
    eventually(&format!("'{what}' waits"), || {
        assert!(child.try_wait().expect("it is a child").is_none(), "'{what}' did not wait");
        waits_for_an_answer(child)
    });
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(path).expect("it can be read")
}

fn changes_wait(sandbox: &Sandbox) {
    needs(sandbox, "hold");
    let directory = scene(sandbox);
    let options = ["--gate", "hold", "--hold-timeout", "120", "--retry", "0"];
    let started = held(sandbox, &directory, &options, "cat f g m u r l t >/dev/null; ls listed");
    let mut waiting: Vec<Child> = CHANGES.iter().map(|change| outside(&directory, change)).collect();
    waiting.iter_mut().zip(CHANGES).for_each(|(child, change)| until_it_waits(child, change));
    // Reading is in nobody's way, nor is what was not touched.
    assert!(succeeds(outside(&directory, "cat f g m >/dev/null && ls listed && echo new >>beside && echo >fresh")));
    let first = waiting[0].id();
    let mut named = serde_json::Value::Null;
    eventually("it is named", || {
        let all: serde_json::Value = serde_json::from_str(&sandbox.pando(["tx", "ls", "--json"]).ok()).expect("JSON");
        let waiting = all[0]["waiting"].as_array().cloned().unwrap_or_default();
        named = waiting.into_iter().find(|one| one["pid"] == first).unwrap_or_default();
        !named.is_null()
    });
    assert_eq!(named["object"], "f");
    let mut started = started;
    std::io::Write::write_all(started.input(), b"go\n").expect("it listens");
    started.close_input().wait().succeeded().complains_of(&["committed: ", "0 retries", "gate hold, "]);
    for (child, change) in waiting.into_iter().zip(CHANGES) {
        assert!(succeeds(child), "{change}");
    }
    assert_eq!((read(directory.join("f")), read(directory.join("result"))), ("old\nother\n".into(), "done\n".into()));
    assert!(!directory.join("u").exists() && directory.join("r2").exists() && directory.join("listed/new").exists());
}

fn too_long(sandbox: &Sandbox) {
    needs(sandbox, "hold");
    let directory = scene(sandbox);
    let options = ["--gate", "hold", "--hold-timeout", "1", "--retry", "0"];
    let started = held(sandbox, &directory, &options, "cat f");
    let mut child = outside(&directory, CHANGES[0]);
    until_it_waits(&mut child, CHANGES[0]);
    let ended = started.wait().ended_with(125);
    ended.complains_of(&["others had waited 1 s", "nothing was changed"]);
    assert!(succeeds(child));
    assert_eq!(read(directory.join("f")), "old\nother\n");
    assert!(!directory.join("result").exists());
}

fn priority(sandbox: &Sandbox) {
    needs(sandbox, "hold");
    let directory = scene(sandbox);
    for (policy, waits) in [("priority", false), ("first", true)] {
        sandbox.settings(&format!("[transactions]\ncontention = '{policy}'\n"));
        let options = ["--gate", "hold", "--hold-timeout", "120", "--retry", "0"];
        let mut started = held(sandbox, &directory, &options, "cat f");
        let change = "exec nice -n -5 sh -c 'echo other >>f'";
        let mut child = outside(&directory, change);
        if waits {
            until_it_waits(&mut child, change);
        } else {
            assert!(crate::line::end_of(&mut child, crate::patience::seconds(20)).is_some_and(|one| one.success()));
        }
        std::io::Write::write_all(started.input(), b"go\n").expect("it listens");
        let ended = started.close_input().wait();
        assert_eq!(ended.code(), if waits { 0 } else { 125 }, "{policy}: {}", ended.err());
        assert!(succeeds(child));
    }
}

/// Somebody changes what the command reads all the time: in the end he has to wait.
fn lost_retries(sandbox: &Sandbox) {
    needs(sandbox, "hold");
    let directory = scene(sandbox);
    let busy = Line::new("sh").args(["-c", "until [ -e stop ]; do echo more >>f; sleep 0.05; done"]);
    let busy = busy.directory(&directory).limit(600).start();
    let script = "cat f >/dev/null; sleep 1; echo done >result";
    let line = sandbox.pando(["tx", "run", "--no-durable", "--retry", "1", "--hold-timeout", "120"]);
    let ended = line.args(["--", "sh", "-c", script]).directory(&directory).limit(300).run();
    std::fs::write(directory.join("stop"), "").expect("a file can be written");
    ended.succeeded().complains_of(&["with others waiting for what it touches", "committed: ", "gate hold, "]);
    busy.wait().succeeded();
    assert_eq!(read(directory.join("result")), "done\n");
}

/// A transaction that holds a file that it has read, and an outsider who waits to change that.
fn somebody_waits(sandbox: &Sandbox) -> (PathBuf, Started, Child) {
    needs(sandbox, "hold");
    let directory = scene(sandbox);
    let options = ["--gate", "hold", "--hold-timeout", "120", "--retry", "0"];
    let started = held(sandbox, &directory, &options, "cat f");
    let mut child = outside(&directory, CHANGES[0]);
    until_it_waits(&mut child, CHANGES[0]);
    (directory, started, child)
}

/// One holds what another commits, for whose commit an outsider waits who also waits for the first.
fn no_ring(sandbox: &Sandbox) {
    let (directory, started, child) = somebody_waits(sandbox);
    let two = sandbox.pando(["tx", "run", "--no-durable", "--", "sh", "-c", "echo two >f"]).directory(&directory);
    two.limit(120).run().succeeded().complains_of(&["committed: "]);
    started.wait().ended_with(125).complains_of(&["was changed by another transaction"]);
    assert!(succeeds(child));
    assert_eq!(read(directory.join("f")), "two\nother\n");
}

fn killed(sandbox: &Sandbox) {
    let (directory, started, child) = somebody_waits(sandbox);
    started.signal(rustix::process::Signal::KILL);
    assert!(succeeds(child));
    drop(started);
    assert_eq!(read(directory.join("f")), "old\nother\n");
    sandbox.pando(["tx", "recover"]).ok();
}

fn refused(sandbox: &Sandbox) {
    let run =
        |options: &[&str]| sandbox.pando(["tx", "run", "--gate", "hold"]).args(options).args(["--", "true"]).run();
    let ended = run(&[]);
    match ended.code() {
        0 => {
            ended.complains_of(&["gate hold"]);
            run(&["--ignore", "/var"]).complains_of(&["--ignore", "one of the two"]);
        }
        _ => {
            ended.ended_with(125).complains_of(&["there is no gate 'hold' here", "another gate"]);
        }
    }
    sandbox.pando(["tx", "begin", "open"]).ok();
    let ended = sandbox.pando(["tx", "commit", "--gate", "hold", "open"]).run();
    assert_ne!(ended.code(), 0);
    ended.complains_of(&["'hold'", "pando tx run", "'bpf'"]);
    sandbox.pando(["tx", "abort", "open"]).ok();
}
