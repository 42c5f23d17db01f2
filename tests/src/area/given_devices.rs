//! The host's memory devices (null and its kin): what a guest is given of them as standard descriptors is its own, by
//! whatever way a process gets in.

use crate::case::Case;
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::os::unix::fs::MetadataExt;

pub(crate) const CASES: &[Case] = &[
    Case::new("given_devices::none_is_the_hosts", none_is_the_hosts),
    Case::new("given_devices::what_one_guest_locks_another_may", locks),
    Case::new("given_devices::clones_have_their_own", clones),
];

const KINDS: [(&str, &[&str]); 6] = [
    ("default", &["--profile", "default"]),
    ("strict", &["--profile", "strict"]),
    ("system", &["--profile", "system"]),
    ("default-hosts-ids", &["--profile", "default", "--userns", "host"]),
    ("strict-hosts-ids", &["--profile", "strict", "--userns", "host"]),
    ("system-hosts-ids", &["--profile", "system", "--userns", "host"]),
];

/// Says which inode each standard descriptor is that is a device.
const LOOK: &str = "for n in 0 1 2; do [ -c /proc/self/fd/$n ] && stat -L -c %d:%i /proc/self/fd/$n; done; true";

/// `pando WORDS`, with a device of the host's in place of input, output and errors.
fn beside_devices(sandbox: &Sandbox, redirections: &str, words: &[&str]) -> Line {
    let script = format!("exec \"$@\" {redirections}");
    let root = sandbox.root().to_string_lossy().into_owned();
    Line::new("sh").args(["-c", &script, "sh"]).args([sandbox.program()]).args(["--root", &root]).args(words)
}

fn identity(path: &str) -> String {
    let about = std::fs::metadata(path).expect("every host has it");
    format!("{}:{}", about.dev(), about.ino())
}

/// What each way in has told of in /report, or printed.
fn reports(sandbox: &Sandbox, name: &str, options: &[&str]) -> Vec<(&'static str, String)> {
    let take = || sandbox.exec_sh(name, "cat /report; rm -f /report").ok();
    let into_report = format!("({LOOK}) >/report");
    let run = ["run", "--from", sandbox.busybox()].into_iter().chain(options.iter().copied());
    let run: Vec<&str> = run.chain(["--", "sh", "-c", LOOK]).collect();
    let mut all = vec![("run", beside_devices(sandbox, "</dev/null", &run).ok())];
    all.push(("run with zeros", beside_devices(sandbox, "</dev/zero", &run).ok()));
    sandbox.guest(name, &[options, &["--", "sh", "-c", &format!("{into_report}; exec sleep 100000")]].concat());
    eventually("it has looked", || sandbox.exec_sh(name, "[ -s /report ]").run().code() == 0);
    all.push(("start", take()));
    let everything = "</dev/null >/dev/null 2>&1";
    // Its output is a file inside meanwhile, so each descriptor is looked at from a process of its own.
    let look = "exec 3>/report; for n in 0 1 2; do (stat -L -c %d:%i /proc/$$/fd/$n >&3); done";
    beside_devices(sandbox, everything, &["exec", name, "--", "sh", "-c", look]).ok();
    all.push(("exec", take()));
    beside_devices(sandbox, everything, &["tx", "run", "--guest", name, "--", "sh", "-c", look]).ok();
    all.push(("tx run", take()));
    let hook = format!(
        "mkdir -p /etc/pando/freeze.d; printf '#!/bin/sh\\n%s\\n' '{into_report}' >/etc/pando/freeze.d/look; chmod +x /etc/pando/freeze.d/look"
    );
    sandbox.exec_sh(name, &hook).ok();
    sandbox.pando(["freeze", name, "--memory"]).ok();
    all.push(("a hook", take()));
    sandbox.pando(["image", "rm", name]).ok();
    sandbox.pando(["rm", "-f", name]).ok();
    all
}

fn none_is_the_hosts(sandbox: &Sandbox) {
    let hosts = ["/dev/null", "/dev/zero"].map(identity);
    let mut wrong = Vec::new();
    for (name, options) in KINDS {
        for (way, report) in reports(sandbox, name, options) {
            let seen: Vec<&str> = report.lines().collect();
            if seen.is_empty() || seen.iter().any(|one| hosts.iter().any(|host| host == one)) {
                wrong.push(format!("{name}, by {way}: {seen:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "the host's are {hosts:?}: {}", wrong.join("\n"));
}

fn locks(sandbox: &Sandbox) {
    let tree = super::attacks::tree(sandbox).to_string_lossy().into_owned();
    for name in ["one", "two"] {
        let create = ["create", name, "--from", &tree, "--profile", "strict", "--start"];
        sandbox.pando(create).args(["--", "/bin/attack", "keep-locked", "0"]).ok();
        eventually("it has its lock", || sandbox.exec_sh(name, "[ -e /locked ]").run().code() == 0);
    }
    let host = std::fs::File::open("/dev/null").expect("every host has it");
    rustix::fs::flock(&host, rustix::fs::FlockOperation::NonBlockingLockShared).expect("no guest holds the host's");
}

fn clones(sandbox: &Sandbox) {
    let words = ["exec", "web", "--", "sh", "-c", "sleep 200000 & echo $! >/pid"];
    sandbox.guest("web", &["--", "sleep", "100000"]);
    beside_devices(sandbox, "</dev/null >/dev/null 2>&1", &words).ok();
    sandbox.pando(["freeze", "web", "--stop"]).ok();
    let look = "for n in 0 1 2; do stat -L -c %d:%i /proc/$(cat /pid)/fd/$n; done; stat -c %d:%i /dev/null";
    sandbox.pando(["clone", "web", "copy"]).ok();
    sandbox.pando(["restore", "web"]).ok();
    for name in ["copy", "web"] {
        let said = sandbox.exec_sh(name, look).ok();
        let seen: Vec<&str> = said.lines().collect();
        assert_eq!(seen.len(), 4, "{name}: {said}");
        assert!(seen.iter().all(|one| *one == seen[3]), "{name}: its processes have its own null device: {said}");
    }
    assert_ne!(
        sandbox.exec_sh("web", "stat -c %d:%i /dev/null").ok(),
        sandbox.exec_sh("copy", "stat -c %d:%i /dev/null").ok()
    );
}
