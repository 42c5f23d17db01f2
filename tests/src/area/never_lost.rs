//! A freeze never loses a guest, and a clone is what was frozen: the first clone of an image is compared with it, and a
//! trial clone is made before a guest is ended.

use super::clones::{count, counter};
use super::crash::daemon_with;
use crate::case::Case;
use crate::line::{Line, Started};
use crate::need::Need;
use crate::own_init;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::world::World;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("never_lost::the_first_clone_is_compared", the_first_clone_is_compared),
    Case::new("never_lost::an_init_that_differs_is_told_by_what_differs", an_init_that_differs).needs(&[Need::Root]),
    Case::new("never_lost::a_trial_clone_comes_before_the_end", a_trial_clone_comes_before_the_end),
    Case::new("never_lost::a_trial_that_fails_leaves_nothing", a_trial_that_fails_leaves_nothing),
    Case::new("never_lost::who_listens_on_the_hosts_network_is_tried", who_listens_on_the_hosts_network),
    Case::new("never_lost::what_is_held_in_a_volume_stays_the_guests", what_is_held_in_a_volume),
    Case::new("never_lost::nobody_ends_into_memory_alone", nobody_ends_into_memory_alone),
    Case::new("never_lost::files_of_the_hosts_are_refused_by_name", files_of_the_hosts_are_refused),
];

/// Mistakes that can be planted in the making of clones (`freeze/src/clone/planted.rs`), and how each is told.
const MISTAKES: [(&str, &str); 17] = [
    ("umask", "its umask is"),
    ("user", "users is"),
    ("groups", "further groups is"),
    ("capability", "effective capabilities is"),
    ("privileges", "that it gains no privileges is"),
    ("name", "name is \"other\" instead of"),
    ("directory", "its working directory is \"/proc\""),
    ("root", "its root directory is \"/proc\""),
    ("limit", "its limit number"),
    ("ignored", "which signals it ignores is"),
    ("waiting", "signals 0x800 wait"),
    ("timer", "its timers is"),
    ("descriptor", "is not open"),
    ("on-exec", "that it is closed on exec is"),
    ("open", "how it is open is"),
    ("rights", "memory has rights 0x3 instead of 0x1"),
    ("ended", "how it ended is"),
];

/// A guest whose last process has a file open, and a child that has ended and that nobody asks for; and that all of it
/// is there.
const HOLDS: &str = "sh -c 'sleep 0.3; exit 3' & exec 7</etc/passwd; exec sleep 100000";

fn holding(sandbox: &Sandbox, name: &str) {
    sandbox.guest(name, &["--", "sh", "-c", HOLDS]);
    let holds = "grep -q sleep /proc/2/comm && [ -e /proc/2/fd/7 ] && grep -q Z /proc/3/stat";
    eventually("it holds what it is to hold", || sandbox.exec_sh(name, holds).run().code() == 0);
}

/// A daemon that makes the mistake that a file names.
fn mistaken(sandbox: &Sandbox) -> (Started, PathBuf) {
    let path = sandbox.root().join("mistake");
    std::fs::write(&path, "").expect("a file");
    sandbox.end_daemon();
    (daemon_with(sandbox, "PANDO_PLANT", &path.to_string_lossy()), path)
}

fn make(path: &Path, mistake: &str) {
    std::fs::write(path, mistake).expect("a file");
}

fn the_first_clone_is_compared(sandbox: &Sandbox) {
    holding(sandbox, "web");
    let (_daemon, planted) = mistaken(sandbox);
    for (mistake, told) in MISTAKES {
        make(&planted, mistake);
        sandbox.pando(["freeze", "web", "warm", "--memory"]).ok();
        let refused = sandbox.pando(["clone", "warm", "one"]).run().ended_with(125);
        refused.complains_of(&["the clone is not what was frozen: process ", told]);
        assert_eq!(sandbox.state("one"), "absent");
        sandbox.pando(["image", "rm", "warm"]).ok();
    }
    // Whoever does not want to know is not told.
    make(&planted, "umask");
    sandbox.pando(["freeze", "web", "warm", "--no-check"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    assert_eq!(sandbox.state("one"), "running");
    // And what is right is a clone.
    make(&planted, "");
    sandbox.pando(["freeze", "web", "right"]).ok();
    sandbox.pando(["clone", "right", "-n", "2"]).ok();
}

/// Where the first process is one of the image it goes with the clone that is refused, and whoever looks into its root
/// finds nothing.
fn an_init_that_differs(sandbox: &Sandbox) {
    own_init::scripted(sandbox, "source", "exec 7</bin/own-init");
    let (_daemon, planted) = mistaken(sandbox);
    make(&planted, "umask");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    let refused = sandbox.pando(["clone", "warm", "one"]).run().ended_with(125);
    refused.complains_of(&["the clone is not what was frozen: process ", "its umask is"]);
    make(&planted, "");
    sandbox.pando(["freeze", "source", "right"]).ok();
    sandbox.pando(["clone", "right", "one"]).ok();
}

fn a_trial_clone_comes_before_the_end(sandbox: &Sandbox) {
    counter(sandbox, "web");
    let (_daemon, planted) = mistaken(sandbox);
    make(&planted, "umask");
    let refused = sandbox.pando(["freeze", "web", "warm", "--stop"]).run().ended_with(125);
    refused.complains_of(&["so it was not ended: the clone is not what was frozen", "its umask is", "it runs on"]);
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
    let seen = count(sandbox, "web");
    eventually("it counts on", || count(sandbox, "web") > seen);
    // Without a trial it ends all the same.
    sandbox.pando(["freeze", "web", "warm", "--stop", "--no-check"]).ok();
    assert_eq!(sandbox.state("web"), "stopped");
    sandbox.pando(["image", "rm", "warm"]).ok();
    make(&planted, "");
    sandbox.pando(["start", "web"]).ok();
    eventually("it counts anew", || count(sandbox, "web") > 5);
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    sandbox.pando(["restore", "warm"]).ok();
    let seen = count(sandbox, "web");
    eventually("it counts on", || count(sandbox, "web") > seen);
}

/// Neither the place of a trial nor anything of the image stays.
fn a_trial_that_fails_leaves_nothing(sandbox: &Sandbox) {
    holding(sandbox, "web");
    let before = World::of(sandbox);
    let (_daemon, planted) = mistaken(sandbox);
    make(&planted, "umask");
    let refused = sandbox.pando(["freeze", "web", "warm", "--stop"]).run().ended_with(125);
    refused.complains_of(&["so it was not ended", "its umask is"]);
    before.comes_back(sandbox, "a trial that failed");
}

/// The guest listens while its trial clone does.
fn who_listens_on_the_hosts_network(sandbox: &Sandbox) {
    const SERVER: &str = "httpd -p 127.0.0.1:38417 -h /; exec sleep 100000";
    sandbox.guest("web", &["--net", "shared", "--", "sh", "-c", SERVER]);
    let asks = || sandbox.exec_sh("web", "wget -q -O - http://127.0.0.1:38417/etc/passwd").run().code() == 0;
    eventually("it serves", asks);
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    sandbox.pando(["restore", "warm"]).ok();
    eventually("it serves again", asks);
    let (_daemon, planted) = mistaken(sandbox);
    make(&planted, "umask");
    let refused = sandbox.pando(["freeze", "web", "cold", "--stop"]).run().ended_with(125);
    refused.complains_of(&["so it was not ended", "its umask is"]);
    assert!(asks(), "it serves as before");
}

/// What waits in a named pipe of a volume is in one pipe for all who open it: a trial clone would put it there once
/// more, and is not made.
fn what_is_held_in_a_volume(sandbox: &Sandbox) {
    let volume = sandbox.scratch().join("data");
    std::fs::create_dir(&volume).expect("a directory");
    let option = format!("{}:/data", volume.display());
    let holds = "mkfifo /data/pipe; exec 7<>/data/pipe; echo once >&7; echo >/up; exec sleep 100000";
    sandbox.guest("db", &["-v", &option, "--", "sh", "-c", holds]);
    eventually("it has said it", || sandbox.exec_sh("db", "test -e /up").run().code() == 0);
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(volume.join("pipe")).expect("it is there");
    sandbox.pando(["freeze", "db", "--stop"]).ok();
    assert_eq!(rustix::io::ioctl_fionread(&reader).expect("a pipe"), "once\n".len() as u64);
    assert_eq!(sandbox.state("db"), "stopped");
}

fn nobody_ends_into_memory_alone(sandbox: &Sandbox) {
    counter(sandbox, "web");
    let refused = sandbox.pando(["freeze", "web", "--memory", "--stop"]).run();
    assert_ne!(refused.code(), 0);
    refused.complains_of(&["--memory", "--stop"]);
    let call =
        r#"{"method":"org.pando.Guests.Freeze","parameters":{"name":"web","stop":true,"memory":true,"wait":false}}"#;
    let said = say(sandbox, call);
    assert!(said.contains("its image goes with the daemon") && said.contains("--memory"), "{said}");
    let seen = count(sandbox, "web");
    eventually("it counts on", || count(sandbox, "web") > seen);
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
}

/// What the daemon answers to a call.
fn say(sandbox: &Sandbox, call: &str) -> String {
    use std::io::{Read, Write};
    let mut socket = std::os::unix::net::UnixStream::connect(sandbox.places().socket()).expect("it listens");
    socket.write_all(call.as_bytes()).and_then(|()| socket.write_all(b"\0")).expect("it takes a call");
    let mut said = Vec::new();
    let mut byte = [0];
    while socket.read_exact(&mut byte).is_ok() && byte != [0] {
        said.push(byte[0]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// Whoever came in from outside with a file of the host's as input or output: it is never opened as the guest's file of
/// that name.
fn files_of_the_hosts_are_refused(sandbox: &Sandbox) {
    counter(sandbox, "web");
    let host = sandbox.scratch().join("host-file");
    // More than fits into a pipe.
    let content = "of the host's\n".repeat(100_000);
    std::fs::write(&host, &content).expect("a file");
    let path = host.display().to_string();
    let same = format!("mkdir -p {} && echo of the guest >{path}", sandbox.scratch().display());
    sandbox.exec_sh("web", &same).ok();
    // What is printed into a file, or read from one, is carried through a pipe.
    for (redirection, what) in [
        ("</dev/null >>\"$0\" 2>/dev/null", "(sleep), descriptor 1: a pipe whose other end is outside"),
        ("<\"$0\" >/dev/null 2>&1", "(sleep), descriptor 0: a pipe whose other end is outside"),
    ] {
        let root = sandbox.root().to_string_lossy().into_owned();
        let script =
            format!("exec \"$1\" --root \"$2\" exec web -- sh -c 'echo $$ >/visitor; exec sleep 200000' {redirection}");
        let visitor = Line::new("sh").args(["-c", &script, &path]).args([sandbox.program()]).args([&root]).start();
        eventually("there is a visitor", || {
            sandbox.exec_sh("web", "grep -q sleep /proc/$(cat /visitor)/comm").run().code() == 0
        });
        for stop in [&[][..], &["--stop"]] {
            let refused = sandbox.pando(["freeze", "web"]).args(stop).run().ended_with(125);
            refused.complains_of(&["cannot be frozen: process ", what, "end the program"]);
        }
        let seen = count(sandbox, "web");
        eventually("the guest counts on", || count(sandbox, "web") > seen);
        sandbox.exec_sh("web", "kill $(cat /visitor) && rm /visitor").ok();
        visitor.wait();
    }
    eventually("without them it is frozen", || sandbox.pando(["freeze", "web"]).run().code() == 0);
    assert!(std::fs::read_to_string(&host).expect("a file") == content, "it is as it was");
}
