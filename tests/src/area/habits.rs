//! What somebody types who knows docker, podman or incus: it works, or the answer says what does.

use crate::case::Case;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("habits::images_by_name_are_answered", images_by_name_are_answered),
    Case::new("habits::verbs_and_options_of_others_are_answered", verbs_and_options_of_others_are_answered),
    Case::new("habits::variables_come_from_files", variables_come_from_files),
    Case::new("habits::file_systems_in_memory", file_systems_in_memory),
    Case::new("habits::guests_are_picked_by_filters", guests_are_picked_by_filters),
    Case::new("habits::lines_are_worded_by_templates", lines_are_worded_by_templates),
];

#[track_caller]
fn answered(sandbox: &Sandbox, words: &[&str], code: i32, named: &[&str]) {
    sandbox.pando(words).run().ended_with(code).complains_of(named);
}

fn images_by_name_are_answered(sandbox: &Sandbox) {
    let image = "no-such-image-anywhere";
    let named = &[image, "skopeo copy docker://docker.io/library/no-such-image-anywhere:latest", "--from oci:"][..];
    answered(sandbox, &["run", image, "echo", "hi"], 127, named);
    answered(sandbox, &["run", "-d", image], 127, named);
    answered(sandbox, &["run", "--from", image, "--", "true"], 125, named);
    answered(sandbox, &["create", "x", "--from", image], 125, named);
    answered(sandbox, &["create", "x", "--from", "ubuntu:24.04"], 125, &["docker.io/library/ubuntu:24.04"]);
    answered(sandbox, &["create", "x", "--from", "docker://quay.io/a/b:1"], 125, &["docker://quay.io/a/b:1 oci:b"]);
    answered(sandbox, &["create", "x", "--from", "debian"], 125, &["--from debian:bookworm"]);
    // A path is a path, and a command that is missing below another source is no image.
    let path = sandbox.pando(["run", "--from", sandbox.busybox(), "--", image]).run().ended_with(127);
    assert!(!path.err().contains("skopeo"), "{}", path.err());
    assert_eq!(sandbox.pando(["ls", "-q"]).ok(), "");
}

fn verbs_and_options_of_others_are_answered(sandbox: &Sandbox) {
    for (verb, here) in [
        ("pull", "skopeo"),
        ("build", "buildah"),
        ("list", "`pando ls`"),
        ("info", "`pando doctor`"),
        ("delete", "`pando rm"),
        ("launch", "`pando create"),
        ("rmi", "`pando image rm"),
    ] {
        answered(sandbox, &[verb, "x"], 125, &[verb, here]);
    }
    answered(sandbox, &["run", "--privileged", "--", "true"], 125, &["--privileged", "--profile system", "--cap-add"]);
    answered(sandbox, &["run", "--gpus", "all", "--", "true"], 125, &["--gpus", "host"]);
    let help = sandbox.pando(["help"]).ok();
    assert!(help.contains("wait") && help.contains("Usage: pando"), "{help}");
    assert!(sandbox.pando(["help", "wait"]).ok().contains("Usage: pando wait"));
}

fn variables_come_from_files(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("variables");
    std::fs::write(&file, "# of a test\nA=from the file\nB=b # c\nCALLERS\nNOBODYS\n").expect("a file");
    let file = file.to_string_lossy().into_owned();
    let shown = "echo $A, $B, $CALLERS, ${NOBODYS-unset}";
    let run = sandbox.run_sh(&["--env-file", &file, "-e", "A=from the line"], shown);
    run.env("CALLERS", "mine").run().succeeded().says("from the line, b # c, mine, unset\n");
    sandbox.guest("web", &["--env-file", &file]);
    sandbox.exec_sh("web", "echo $A").run().says("from the file\n");
    std::fs::write(sandbox.scratch().join("variables"), "A=another\n").expect("a file");
    sandbox.pando(["exec", "--env-file", &file, "web", "sh", "-c", "echo $A $B"]).run().says("another b # c\n");
    std::fs::write(sandbox.scratch().join("variables"), "A=1\nexport B=2\n").expect("a file");
    answered(sandbox, &["exec", "--env-file", &file, "web", "true"], 125, &["line 2", "export B"]);
}

fn file_systems_in_memory(sandbox: &Sandbox) {
    let outside = sandbox.scratch().join("outside");
    std::fs::create_dir_all(&outside).expect("a directory");
    let volume = format!("{}:/srv/memory/volume", outside.display());
    let options = ["-v", &volume, "--tmpfs", "/srv/memory:size=1m,mode=755", "--tmpfs", "/tmp/programs:exec"];
    sandbox.guest("web", &options);
    let shown = "stat -f -c %T /srv/memory; stat -c %a /srv/memory /tmp/programs; grep ' /srv/memory ' /proc/mounts";
    let shown = sandbox.exec_sh("web", shown).ok();
    assert!(shown.starts_with("tmpfs\n755\n1777\n"), "{shown}");
    for word in ["size=1024k", "nosuid", "nodev", "noexec"] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    let script = "cd /tmp/programs; cp /bin/busybox true; ./true && cp true /srv/memory; /srv/memory/true";
    sandbox.exec_sh("web", script).run().ended_with(126);
    sandbox.exec_sh("web", "rm /srv/memory/true; head -c 2000000 /dev/zero >/srv/memory/large").run().ended_with(1);
    sandbox.exec_sh("web", "rm /srv/memory/large; : >/srv/memory/volume/kept; echo gone >/srv/memory/gone").ok();
    assert!(outside.join("kept").exists(), "the volume lies above the file system in memory");
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    sandbox.exec_sh("web", "ls /srv/memory").run().says("volume\n");
    // What is in it is memory, and an image has that.
    sandbox.guest("warm", &["--tmpfs", "/srv/memory:size=1m"]);
    sandbox.exec_sh("warm", "echo in memory >/srv/memory/kept").ok();
    sandbox.pando(["freeze", "warm"]).ok();
    sandbox.pando(["clone", "warm", "clone"]).ok();
    sandbox.exec_sh("clone", "cat /srv/memory/kept; stat -f -c %T /srv/memory").run().says("in memory\ntmpfs\n");
    answered(sandbox, &["run", "--tmpfs", "/run:size=much", "--", "true"], 125, &["size=much", "--tmpfs"]);
    answered(sandbox, &["run", "--tmpfs", "/proc", "--", "true"], 125, &["/proc"]);
    answered(sandbox, &["run", "-v", "/etc:/x", "--tmpfs", "/x", "--", "true"], 125, &["/x"]);
}

fn guests_are_picked_by_filters(sandbox: &Sandbox) {
    sandbox.create("web-1", &["--label", "tier=front", "-l", "mine"]);
    sandbox.guest("web-2", &["--label", "tier=back"]);
    sandbox.guest("job", &["--", "sh", "-c", "exit 3"]);
    sandbox.becomes("job", "stopped");
    let picked = |filters: &[&str]| {
        let filters = filters.iter().flat_map(|filter| ["--filter", filter]);
        sandbox.pando(["ls", "-q"]).args(filters).ok()
    };
    assert_eq!(picked(&["name=web"]), "web-1\nweb-2\n");
    assert_eq!(picked(&["status=running"]), "web-2\n");
    assert_eq!(picked(&["status=exited", "name=job"]), "job\n");
    assert_eq!(picked(&["exited=3"]), "job\n");
    assert_eq!(picked(&["label=tier"]), "web-1\nweb-2\n");
    assert_eq!(picked(&["label=tier=front", "label=mine"]), "web-1\n");
    assert_eq!(picked(&["source=debian"]), "");
    sandbox.pando(["set", "web-1", "labels.tier=back"]).run().succeeded().says("labels.tier: now\n");
    assert_eq!(picked(&["label=tier=back"]), "web-1\nweb-2\n");
    answered(sandbox, &["ls", "--filter", "colour=red"], 125, &["colour=red", "label=NAME"]);
}

fn lines_are_worded_by_templates(sandbox: &Sandbox) {
    sandbox.guest("web", &["--hostname", "front", "--", "sleep", "1000"]);
    let pid = sandbox.first_process("web");
    let line = format!("web\trunning {pid}\n");
    sandbox.pando(["ls", "--format", "{{.Names}}\\t{{.State}} {{.pid}}"]).run().succeeded().says(&line);
    let inspect = |format: &str| sandbox.pando(["inspect", "-f", format, "web"]).run();
    inspect("{{.Status.Pid}} {{.spec.hostname}}").succeeded().says(&format!("{pid} front\n"));
    inspect("{{json .status.command}}").succeeded().says("[\"sleep\",\"1000\"]\n");
    inspect("[{{.status.exit_code}}]").succeeded().says("[]\n");
    inspect("{{.State.Running}}").ended_with(125).complains_of(&[".State", ".status"]);
}
