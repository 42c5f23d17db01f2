//! A Debian system under systemd: booted, rebooted, powered off from inside and stopped from outside.

use crate::case::{Case, Tag, skip};
use crate::debian_image::{NEXT_SUITE, tarball_of};
use crate::line::Ended;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VM: &[Tag] = &[Tag::Vm];
const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap")];

pub(crate) const CASES: &[Case] = &[
    Case::new("systemd::boots_reboots_powers_off_and_stops", boots_reboots_powers_off_and_stops).tags(VM),
    Case::new("systemd::has_the_name_and_the_credentials_that_it_is_given", has_its_name_and_credentials).tags(VM),
    Case::new("systemd::is_cloned_with_its_services", |sandbox| is_cloned_with_its_services(sandbox, &tarball()))
        .tags(VM),
    Case::new("systemd::is_cloned_with_services_that_share_nothing", |sandbox| {
        is_cloned_with_services_that_share_nothing(sandbox, &tarball());
    })
    .tags(VM),
    Case::new("systemd::of_the_next_debian_is_cloned_with_its_services", |sandbox| {
        is_cloned_with_its_services(sandbox, &next_tarball(sandbox));
    })
    .needs(NEEDS),
    Case::new("systemd::of_the_next_debian_is_cloned_with_services_that_share_nothing", |sandbox| {
        is_cloned_with_services_that_share_nothing(sandbox, &next_tarball(sandbox));
    })
    .needs(NEEDS),
    Case::new("systemd::of_the_next_debian_is_cloned_ten_times_with_its_daemons", is_cloned_ten_times)
        .needs(NEEDS)
        .tags(&[Tag::Slow]),
];

/// Where the emulated machine has the system.
const IN_MACHINE: &str = "/opt/images/debian-systemd.tar";

/// Where the machine's build leaves it, relative to a directory above this program.
const BUILT: &str = "vm/systemd-root.tar";

/// What a guest cannot have: file systems that show the whole kernel, a console, modules of the kernel.
const KNOWN: [&str; 4] =
    ["sys-kernel-debug.mount", "sys-kernel-tracing.mount", "console-getty.service", "systemd-modules-load.service"];

/// Seconds for a boot on a laden machine.
const LIMIT: u64 = 120;

/// How often a guest that is between two lives is asked again.
const ATTEMPTS: u32 = 20;

/// The next Debian's, which this program makes itself.
fn next_tarball(sandbox: &Sandbox) -> String {
    tarball_of(sandbox, NEXT_SUITE, &["dbus", "systemd-sysv"])
}

fn tarball() -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let built = program.ancestors().map(|place| place.join(BUILT)).find(|path| path.is_file());
    let cache = std::env::var_os("PANDO_VM_CACHE").map(|cache| Path::new(&cache).join("systemd-root.tar"));
    let places = cache.into_iter().chain(built).chain([PathBuf::from(IN_MACHINE)]);
    places
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| skip("there is no system to boot: tests/vm/run --build makes it"))
        .to_string_lossy()
        .into_owned()
}

/// Creates and boots one.
#[track_caller]
pub(super) fn booted(sandbox: &Sandbox, image: &str, options: &[&str]) {
    let words = ["create", "sd", "--from", image, "--init", "/sbin/init", "--stop-timeout", "90"];
    sandbox.pando(words).args(options).limit(300).ok();
    sandbox.pando(["start", "sd"]).ok();
    boots(sandbox);
}

#[track_caller]
fn inside(sandbox: &Sandbox, script: &str) -> Ended {
    inside_of(sandbox, "sd", script)
}

#[track_caller]
fn inside_of(sandbox: &Sandbox, name: &str, script: &str) -> Ended {
    sandbox.exec_sh(name, script).limit(LIMIT).run()
}

/// Waits until systemd has started everything, and wants nothing unknown to have failed.
#[track_caller]
fn boots(sandbox: &Sandbox) {
    const UP: &str =
        "until systemctl is-system-running 2>/dev/null | grep -qx 'running\\|degraded'; do sleep 0.2; done";
    let up = (0..ATTEMPTS).any(|_| {
        let up = inside(sandbox, UP).code() == 0;
        if !up {
            std::thread::sleep(crate::patience::seconds(1) / 10);
        }
        up
    });
    assert!(up, "it does not come up: {}", inside(sandbox, "systemctl list-jobs; systemctl --failed").out());
    let failed = inside(sandbox, "systemctl --failed --plain --no-legend").succeeded().out();
    let unknown: Vec<&str> =
        failed.lines().filter_map(|line| line.split(' ').next()).filter(|unit| !KNOWN.contains(unit)).collect();
    assert!(
        unknown.is_empty(),
        "{unknown:?} failed: {}",
        inside(sandbox, &format!("systemctl status {}", unknown.join(" "))).out()
    );
}

fn told(what: &str, since: Instant) {
    println!("systemd: {what} {:.1} s", since.elapsed().as_secs_f32());
}

fn boots_reboots_powers_off_and_stops(sandbox: &Sandbox) {
    let begin = Instant::now();
    booted(sandbox, &tarball(), &[]);
    told("boot", begin);
    manages_units(sandbox);
    reboots(sandbox);
    let begin = Instant::now();
    inside(sandbox, "systemctl poweroff");
    eventually("the guest powers off", || sandbox.state("sd") == "stopped");
    told("poweroff", begin);
    ended_well(sandbox);
    sandbox.pando(["start", "sd"]).ok();
    boots(sandbox);
    witness(sandbox);
    let begin = Instant::now();
    sandbox.pando(["stop", "sd"]).limit(LIMIT).ok();
    told("stop", begin);
    ended_well(sandbox);
    let left = sandbox.places().guest(&"sd".parse().expect("a name")).join("files/upper/var/stopped-in-order");
    assert!(left.exists(), "systemd did not stop its units");
}

#[track_caller]
fn ended_well(sandbox: &Sandbox) {
    let status = sandbox.status("sd").expect("it is there still");
    assert_eq!((&status["state"], &status["exit_code"]), (&"stopped".into(), &0.into()), "{status}");
}

fn manages_units(sandbox: &Sandbox) {
    inside(sandbox, "systemd-run --wait --quiet sh -c 'exit 0'").succeeded();
    inside(sandbox, "systemd-run --quiet --unit=long sleep 1000 && systemctl is-active long").succeeded();
    inside(sandbox, "grep -q long.service /proc/$(systemctl show -P MainPID long)/cgroup && systemctl stop long")
        .succeeded();
    inside(sandbox, "! systemctl is-active long").succeeded();
}

/// A unit that leaves a file when it is stopped in order.
fn witness(sandbox: &Sandbox) {
    let script =
        "systemd-run --quiet --unit=witness --property='ExecStop=/bin/touch /var/stopped-in-order' sleep infinity";
    inside(sandbox, script).succeeded();
}

fn reboots(sandbox: &Sandbox) {
    let before = i64::from(sandbox.first_process("sd"));
    let begin = Instant::now();
    // The guest may be gone before the command's end can be told.
    inside(sandbox, "systemctl reboot");
    let reborn = || sandbox.status("sd").and_then(|status| status["pid"].as_i64()).is_some_and(|pid| pid != before);
    eventually("the guest reboots", reborn);
    boots(sandbox);
    told("reboot", begin);
}

/// What a service sees that systemd keeps from the rest: logind, where the system has it, and one of ours.
const KEPT: &str = "[ $(wc -l </proc/$1/uid_map) = 1 ] && grep -qx ' *0 *0 *1' /proc/$1/uid_map && [ $(stat -Lc %i /proc/$1/ns/user) != $(stat -Lc %i /proc/self/ns/user) ] && grep -q ' /tmp ' /proc/$1/mountinfo && grep -q ' / ro' /proc/$1/mountinfo && [ -e /proc/$1/root/tmp/own ] && ! [ -e /proc/$1/root/dev/console ] && [ -c /proc/$1/root/dev/null ] && ! [ -e /tmp/own ]";

/// Everything that it keeps running is there in each clone, in its control group and with the mounts of its own, and
/// goes on to be managed.
fn is_cloned_with_its_services(sandbox: &Sandbox, image: &str) {
    booted(sandbox, image, &[]);
    inside(
        sandbox,
        "systemd-run --quiet --unit=own -p PrivateTmp=yes -p ProtectSystem=strict -p ProtectHome=yes -p ProtectControlGroups=yes \
         -p ProtectKernelTunables=yes -p PrivateDevices=yes -p SystemCallFilter=@system-service -p 'SystemCallFilter=~@privileged @resources' -p NoNewPrivileges=yes -p PrivateUsers=yes -p ExecStopPost='/bin/touch /run/stopped' \
         sh -c 'touch /tmp/own; exec sleep 100000'",
    )
    .succeeded();
    eventually("the service runs", || inside(sandbox, "ls /tmp/systemd-private-*-own.service-*/tmp/own").code() == 0);
    let mounts =
        "for process in 1 $(systemctl show -P MainPID own); do cut -d' ' -f 4-6 /proc/$process/mountinfo | sort; done";
    let mounted = inside(sandbox, mounts).succeeded().out();
    let groups = inside(sandbox, "cd /sys/fs/cgroup; find . -type d | sort").succeeded().out();
    println!("systemd: {}", sandbox.pando(["freeze", "sd", "warm", "--wait"]).limit(LIMIT).ok().trim());
    sandbox.pando(["clone", "warm", "one"]).limit(LIMIT).ok();
    sandbox.pando(["clone", "warm", "two"]).limit(LIMIT).ok();
    // And one that is made of a clone, out of the disk.
    sandbox.pando(["freeze", "one", "warmer", "--wait"]).limit(LIMIT).ok();
    sandbox.end_daemon();
    sandbox.pando(["clone", "warmer", "three"]).limit(LIMIT).ok();
    for name in ["one", "two", "three", "sd"] {
        let script = |script: &str| inside_of(sandbox, name, script).succeeded().out();
        assert_eq!(script("cd /sys/fs/cgroup; find . -type d | sort"), groups, "{name}");
        assert_eq!(script("tail -n 1 /proc/1/cgroup"), "0::/init.scope\n");
        assert_eq!(script(mounts), mounted, "{name}");
        script(&format!("set -- $(systemctl show -P MainPID own); {KEPT}; grep -q own.service /proc/$1/cgroup"));
        script(
            "! systemctl cat systemd-logind >/dev/null 2>&1 || { systemctl is-active systemd-logind && loginctl list-sessions; }",
        );
        script("systemd-run --wait --quiet sh -c 'exit 0'");
        // It hears of the service's end, by its group and as its parent.
        script("kill -9 $(systemctl show -P MainPID own); until ! systemctl is-active --quiet own; do sleep 0.1; done");
        eventually("it was cleared away", || inside_of(sandbox, name, "[ -e /run/stopped ]").code() == 0);
        assert_eq!(script("ls -d /sys/fs/cgroup/system.slice/own.service 2>/dev/null || echo none"), "none\n");
        script("systemctl restart systemd-journald && systemctl is-active systemd-journald");
    }
    sandbox.pando(["stop", "two"]).limit(LIMIT).ok();
    inside_of(sandbox, "one", "systemctl poweroff");
    eventually("a clone powers off", || sandbox.state("one") == "stopped");
}

/// Services in namespaces of their own, which systemd keeps in sockets: of one the only process has ended, and another
/// has yet to come. `$1` is written to each.
const APART: &str = r#"
unit() { printf '%s\n' '[Unit]' "JoinsNamespaceOf=$2" '[Service]' "$3" "$4" "$5" 'ExecStart=/bin/sleep 100000' >/run/systemd/system/$1.service; }
unit ipc '' PrivateIPC=yes
unit net '' PrivateNetwork=yes
unit both '' PrivateIPC=yes PrivateNetwork=yes PrivateTmp=yes
unit joiner both.service PrivateIPC=yes PrivateNetwork=yes PrivateTmp=yes
printf '%s\n' '[Service]' Type=oneshot RemainAfterExit=yes PrivateNetwork=yes 'ExecStart=/bin/readlink /proc/self/ns/net' >/run/systemd/system/ended.service
printf '%s\n' '[Unit]' JoinsNamespaceOf=ended.service '[Service]' PrivateNetwork=yes 'ExecStart=/bin/sleep 100000' >/run/systemd/system/late.service
systemctl daemon-reload && systemctl start ipc net both ended
busctl call org.freedesktop.hostname1 /org/freedesktop/hostname1 org.freedesktop.DBus.Peer Ping
for unit in ipc net both; do until [ "$(cat /proc/$(systemctl show -P MainPID $unit)/comm)" = sleep ]; do sleep 0.1; done; done
"#;

/// Says which namespaces services are in.
const SPACES: &str = r#"
space() { readlink /proc/$(systemctl show -P MainPID $1)/ns/$2; }
own() { [ $(space $1 $2) != $(readlink /proc/1/ns/$2) ] || { echo "$1 has no $2 namespace of its own"; exit 1; }; }
same() { [ $(space $1 $3) = $(space $2 $3) ] || { echo "$1 and $2 are not in one $3 namespace"; exit 1; }; }
runs() { until [ "$(cat /proc/$(systemctl show -P MainPID $1)/comm)" = sleep ]; do sleep 0.1; done; }
"#;

/// What services share with nobody is theirs in each clone, and shared there by those that join them, restarted or new.
const SHARED: &str = r#"
set -e
own ipc ipc; own net net; own both ipc; own both net
[ -e /proc/$(systemctl show -P MainPID both)/root/tmp/own ]
systemctl start joiner late; runs joiner; runs late
same joiner both ipc; same joiner both net; own late net
[ -e /proc/$(systemctl show -P MainPID joiner)/root/tmp/own ]
systemctl restart both ipc net; runs both; runs ipc; runs net
same joiner both ipc; same joiner both net; own ipc ipc; own net net
nsenter -t $(systemctl show -P MainPID net) -n sh -c '[ "$(ls /proc/self/net/dev_snmp6)" = lo ] && grep -q 00000000000000000000000000000001 /proc/self/net/if_inet6'
busctl call org.freedesktop.hostname1 /org/freedesktop/hostname1 org.freedesktop.DBus.Peer Ping
systemctl daemon-reexec
systemctl restart joiner; runs joiner; same joiner both net
systemctl stop joiner both late ended; systemctl start both joiner; runs both; runs joiner; same joiner both net; own both net
"#;

fn is_cloned_with_services_that_share_nothing(sandbox: &Sandbox, image: &str) {
    booted(sandbox, image, &[]);
    inside(sandbox, APART).succeeded();
    inside(sandbox, "touch /proc/$(systemctl show -P MainPID both)/root/tmp/own").succeeded();
    println!("systemd: {}", sandbox.pando(["freeze", "sd", "warm", "--wait"]).limit(LIMIT).ok().trim());
    sandbox.pando(["clone", "warm", "one"]).limit(LIMIT).ok();
    sandbox.pando(["clone", "warm", "two"]).limit(LIMIT).ok();
    // And one that is made of a clone, out of the disk.
    sandbox.pando(["freeze", "two", "warmer", "--wait"]).limit(LIMIT).ok();
    sandbox.end_daemon();
    sandbox.pando(["clone", "warmer", "three"]).limit(LIMIT).ok();
    for name in ["one", "three", "sd"] {
        inside_of(sandbox, name, &format!("{SPACES}{SHARED}")).succeeded();
    }
}

/// Daemons that people run, as their packages set them up.
const DAEMONS: &[&str] = &[
    "cron",
    "dbus",
    "iproute2",
    "nginx",
    "openssh-server",
    "postgresql",
    "procps",
    "redis-server",
    "rsyslog",
    "systemd-sysv",
];

/// Succeeds when all of them answer.
const ANSWERS: &str = r#"
asked() { timeout 5 bash -c "exec 3<>/dev/tcp/127.0.0.1/$1 && printf '$2' >&3 && head -n 1 <&3" 2>/dev/null | grep -q "$3"; }
asked 80 'GET / HTTP/1.0\r\n\r\n' '200 OK' && asked 22 '' '^SSH-2.0' && [ "$(redis-cli ping)" = PONG ] &&
    su postgres -c "psql -Atc 'select 6 * 7'" 2>/dev/null | grep -qx 42 && systemctl is-active --quiet cron rsyslog nginx ssh redis-server
"#;

/// Each of them keeps a word.
const KEEP: &str = r#"set -e
su postgres -c "psql -qc \"create table words as select '$1' as word\""
redis-cli set word $1 >/dev/null; echo $1 >/var/www/html/word; logger -t test "from $1"
"#;

/// All that is kept, and who it is: name, machine, address, key of its sshd.
const TELL: &str = r#"set -e
su postgres -c "psql -Atc 'select word from words'"; redis-cli get word
bash -c "exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET /word HTTP/1.0\r\n\r\n' >&3; tail -n 1 <&3"
grep -o 'test: from .*' /var/log/syslog | cut -d' ' -f3
hostname; cat /etc/machine-id; ip -4 -brief address show scope global | awk '{ print $3 }'; ssh-keyscan -t ed25519 127.0.0.1 2>/dev/null | grep -v '^#' | cut -d' ' -f3
"#;

/// A clone's sshd has a key of its own, which it takes when it is told to.
const OWN_KEY: &str = "mkdir -p /etc/pando/clone.d; cat >/etc/pando/clone.d/key <<'END'
#!/bin/sh
rm /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key; kill -HUP $(cat /run/sshd.pid)
END
chmod 755 /etc/pando/clone.d/key";

fn is_cloned_ten_times(sandbox: &Sandbox) {
    const CLONES: usize = 10;
    const LATER: Duration = Duration::from_secs(60);
    booted(sandbox, &tarball_of(sandbox, NEXT_SUITE, DAEMONS), &["--net", "private"]);
    inside(sandbox, &format!("until {{ {ANSWERS} }}; do sleep 0.1; done; {OWN_KEY}")).succeeded();
    println!("systemd: {}", sandbox.pando(["freeze", "sd", "warm"]).limit(LIMIT).ok().trim());
    let begin = Instant::now();
    sandbox.pando(["clone", "warm", "-n", &CLONES.to_string()]).limit(LIMIT).ok();
    told("ten clones", begin);
    let names: Vec<_> = (1..=CLONES).map(|number| format!("warm-{number}")).chain(["sd".to_owned()]).collect();
    for name in &names {
        inside_of(sandbox, name, &format!("until {{ {ANSWERS} }}; do sleep 0.1; done")).succeeded();
        sandbox.pando(["exec", name, "--", "sh", "-c", KEEP, "sh", name]).limit(LIMIT).ok();
    }
    std::thread::sleep(LATER);
    let mut all = Vec::new();
    for name in &names {
        let said = inside_of(sandbox, name, TELL).succeeded().out();
        let lines: Vec<String> = said.lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 8, "{name}: {said}");
        // The source is called as its own files say.
        let own = if name == "sd" { 4 } else { 5 };
        assert!(lines[..own].iter().all(|line| line == name), "{name}: {said}");
        all.push(lines);
        inside_of(
            sandbox,
            name,
            "systemd-run --wait --quiet true && systemctl restart nginx redis-server && ! systemctl is-failed cron",
        )
        .succeeded();
    }
    for what in 4..8 {
        let mut different: Vec<&String> = all.iter().map(|lines| &lines[what]).collect();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), names.len(), "{different:?}");
    }
}

fn has_its_name_and_credentials(sandbox: &Sandbox) {
    // The tree says another name: that of the machine that it was made on.
    booted(sandbox, &tarball(), &[]);
    inside(sandbox, "hostname").says("sd\n");
    // It is the guest's to change, until somebody asks for a name.
    inside(sandbox, "echo changed >/etc/hostname").succeeded();
    sandbox.pando(["restart", "sd"]).limit(LIMIT).ok();
    boots(sandbox);
    inside(sandbox, "hostname").says("changed\n");
    sandbox.pando(["set", "sd", "hostname=named"]).ok();
    sandbox.pando(["restart", "sd"]).limit(LIMIT).ok();
    boots(sandbox);
    inside(sandbox, "hostname; cat /etc/hostname").says("named\nnamed\n");
    // Services get credentials by mounts that their namespace shares, and see what is mounted later.
    let credential =
        "systemd-run --wait --pipe -q -p LoadCredential=x:/etc/hostname sh -c 'cat $CREDENTIALS_DIRECTORY/x'";
    inside(sandbox, credential).says("named\n");
    let later = "systemd-run -q -u late -p PrivateTmp=yes sleep 1000; mount -t tmpfs none /mnt; touch /mnt/there; \
        pid=$(systemctl show -P MainPID late); ls /proc/$pid/root/mnt; systemctl stop late; umount /mnt";
    inside(sandbox, later).says("there\n");
}
