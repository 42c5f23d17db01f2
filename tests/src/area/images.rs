//! Guests made from an OCI image, and from the host.

use crate::case::{Case, Tag, skip};
use crate::line::Line;
use crate::sandbox::Sandbox;
use std::path::Path;

const VM: &[Tag] = &[Tag::Vm];
const SLOW: &[Tag] = &[Tag::Slow];

pub(crate) const CASES: &[Case] = &[
    Case::new("images::run_from_an_oci_layout", run_from_an_oci_layout).tags(VM),
    Case::new("images::create_from_an_oci_layout", create_from_an_oci_layout),
    Case::new("images::a_command_is_the_arguments_of_the_entrypoint", a_command_is_the_arguments_of_the_entrypoint),
    Case::new("images::a_layout_that_is_no_tree_is_said", a_layout_that_is_no_tree_is_said),
    Case::new("images::a_stop_signal_that_is_none_keeps_no_guest_from_being_stopped", a_stop_signal_that_is_none),
    Case::new("images::a_damaged_oci_layout_is_refused", a_damaged_oci_layout_is_refused),
    Case::new("images::create_from_the_host", create_from_the_host).tags(SLOW),
];

/// Puts a blob into a layout; the answer is its digest and size as a descriptor has them.
fn blob(layout: &Path, file: &Path) -> (String, String) {
    let hash = Line::new("sha256sum").args([file]).ok();
    let hash = hash.split_whitespace().next().expect("a hash and a name").to_owned();
    let size = file.metadata().expect("it was just made").len();
    std::fs::rename(file, layout.join("blobs/sha256").join(&hash)).expect("the same file system");
    (format!("sha256:{hash}"), format!(r#""digest":"sha256:{hash}","size":{size}"#))
}

fn text_blob(layout: &Path, text: &str) -> String {
    let file = layout.join("unfinished");
    std::fs::write(&file, text).expect("a file");
    blob(layout, &file).1
}

/// A layout of one image, of busybox, whose settings leave traces in what it prints. The answer is the source to give.
fn layout(sandbox: &Sandbox) -> String {
    let config = r#""Entrypoint":["sh","-c"],"Cmd":["echo $COLOUR $(id -u):$(id -g) $(pwd)"],
        "Env":["COLOUR=green","PATH=/bin"],"WorkingDir":"/srv","User":"ada""#;
    layout_of(sandbox, config)
}

/// A layout of one image, of busybox, with these fields in its configuration.
pub(super) fn layout_of(sandbox: &Sandbox, config: &str) -> String {
    let layout = sandbox.scratch().join("image");
    std::fs::create_dir_all(layout.join("blobs/sha256")).expect("a directory");
    let layer = layout.join("unfinished");
    Line::new("tar").args(["--numeric-owner", "-C", sandbox.busybox(), "-cf"]).args([&layer]).args(["."]).ok();
    let (diff_id, layer) = blob(&layout, &layer);
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = format!(
        r#"{{"architecture":"{architecture}","os":"linux","rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}},"config":{{{config}}}}}"#
    );
    let config = text_blob(&layout, &config);
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json",{config}}},
            "layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar",{layer}}}]}}"#
    );
    let manifest = text_blob(&layout, &manifest);
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json",{manifest}}}]}}"#
    );
    std::fs::write(layout.join("index.json"), index).expect("a file");
    std::fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a file");
    format!("oci:{}", layout.display())
}

fn a_stop_signal_that_is_none(sandbox: &Sandbox) {
    let source = layout_of(sandbox, r#""Cmd":["sleep","1000"],"Env":["PATH=/bin"],"StopSignal":"NOSUCH""#);
    sandbox.pando(["create", "web", "--from", &source, "--start"]).ok();
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    assert_eq!(sandbox.state("web"), "stopped");
    let create = ["create", "other", "--from", &source, "--stop-signal", "NOSUCH"];
    sandbox.pando(create).run().ended_with(125).complains_of(&["'NOSUCH' is not a signal"]);
    let create = ["create", "other", "--from", &source, "--stop-timeout", "86401"];
    sandbox.pando(create).run().ended_with(125).complains_of(&["longer than a day"]);
}

fn run_from_an_oci_layout(sandbox: &Sandbox) {
    let source = layout(sandbox);
    sandbox.pando(["run", "--from", &source]).run().succeeded().says("green 1000:1000 /srv\n");
    let own = [
        "run",
        "--from",
        &source,
        "-e",
        "COLOUR=red",
        "-u",
        "0",
        "-w",
        "/",
        "--",
        "echo $COLOUR $(id -u) $(pwd) $0",
        "argument",
    ];
    sandbox.pando(own).run().succeeded().says("red 0 / argument\n");
}

fn a_command_is_the_arguments_of_the_entrypoint(sandbox: &Sandbox) {
    let source = layout(sandbox);
    let run = |words: &[&str]| sandbox.pando(["run", "--from", &source]).args(words).run();
    run(&["--", "echo $0 $1", "one", "two"]).succeeded().says("one two\n");
    run(&["--entrypoint", "echo", "--", "one", "$0"]).succeeded().says("one $0\n");
    run(&["--entrypoint", "pwd"]).succeeded().says("/srv\n");
    run(&["--entrypoint", "", "--", "echo", "plain"]).succeeded().says("plain\n");
    run(&["--entrypoint", ""]).ended_with(125).complains_of(&["nothing to run"]);
    sandbox.pando(["create", "web", "--from", &source, "--entrypoint", "echo", "--", "hello"]).ok();
    assert_eq!(sandbox.inspect("web")["spec"]["command"], serde_json::json!(["echo", "hello"]));
    // Of what has no entrypoint as well.
    let words = ["run", "--from", sandbox.busybox(), "--entrypoint", "echo", "--", "plain"];
    sandbox.pando(words).run().succeeded().says("plain\n");
}

fn a_layout_that_is_no_tree_is_said(sandbox: &Sandbox) {
    let source = layout(sandbox);
    let directory = source.strip_prefix("oci:").expect("it is one");
    for verb in [&["run"][..], &["create", "web"]] {
        let refused = sandbox.pando(verb).args(["--from", directory, "--", "true"]).run();
        refused.ended_with(125).complains_of(&["OCI", &source]);
    }
}

fn create_from_an_oci_layout(sandbox: &Sandbox) {
    let source = layout(sandbox);
    sandbox.pando(["create", "web", "--from", &source]).ok();
    let spec = sandbox.inspect("web")["spec"].clone();
    assert_eq!(spec["user"], "ada", "{spec}");
    assert_eq!(spec["workdir"], "/srv", "{spec}");
    assert_eq!(spec["env"]["COLOUR"], "green", "{spec}");
    sandbox.pando(["start", "web"]).ok();
    sandbox.becomes("web", "stopped");
    assert_eq!(sandbox.pando(["logs", "web"]).ok(), "green 1000:1000 /srv\n");
    sandbox.pando(["create", "other", "--from", &source, "--", "sleep 1000"]).ok();
    sandbox.pando(["start", "other"]).ok();
    sandbox.exec_sh("other", "echo $COLOUR $(id -un) $(pwd)").run().succeeded().says("green ada /srv\n");
}

fn a_damaged_oci_layout_is_refused(sandbox: &Sandbox) {
    let source = layout(sandbox);
    let blobs = sandbox.scratch().join("image/blobs/sha256");
    let largest = std::fs::read_dir(&blobs)
        .expect("it was just made")
        .flatten()
        .max_by_key(|entry| entry.metadata().map_or(0, |data| data.len()));
    let layer = largest.expect("there are blobs").path();
    let mut bytes = std::fs::read(&layer).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&layer, bytes).expect("a file");
    let name = layer.file_name().and_then(|name| name.to_str()).expect("a hash").to_owned();
    sandbox.pando(["create", "web", "--from", &source]).run().ended_with(125).complains_of(&["damaged", &name]);
    assert_eq!(sandbox.state("web"), "absent");
}

/// What a copy of a host may take, at the most.
const ROOM: u64 = 40 << 30;

fn create_from_the_host(sandbox: &Sandbox) {
    let room = rustix::fs::statvfs(sandbox.root()).expect("a directory is on a file system");
    if room.f_bavail * room.f_frsize < ROOM {
        skip("it needs 40 GB of room for a copy of the host");
    }
    sandbox.pando(["create", "copy", "--from", "host"]).limit(1800).ok();
    sandbox.pando(["start", "copy"]).ok();
    let same = "cmp /etc/passwd - && ls /usr/bin | wc -l";
    let passwd = std::fs::read("/etc/passwd").expect("every host has it");
    let programs = std::fs::read_dir("/usr/bin").expect("every host has it").count();
    let told = sandbox.exec_sh("copy", same).input(passwd).run().succeeded().out();
    assert_eq!(told.trim(), programs.to_string());
    let hidden = "ls -A /root /home /tmp; cut -d: -f2 /etc/shadow | grep -v '^[*!]'; ls /etc/ssh/*_key";
    assert_eq!(
        sandbox
            .exec_sh("copy", hidden)
            .run()
            .out()
            .lines()
            .filter(|line| !line.ends_with(':') && !line.is_empty())
            .count(),
        0
    );
    sandbox.pando(["rm", "--force", "copy"]).limit(600).ok();
}
