//! What tells of guests: ls, ps, inspect, logs, events; and what changes or describes: set, completions, man, version,
//! help.

use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;

pub(crate) const CASES: &[Case] = &[
    Case::new("listing::ls", ls),
    Case::new("listing::ps", ps),
    Case::new("listing::inspect", inspect),
    Case::new("listing::logs", logs),
    Case::new(
        "listing::a_log_that_grows_too_large_loses_its_beginning",
        a_log_that_grows_too_large_loses_its_beginning,
    ),
    Case::new("listing::logs_follow_until_the_guest_stops", logs_follow_until_the_guest_stops),
    Case::new("listing::events", events),
    Case::new("listing::set", set),
    Case::new("listing::version", version).tags(&[Tag::Vm]),
    Case::new("listing::completions_and_man", completions_and_man).needs(&[]),
    Case::new("listing::help_of_every_command", help_of_every_command).needs(&[]),
];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("this is not JSON ({error}): {text}"))
}

fn ls(sandbox: &Sandbox) {
    assert_eq!(json(&sandbox.pando(["ls", "--json"]).ok()), json("[]"));
    sandbox.create("asleep", &[]);
    sandbox.guest("awake", &["--", "sleep", "1000"]);
    assert_eq!(sandbox.pando(["ls", "-q"]).ok(), "asleep\nawake\n");
    let table = sandbox.pando(["ls"]).ok();
    for word in ["asleep", "awake", "stopped", "running", "sleep 1000"] {
        assert!(table.contains(word), "no {word} in:\n{table}");
    }
    let guests = json(&sandbox.pando(["ls", "--json"]).ok());
    assert_eq!(guests[0]["state"], "stopped");
    assert_eq!((&guests[1]["state"], &guests[1]["ephemeral"]), (&json("\"running\""), &json("false")));
    assert!(guests[1]["pid"].as_i64().is_some_and(|pid| pid > 1) && guests[0]["pid"].is_null(), "{guests}");
}

fn ps(sandbox: &Sandbox) {
    sandbox.guest("web", &["-u", "ada", "--", "sleep", "1234"]);
    sandbox.guest("db", &["--", "sleep", "4321"]);
    let find = |processes: &Value, word: &str| {
        let all = processes.as_array().expect("an array").iter();
        all.filter(|process| process["command"].as_str().is_some_and(|text| text.contains(word)))
            .cloned()
            .collect::<Vec<_>>()
    };
    let of_web = json(&sandbox.pando(["ps", "--json", "web"]).ok());
    let sleep = find(&of_web, "sleep 1234");
    assert_eq!(sleep.len(), 1, "{of_web}");
    assert_eq!((&sleep[0]["guest"], &sleep[0]["uid"]), (&json("\"web\""), &json("1000")));
    assert!(sleep[0]["host_pid"] != sleep[0]["pid"] && find(&of_web, "4321").is_empty(), "{of_web}");
    let all = json(&sandbox.pando(["ps", "--json", "--all"]).ok());
    assert_eq!((find(&all, "sleep 1234").len(), find(&all, "sleep 4321").len()), (1, 1), "{all}");
    let host = json(&sandbox.pando(["ps", "--json", "--host"]).ok());
    assert!(find(&host, "sleep 1234").is_empty() && host.as_array().is_some_and(|all| !all.is_empty()), "{host}");
    assert!(sandbox.pando(["ps", "web"]).ok().contains("sleep 1234"));
    sandbox.pando(["ps", "nobody"]).run().ended_with(125).complains_of(&["nobody"]);
}

fn inspect(sandbox: &Sandbox) {
    sandbox.guest("web", &["-e", "A=1", "--hostname", "h"]);
    let seen = sandbox.inspect("web");
    assert_eq!((&seen["status"]["state"], &seen["spec"]["hostname"]), (&json("\"running\""), &json("\"h\"")));
    for group in seen["cgroups"].as_array().expect("an array") {
        assert!(std::path::Path::new(group.as_str().expect("a path")).is_dir(), "{group}");
    }
    let directory = seen["directory"].as_str().expect("a path");
    assert!(std::path::Path::new(directory).starts_with(sandbox.root()), "{directory}");
    sandbox.pando(["inspect", "nobody"]).run().ended_with(125).complains_of(&["nobody"]);
}

fn logs(sandbox: &Sandbox) {
    sandbox.guest("job", &["--", "sh", "-c", "for i in 1 2 3 4 5; do echo line $i; done"]);
    sandbox.becomes("job", "stopped");
    sandbox.pando(["logs", "-n", "2", "job"]).run().succeeded().says("line 4\nline 5\n");
    sandbox.pando(["logs", "job"]).run().succeeded().says("line 1\nline 2\nline 3\nline 4\nline 5\n");
    sandbox.create("silent", &[]);
    sandbox.pando(["logs", "silent"]).run().succeeded().says("");
    sandbox.pando(["logs", "nobody"]).run().ended_with(125).complains_of(&["nobody"]);
}

fn a_log_that_grows_too_large_loses_its_beginning(sandbox: &Sandbox) {
    sandbox.settings("[logs]\nsize = \"1M\"\n");
    sandbox.guest("job", &["--", "sh", "-c", "seq 400000; until [ -e /go ]; do sleep 0.1; done; echo last"]);
    let log = std::path::Path::new(sandbox.inspect("job")["directory"].as_str().expect("a path")).join("log");
    let taken = || std::fs::metadata(&log).map(|log| log.blocks() * 512).expect("a log");
    eventually("all is written", || std::fs::metadata(&log).is_ok_and(|log| log.len() >= 2_688_895));
    eventually("its beginning is gone", || taken() <= 1 << 20);
    let left = sandbox.pando(["logs", "job"]).run().succeeded().out();
    let lines: Vec<u32> = left.lines().map(|line| line.parse().expect("a whole line")).collect();
    assert!(lines.len() > 10_000 && lines.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{} lines", lines.len());
    assert_eq!(lines.last(), Some(&400_000));
    sandbox.exec_sh("job", ": >/go").ok();
    sandbox.becomes("job", "stopped");
    sandbox.pando(["logs", "-n", "2", "job"]).run().succeeded().says("400000\nlast\n");
}

fn logs_follow_until_the_guest_stops(sandbox: &Sandbox) {
    sandbox.guest("job", &["--", "sh", "-c", "echo first; until [ -e /go ]; do sleep 0.1; done; echo last"]);
    let following = sandbox.pando(["logs", "-f", "job"]).start();
    sandbox.exec_sh("job", ": >/go").ok();
    following.wait().succeeded().says("first\nlast\n");
}

fn events(sandbox: &Sandbox) {
    sandbox.create("web", &[]);
    let mut listening = sandbox.pando(["events", "--json"]).start();
    // Whether it listens already nobody tells: it is given something to hear until it must have.
    for _ in 0..5 {
        sandbox.pando(["start", "web"]).ok();
        sandbox.exec_sh("web", "exit 3").run();
        sandbox.pando(["stop", "web"]).ok();
    }
    assert!(!listening.has_ended());
    listening.signal(rustix::process::Signal::INT);
    let told = listening.wait().out();
    let kinds: Vec<String> =
        told.lines().map(json).filter_map(|event| Some(event["what"].as_str()?.to_owned())).collect();
    for kind in ["start", "exec", "stop", "exit"] {
        assert!(kinds.iter().any(|known| known == kind), "no {kind} in {told}");
    }
}

fn set(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    sandbox.pando(["set", "web", "env.A=changed", "hostname=other"]).ok();
    sandbox.exec_sh("web", "echo $A; hostname").run().succeeded().says("changed\nweb\n");
    sandbox.pando(["restart", "web"]).ok();
    sandbox.exec_sh("web", "echo $A; hostname").run().succeeded().says("changed\nother\n");
    sandbox.pando(["set", "web", "colour=red"]).run().ended_with(125).complains_of(&["colour"]);
    sandbox.pando(["set", "web", "stop_grace=soon"]).run().ended_with(125).complains_of(&["stop_grace"]);
    sandbox.pando(["set", "nobody", "hostname=x"]).run().ended_with(125).complains_of(&["nobody"]);
}

fn version(sandbox: &Sandbox) {
    let text = sandbox.pando(["version"]).ok();
    assert!(text.contains(char::is_numeric), "{text}");
    assert!(sandbox.pando(["--version"]).ok().starts_with("pando "));
}

/// What the completions of bash offer behind these words.
fn offered(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let line =
        crate::line::Line::new(sandbox.program()).args(["--", "pando", "--root"]).args([sandbox.root()]).args(words);
    let line = line.env("PANDO_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() + 2).to_string());
    let line = line.env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
    line.ok().lines().map(str::to_owned).collect()
}

fn completions_and_man(sandbox: &Sandbox) {
    for shell in ["bash", "zsh", "fish"] {
        assert!(sandbox.pando(["completions", shell]).ok().contains("PANDO_COMPLETE"), "{shell}");
    }
    // Names are known while a daemon runs, and none is started to ask.
    assert_eq!(offered(sandbox, &["start", ""]).iter().filter(|word| !word.starts_with('-')).count(), 0);
    assert!(sandbox.daemon().is_none(), "completing has started a daemon");
    let verbs = offered(sandbox, &[""]);
    for verb in ["run", "network", "attach"] {
        assert!(verbs.iter().any(|word| word == verb), "{verb}: {verbs:?}");
    }
    assert!(!verbs.iter().any(|word| ["hold-terminal", "spawner", "unpack"].contains(&word.as_str())), "{verbs:?}");
    sandbox.guest("web", &[]);
    sandbox.pando(["freeze", "web", "warm"]).ok();
    sandbox.pando(["volume", "create", "data"]).ok();
    sandbox.pando(["network", "create", "front"]).ok();
    for (words, expected) in [
        (&["start", "w"][..], "web"),
        (&["exec", ""], "web"),
        (&["clone", ""], "warm"),
        (&["image", "rm", ""], "warm"),
        (&["volume", "rm", ""], "data"),
        (&["network", "rm", ""], "front"),
        (&["run", "--net", "f"], "front"),
        (&["run", "--net", ""], "private"),
        (&["cp", "w"], "web:"),
    ] {
        let all = offered(sandbox, words);
        assert!(all.iter().any(|word| word == expected), "{words:?}: {all:?}");
    }
    let pages = sandbox.scratch().join("man1");
    sandbox.pando(["man"]).args([pages.as_os_str()]).ok();
    let count = std::fs::read_dir(&pages).expect("a directory").count();
    assert!(count > 5, "{count} pages");
    let spec = std::fs::read_to_string(pages.with_file_name("man5").join("pando-spec.5")).expect("a page");
    assert!(
        spec.contains(".TH PANDO-SPEC 5") && spec.contains("network_name") && spec.contains("memory.limit"),
        "{spec}"
    );
    assert!(pages.with_file_name("man5").join("pando.toml.5").is_file());
    assert!(sandbox.pando(["man"]).ok().contains(".TH"));
}

fn help_of_every_command(sandbox: &Sandbox) {
    let help = sandbox.pando(["--help"]).ok();
    let commands = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let names: Vec<&str> = commands
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()))
        .collect();
    assert!(names.len() > 10, "{help}");
    for name in names {
        let one = sandbox.pando([name, "--help"]).ok();
        assert!(one.contains("Examples:"), "{name} shows no example:\n{one}");
    }
    // It prints, and starts nothing.
    eventually("no daemon was started", || sandbox.daemon().is_none());
}
