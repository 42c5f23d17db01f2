//! What somebody types who knows docker, podman or incus: it works, or the answer says what does.

use super::images::layout_of;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use rustix::process::Signal;

pub(crate) const CASES: &[Case] = &[
    Case::new("habits::images_by_name_are_answered", images_by_name_are_answered),
    Case::new("habits::verbs_and_options_of_others_are_answered", verbs_and_options_of_others_are_answered),
    Case::new("habits::variables_come_from_files", variables_come_from_files),
    Case::new("habits::file_systems_in_memory", file_systems_in_memory),
    Case::new("habits::guests_are_picked_by_filters", guests_are_picked_by_filters),
    Case::new("habits::lines_are_worded_by_templates", lines_are_worded_by_templates),
    Case::new("habits::volumes_have_names", volumes_have_names),
    Case::new("habits::mounts_are_written_as_elsewhere", mounts_are_written_as_elsewhere),
    Case::new("habits::own_files_are_read_only", own_files_are_read_only),
    Case::new("habits::hosts_are_known_by_name", hosts_are_known_by_name).needs(NETWORK),
    Case::new("habits::further_groups_are_joined", further_groups_are_joined),
    Case::new("habits::settings_are_of_the_guests_own_namespaces", settings_are_of_the_guests_own_namespaces),
    Case::new("habits::ports_that_are_free_are_chosen", ports_that_are_free_are_chosen).needs(NETWORK),
    Case::new("habits::health_is_checked", health_is_checked),
    Case::new("habits::an_image_says_how_its_health_is_checked", an_image_says_how_its_health_is_checked),
    Case::new("habits::an_unhealthy_guest_is_restarted", an_unhealthy_guest_is_restarted),
    Case::new("habits::programs_of_the_host_hear_of_guests", programs_of_the_host_hear_of_guests),
    Case::new("habits::guests_are_attached_to", guests_are_attached_to),
    Case::new("habits::bwrap_runs_inside", bwrap_runs_inside)
        .needs(&[Need::Root, Need::Program("bwrap", "bubblewrap")]),
    Case::new("habits::podman_runs_inside", podman_runs_inside).needs(&[
        Need::Root,
        Need::Program("podman", "podman"),
        Need::Program("crun", "crun"),
    ]),
];

/// What a private network is made with.
const NETWORK: &[Need] = &[Need::Program("ip", "iproute2"), Need::Program("nft", "nftables")];

/// docs/guests.md, "Sandboxes and engines inside".
fn bwrap_runs_inside(sandbox: &Sandbox) {
    let bwrap = |profile: &str, words: &str| {
        let line = format!("bwrap --ro-bind / / --dev /dev {words} sh -c 'echo inside; ls /proc | grep -c ^[0-9]'");
        sandbox.pando(["run", "--profile", profile, "--", "sh", "-c", &line]).run()
    };
    for profile in ["default", "system"] {
        let said = bwrap(profile, "--bind /proc /proc --unshare-user --unshare-pid --unshare-net").succeeded().out();
        assert!(said.starts_with("inside\n"), "{profile}: {said}");
        let refused = bwrap(profile, "--proc /proc --unshare-user --unshare-pid");
        assert!(refused.code() != 0 && refused.err().contains("proc"), "{profile}: {}", refused.err());
    }
    let said = bwrap("system", "--proc /proc --unshare-pid --unshare-net").succeeded().out();
    let processes: u32 = said.trim_start_matches("inside\n").trim().parse().expect("a number");
    assert!(processes < 8, "its /proc shows its own processes alone: {said}");
    assert_ne!(bwrap("strict", "--bind /proc /proc --unshare-user").code(), 0);
}

/// The same section.
fn podman_runs_inside(sandbox: &Sandbox) {
    let volume = format!("{}:/tree", sandbox.busybox());
    let podman = |options: &str| {
        let podman =
            "podman --root /tmp/podman --runroot /tmp/podman-run --cgroup-manager cgroupfs --storage-driver vfs";
        let script = format!(
            "tar -C /tree -cf /tmp/tree.tar . && {podman} import -q /tmp/tree.tar box:1 >/dev/null 2>&1 &&
             {podman} run --rm {options} box:1 /bin/busybox sh -c 'echo inside; ls /proc | grep -c ^[0-9]'"
        );
        let line = sandbox.pando(["run", "--profile", "system", "-v", &volume, "--", "sh", "-c", &script]);
        line.limit(120).run()
    };
    let said = podman("--cgroups disabled --network none").succeeded().out();
    assert!(said.starts_with("inside\n"), "{said}");
}

#[track_caller]
fn answered(sandbox: &Sandbox, words: &[&str], code: i32, named: &[&str]) {
    sandbox.pando(words).run().ended_with(code).complains_of(named);
}

fn images_by_name_are_answered(sandbox: &Sandbox) {
    let image = "no-such-image-anywhere";
    let named =
        &[image, "pando run --from no-such-image-anywhere", "docker.io/library/no-such-image-anywhere:latest"][..];
    answered(sandbox, &["run", image, "echo", "hi"], 127, named);
    answered(sandbox, &["run", "-d", image], 127, named);
    // A path is a path, and a command that is missing below another source is no image.
    let path = sandbox.pando(["run", "--from", sandbox.busybox(), "--", image]).run().ended_with(127);
    assert!(!path.err().contains("pando run --from"), "{}", path.err());
    assert_eq!(sandbox.pando(["ls", "-q"]).ok(), "");
}

fn verbs_and_options_of_others_are_answered(sandbox: &Sandbox) {
    for (verb, here) in [
        ("login", "skopeo login"),
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
    answered(sandbox, &["run", "--gpus", "all", "--", "true"], 125, &["--gpus", "--device /dev/dri"]);
    answered(sandbox, &["top", "web"], 125, &["pando ps web", "pando top --filter web"]);
    answered(sandbox, &["run", "--volumes-from", "web", "--", "true"], 125, &["-v NAME:GUEST"]);
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

fn volumes_have_names(sandbox: &Sandbox) {
    assert_eq!(sandbox.pando(["volume", "create", "data"]).ok(), "data\n");
    sandbox.guest("db", &["-v", "data:/var/lib/db", "-v", "cache:/cache:ro"]);
    sandbox.exec_sh("db", "echo kept >/var/lib/db/file").ok();
    sandbox.exec_sh("db", ": >/cache/file").run().ended_with(1);
    assert_eq!(sandbox.pando(["volume", "ls", "-q"]).ok(), "cache\ndata\n");
    let directory = sandbox.pando(["volume", "inspect", "-f", "{{.directory}}", "data"]).ok();
    let directory = std::path::Path::new(directory.trim());
    assert_eq!(std::fs::read_to_string(directory.join("file")).expect("a file"), "kept\n");
    // What is in it is written as the ids of guests say: nobody but root gets there.
    let above = std::fs::metadata(directory.parent().expect("a directory")).expect("it is there");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&above) & 0o777, 0o700);
    answered(sandbox, &["volume", "rm", "data"], 125, &["data", "db"]);
    answered(sandbox, &["volume", "rm", "nothing"], 125, &["nothing", "volume ls"]);
    answered(sandbox, &["volume", "create", "../x"], 125, &["../x", "letters"]);
    sandbox.pando(["rm", "--force", "db"]).ok();
    // Another guest finds what the first one left.
    let run = ["run", "-v", "data:/data", "--", "cat", "/data/file"];
    sandbox.pando(run).run().succeeded().says("kept\n");
    // What a guest that goes away has shown is its own until it has gone.
    eventually("it has gone", || sandbox.pando(["volume", "prune"]).run().err().contains("2 volumes"));
    answered(sandbox, &["volume", "prune"], 125, &["2 volumes", "--force"]);
    assert_eq!(sandbox.pando(["volume", "prune", "--force"]).ok(), "cache\ndata\n");
    assert!(!directory.exists() && sandbox.pando(["volume", "ls", "--json"]).ok() == "[]\n");
}

fn mounts_are_written_as_elsewhere(sandbox: &Sandbox) {
    let outside = sandbox.scratch().join("outside");
    std::fs::create_dir_all(&outside).expect("a directory");
    std::fs::write(outside.join("file"), "shown\n").expect("a file");
    let bind = format!("type=bind,src={},dst=/srv/shown,ro", outside.display());
    let options = ["--mount", &bind, "--mount", "src=named,dst=/srv/named", "--mount", "type=tmpfs,dst=/srv/memory"];
    sandbox.guest("web", &options);
    sandbox.exec_sh("web", "cat /srv/shown/file; stat -f -c %T /srv/memory").run().says("shown\ntmpfs\n");
    sandbox.exec_sh("web", ": >/srv/shown/file").run().ended_with(1);
    sandbox.exec_sh("web", ": >/srv/named/file").ok();
    assert_eq!(sandbox.pando(["volume", "ls", "-q"]).ok(), "named\n");
    answered(sandbox, &["run", "--mount", "type=image,src=x,dst=/x", "--", "true"], 125, &["image", "type=bind"]);
    answered(sandbox, &["run", "--mount", "dst=/x", "--", "true"], 125, &["without a name"]);
}

fn own_files_are_read_only(sandbox: &Sandbox) {
    sandbox.guest("web", &["--read-only", "--tmpfs", "/tmp", "-v", "data:/made/ahead"]);
    sandbox.exec_sh("web", ": >/etc/new").run().ended_with(1).complains_of(&["Read-only file system"]);
    sandbox.exec_sh("web", ": >/tmp/new; : >/made/ahead/new; : >/dev/shm/new").ok();
    sandbox.pando(["freeze", "web"]).ok();
    sandbox.pando(["clone", "web", "clone"]).ok();
    sandbox.exec_sh("clone", ": >/etc/new").run().ended_with(1).complains_of(&["Read-only file system"]);
    // Whoever stands outside changes them while it does not run.
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    let file = sandbox.scratch().join("file");
    std::fs::write(&file, "from outside\n").expect("a file");
    sandbox.pando(["cp", &file.to_string_lossy(), "web:/etc/new"]).ok();
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "cat /etc/new").run().says("from outside\n");
    sandbox.pando(["set", "web", "read_only=false"]).ok();
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    sandbox.exec_sh("web", ": >/etc/new").ok();
}

fn hosts_are_known_by_name(sandbox: &Sandbox) {
    for net in ["none", "private"] {
        let name = format!("web-{net}");
        sandbox.guest(&name, &["--net", net, "--add-host", "db:10.9.0.5", "--add-host", "cache:fd00::5"]);
        let shown = sandbox.exec_sh(&name, "cat /etc/hosts").ok();
        for line in ["10.9.0.5 db", "fd00::5 cache"] {
            assert!(shown.lines().any(|known| known.starts_with(line)), "no {line} with --net {net} in {shown}");
        }
    }
    // The other guest of the network does not know them.
    sandbox.guest("other", &["--net", "private"]);
    let shown = sandbox.exec_sh("other", "cat /etc/hosts").ok();
    assert!(!shown.contains(" db") && shown.contains("web-private"), "{shown}");
    let shown = sandbox.exec_sh("web-private", "cat /etc/hosts").ok();
    assert!(shown.contains("10.9.0.5 db") && shown.contains("other"), "{shown}");
    sandbox.pando(["set", "web-none", "add_host=queue:10.9.0.6"]).ok();
    sandbox.pando(["restart", "-t", "0", "web-none"]).ok();
    let shown = sandbox.exec_sh("web-none", "cat /etc/hosts").ok();
    assert!(shown.contains("10.9.0.6 queue") && !shown.contains("10.9.0.5"), "{shown}");
    answered(sandbox, &["run", "--add-host", "db", "--", "true"], 125, &["db", "NAME:IP"]);
}

fn further_groups_are_joined(sandbox: &Sandbox) {
    sandbox.guest("web", &["--group-add", "4321"]);
    assert_eq!(sandbox.exec_sh("web", "id -G; echo studio:x:1234: >>/etc/group").ok(), "0 4321\n");
    sandbox.pando(["set", "web", "group_add=studio,4321"]).run().succeeded().says("group_add: now\n");
    assert_eq!(sandbox.exec_sh("web", "id -G").ok(), "0 1234 4321\n");
    let run = sandbox.run_sh(&["-u", "1000", "--group-add", "4321"], "id -u; id -G").run().succeeded();
    assert!(run.out().starts_with("1000\n") && run.out().ends_with(" 4321\n"), "{}", run.out());
    let nobody = ["run", "--from", sandbox.busybox(), "--group-add", "no-such-group", "--", "true"];
    answered(sandbox, &nobody, 125, &["no-such-group", "/etc/group"]);
}

fn settings_are_of_the_guests_own_namespaces(sandbox: &Sandbox) {
    let of_the_host = || {
        ["net/ipv4/ip_unprivileged_port_start", "kernel/shmmax"]
            .map(|setting| std::fs::read_to_string(format!("/proc/sys/{setting}")).expect("a setting"))
    };
    let (before, port) = (of_the_host(), "net.ipv4.ip_unprivileged_port_start=77");
    // The first takes a capability that guests do not have.
    let options = ["--sysctl", "net.ipv4.ip_forward=1", "--sysctl", port, "--sysctl", "kernel.shmmax=1000000"];
    sandbox.guest("web", &options);
    let shown = "cd /proc/sys; cat net/ipv4/ip_forward net/ipv4/ip_unprivileged_port_start kernel/shmmax";
    sandbox.exec_sh("web", shown).run().says("1\n77\n1000000\n");
    assert_eq!(of_the_host(), before);
    let refused = |options: &[&str], named: &[&str]| {
        let words: Vec<&str> = [&["create", "x", "--from", sandbox.busybox()], options].concat();
        answered(sandbox, &words, 125, named);
    };
    refused(&["--sysctl", "vm.swappiness=1"], &["vm.swappiness", "whole machine"]);
    refused(&["--net", "host", "--sysctl", port], &["ip_unprivileged_port_start", "--net private"]);
    refused(&["--profile", "strict", "--sysctl", port], &["--profile default"]);
}

fn ports_that_are_free_are_chosen(sandbox: &Sandbox) {
    let options = ["-p", "80", "-p", "53/udp", "-p", "127.0.0.1:18080-18081:8080-8081"];
    sandbox.guest("web", &options);
    let ports = sandbox.pando(["port", "web"]).ok();
    let lines: Vec<&str> = ports.lines().collect();
    assert_eq!(lines.len(), 4, "{ports}");
    assert!(lines[0].starts_with("80/tcp -> 0.0.0.0:") && lines[1].starts_with("53/udp -> 0.0.0.0:"), "{ports}");
    assert_eq!(&lines[2..], ["8080/tcp -> 127.0.0.1:18080", "8081/tcp -> 127.0.0.1:18081"]);
    let chosen: u16 = lines[0].rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    assert!(chosen > 1023, "{ports}");
    assert_eq!(sandbox.pando(["port", "web", "80"]).ok(), format!("0.0.0.0:{chosen}\n"));
    answered(sandbox, &["port", "web", "81"], 125, &["81/tcp", "not published"]);
    // It is the guest's from now on.
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    assert_eq!(sandbox.pando(["port", "web"]).ok(), ports);
    answered(sandbox, &["set", "web", "publish=80"], 125, &["80", "HOST:GUEST"]);
}

fn health(sandbox: &Sandbox, name: &str) -> String {
    sandbox.pando(["inspect", "-f", "{{.status.health.status}}", name]).ok().trim().to_owned()
}

fn health_is_checked(sandbox: &Sandbox) {
    let check = ["--health-cmd", "cat /srv/well || exit 3", "--health-interval", "1s", "--health-retries", "2"];
    sandbox.guest("web", &check);
    assert_eq!(health(sandbox, "web"), "starting");
    eventually("it is unhealthy", || health(sandbox, "web") == "unhealthy");
    let told = sandbox.pando(["inspect", "-f", "{{.status.health.exit_code}} {{.status.health.output}}", "web"]).ok();
    assert!(told.starts_with("3 ") && told.contains("/srv/well"), "{told}");
    assert!(sandbox.pando(["ls"]).ok().contains("running (unhealthy)"));
    assert_eq!(sandbox.pando(["ls", "-q", "--filter", "health=unhealthy"]).ok(), "web\n");
    assert_eq!(sandbox.pando(["ls", "-q", "--filter", "health=healthy"]).ok(), "");
    sandbox.exec_sh("web", "echo fine >/srv/well").ok();
    eventually("it is healthy", || health(sandbox, "web") == "healthy");
    // One that hangs fails, and what it began is ended.
    sandbox.pando(["set", "web", "health.command=sleep 77777", "health.timeout=1"]).ok();
    eventually("it is unhealthy", || health(sandbox, "web") == "unhealthy");
    let told = sandbox.pando(["inspect", "-f", "{{.status.health.output}}", "web"]).ok();
    assert!(told.contains("1 seconds"), "{told}");
    // The next daemon asks as well, and a guest at rest is asked nothing.
    sandbox.end_daemon();
    eventually("it is asked again", || health(sandbox, "web") == "unhealthy");
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    eventually("it has no health", || health(sandbox, "web").is_empty());
    // One that has none may be given one while it runs.
    sandbox.guest("late", &[]);
    assert_eq!(health(sandbox, "late"), "");
    sandbox.pando(["set", "late", "health.interval=1", "health.command=true"]).run().succeeded();
    eventually("it is healthy", || health(sandbox, "late") == "healthy");
    sandbox.pando(["set", "late", "health.command=NONE"]).ok();
    eventually("it is not asked any more", || health(sandbox, "late").is_empty());
    answered(sandbox, &["run", "--health-interval", "soon", "--", "true"], 125, &["soon", "1m30s"]);
}

/// docker's HEALTHCHECK, and the ports that the image exposes.
fn an_image_says_how_its_health_is_checked(sandbox: &Sandbox) {
    let source = layout_of(
        sandbox,
        r#""Cmd":["sleep","100000"],"ExposedPorts":{"80/tcp":{},"53/udp":{}},
            "Healthcheck":{"Test":["CMD-SHELL","test -e /well"],"Interval":1000000000,"Retries":2}"#,
    );
    sandbox.pando(["create", "web", "--from", &source, "--start"]).ok();
    eventually("it is unhealthy", || health(sandbox, "web") == "unhealthy");
    sandbox.exec_sh("web", ": >/well").ok();
    eventually("it is healthy", || health(sandbox, "web") == "healthy");
    sandbox.pando(["create", "unasked", "--from", &source, "--no-healthcheck", "-P"]).ok();
    assert_eq!(sandbox.pando(["inspect", "-f", "{{.spec.health.command}}", "unasked"]).ok().trim(), "[\"NONE\"]");
    answered(sandbox, &["create", "x", "--from", &source, "-P", "--net", "host"], 125, &["--net private"]);
    let ports = sandbox.pando(["port", "unasked"]).ok();
    assert!(ports.contains("80/tcp -> ") && ports.contains("53/udp -> "), "{ports}");
}

fn an_unhealthy_guest_is_restarted(sandbox: &Sandbox) {
    let check = ["--health-cmd", "test ! -e /dev/shm/ill", "--health-interval", "1s", "--health-retries", "1"];
    sandbox.guest("web", &[&check[..], &["--health-on-failure", "restart", "--stop-timeout", "0"]].concat());
    let first = sandbox.first_process("web");
    eventually("it is healthy", || health(sandbox, "web") == "healthy");
    sandbox.exec_sh("web", ": >/dev/shm/ill").ok();
    eventually("it has another life", || {
        let pid = sandbox.pando(["inspect", "-f", "{{.status.pid}}", "web"]).ok();
        !pid.trim().is_empty() && pid.trim() != first.to_string()
    });
    eventually("it is healthy", || health(sandbox, "web") == "healthy");
}

fn programs_of_the_host_hear_of_guests(sandbox: &Sandbox) {
    let hooks = sandbox.places().hooks();
    std::fs::create_dir_all(&hooks).expect("a directory");
    let (note, log) = (hooks.join("10-note"), sandbox.scratch().join("heard"));
    let script = format!("#!/bin/sh\necho \"$1 $2 $PANDO_EXIT_CODE\" >>{}\n[ \"$1\" != create ]\n", log.display());
    std::fs::write(&note, script).expect("a file");
    std::fs::write(hooks.join("README"), "no program\n").expect("a file");
    let may =
        |mode| std::fs::set_permissions(&note, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("a mode");
    may(0o755);
    let mut events = sandbox.pando(["events"]).start();
    eventually("somebody listens", || sandbox.daemon().is_some());
    let heard = || std::fs::read_to_string(&log).unwrap_or_default();
    sandbox.guest("job", &["--", "sh", "-c", "until [ -e /go ]; do sleep 0.1; done; exit 3"]);
    sandbox.exec_sh("job", ": >/go").ok();
    let first = "create job \nstart job \nfail job 3\n";
    eventually("it has failed", || heard() == first);
    sandbox.pando(["start", "job"]).ok();
    sandbox.exec_sh("job", "rm -f /go").run();
    sandbox.pando(["stop", "-t", "0", "job"]).ok();
    eventually("it was stopped", || heard().starts_with(first) && heard().lines().count() == 5);
    // One that others may write to is not run.
    may(0o777);
    sandbox.create("other", &[]);
    sandbox.create("another", &[]);
    assert!(!events.has_ended());
    events.signal(Signal::INT);
    let told = events.wait().out();
    assert!(told.contains("hook-failed") && told.contains("'create'") && told.contains("chmod go-w"), "{told}");
    assert!(!heard().contains("other"), "{}", heard());
}

fn guests_are_attached_to(sandbox: &Sandbox) {
    let script = "trap 'echo asked; exit 7' USR1; echo before; until [ -e /go ]; do sleep 0.1; done; echo now; while :; do sleep 0.1; done";
    sandbox.guest("job", &["--", "sh", "-c", script]);
    eventually("it prints", || sandbox.pando(["logs", "job"]).ok() == "before\n");
    let attached = sandbox.pando(["attach", "job"]).start();
    sandbox.exec_sh("job", ": >/go").ok();
    eventually("it prints on", || sandbox.pando(["logs", "job"]).ok() == "before\nnow\n");
    attached.signal(Signal::USR1);
    attached.wait().ended_with(7).says("now\nasked\n");
    sandbox.becomes("job", "stopped");
    answered(sandbox, &["attach", "job"], 125, &["does not run", "pando logs job"]);
}
