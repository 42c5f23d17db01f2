//! Pulls that broke off: what arrived whole is not fetched again, and nothing else is left.

use crate::area::registry::{NEEDS, kept, registry, settings, taken_over};
use crate::case::Case;
use crate::dice::Dice;
use crate::line::Line;
use crate::patience::eventually;
use crate::registry_image::{HERE, Images, busybox, digest, file};
use crate::registry_server::{Answer, RegistryServer};
use crate::sandbox::Sandbox;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("registry::what_arrived_before_a_daemon_was_killed_is_not_fetched_again", daemon_killed).needs(&NEEDS),
    Case::new("registry::what_arrived_before_its_client_went_is_not_fetched_again", client_gone).needs(&NEEDS),
    Case::new("registry::a_pull_that_was_killed_at_any_moment_is_made_up_for", killed_at_random).needs(&NEEDS),
    Case::new("registry::a_client_leaves_no_false_parts_for_the_next_pull", false_parts).needs(&NEEDS),
    Case::new("registry::several_layers_come_at_once", at_once).needs(&NEEDS),
];

/// What is kept for the next pull.
fn arrived(sandbox: &Sandbox) -> Vec<String> {
    let entries = std::fs::read_dir(sandbox.root().join("var/lib/pando/arrived")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// How many parts a client has by now.
fn come(sandbox: &Sandbox) -> usize {
    let clients = kept(sandbox).into_iter().filter(|name| name.starts_with(".client-"));
    let blobs = |name: String| sandbox.places().pulled().join(name).join("layout/blobs/sha256");
    let count = |blobs| std::fs::read_dir(blobs).map_or(0, Iterator::count);
    clients.map(|name| count(blobs(name))).max().unwrap_or(0)
}

/// An image of four small layers, and its registry: the last layer does not come before that is said.
fn slow(sandbox: &Sandbox) -> (RegistryServer, Arc<AtomicBool>, [String; 4]) {
    let mut images = Images::default();
    let layers = [busybox(sandbox), file(sandbox, "a", "a"), file(sandbox, "b", "b"), file(sandbox, "c", "c")];
    images.add("1", HERE, &layers, "cat a b c");
    let digests = layers.map(|layer| digest(&layer));
    let (is_quick, last) = (Arc::new(AtomicBool::new(false)), digests[3].clone());
    let quick = Arc::clone(&is_quick);
    let server = registry(sandbox, move |asked| match asked.path.ends_with(&last) && !quick.load(Ordering::Relaxed) {
        true => Answer::Stuck,
        false => images.answer(asked),
    });
    (server, is_quick, digests)
}

/// The next pull fetches the last layer, and nothing is left of the one before.
fn goes_on(sandbox: &Sandbox, (server, is_quick, digests): (&RegistryServer, &AtomicBool, &[String; 4])) {
    is_quick.store(true, Ordering::Relaxed);
    let name = format!("{}/app:1", server.name());
    let asked = |digest: &String| server.asked(digest).len();
    let before = digests.each_ref().map(asked);
    sandbox.pando(["pull", &name]).ok();
    let after = digests.each_ref().map(asked);
    assert_eq!(after[..3], before[..3], "what had arrived was fetched again");
    assert_eq!(after[3], before[3] + 1);
    assert_eq!((arrived(sandbox), kept(sandbox).len()), (Vec::new(), 1));
    sandbox.pando(["run", "--from", &name]).run().succeeded().says("abc");
}

fn daemon_killed(sandbox: &Sandbox) {
    let (server, is_quick, digests) = slow(sandbox);
    sandbox.pando(["ls"]).ok();
    let pull = sandbox.pando(["pull", &format!("{}/app:1", server.name())]).start();
    eventually("three layers have come", || come(sandbox) >= 3);
    let daemon = sandbox.daemon().and_then(Pid::from_raw).expect("it runs");
    kill_process(daemon, Signal::KILL).expect("it is ours");
    pull.wait().ended_with(125);
    goes_on(sandbox, (&server, &is_quick, &digests));
}

fn client_gone(sandbox: &Sandbox) {
    let (server, is_quick, digests) = slow(sandbox);
    let pull = sandbox.pando(["pull", &format!("{}/app:1", server.name())]).start();
    eventually("three layers have come", || come(sandbox) >= 3);
    pull.signal(Signal::KILL);
    drop(pull);
    eventually("the pull is given up", || kept(sandbox).is_empty());
    eventually("what arrived is kept", || arrived(sandbox).len() == 3);
    goes_on(sandbox, (&server, &is_quick, &digests));
    // One that nobody goes on with goes when that is asked for.
    std::fs::write(sandbox.root().join("var/lib/pando/arrived").join("a".repeat(64)), "x").expect("a file");
    sandbox.pando(["image", "prune"]).ok();
    eventually("nothing is left", || arrived(sandbox).is_empty());
}

fn killed_at_random(sandbox: &Sandbox) {
    let mut images = Images::default();
    let layers = [busybox(sandbox), file(sandbox, "a", "a"), file(sandbox, "b", "b"), file(sandbox, "c", "c")];
    images.add("1", HERE, &layers, "cat a b c");
    let server = registry(sandbox, move |asked| {
        if asked.path.contains("/blobs/") {
            // So that there are moments to be killed at.
            std::thread::sleep(Duration::from_millis(60));
        }
        images.answer(asked)
    });
    let name = format!("{}/app:1", server.name());
    let (mut dice, _) = Dice::of_this_run();
    for round in 0..20 {
        sandbox.pando(["ls"]).ok();
        let pull = sandbox.pando(["pull", &name]).start();
        std::thread::sleep(Duration::from_millis(dice.throw(1500)));
        if dice.throw(3) == 0 {
            pull.signal(Signal::KILL);
        } else if let Some(daemon) = sandbox.daemon().and_then(Pid::from_raw) {
            let _ = kill_process(daemon, Signal::KILL);
        }
        pull.wait();
        sandbox.pando(["pull", &name]).ok();
        sandbox.pando(["run", "--from", &name]).run().succeeded().says("abc");
        assert_eq!((arrived(sandbox), kept(sandbox).len()), (Vec::new(), 1), "round {round}");
        sandbox.pando(["image", "rm", &name]).ok();
    }
    assert_eq!((arrived(sandbox).len(), kept(sandbox).len()), (0, 0));
}

/// A client that is taken over leaves what it likes under the names of parts.
fn false_parts(sandbox: &Sandbox) {
    let mut images = Images::default();
    let base = busybox(sandbox);
    images.add("1", HERE, std::slice::from_ref(&base), "true");
    let images_of_server = images.clone();
    let server = RegistryServer::start(move |asked| images_of_server.answer(asked));
    settings(sandbox, &format!("[[registry]]\nlocation = \"{}\"\ninsecure = true\n", server.name()));
    let shadow = Line::new("sha256sum").args(["/etc/passwd"]).ok();
    let shadow = shadow.split(' ').next().expect("a digest").to_owned();
    let part = digest(&base).trim_start_matches("sha256:").to_owned();
    let other = "b".repeat(64);
    let script = format!(
        "case \" $* \" in *' copy '*) cd /tmp/layout/blobs/sha256 && echo false >{part} && ln -s /etc/passwd {shadow} &&
        mkfifo {other} && mkdir {} && echo 'level=fatal msg=\"connection reset\"' >&2; exit 1;; esac\nexec /usr/bin/skopeo \"$@\"\n",
        "c".repeat(64)
    );
    let daemon = taken_over(sandbox, &script);
    let name = format!("{}/app:1", server.name());
    sandbox.pando(["pull", &name]).run().ended_with(125).complains_of(&["connection reset"]);
    assert_eq!((arrived(sandbox), kept(sandbox)), (Vec::new(), Vec::new()));
    sandbox.end_daemon();
    daemon.wait();
    sandbox.pando(["pull", &name]).ok();
    sandbox.pando(["run", "--from", &name]).run().succeeded();
}

/// A registry that gives no layer before two are asked for.
fn at_once(sandbox: &Sandbox) {
    let mut images = Images::default();
    let layers = [busybox(sandbox), file(sandbox, "a", "a")];
    images.add("1", HERE, &layers, "cat a");
    let wanted = layers.map(|layer| digest(&layer));
    let asked_for: [AtomicBool; 2] = Default::default();
    let server = registry(sandbox, move |asked| {
        if let Some(number) = wanted.iter().position(|digest| asked.path.ends_with(digest)) {
            asked_for[number].store(true, Ordering::SeqCst);
            eventually("both layers are asked for", || asked_for.iter().all(|asked| asked.load(Ordering::SeqCst)));
        }
        images.answer(asked)
    });
    let name = format!("{}/app:1", server.name());
    sandbox.pando(["run", "--from", &name]).run().succeeded().says("a");
}
