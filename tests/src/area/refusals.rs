//! What cannot be done: each is refused with the right exit code and words that name what is wrong, and nothing has
//! changed.

use crate::case::{Case, skip};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::world::World;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("refusal::names", names),
    Case::new("refusal::sources", sources),
    Case::new("refusal::a_corrupt_tarball", a_corrupt_tarball),
    Case::new("refusal::options", options),
    Case::new("refusal::spec_files", spec_files),
    Case::new("refusal::commands", commands),
    Case::new("refusal::states", states),
    Case::new("refusal::two_commands_on_one_guest", two_commands_on_one_guest),
    Case::new("refusal::without_root", without_root).needs(&[Need::Root, Need::Program("setpriv", "util-linux")]),
    Case::new("refusal::a_full_disk", a_full_disk),
    Case::new("refusal::a_missing_kernel_feature", a_missing_kernel_feature),
    Case::new("refusal::a_directory_as_standard_input", a_directory_as_standard_input),
];

/// Wants a refusal with Pando's own exit code, these words, and no change.
#[track_caller]
fn refused(sandbox: &Sandbox, words: &[&str], named: &[&str]) {
    refused_with(sandbox, words, 125, named);
}

#[track_caller]
fn refused_with(sandbox: &Sandbox, words: &[&str], code: i32, named: &[&str]) {
    let before = World::of(sandbox);
    let ended = sandbox.pando(words).run().ended_with(code).complains_of(named);
    assert!(!ended.err().contains("os error") && !ended.err().contains("panicked"), "{}", ended.err());
    before.is_unchanged(sandbox, &words.join(" "));
}

fn names(sandbox: &Sandbox) {
    sandbox.create("taken", &[]);
    for verb in ["start", "stop", "restart", "kill", "rm", "inspect", "logs", "ps"] {
        refused(sandbox, &[verb, "nobody"], &["nobody"]);
    }
    refused(sandbox, &["exec", "nobody", "--", "true"], &["nobody"]);
    refused(sandbox, &["create", "taken", "--from", sandbox.busybox()], &["taken", "already"]);
    refused(sandbox, &["run", "--name", "taken", "--from", sandbox.busybox(), "--", "true"], &["taken", "already"]);
    let long = "x".repeat(64);
    for name in ["../escape", "a/b", ".hidden", "", "a b", "-x", "a\nb", long.as_str(), "ä"] {
        let shown = name.escape_debug().to_string();
        refused(sandbox, &["create", "--from", sandbox.busybox(), "--", name], &[shown.as_str()]);
        refused(sandbox, &["inspect", "--", name], &[shown.as_str()]);
    }
    let outside = sandbox.root().join("var/lib/escape");
    assert!(!outside.exists());
}

fn sources(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    std::fs::write(scratch.join("plain"), "no tree").expect("a file");
    let plain = scratch.join("plain").to_string_lossy().into_owned();
    for source in
        ["/no/such/directory", "/no/such/root.tar", "oci:/no/such/image", "guest:nobody", "nonsense:x", &plain]
    {
        refused(sandbox, &["create", "web", "--from", source], &[source.rsplit(':').next().expect("a word")]);
        refused(sandbox, &["run", "--from", source, "--", "true"], &[source.rsplit(':').next().expect("a word")]);
    }
}

fn a_corrupt_tarball(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let tar = scratch.join("whole.tar.gz");
    Line::new("tar").args(["-C", sandbox.busybox(), "-czf"]).args([tar.as_os_str()]).args(["."]).ok();
    let whole = std::fs::read(&tar).expect("it was made");
    let cut = scratch.join("cut.tar.gz");
    std::fs::write(&cut, &whole[..whole.len() / 2]).expect("a file");
    let garbage = scratch.join("garbage.tar");
    std::fs::write(&garbage, vec![0xa5; 100_000]).expect("a file");
    let empty = scratch.join("empty.tar");
    std::fs::write(&empty, "").expect("a file");
    for file in [cut, garbage, empty] {
        let path = file.to_string_lossy().into_owned();
        refused(sandbox, &["create", "web", "--from", &path], &[&path]);
    }
}

fn options(sandbox: &Sandbox) {
    let run = |option: &[&str], named: &[&str]| {
        let words = [&["run", "--from", sandbox.busybox()], option, &["--", "true"]].concat();
        refused(sandbox, &words, named);
        let words = [&["create", "web", "--from", sandbox.busybox()], option].concat();
        refused(sandbox, &words, named);
    };
    run(&["--volume", "rel/ative:/x"], &["rel/ative:/x"]);
    run(&["--volume", "/etc"], &["/etc", "HOST:GUEST"]);
    run(&["--volume", "/etc:/x:rx"], &["/etc:/x:rx"]);
    run(&["--volume", "/no/such/place:/x"], &["/no/such/place"]);
    run(&["--volume", "/etc:/proc"], &["/proc"]);
    run(&["--volume", "/etc:/../x"], &["/../x"]);
    run(&["--ulimit", "nofile"], &["nofile"]);
    run(&["--ulimit", "nofile=2:1"], &["nofile=2:1"]);
    run(&["--ulimit", "flies=1"], &["flies"]);
    run(&["--cap-add", "FLY"], &["FLY"]);
    run(&["--cap-drop", "cap_fly"], &["cap_fly"]);
    run(&["--stop-signal", "NOPE"], &["NOPE"]);
    run(&["--net", "moon"], &["moon"]);
    run(&["--hostname", &"h".repeat(65)], &["hhhh"]);
    run(&["--no-such-option"], &["--no-such-option"]);
}

fn spec_files(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("spec.toml");
    let path = file.to_string_lossy().into_owned();
    let check = |text: &str, named: &[&str]| {
        std::fs::write(&file, text).expect("a file");
        refused(
            sandbox,
            &["create", "web", "--from", sandbox.busybox(), "--spec", &path],
            &[&[path.as_str()], named].concat(),
        );
    };
    check("hostname = \"h\"\ncolour = \"red\"\n", &["colour", "line 2", "column 1"]);
    check("\nstop_grace = \"soon\"\n", &["line 2", "column 14"]);
    check("user_namespace = [\n", &["line 1"]);
    check("[[volumes]]\nsource = \"/etc\"\ntarget = \"/x\"\nwrong = 1\n", &["wrong", "line 4"]);
    std::fs::remove_file(&file).expect("it is there");
    refused(sandbox, &["create", "web", "--from", sandbox.busybox(), "--spec", &path], &[&path]);
}

fn commands(sandbox: &Sandbox) {
    let run = |command: &str, code, named: &[&str]| {
        refused_with(sandbox, &["run", "--from", sandbox.busybox(), "--", command], code, named);
    };
    run("no-such-command", 127, &["no-such-command"]);
    run("/bin/not-a-program", 126, &["/bin/not-a-program"]);
    refused(sandbox, &["fly"], &["fly"]);
    refused(sandbox, &["start"], &["NAME"]);
    sandbox.guest("web", &[]);
    refused(sandbox, &["kill", "--signal", "NOPE", "web"], &["NOPE"]);
    refused(sandbox, &["stop", "--signal", "99", "web"], &["99"]);
    refused_with(sandbox, &["exec", "web", "--", "no-such-command"], 127, &["no-such-command"]);
    refused_with(sandbox, &["exec", "web", "--", "/etc"], 126, &["/etc"]);
}

fn states(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    refused(sandbox, &["start", "web"], &["web", "running"]);
    refused(sandbox, &["rm", "web"], &["web", "running", "--force"]);
    refused(sandbox, &["create", "other", "--from", "guest:web"], &["web", "running"]);
    sandbox.create("asleep", &[]);
    refused(sandbox, &["exec", "asleep", "--", "true"], &["asleep", "not running"]);
    refused(sandbox, &["kill", "asleep"], &["asleep", "not running"]);
    refused(sandbox, &["shell", "asleep"], &["asleep", "not running"]);
}

fn two_commands_on_one_guest(sandbox: &Sandbox) {
    let slow = "trap '' TERM; : >/ready; while :; do sleep 0.05; done";
    sandbox.guest("web", &["--", "sh", "-c", slow]);
    sandbox.exec_sh("web", "until [ -e /ready ]; do sleep 0.05; done").ok();
    let mut stopping = sandbox.pando(["stop", "--time", "600", "web"]).start();
    sandbox.becomes("web", "stopping");
    for verb in ["start", "restart", "rm"] {
        sandbox.pando([verb, "web"]).run().ended_with(125).complains_of(&["web", "another command"]);
    }
    sandbox.pando(["set", "web", "hostname=x"]).run().ended_with(125).complains_of(&["another command"]);
    assert!(!stopping.has_ended());
    sandbox.pando(["kill", "web"]).ok();
    stopping.wait().succeeded();
    let racing: Vec<_> = (0..8).map(|_| sandbox.pando(["start", "web"]).start()).collect();
    let codes: Vec<i32> = racing.into_iter().map(|one| one.wait().code()).collect();
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
    let racing: Vec<_> =
        (0..8).map(|_| sandbox.pando(["create", "new", "--from", sandbox.busybox()]).start()).collect();
    let codes: Vec<i32> = racing.into_iter().map(|one| one.wait().code()).collect();
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
}

fn without_root(sandbox: &Sandbox) {
    // Nobody may not enter the sandbox: a copy of the command where everybody may.
    let place = tempfile::Builder::new().prefix("pando-test-").tempdir().expect("a directory");
    let command = place.path().join("pando");
    std::fs::copy(sandbox.program(), &command).expect("a copy");
    Line::new("chmod").args(["-R", "a+rX"]).args([place.path()]).ok();
    let before = World::of(sandbox);
    for words in [&["run", "--", "true"] as &[&str], &["ls"], &["create", "web"], &["daemon"], &["rm", "web"]] {
        let line = Line::new("setpriv").args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args([&command]);
        let root = place.path().join("state").to_string_lossy().into_owned();
        let ended = line.args(["--root", &root]).args(words).run().ended_with(125);
        ended.complains_of(&["root", "sudo"]);
        assert!(!Path::new(&root).exists());
    }
    before.is_unchanged(sandbox, "what nobody tried");
}

/// A state root on a file system of the test's own, in a mount namespace of its own: full, and nothing of it is left
/// behind.
fn a_full_disk(sandbox: &Sandbox) {
    let disk = sandbox.scratch().join("disk");
    std::fs::create_dir_all(&disk).expect("a directory");
    let script = r#"
        set -eu
        mount -t tmpfs -o size=1400k,mode=700 none "$DISK"
        pando() { timeout 60 "$PANDO" --root "$DISK" "$@"; }
        pando ls >/dev/null
        before=$(cd "$DISK/var/lib/pando" && find guests layers trash | sort)
        code=0
        pando create web --from "$TREE" 2>"$SAID" || code=$?
        echo "code $code"
        code=0
        pando run --from "$TREE" -- sh -c 'cat /dev/zero >/srv/fills; exit 3' 2>>"$SAID" || code=$?
        echo "run $code"
        pando ls -q
        sleep 0.5
        after=$(cd "$DISK/var/lib/pando" && find guests layers | sort)
        [ "$before" = "$after"$'\n'trash ] || echo "changed: $before / $after"
        kill $(pgrep -f -x "pando --root $DISK daemon --background")
        for i in $(seq 100); do pgrep -f -x "pando --root $DISK daemon --background" >/dev/null || break; sleep 0.1; done
    "#;
    let said = sandbox.scratch().join("said");
    let line = Line::new("unshare").args(["--mount", "--propagation", "private", "bash", "-c", script]);
    let line =
        line.env("PANDO", sandbox.program()).env("DISK", &disk).env("TREE", sandbox.busybox()).env("SAID", &said);
    let ended = line.limit(180).run().succeeded();
    assert_eq!(ended.out(), "code 125\nrun 3\n", "{}", ended.err());
    let said = std::fs::read_to_string(&said).expect("it complained");
    assert!(said.contains("no space left") && said.contains("--root"), "{said}");
}

/// A kernel without user namespaces is what a process in a chroot sees of one that has them: it may make none
/// (user_namespaces(7)).
fn a_missing_kernel_feature(sandbox: &Sandbox) {
    let script = "mount --rbind / \"$PLACE\" && exec chroot \"$PLACE\" \"$PANDO\" --root \"$ROOT\" daemon";
    let place = sandbox.scratch().join("place");
    std::fs::create_dir_all(&place).expect("a directory");
    let line = Line::new("unshare").args(["--mount", "--propagation", "private", "bash", "-c", script]);
    let line = line.env("PLACE", &place).env("PANDO", sandbox.program()).env("ROOT", sandbox.root());
    let mut daemon = line.start();
    if !crate::patience::comes_true(|| std::os::unix::net::UnixStream::connect(sandbox.places().socket()).is_ok()) {
        skip("a daemon in a chroot does not start here");
    }
    let ended = sandbox.run_sh(&[], "true").run().ended_with(125);
    ended.complains_of(&["namespaces"]);
    sandbox.run_sh(&["--userns", "host"], "echo fine").run();
    assert!(!daemon.has_ended());
    sandbox.end_daemon();
    daemon.wait().succeeded();
}

fn a_directory_as_standard_input(sandbox: &Sandbox) {
    let line = format!(
        "'{}' --root '{}' run --from '{}' -- ls /proc/self/fd/0/ </etc",
        sandbox.program().display(),
        sandbox.root().display(),
        sandbox.busybox()
    );
    Line::new("sh").args(["-c", &line]).run().ended_with(125).complains_of(&["directory"]);
    let line = line.replace("</etc", "3</etc");
    let ended = Line::new("sh").args(["-c", &line.replace("ls /proc/self/fd/0/", "ls /proc/self/fd/3/")]).run();
    assert_ne!(ended.code(), 0, "{}", ended.out());
}
