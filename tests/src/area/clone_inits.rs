//! Guests that boot an init of their own, frozen and cloned: the clone's first process is the frozen init, with its
//! console and what it has mounted.

use super::clones::{COUNTER, count};
use crate::case::{Case, Tag};
use crate::need::Need;
use crate::own_init::{booted, scripted, scripted_with};
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;

const ROOT: &[Need] = &[Need::Root];

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_inits::an_init_goes_on_in_a_clone", an_init_goes_on_in_a_clone).needs(ROOT).tags(&[Tag::Vm]),
    Case::new("clone_inits::what_it_mounted_in_memory_is_there", what_it_mounted_in_memory_is_there).needs(ROOT),
    Case::new("clone_inits::who_is_in_its_session_is_its_child", who_is_in_its_session_is_its_child).needs(ROOT),
    Case::new("clone_inits::each_has_a_console_of_its_own", each_has_a_console_of_its_own).needs(ROOT),
    Case::new("clone_inits::what_cannot_be_had_again_is_refused", what_cannot_be_had_again_is_refused).needs(ROOT),
    Case::new("clone_inits::from_the_disk_and_as_itself", from_the_disk_and_as_itself).needs(ROOT),
    Case::new("clone_inits::clones_of_clones_and_many", clones_of_clones_and_many).needs(ROOT),
    Case::new("clone_inits::one_with_few_descriptors", one_with_few_descriptors).needs(ROOT),
    Case::new("clone_inits::hooks_and_networks", hooks_and_networks).needs(ROOT),
    Case::new("clone_inits::services_have_mounts_of_their_own", services_have_mounts_of_their_own).needs(ROOT),
];

/// Counts, and says who it is to its guest's root.
fn counting() -> String {
    format!("echo $$ >/service; {COUNTER}")
}

#[track_caller]
fn inside(sandbox: &Sandbox, name: &str, script: &str) -> String {
    sandbox.exec_sh(name, script).ok().trim().to_owned()
}

#[track_caller]
fn logged(sandbox: &Sandbox, name: &str, words: &str) {
    eventually(&format!("the log of {name} says {words:?}"), || sandbox.pando(["logs", name]).ok().contains(words));
}

fn an_init_goes_on_in_a_clone(sandbox: &Sandbox) {
    booted(sandbox, "source", "echo booted >/boots", &counting());
    eventually("it counts", || count(sandbox, "source") > 5);
    let service = inside(sandbox, "source", "cat /service");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    let before = count(sandbox, "source");
    sandbox.pando(["clone", "warm", "one"]).ok();
    eventually("the clone counts on", || count(sandbox, "one") > before + 5);
    assert_eq!(inside(sandbox, "one", "cat /service /boots"), format!("{service}\nbooted"), "it did not boot anew");
    assert_eq!(inside(sandbox, "one", "readlink /proc/1/exe; cat /proc/1/comm; hostname"), "/bin/busybox\ninit\none");
    assert_eq!(
        inside(sandbox, "one", "cut -d' ' -f 4-6 /proc/1/stat"),
        inside(sandbox, "source", "cut -d' ' -f 4-6 /proc/1/stat")
    );
    // It is an init: what it keeps running is started again, and what has lost its parent is its own.
    inside(sandbox, "one", &format!("kill -9 {service}"));
    eventually("it starts its service again", || inside(sandbox, "one", "cat /service") != service);
    inside(sandbox, "one", "(setsid sh -c 'echo $$ >/orphan' &)");
    eventually("it reaps", || {
        inside(sandbox, "one", "[ -s /orphan ] && ! [ -e /proc/$(cat /orphan) ] && echo gone || :") == "gone"
    });
    assert_eq!(inside(sandbox, "source", "cat /service"), service, "that one has not changed");
    sandbox.pando(["stop", "one"]).ok();
    assert_eq!(sandbox.state("one"), "stopped");
    // And boots like any other.
    sandbox.pando(["start", "one"]).ok();
    eventually("it counts anew", || count(sandbox, "one") > 5);
}

fn what_it_mounted_in_memory_is_there(sandbox: &Sandbox) {
    let first = "mkdir -p /run /dev/shm; mount -t tmpfs -o nosuid,size=1m,mode=0751 tmpfs /run && mkdir /run/deep /run/lock
        mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /run/lock && echo inner >/run/lock/held
        mount -t tmpfs tmpfs /dev/shm && echo shared >/dev/shm/word
        mkdir /run/sealed && mount -t tmpfs tmpfs /run/sealed && echo kept >/run/sealed/word && mount -t tmpfs -o remount,ro tmpfs /run/sealed
        echo outer >/run/deep/word; chown 7:8 /run/deep/word; chmod 640 /run/deep/word; ln -s deep /run/link; mkfifo -m 622 /run/pipe
        ln -s /run/deep /dev/log; mkdir -m 711 /dev/own; echo device >/dev/own/word";
    booted(sandbox, "source", first, "exec 9<>/run/pipe; echo waits >&9; exec sleep 100000");
    eventually("it is up", || !inside(sandbox, "source", "pidof sleep || :").is_empty());
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let told = "cd /run; cat deep/word link/word lock/held /dev/shm/word sealed/word /dev/own/word; ls -A /dev; readlink /dev/log; stat -c %a /dev/own
        stat -c '%n %a %u %g %F' . deep deep/word link lock pipe sealed /dev/shm
        grep -E ' (/run|/dev/shm)' /proc/mounts | sed 's/,[ug]id=[0-9]*//g; s/tmpfs r[ow]/tmpfs/' | sort
        touch sealed/more 2>&1; df -k /run | tail -n 1 | awk '{print $2}'";
    let here = inside(sandbox, "one", told);
    assert_eq!(here, inside(sandbox, "source", told));
    assert!(here.starts_with("outer\nouter\ninner\nshared\nkept\ndevice\n") && here.contains("Read-only"), "{here}");
    assert_eq!(inside(sandbox, "one", "timeout 5 head -n 1 /run/pipe"), "waits");
    // Its own, not the source's.
    inside(sandbox, "one", "echo changed >/run/deep/word");
    assert_eq!(inside(sandbox, "source", "cat /run/deep/word"), "outer");
}

fn who_is_in_its_session_is_its_child(sandbox: &Sandbox) {
    let script =
        "mem=$(head -c 300000 /dev/zero | tr '\\0' x); (word=mine; while :; do echo $word >/word; sleep 0.1; done) &
        (exec setsid sleep 100001) & sleep 100002 & echo up >/up";
    scripted(sandbox, "source", script);
    eventually("it is up", || inside(sandbox, "source", "cat /up /word 2>/dev/null || :") == "up\nmine");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    // Pid, parent, group and session of all but what comes and goes.
    let relatives = "for one in 1 $(pgrep -f 'own-init|sleep 10000' | grep -vx 1); do cut -d' ' -f 1,4-6 /proc/$one/stat; done | sort";
    assert_eq!(inside(sandbox, "one", relatives), inside(sandbox, "source", relatives));
    inside(sandbox, "one", "rm /word");
    eventually("its child runs", || inside(sandbox, "one", "cat /word 2>/dev/null || :") == "mine");
    sandbox.pando(["stop", "one"]).ok();
    assert_eq!(sandbox.state("one"), "stopped");
}

fn each_has_a_console_of_its_own(sandbox: &Sandbox) {
    let script = "stty -onlcr </dev/console; echo once
        while :; do [ -e /said ] && read words </said && rm /said && echo heard $words && echo again $words >/dev/console; sleep 0.05; done";
    scripted(sandbox, "source", script);
    logged(sandbox, "source", "once");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "-n", "2"]).ok();
    for name in ["warm-1", "warm-2", "source"] {
        assert_eq!(
            inside(sandbox, name, "tty </dev/console; stty </dev/console | grep -o -- -onlcr"),
            "/dev/console\n-onlcr"
        );
        inside(sandbox, name, &format!("echo {name} >/said.new; mv /said.new /said"));
    }
    for name in ["warm-1", "warm-2", "source"] {
        logged(sandbox, name, &format!("heard {name}\nagain {name}\n"));
        let log = sandbox.pando(["logs", name]).ok();
        assert_eq!(log.matches("heard").count(), 1, "{log}");
        assert_eq!(log.contains("once"), name == "source", "{log}");
    }
    // It outlives the daemon.
    process::kill(sandbox.daemon().expect("a daemon"));
    inside(sandbox, "warm-1", "echo later >/said.new; mv /said.new /said");
    logged(sandbox, "warm-1", "again later");
}

fn what_cannot_be_had_again_is_refused(sandbox: &Sandbox) {
    scripted(sandbox, "source", "mkdir /seen; mount -t devpts seen /seen; echo up >/up");
    eventually("it is up", || inside(sandbox, "source", "cat /up 2>/dev/null || :") == "up");
    let refused = sandbox.pando(["freeze", "source", "warm"]).run();
    assert_eq!(refused.code(), 125);
    let said = refused.err();
    assert!(said.contains("on /seen") && said.contains("unmount it"), "{said}");
    inside(sandbox, "source", "umount /seen");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    // One that could not become itself in a clone says so when it is frozen.
    scripted_with(sandbox, "weak", "echo up >/up", &["--profile", "default"]);
    eventually("it is up", || inside(sandbox, "weak", "cat /up 2>/dev/null || :") == "up");
    let said = sandbox.pando(["freeze", "weak", "never"]).run().err();
    assert!(said.contains("lacks the capability") && said.contains("--profile system"), "{said}");
    sandbox.exec_sh("weak", "true").ok();
}

fn from_the_disk_and_as_itself(sandbox: &Sandbox) {
    booted(sandbox, "source", "mkdir -p /run; mount -t tmpfs tmpfs /run; echo word >/run/word", &counting());
    eventually("it counts", || count(sandbox, "source") > 5);
    sandbox.pando(["freeze", "source", "warm", "--stop"]).ok();
    assert_eq!(sandbox.state("source"), "stopped");
    sandbox.end_daemon();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.pando(["restore", "warm"]).ok();
    for name in ["one", "source"] {
        let first = count(sandbox, name);
        assert!(first > 5, "it began anew: {first}");
        eventually("it counts on", || count(sandbox, name) > first + 5);
        assert_eq!(inside(sandbox, name, "cat /run/word; hostname"), format!("word\n{name}"));
    }
}

fn clones_of_clones_and_many(sandbox: &Sandbox) {
    scripted(sandbox, "source", &format!("({COUNTER}) &"));
    eventually("it counts", || count(sandbox, "source") > 5);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.pando(["freeze", "one", "warmer"]).ok();
    sandbox.pando(["clone", "warmer", "-n", "12"]).limit(120).ok();
    let names: Vec<_> = (1..=12).map(|number| format!("warmer-{number}")).collect();
    for name in &names {
        let first = count(sandbox, name);
        assert!(first > 5, "it began anew: {first}");
        eventually("it counts on", || count(sandbox, name) > first + 5);
        let filters = "grep Seccomp_filters /proc/1/status";
        assert_eq!(inside(sandbox, name, filters), inside(sandbox, "source", filters));
    }
}

fn one_with_few_descriptors(sandbox: &Sandbox) {
    // Fewer than what is handed over to it, for a moment, in a clone.
    scripted_with(sandbox, "source", &format!("({COUNTER}) &"), &["--ulimit", "nofile=64"]);
    eventually("it counts", || count(sandbox, "source") > 5);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let first = count(sandbox, "one");
    eventually("it counts on", || count(sandbox, "one") > first + 5);
    let limit = "grep 'open files' /proc/1/limits";
    assert_eq!(inside(sandbox, "one", limit), inside(sandbox, "source", limit));
}

fn hooks_and_networks(sandbox: &Sandbox) {
    let hook = "#!/bin/sh\\ncat /proc/1/comm >/hooked; echo $PANDO_CLONE_NAME >>/hooked\\n";
    let script = format!(
        "mkdir -p /etc/pando/clone.d; printf '{hook}' >/etc/pando/clone.d/1; chmod +x /etc/pando/clone.d/1; ({COUNTER}) &"
    );
    scripted_with(sandbox, "source", &script, &["--net", "private"]);
    eventually("it counts", || count(sandbox, "source") > 5);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let first = count(sandbox, "one");
    eventually("it counts on", || count(sandbox, "one") > first + 5);
    assert_eq!(inside(sandbox, "one", "tail -n 1 /hooked"), "one");
}

/// A service of what systemd makes of one: the guest's mounts are shared, its own hear of them, and are others.
fn services_have_mounts_of_their_own(sandbox: &Sandbox) {
    let service = "mount -t tmpfs -o size=1m tmpfs /tmp; mount --bind /etc /srv; mount -o remount,bind,ro /srv; umount /mnt; cd /tmp;
        echo $$ >/service; n=0; while :; do n=$((n+1)); echo $n >count.new; mv count.new count; sleep 0.02; done";
    let script = format!(
        "mkdir -p /run /srv /mnt; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /mnt; mkdir /run/later; mount --make-rshared /
        unshare -m --propagation slave sh -c '{service}' &"
    );
    scripted(sandbox, "source", &script);
    let look = |name: &str, script: &str| inside(sandbox, name, &format!("cd /proc/$(cat /service)/root; {script}"));
    let counted = |name: &str| look(name, "cat tmp/count 2>/dev/null || echo 0").parse::<u32>().unwrap_or_default();
    eventually("it serves", || inside(sandbox, "source", "[ -s /service ] && echo up || :") == "up");
    eventually("it counts", || counted("source") > 5);
    // One from memory, one from the disk, one of a clone.
    sandbox.pando(["freeze", "source", "warm", "--wait"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    sandbox.end_daemon();
    sandbox.pando(["clone", "warm", "two"]).ok();
    sandbox.pando(["freeze", "one", "warmer"]).ok();
    sandbox.pando(["clone", "warmer", "three"]).ok();
    for name in ["one", "two", "three", "source"] {
        let before = counted(name);
        eventually("it counts on", || counted(name) > before + 5);
        assert_eq!(inside(sandbox, name, "[ -e /tmp/count ] || echo none; mount | grep -c ' on /mnt '"), "none\n1");
        assert_eq!(
            look(name, "ls srv/passwd; (echo x >srv/x) 2>&1 | grep -o 'Read-only.*'"),
            "srv/passwd\nRead-only file system"
        );
        let own = inside(sandbox, name, "cat /proc/$(cat /service)/mountinfo");
        assert!(!own.contains(" /mnt ") && own.contains(" /tmp ") && own.contains("size=1024k"), "{own}");
        // What is mounted later is there, too; what it mounts itself is nobody else's.
        inside(sandbox, name, "mount -t tmpfs later /run/later; echo seen >/run/later/word");
        assert_eq!(look(name, "cat run/later/word"), "seen", "{name}");
    }
}
