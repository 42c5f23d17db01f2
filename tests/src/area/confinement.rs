//! What a guest may do and see: capabilities, system calls, user ids, network, limits, the host's secrets.

use crate::case::{Case, Tag};
use crate::line::Line;
use crate::process;
use crate::sandbox::Sandbox;
use std::os::unix::fs::MetadataExt;

const VM: &[Tag] = &[Tag::Vm];

pub(crate) const CASES: &[Case] = &[
    Case::new("confinement::capabilities", capabilities).tags(VM),
    Case::new("confinement::system_calls", system_calls).tags(VM),
    Case::new("confinement::user_ids_are_the_guests_own", user_ids_are_the_guests_own).tags(VM),
    Case::new("confinement::user_ids_of_the_host_on_request", user_ids_of_the_host_on_request),
    Case::new("confinement::two_guests_never_share_ids", two_guests_never_share_ids),
    Case::new("confinement::network", network).tags(VM),
    Case::new("confinement::host_name", host_name),
    Case::new("confinement::limits", limits),
    Case::new("confinement::dangerous_files_of_proc_are_hidden", dangerous_files_of_proc_are_hidden).tags(VM),
    Case::new("confinement::the_hosts_secrets_are_hidden", the_hosts_secrets_are_hidden).tags(VM),
    Case::new("confinement::expose_shows_a_hidden_path", expose_shows_a_hidden_path),
    Case::new("confinement::processes_of_the_host_are_not_seen", processes_of_the_host_are_not_seen),
    Case::new("confinement::the_first_process_is_out_of_reach", the_first_process_is_out_of_reach).tags(VM),
    Case::new("confinement::devices", devices),
    Case::new("confinement::what_is_in_force_is_read_back", what_is_in_force_is_read_back).tags(VM),
    Case::new("confinement::a_profile_may_come_from_a_file", a_profile_may_come_from_a_file),
    Case::new("confinement::what_a_guest_mounts_stays_inside", what_a_guest_mounts_stays_inside).tags(VM),
];

/// The fourteen of the default set: the same as docker gives.
const DEFAULT: &str = "00000000a80425fb";

fn capabilities(sandbox: &Sandbox) {
    let sets = "grep -E '^Cap(Eff|Bnd)' /proc/self/status | cut -f2 | tr '\\n' ' '";
    let held = |options: &[&str]| sandbox.run_sh(options, sets).ok();
    assert_eq!(held(&[]), format!("{DEFAULT} {DEFAULT} "));
    assert_eq!(held(&["--cap-drop", "ALL"]), "0000000000000000 0000000000000000 ");
    assert_eq!(held(&["--cap-drop", "ALL", "--cap-add", "NET_RAW"]), "0000000000002000 0000000000002000 ");
    assert_eq!(held(&["--cap-drop", "cap_net_raw"]), "00000000a80405fb 00000000a80405fb ");
    assert_eq!(held(&["-u", "ada"]), format!("0000000000000000 {DEFAULT} "));
    sandbox.guest("web", &["--cap-drop", "ALL", "--cap-add", "CHOWN"]);
    sandbox.exec_sh("web", sets).run().says("0000000000000001 0000000000000001 ");
}

fn system_calls(sandbox: &Sandbox) {
    let refused = sandbox.run_sh(&[], "dmesg").run();
    assert_ne!(refused.code(), 0);
    refused.complains_of(&["Operation not permitted"]);
    sandbox.run_sh(&[], "grep -q '^Seccomp:.*2' /proc/self/status").ok();
    sandbox.run_sh(&["--seccomp", "off"], "grep '^Seccomp:' /proc/self/status | cut -f2").run().says("0\n");
    sandbox.guest("web", &[]);
    sandbox.exec_sh("web", "grep '^Seccomp:' /proc/self/status | cut -f2").run().says("2\n");
}

/// Where a guest's ids begin on the host.
fn first_id(sandbox: &Sandbox, name: &str) -> u32 {
    let first = sandbox.inspect(name)["first_id"].as_u64();
    u32::try_from(first.expect("it has a range of its own")).expect("an id fits")
}

fn user_ids_are_the_guests_own(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "1000"]);
    let first = first_id(sandbox, "web");
    let map = sandbox.exec_sh("web", "tr -s ' ' </proc/self/uid_map").ok();
    assert_eq!(map.trim(), format!("0 {first} 65536"));
    let pid = sandbox.first_process("web");
    assert_eq!(process::status(pid, "Uid"), Some(vec![first.to_string(); 4].join("\t")));
    sandbox
        .exec_sh("web", "echo x >/srv/of-root; echo x >/srv/of-ada; chown ada:staff /srv/of-ada; id -u")
        .run()
        .says("0\n");
    let upper = sandbox.places().guests().join("web/files/upper/srv");
    let owner =
        |name: &str| upper.join(name).metadata().map(|found| (found.uid(), found.gid())).expect("it was written");
    assert_eq!(
        (owner("of-root"), owner("of-ada")),
        ((0, 0), (1000, 50)),
        "on disk ids count from 0, whatever the range"
    );
}

fn user_ids_of_the_host_on_request(sandbox: &Sandbox) {
    sandbox.guest("web", &["--userns", "host", "--", "sleep", "1000"]);
    let pid = sandbox.first_process("web");
    assert_eq!(process::status(pid, "Uid"), Some(["0"; 4].join("\t")));
    assert!(sandbox.inspect("web")["first_id"].is_null());
    sandbox.exec_sh("web", "echo 1 >/proc/sys/kernel/domainname").run().complains_of(&["Read-only"]);
    sandbox.exec_sh("web", "dmesg").run().complains_of(&["not permitted"]);
    sandbox.exec_sh("web", "mount -t tmpfs none /srv").run().complains_of(&["ermi"]);
}

fn two_guests_never_share_ids(sandbox: &Sandbox) {
    for name in ["a", "b", "c"] {
        sandbox.guest(name, &[]);
    }
    let mut ids: Vec<u32> = ["a", "b", "c"].iter().map(|name| first_id(sandbox, name)).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[1] - pair[0] >= 65_536), "{ids:?}");
}

fn network(sandbox: &Sandbox) {
    sandbox.run_sh(&[], "ls /sys/class/net; cat /proc/net/dev | grep -c :").run().says("lo\n1\n");
    let inside = sandbox.run_sh(&["--net", "host"], "ls /sys/class/net").ok();
    let mut names: Vec<String> = std::fs::read_dir("/sys/class/net")
        .expect("the host's interfaces")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    let mut seen: Vec<&str> = inside.lines().collect();
    seen.sort_unstable();
    assert_eq!(seen, names);
    sandbox
        .run_sh(&["--net", "host"], "readlink /proc/self/ns/net")
        .run()
        .says(&format!("{}\n", std::fs::read_link("/proc/self/ns/net").expect("a namespace").display()));
}

fn host_name(sandbox: &Sandbox) {
    let before = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
    sandbox.run_sh(&["--name", "named"], "hostname").run().says("named\n");
    sandbox.run_sh(&["--hostname", "other"], "hostname; hostname changed; hostname").run();
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name"), before);
}

fn limits(sandbox: &Sandbox) {
    let script = "ulimit -Sn; ulimit -Hn; ulimit -c";
    sandbox.run_sh(&["--ulimit", "nofile=100:200", "--ulimit", "core=0"], script).run().says("100\n200\n0\n");
    sandbox.guest("web", &["--ulimit", "nofile=50"]);
    sandbox.exec_sh("web", "ulimit -n").run().says("50\n");
}

fn dangerous_files_of_proc_are_hidden(sandbox: &Sandbox) {
    for options in [&[] as &[&str], &["--userns", "host"]] {
        for file in ["/proc/kcore", "/proc/keys", "/proc/sysrq-trigger", "/proc/timer_list"] {
            sandbox.run_sh(options, &format!("[ ! -e {file} ] || wc -c <{file}")).run().succeeded();
            let text = sandbox.run_sh(options, &format!("cat {file} 2>/dev/null | wc -c")).ok();
            assert_eq!(text, "0\n", "{file} says something with {options:?}");
        }
        sandbox.run_sh(options, "ls /sys/firmware 2>/dev/null").run().says("");
        sandbox.run_sh(options, "echo b >/proc/sysrq-trigger; echo core >/proc/sys/kernel/core_pattern").run();
    }
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("the host's setting");
    assert_ne!(pattern.trim(), "core of a guest");
}

fn the_hosts_secrets_are_hidden(sandbox: &Sandbox) {
    let run = |script: &str| sandbox.pando(["run", "--", "sh", "-c", script]).run().succeeded();
    run("ls -A /root /home").says("/home:\n\n/root:\n");
    run("cut -d: -f2 /etc/shadow | grep -v '^[!*]' | wc -l").says("0\n");
    run("ls -A /var/lib/pando /run/pando 2>/dev/null | grep -v : | tr -d '\\n'").says("");
    let root = sandbox.root().display();
    run(&format!("ls -A {root} 2>/dev/null; true")).says("");
    run("ls -A /tmp").says("");
    run("cat /etc/ssh/*_key 2>/dev/null; true").says("");
}

fn expose_shows_a_hidden_path(sandbox: &Sandbox) {
    let shown = sandbox.scratch();
    std::fs::write(shown.join("shown"), "to be seen").expect("a file");
    // What lies beside it stays hidden.
    let path = shown.to_string_lossy().into_owned();
    let ended = sandbox.pando(["run", "--expose", &path, "--", "cat", &format!("{path}/shown")]).run();
    if ended.code() == 0 {
        assert_eq!(ended.out(), "to be seen");
    } else {
        ended.ended_with(125).complains_of(&[&path]);
    }
}

fn processes_of_the_host_are_not_seen(sandbox: &Sandbox) {
    let seen = sandbox.run_sh(&[], "ls -d /proc/[0-9]* | wc -l").ok();
    assert!(seen.trim().parse::<u32>().is_ok_and(|count| count <= 5), "{seen}");
    let me = std::process::id();
    let named = sandbox.run_sh(&[], &format!("cat /proc/{me}/cmdline 2>/dev/null; true")).ok();
    assert!(!named.contains("pando-tests"), "{named}");
    // In a container of its own this program may have a number that a guest has as well.
    if me > 100 {
        sandbox.run_sh(&[], &format!("kill -0 {me} 2>&1")).run().ended_with(1);
    }
}

/// The guest's init holds what no guest may have: it can be neither traced, nor read, nor killed from inside.
fn the_first_process_is_out_of_reach(sandbox: &Sandbox) {
    let attempts = [
        "cat /proc/1/mem >/dev/null",
        "ls /proc/1/fd",
        "cat /proc/1/environ",
        "readlink /proc/1/exe",
        "ls -l /proc/1/root/",
        "readlink /proc/1/ns/pid",
    ];
    sandbox.guest("web", &[]);
    sandbox.guest("able", &["--cap-add", "ALL", "--seccomp", "off"]);
    for name in ["web", "able"] {
        for attempt in attempts {
            let ended = sandbox.exec_sh(name, attempt).run();
            assert!(ended.code() != 0 || ended.out().is_empty(), "{name}: {attempt}: {}", ended.out());
        }
        sandbox.exec_sh(name, "kill -9 1; kill -STOP 1; sleep 0.1; true").ok();
        assert_eq!(sandbox.state(name), "running");
        sandbox.exec_sh(name, "echo alive").run().says("alive\n");
    }
}

fn security(sandbox: &Sandbox, name: &str) -> serde_json::Value {
    serde_json::from_str(&sandbox.pando(["inspect", "--security", name, "--json"]).ok()).expect("it is JSON")
}

fn what_is_in_force_is_read_back(sandbox: &Sandbox) {
    let length = |value: &serde_json::Value| value.as_array().expect("an array").len();
    for (profile, capabilities, never) in [("default", 14, false), ("strict", 8, true), ("system", 41, false)] {
        sandbox.guest(profile, &["--profile", profile, "--", "sleep", "1000"]);
        let found = security(sandbox, profile);
        assert_eq!(found["profile"], profile);
        assert_eq!(
            (length(&found["capabilities"]), &found["no_new_privileges"]),
            (capabilities, &never.into()),
            "{found}"
        );
        assert_eq!(found["system_call_filters"], 1);
        assert!(length(&found["own_namespaces"]) >= 6, "{found}");
        assert!(length(&found["masked"]) >= 2 && length(&found["devices"]) >= 8, "{found}");
        let missing = found["missing"].as_array().expect("an array");
        let is_old = |one: &serde_json::Value| one.as_str().is_some_and(|text| text.contains("6.12"));
        assert!(missing.iter().all(is_old), "{found}");
    }
    assert_eq!(security(sandbox, "strict")["limits"]["open files"], "1024:4096");
    // Not what was asked for counts: a guest that rules its own mounts may have taken some away, and another was given
    // no filter.
    sandbox.exec_sh("system", "umount /proc/keys").ok();
    let text = sandbox.pando(["inspect", "--security", "system"]).ok();
    assert!(text.contains("NOT IN FORCE") && text.contains("/proc/keys is not hidden"), "{text}");
    sandbox.guest("bare", &["--seccomp", "off", "--", "sleep", "1000"]);
    assert_eq!(security(sandbox, "bare")["system_call_filters"], 0);
    sandbox.create("idle", &[]);
    sandbox.pando(["inspect", "--security", "idle"]).run().ended_with(125).complains_of(&["idle"]);
}

fn a_profile_may_come_from_a_file(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("spec.toml");
    std::fs::write(&file, "profile = \"strict\"\n").expect("a file");
    let spec = file.to_string_lossy().into_owned();
    let script = "grep NoNewPrivs /proc/self/status | cut -f2";
    sandbox.run_sh(&["--spec", &spec], script).run().says("1\n");
    sandbox.run_sh(&["--spec", &spec, "--profile", "default"], script).run().says("0\n");
    std::fs::write(&file, "profile = \"lax\"\n").expect("a file");
    assert_ne!(sandbox.run_sh(&["--spec", &spec], script).run().code(), 0);
    // Added and taken capabilities are those of the profile.
    let held = "grep CapBnd /proc/self/status | cut -f2";
    let options = ["--profile", "strict", "--cap-add", "NET_RAW", "--cap-drop", "KILL"];
    sandbox.run_sh(&options, held).run().says("00000000000024db\n");
}

fn devices(sandbox: &Sandbox) {
    let script =
        "for d in null zero full random urandom tty ptmx; do [ -c /dev/$d ] || [ -L /dev/$d ] || echo no $d; done";
    sandbox.run_sh(&[], script).run().succeeded().says("");
    sandbox
        .run_sh(&[], "echo x >/dev/null; head -c 3 /dev/zero | od -An -tx1; [ -d /dev/shm ] && echo x >/dev/shm/x")
        .run()
        .succeeded()
        .says(" 00 00 00\n");
    sandbox.run_sh(&[], "mknod /srv/disk b 254 0 && cat /srv/disk").run().complains_of(&["ermi"]);
    sandbox.run_sh(&["--userns", "host"], "mknod /srv/disk b 254 0; head -c 1 /srv/disk").run().complains_of(&["ermi"]);
}

/// Most hosts share their mounts, so that those made in one place appear in others. A daemon in a mount namespace of
/// that kind, of the test's own.
fn what_a_guest_mounts_stays_inside(sandbox: &Sandbox) {
    let script = r#"
        set -eu
        mount --make-rshared /
        pando() { timeout 60 "$PANDO" --root "$ROOT" "$@"; }
        pando ls >/dev/null
        before=$(cut -d' ' -f5- /proc/self/mountinfo)
        for options in '' '--net host' '--userns host' '--userns host --net host'; do
            pando run --from "$TREE" $options -v "$SHARED:/v" -- sh -c 'mount -t tmpfs none /v 2>/dev/null || true'
            pando run --from "$TREE" $options --cap-add ALL --seccomp off -v "$SHARED:/v" -- mount -t tmpfs none /v
        done
        [ "$before" = "$(cut -d' ' -f5- /proc/self/mountinfo)" ] || cat /proc/self/mountinfo
    "#;
    let line = Line::new("unshare").args(["--mount", "--propagation", "private", "bash", "-c", script]);
    let line = line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).env("TREE", sandbox.busybox());
    line.env("SHARED", sandbox.scratch()).limit(120).run().succeeded().says("");
}
