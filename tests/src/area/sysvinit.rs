//! A Debian system under its own sysvinit, with the servers that people run: booted, rebooted and stopped as a machine
//! would be.
//!
//! How long each took is printed and not judged.

use crate::case::{Case, Tag};
use crate::debian_image::tarball;
use crate::line::Ended;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::PathBuf;
use std::time::Instant;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap")];

pub(crate) const CASES: &[Case] = &[
    Case::new("sysvinit::boots_serves_reboots_and_stops", boots_serves_reboots_and_stops).needs(NEEDS),
    Case::new("sysvinit::is_cloned_ten_times", is_cloned_ten_times).needs(NEEDS).tags(&[Tag::Slow]),
];

/// Whether every server of this life answers: inside, over loopback, with nothing but bash for a client.
const SERVING: &str = r#"
asked() { timeout 5 bash -c "exec 3<>/dev/tcp/127.0.0.1/$1 && printf '$2' >&3 && head -n 1 <&3" 2>/dev/null | grep -q "$3"; }
all() {
    asked 80 'GET / HTTP/1.0\r\n\r\n' '200 OK' && asked 22 '' '^SSH-2.0' &&
        { ! ls /etc/rc2.d | grep -q S..redis || asked 6379 'PING\r\n' PONG; } &&
        su postgres -c "psql -Atc 'select 6 * 7'" 2>/dev/null | grep -qx 42
}
until all; do sleep 0.05; done
"#;

/// How often a guest that is between two lives is asked again.
const ATTEMPTS: u32 = 20;

#[track_caller]
fn inside(sandbox: &Sandbox, script: &str) -> Ended {
    sandbox.exec_sh("deb", script).run()
}

/// What the database of a guest is asked.
#[track_caller]
fn query(sandbox: &Sandbox, name: &str, words: &str) -> String {
    sandbox.exec_sh(name, &format!("su postgres -c \"psql -Atqc \\\"{words}\\\"\"")).limit(60).ok().trim().to_owned()
}

/// Waits until everything is served; a guest that is just starting anew cannot be entered for a moment.
#[track_caller]
fn serves(sandbox: &Sandbox) {
    for _ in 0..ATTEMPTS {
        if sandbox.exec_sh("deb", SERVING).limit(90).run().code() == 0 {
            return;
        }
        std::thread::sleep(crate::patience::seconds(1) / 20);
    }
    panic!("not everything is served: {}", inside(sandbox, "ps ax; tail -n 20 /var/log/syslog").out());
}

/// Waits until it has done all that there is to do for its boot: some of that goes on while it serves.
#[track_caller]
fn settles(sandbox: &Sandbox) {
    eventually("its boot is over", || inside(sandbox, "! ps ax | grep -q '[/]etc/init.d/rc '").code() == 0);
}

fn told(what: &str, since: Instant) {
    println!("sysvinit: {what} {:.1} s", since.elapsed().as_secs_f32());
}

/// A file of the guest's own, as it lies on the host: the guest may be at rest.
fn own_file(sandbox: &Sandbox, path: &str) -> String {
    let name = "deb".parse().expect("a name");
    let file: PathBuf = sandbox.places().guest(&name).join("files/upper").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{} cannot be read: {error}", file.display()))
}

const DATABASE_LOG: &str = "var/log/postgresql/postgresql-15-main.log";

fn boots_serves_reboots_and_stops(sandbox: &Sandbox) {
    let image = tarball(sandbox);
    // A laden machine must not turn a slow stop into a killing.
    sandbox.pando(["create", "deb", "--from", &image, "--init", "/sbin/init", "--stop-timeout", "60"]).limit(300).ok();
    let begin = Instant::now();
    sandbox.pando(["start", "deb"]).ok();
    serves(sandbox);
    told("boot", begin);
    settles(sandbox);
    works(sandbox);
    // Its script sleeps for a second after stopping it, which would be most of a reboot.
    inside(sandbox, "service redis-server stop && update-rc.d redis-server remove").succeeded();
    let before = sandbox.first_process("deb");
    let begin = Instant::now();
    // The guest may be gone before the command's end can be told.
    inside(sandbox, "reboot");
    let reborn =
        || sandbox.status("deb").and_then(|status| status["pid"].as_i64()).is_some_and(|pid| pid != i64::from(before));
    eventually("the guest reboots", reborn);
    serves(sandbox);
    told("reboot", begin);
    settles(sandbox);
    let kept = inside(sandbox, "su postgres -c \"psql -Atc 'select word from kept'\"").succeeded();
    assert_eq!(kept.out(), "stays\n");
    let begin = Instant::now();
    sandbox.pando(["stop", "deb"]).limit(120).ok();
    told("stop", begin);
    stopped_cleanly(sandbox);
}

/// A system that has booted and serves is frozen and cloned: each clone serves, is written to, and has its own alone
/// later on, as has the source.
fn is_cloned_ten_times(sandbox: &Sandbox) {
    const CLONES: usize = 10;
    let image = tarball(sandbox);
    sandbox.pando(["create", "deb", "--from", &image, "--init", "/sbin/init", "--stop-timeout", "60"]).limit(300).ok();
    sandbox.pando(["start", "deb"]).ok();
    serves(sandbox);
    settles(sandbox);
    query(sandbox, "deb", "create table kept (word text)");
    println!("sysvinit: {}", sandbox.pando(["freeze", "deb", "warm"]).limit(60).ok().trim());
    let begin = Instant::now();
    sandbox.pando(["clone", "warm", "-n", &CLONES.to_string()]).limit(120).ok();
    told("ten clones", begin);
    let names: Vec<_> = (1..=CLONES).map(|number| format!("warm-{number}")).chain(["deb".to_owned()]).collect();
    for name in &names {
        sandbox.exec_sh(name, SERVING).limit(90).ok();
        query(sandbox, name, &format!("insert into kept values ('{name}')"));
        sandbox.exec_sh(name, &format!("logger -t test from {name}; echo {name} >/run/whose")).ok();
    }
    std::thread::sleep(crate::patience::seconds(3));
    for name in &names {
        assert_eq!(query(sandbox, name, "select word from kept"), *name);
        assert_eq!(sandbox.exec_sh(name, "cat /run/whose").ok().trim(), *name);
        assert_eq!(
            sandbox.exec_sh(name, "grep -o 'test: from .*' /var/log/syslog").ok().trim(),
            format!("test: from {name}")
        );
        assert_eq!(sandbox.exec_sh(name, "runlevel; cat /proc/1/comm").ok(), "N 2\ninit\n");
    }
    // An init that was never started there ends everything in good order all the same.
    sandbox.pando(["stop", "warm-1"]).limit(120).ok();
    let status = sandbox.status("warm-1").expect("it is there still");
    assert_eq!((&status["state"], &status["exit_code"]), (&"stopped".into(), &0.into()), "{status}");
    sandbox.pando(["start", "warm-1"]).ok();
    sandbox.exec_sh("warm-1", SERVING).limit(90).ok();
    assert_eq!(query(sandbox, "warm-1", "select word from kept"), "warm-1");
}

/// The parts of the system beside what is served.
fn works(sandbox: &Sandbox) {
    inside(
        sandbox,
        "logger -t test a line of ours; until grep -q 'test: a line of ours' /var/log/syslog; do sleep 0.1; done",
    )
    .succeeded();
    inside(sandbox, "pidof cron && pidof rsyslogd && runlevel | grep -qx 'N 2'").succeeded();
    inside(
        sandbox,
        "su postgres -c \"psql -qc 'create table kept (word text)' -c \\\"insert into kept values ('stays')\\\"\"",
    )
    .succeeded();
    inside(sandbox, "service nginx restart && service nginx status").succeeded();
}

fn stopped_cleanly(sandbox: &Sandbox) {
    let status = sandbox.status("deb").expect("it is there still");
    assert_eq!(status["state"], "stopped", "{status}");
    assert_eq!(status["exit_code"], 0, "{status}");
    let log = own_file(sandbox, DATABASE_LOG);
    let count = |words: &str| log.matches(words).count();
    assert_eq!(count("database system is shut down"), 2, "{log}");
    assert!(log.trim_end().ends_with("database system is shut down"), "{log}");
    assert!(count("was interrupted") + count("not properly shut down") == 0, "{log}");
    let log = own_file(sandbox, "var/log/auth.log");
    assert!(log.contains("Received signal 15; terminating"), "{log}");
}
