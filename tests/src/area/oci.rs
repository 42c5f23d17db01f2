//! The OCI runtime: containers of bundles, without a daemon.

use crate::bundle::{Bundle, runtime};
use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::terminal::Terminal;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("oci::a_process_is_as_its_configuration_says", as_configured),
    Case::new("oci::a_container_is_created_started_killed_and_deleted", life),
    Case::new("oci::the_end_of_a_process_is_the_commands", ends),
    Case::new("oci::a_program_that_is_not_there_is_told_when_it_is_created", no_such_program),
    Case::new("oci::a_further_process_is_where_the_first_is", further_process),
    Case::new("oci::a_further_process_of_a_container_that_ends_is_not_begun", further_process_at_the_end),
    Case::new("oci::a_further_process_has_the_containers_root", further_process_among_the_hosts),
    Case::new("oci::files_are_mounted_masked_and_protected", files),
    Case::new("oci::a_profile_answers_system_calls", filtered),
    Case::new("oci::a_profile_says_nothing_of_what_the_runtime_does", narrow_profile),
    Case::new("oci::namespaces_are_joined_by_their_kind", kinds_of_namespaces),
    Case::new("oci::what_is_mounted_among_the_hosts_mounts_goes_with_the_container", among_the_hosts),
    Case::new("oci::calls_wait_for_the_answers_of_an_agent", agent),
    Case::new("oci::a_mounts_files_are_shown_by_its_map_of_ids", mapped_mounts),
    Case::new("oci::a_process_runs_where_and_when_it_is_to", scheduled),
    Case::new("oci::groups_that_others_are_in_are_refused", groups_in_use),
    Case::new("oci::a_variable_is_there_once", variables),
    Case::new("oci::what_the_kernel_shows_is_mounted_on_no_link", linked_proc),
    Case::new("oci::read_only_file_systems_have_what_is_mounted_in_them", read_only_dev),
    Case::new("oci::a_limit_of_one_process_leaves_room_for_it", one_process),
    Case::new("oci::a_hook_has_its_own_arguments_and_the_programs_variables", hooks_arguments),
    Case::new("oci::hooks_are_called_in_their_order_with_the_state", hooks),
    Case::new("oci::a_hook_that_fails_leaves_nothing", failing_hook),
    Case::new("oci::a_user_namespace_has_its_ids", user_namespace),
    Case::new("oci::limits_hold_and_are_changed", limits),
    Case::new("oci::a_paused_container_stands_still", paused),
    Case::new("oci::a_terminal_is_the_containers_console", terminal),
    Case::new("oci::what_is_not_supported_is_refused_by_name", refused),
    Case::new("oci::a_working_directory_leads_nowhere_else", working_directory),
    Case::new("oci::the_runtimes_own_file_is_out_of_reach", own_file),
    Case::new("oci::what_is_masked_is_masked_by_the_null_device_alone", false_null_device),
    Case::new("oci::descriptors_of_the_caller_stay_outside", no_descriptors),
    Case::new("oci::a_process_without_capabilities_has_none", no_capabilities),
    Case::new("oci::a_device_node_is_no_way_to_a_file_of_the_hosts", replaced_node),
    Case::new("oci::what_is_kept_is_roots_alone", kept_closed),
    Case::new("oci::a_state_that_others_may_write_is_refused", foreign_state),
    Case::new("oci::a_pid_file_is_no_way_to_another_file", planted_links),
    Case::new("oci::a_group_of_another_is_left_alone", groups_of_others),
    Case::new("oci::the_kernels_files_go_to_plain_directories", linked_kernel_files),
    Case::new("oci::a_killed_create_is_cleared_away", killed_creates),
    Case::new("oci::podman_runs_containers_by_it", podman).needs(ENGINE),
];

const ENGINE: &[Need] = &[Need::Root, Need::Program("podman", "podman"), Need::Program("conmon", "conmon")];

fn as_configured(sandbox: &Sandbox) {
    let bundle = Bundle::new(
        sandbox,
        "id -u; id -g; id -G; pwd; umask; hostname; echo $A $HOME; ulimit -n; grep -E '^(Cap|NoNew)' /proc/self/status; \
         echo pid $$; cat /proc/self/oom_score_adj; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; ls /sys/class/net",
    );
    bundle.change(|config| {
        config["process"]["user"] = json!({"uid": 1000, "gid": 1000, "additionalGids": [50], "umask": 63});
        config["process"]["cwd"] = json!("/home/made");
        config["process"]["env"] = json!(["PATH=/bin", "A=b"]);
        config["process"]["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 100, "hard": 200}]);
        config["process"]["oomScoreAdj"] = json!(123);
        let kill = json!(["CAP_KILL"]);
        config["process"]["capabilities"] = json!({"bounding": ["CAP_KILL", "CAP_CHOWN"], "permitted": kill,
            "effective": kill, "inheritable": kill, "ambient": kill});
        config["hostname"] = json!("box.example");
        config["linux"]["sysctl"] = json!({"net.ipv4.ip_unprivileged_port_start": "77"});
    });
    let kill = "0000000000000020";
    let expected = [
        "1000".into(),
        "1000".into(),
        "1000 50".into(),
        "/home/made".into(),
        "0077".into(),
        "box.example".into(),
        "b /home/ada".into(),
        "100".into(),
        format!("CapInh:\t{kill}"),
        format!("CapPrm:\t{kill}"),
        format!("CapEff:\t{kill}"),
        "CapBnd:\t0000000000000021".into(),
        format!("CapAmb:\t{kill}"),
        "NoNewPrivs:\t1".into(),
        "pid 1".into(),
        "123".into(),
        "77".into(),
        "lo".to_owned(),
    ];
    bundle.run().run().succeeded().says(&format!("{}\n", expected.join("\n")));
    bundle.is_clear();
}

fn life(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "echo started; exec sleep 1000");
    let pid_file = sandbox.scratch().join("pid");
    bundle.create();
    assert_eq!((bundle.status(), bundle.said()), ("created".into(), String::new()));
    bundle
        .oci(["create", "--bundle"])
        .args([bundle.path()])
        .args(["box"])
        .run()
        .ended_with(1)
        .complains_of(&["exists"]);
    bundle.oci(["start", "box"]).ok();
    let state = bundle.state();
    assert_eq!((state["status"].as_str(), state["id"].as_str()), (Some("running"), Some("box")));
    eventually("the process has said so", || bundle.said() == "started\n");
    let pid = state["pid"].as_i64().expect("a pid");
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(bundle.oci(["list", "-q"]).ok().contains("box"));
    assert_eq!(bundle.oci(["ps", "-f", "json", "box"]).ok().trim(), format!("[{pid}]"));
    bundle.oci(["start", "box"]).run().ended_with(1).complains_of(&["running"]);
    bundle.oci(["delete", "box"]).run().ended_with(1).complains_of(&["not stopped"]);
    bundle.oci(["kill", "box", "KILL"]).ok();
    eventually("it has stopped", || bundle.status() == "stopped");
    bundle.oci(["kill", "box", "KILL"]).run().ended_with(1).complains_of(&["container not running"]);
    bundle.oci(["exec", "box", "true"]).run().ended_with(255).complains_of(&["stopped"]);
    bundle.oci(["delete", "box"]).ok();
    bundle.is_clear();
    bundle.oci(["delete", "box"]).run().ended_with(1).complains_of(&["does not exist"]);
    bundle.oci(["delete", "--force", "box"]).ok();
    let detached = "exec \"$0\" \"$@\" </dev/null >/dev/null 2>&1";
    let line = Line::new("sh").args(["-c", detached]).args([runtime().as_os_str(), "--root".as_ref()]);
    let line = line.args([bundle.states().as_os_str(), "run".as_ref(), "-d".as_ref(), "--pid-file".as_ref()]);
    line.args([pid_file.as_os_str(), "-b".as_ref(), bundle.path().as_os_str(), "box".as_ref()]).ok();
    let pid = std::fs::read_to_string(pid_file).expect("the pid is there");
    assert_eq!(bundle.state()["pid"].to_string(), pid);
    bundle.oci(["delete", "-f", "box"]).ok();
    bundle.is_clear();
}

fn ends(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exit 7");
    bundle.run().run().ended_with(7);
    bundle.change(|config| config["process"]["args"] = json!(["sh", "-c", "kill -9 $$; sleep 1000 & wait"]));
    bundle.change(|config| {
        config["linux"]["namespaces"] = json!([{"type": "mount"}]);
        config["hostname"] = json!("");
    });
    bundle.run().run().ended_with(137);
    bundle.is_clear();
}

fn no_such_program(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    for (program, complaint) in [
        ("no-such-program", "executable file not found in $PATH"),
        ("/no/such", "no such file or directory"),
        ("/bin/not-a-program", "permission denied"),
    ] {
        bundle.change(|config| config["process"]["args"] = json!([program]));
        let ended = bundle.oci(["create", "--bundle"]).args([bundle.path()]).args(["box"]).run();
        ended.ended_with(1).complains_of(&[complaint, program]);
        bundle.is_clear();
    }
}

fn further_process(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    let exec = |words: &[&str]| bundle.oci(["exec"]).args(words);
    for kind in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let path = format!("/proc/self/ns/{kind}");
        let outside = std::fs::read_link(format!("/proc/{}/ns/{kind}", bundle.state()["pid"])).expect("it runs");
        exec(&["box", "readlink", &path]).run().succeeded().says(&format!("{}\n", outside.display()));
    }
    let script = "id -u; pwd; echo $B; cat; exit 9";
    let ended = exec(&["--cwd", "/tmp", "-u", "5:6", "-e", "B=c", "box", "sh", "-c", script]).input("in").run();
    ended.ended_with(9).says("5\n/tmp\nc\nin");
    exec(&["box", "no-such-program"]).run().ended_with(255).complains_of(&["executable file not found"]);
    let process = sandbox.scratch().join("process.json");
    std::fs::write(
        &process,
        r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["sh","-c","echo $0 $$","x"],"env":["PATH=/bin"]}"#,
    )
    .expect("a file");
    let words = ["exec".as_ref(), "--process".as_ref(), process.as_os_str(), "box".as_ref()];
    assert!(bundle.oci(words).ok().starts_with("x "));
    let groups = exec(&["box", "cat", "/proc/self/cgroup"]).ok();
    assert!(groups.lines().all(|line| line.ends_with(":/")), "the container's groups are the roots: {groups}");
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

/// The namespaces of a process that has ended are gone: without them the command would run on the host.
fn further_process_at_the_end(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    let (path, host) =
        (sandbox.scratch().join("process.json"), std::fs::read_link("/proc/self/ns/mnt").expect("a link"));
    let process =
        r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["sh","-c","readlink /proc/self/ns/mnt"],"env":["PATH=/bin"]}"#;
    for namespaces in [&["mount", "pid", "uts"][..], &["mount"]] {
        bundle.change(|config| {
            let kinds: Vec<_> = namespaces.iter().map(|kind| json!({"type": kind})).collect();
            (config["linux"]["namespaces"], config["hostname"]) = (json!(kinds), json!(""));
        });
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("a pipe");
        // Whoever runs a container reaps its process as soon as that has ended.
        let container = bundle.oci(["run", "--keep", "--bundle"]).args([bundle.path()]).args(["box"]).start();
        eventually("it runs", || bundle.oci(["state", "box"]).run().out().contains("\"running\""));
        let words = ["exec".as_ref(), "--process".as_ref(), path.as_os_str(), "box".as_ref()];
        let further = bundle.oci(words).start();
        let mut writing = None;
        eventually("it reads what it is to begin", || {
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
            writing = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).ok();
            writing.is_some()
        });
        bundle.oci(["kill", "box", "KILL"]).ok();
        container.wait().ended_with(137);
        rustix::io::write(writing.take().expect("it is open"), process.as_bytes()).expect("somebody reads it");
        let ended = further.wait();
        assert!(!ended.out().contains(&*host.to_string_lossy()), "it ran on the host");
        ended.ended_with(255).complains_of(&["stopped container"]);
        bundle.oci(["delete", "box"]).ok();
        std::fs::remove_file(&path).expect("it is there");
        bundle.is_clear();
    }
}

/// In a namespace of mounts that is not the container's alone, only the container's processes have its root; and none
/// has it before the container is made.
fn further_process_among_the_hosts(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    let marks = ["host", "inside"].map(|name| (name, sandbox.scratch().join(name)));
    std::fs::write(&marks[0].1, "").expect("a file");
    let look = format!("[ -e {} ] && echo host || echo inside", marks[0].1.display());
    let hook = format!(
        "'{}' --root '{}' exec box sh -c '{look}' >'{}' 2>&1; true",
        runtime().display(),
        bundle.states().display(),
        marks[1].1.display()
    );
    bundle.change(|config| {
        let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", hook], "env": ["PATH=/usr/bin:/bin"]});
        config["hooks"] = json!({"createRuntime": [hook]});
    });
    bundle.create();
    let said = std::fs::read_to_string(&marks[1].1).expect("the hook has run");
    assert!(said.contains("is being created"), "{said}");
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.change(|config| {
        config["linux"]["namespaces"] = json!([{"type": "uts"}]);
        config["linux"]["maskedPaths"] = json!([]);
        config["linux"]["readonlyPaths"] = json!([]);
        (config["hostname"], config["hooks"]) = (json!(""), json!({}));
    });
    // In mounts of the test's own: should it fail, nothing stays.
    let script = r#""$0" --root "$1" create -b "$2" box </dev/null >/dev/null && "$0" --root "$1" exec box sh -c "$3";
                    "$0" --root "$1" delete --force box"#;
    let line = Line::new("unshare").args(["--mount", "sh", "-c", script]).args([runtime().as_os_str()]);
    let line = line.args([bundle.states().as_os_str(), bundle.path().as_os_str()]).args([&look]);
    line.run().succeeded().says("inside\n");
    bundle.is_clear();
}

fn files(sandbox: &Sandbox) {
    let bundle = Bundle::new(
        sandbox,
        "cat /data/x; echo y > /data/y || echo ro; cat /file; cat /full/kept; grep ' /full ' /proc/mounts | cut -d' ' -f3; \
         touch /x || echo ro; wc -c < /proc/keys; ls /sys/firmware; echo x > /proc/sys/kernel/hostname || echo ro; \
         ls /dev | tr '\\n' ' '; echo z > /dev/null; readlink /dev/fd",
    );
    let outside = sandbox.scratch().join("data");
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::write(outside.join("x"), "x\n").expect("a file");
    std::fs::create_dir(bundle.inside("full")).expect("a directory");
    std::fs::write(bundle.inside("full/kept"), "kept\n").expect("a file");
    bundle.change(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.push(json!({"destination": "/data", "type": "bind", "source": outside, "options": ["rbind", "ro"]}));
        mounts.push(json!({"destination": "/file", "source": outside.join("x"), "options": ["bind"]}));
        mounts.push(
            json!({"destination": "/full", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup", "nosuid"]}),
        );
        config["root"]["readonly"] = json!(true);
    });
    let devices = "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ";
    bundle.run().run().succeeded().says(&format!("x\nro\nx\nkept\ntmpfs\nro\n0\nro\n{devices}/proc/self/fd\n"));
    assert!(!outside.join("y").exists());
    bundle.is_clear();
}

fn filtered(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "mkdir /tmp/a; chmod 700 /tmp || echo no; echo done");
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
        {"names": ["chmod", "fchmodat", "fchmodat2"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28},
    ]});
    for sealed in [true, false] {
        bundle.change(|config| {
            config["linux"]["seccomp"] = profile.clone();
            config["process"]["noNewPrivileges"] = json!(sealed);
        });
        let ended = bundle.run().run().succeeded();
        assert!(ended.err().contains("No space left"), "{}", ended.err());
        assert!(ended.out().ends_with("no\ndone\n"), "{}", ended.out());
        let _ = std::fs::remove_dir(bundle.inside("tmp/a"));
    }
    bundle.is_clear();
}

/// What a shell of busybox needs, and none of the calls by which a runtime prepares a process.
fn narrow_profile(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "echo inside; mkdir /tmp/x 2>/dev/null || echo refused");
    let calls = [
        "execve",
        "exit",
        "exit_group",
        "read",
        "write",
        "writev",
        "brk",
        "mmap",
        "mprotect",
        "arch_prctl",
        "prctl",
        "capget",
        "capset",
        "set_tid_address",
        "set_robust_list",
        "rseq",
        "prlimit64",
        "readlink",
        "readlinkat",
        "getrandom",
        "ioctl",
        "rt_sigaction",
        "rt_sigprocmask",
        "rt_sigreturn",
        "getpid",
        "getppid",
        "getuid",
        "geteuid",
        "getgid",
        "getegid",
        "fork",
        "vfork",
        "clone",
        "wait4",
        "stat",
        "newfstatat",
        "fstat",
        "lstat",
        "getcwd",
        "uname",
        "open",
        "openat",
        "fcntl",
        "dup2",
        "close",
        "munmap",
        "time",
        "clock_gettime",
        "umask",
        "poll",
    ];
    for sealed in [false, true] {
        bundle.change(|config| {
            config["process"]["noNewPrivileges"] = json!(sealed);
            config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
            config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"],
                "syscalls": [{"names": calls.as_slice(), "action": "SCMP_ACT_ALLOW"}]});
        });
        bundle.run().run().succeeded().says("inside\nrefused\n");
    }
    bundle.change(|config| {
        config["process"]["args"] = json!(["grep", "-E", "^(Cap(Prm|Eff)|Seccomp):", "/proc/self/status"])
    });
    bundle.change(|config| config["process"]["noNewPrivileges"] = json!(false));
    bundle.run().run().succeeded().says("CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nSeccomp:\t2\n");
    bundle.is_clear();
}

fn kinds_of_namespaces(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "readlink /proc/self/ns/uts");
    let with = |path: &str| {
        bundle.change(|config| {
            config["linux"]["namespaces"] = json!([{"type": "mount"}, {"type": "uts", "path": path}]);
            config["hostname"] = json!("");
        });
        bundle.run().run()
    };
    let own = std::fs::read_link("/proc/self/ns/uts").expect("a link");
    with("/proc/self/ns/uts").succeeded().says(&format!("{}\n", own.display()));
    with("/proc/self/ns/ipc").ended_with(1).complains_of(&["/proc/self/ns/ipc", "another kind"]);
    with("/proc/self/status").ended_with(1).complains_of(&["is no namespace"]);
    bundle.is_clear();
}

fn among_the_hosts(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "grep -c ' /proc ' /proc/mounts");
    bundle.change(|config| {
        config["linux"]["namespaces"] = json!([{"type": "uts"}]);
        config["linux"]["maskedPaths"] = json!([]);
        config["linux"]["readonlyPaths"] = json!([]);
        config["hostname"] = json!("");
    });
    // In mounts of the test's own: should it fail, nothing stays.
    let script = "before=$(wc -l < /proc/mounts); \"$0\" --root \"$1\" run -b \"$2\" box && test $before = $(wc -l < /proc/mounts)";
    let line = Line::new("unshare").args(["--mount", "sh", "-c", script]).args([runtime().as_os_str()]);
    let line = line.args([bundle.states().as_os_str(), bundle.path().as_os_str()]);
    let ended = line.run();
    ended.succeeded();
    bundle.change(|config| config["linux"]["maskedPaths"] = json!(["/proc/kcore"]));
    bundle.run().run().ended_with(1).complains_of(&["private MNT namespace"]);
    bundle.is_clear();
}

fn agent(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "mkdir /tmp/x; echo $?; ls /tmp");
    let socket = sandbox.scratch().join("agent");
    let notified = |path: &std::path::Path| {
        json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": path, "listenerMetadata": "about it",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_NOTIFY"}]})
    };
    bundle.change(|config| config["linux"]["seccomp"] = notified(std::path::Path::new("")));
    bundle.run().run().ended_with(1).complains_of(&["listenerPath"]);
    bundle.change(|config| config["linux"]["seccomp"] = notified(&socket));
    bundle.run().run().ended_with(1).complains_of(&["failed to connect with seccomp agent"]);
    bundle.is_clear();
    for sealed in [false, true] {
        bundle.change(|config| config["process"]["noNewPrivileges"] = json!(sealed));
        let _ = std::fs::remove_file(&socket);
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let answering = std::thread::spawn(move || {
            let (connection, _) = listener.accept().expect("the runtime connects");
            let mut text = [0; 8192];
            let (length, fds) = pando_kernel::socket::packet::receive(&connection, &mut text).expect("a message");
            let told: serde_json::Value = serde_json::from_slice(&text[..length]).expect("JSON");
            drop(fds);
            told
        });
        // As nobody holds the descriptor any more, the calls are none that the kernel has.
        bundle.run().run().succeeded().says("1\n");
        let told = answering.join().expect("it has heard");
        assert_eq!((&told["fds"], &told["metadata"]), (&json!(["seccompFd"]), &json!("about it")));
        assert_eq!((&told["state"]["id"], &told["state"]["pid"]), (&json!("box"), &told["pid"]));
    }
    bundle.is_clear();
}

fn mapped_mounts(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "stat -c %u:%g /data/file; touch /data/made");
    let outside = sandbox.scratch().join("data");
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::write(outside.join("file"), "").expect("a file");
    std::os::unix::fs::chown(outside.join("file"), Some(7), Some(8)).expect("it is ours");
    let map = |host: u32| json!([{"containerID": 0, "hostID": host, "size": 1000}]);
    bundle.change(|config| {
        let mount = json!({"destination": "/data", "source": outside, "options": ["bind"],
            "uidMappings": map(20_000), "gidMappings": map(30_000)});
        config["mounts"].as_array_mut().expect("a list").push(mount);
    });
    let all = json!(["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"]);
    bundle.change(|config| {
        config["process"]["capabilities"] = json!({"bounding": all, "permitted": all, "effective": all});
        config["process"]["args"] = json!(["stat", "-c", "%u:%g", "/data/file"]);
    });
    bundle.run().run().succeeded().says("20007:30008\n");
    bundle.change(|config| {
        config["mounts"].as_array_mut().expect("a list").last_mut().expect("it")["type"] = json!("tmpfs")
    });
    bundle.change(|config| {
        config["mounts"].as_array_mut().expect("a list").last_mut().expect("it")["options"] = json!([])
    });
    bundle.run().run().ended_with(1).complains_of(&["only bind mounts"]);
    bundle.is_clear();
}

fn scheduled(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "grep Cpus_allowed_list /proc/self/status; exec sleep 1000");
    let all = std::fs::read_to_string("/proc/self/status").expect("a process's state");
    let all = all.lines().find(|line| line.starts_with("Cpus_allowed_list")).expect("its processors").to_owned();
    bundle.change(|config| {
        config["process"]["scheduler"] = json!({"policy": "SCHED_BATCH", "nice": 3});
        config["process"]["ioPriority"] = json!({"class": "IOPRIO_CLASS_BE", "priority": 6});
        config["process"]["execCPUAffinity"] = json!({"initial": "0", "final": "0"});
    });
    // The command itself has one processor only.
    let own = rustix::thread::sched_getaffinity(None).expect("this thread's processors");
    let mut first = rustix::thread::CpuSet::new();
    first.set(0);
    rustix::thread::sched_setaffinity(None, &first).expect("a thread may step back");
    bundle.create();
    rustix::thread::sched_setaffinity(None, &own).expect("it has had them");
    bundle.oci(["start", "box"]).ok();
    eventually("it has said its processors", || bundle.said().contains(&all));
    let pid = i32::try_from(bundle.state()["pid"].as_i64().expect("a pid")).expect("a small number");
    assert_eq!(pando_kernel::process::scheduling_policy::of(pid).expect("it runs"), 3);
    assert_eq!(pando_kernel::process::io_priority::of(pid).expect("it runs"), 2 << 13 | 6);
    let said = bundle.oci(["exec", "box", "grep", "Cpus_allowed_list", "/proc/self/status"]).ok();
    assert_eq!(said, "Cpus_allowed_list:\t0\n");
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

fn groups_in_use(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    let second = bundle.oci(["create", "--bundle"]).args([bundle.path()]).args(["other"]).run();
    second.ended_with(1).complains_of(&["cgroup is not empty"]);
    assert_eq!(bundle.status(), "running", "the one that was there is none of the other's");
    bundle.oci(["kill", "box", "0"]).ok();
    bundle.oci(["exec", "--cgroup", "..", "box", "true"]).run().ended_with(255).complains_of(&["bad sub cgroup path"]);
    bundle
        .oci(["exec", "--cgroup", "none:/", "box", "true"])
        .run()
        .ended_with(255)
        .complains_of(&["unknown controller"]);
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

fn variables(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "");
    bundle.change(|config| {
        config["process"]["args"] = json!(["env"]);
        config["process"]["env"] = json!(["A=1", "PATH=/bin", "A=2", "HOME=", "A=3"]);
        config["process"]["capabilities"]["bounding"] = json!(["CAP_KILL", "CAP_OF_TOMORROW"]);
    });
    let ended = bundle.run().run();
    ended.succeeded().says("PATH=/bin\nA=3\nHOME=/root\n").complains_of(&["CAP_OF_TOMORROW"]);
    bundle.is_clear();
}

fn linked_proc(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    for name in ["proc", "sys"] {
        let path = bundle.inside(name);
        let _ = std::fs::remove_dir(&path);
        std::fs::create_dir_all(bundle.inside("elsewhere")).expect("a directory");
        std::os::unix::fs::symlink("/elsewhere", &path).expect("a link");
        bundle.run().run().ended_with(1).complains_of(&[name, "must be mounted on ordinary directory"]);
        std::fs::remove_file(&path).expect("it is ours");
    }
    bundle.run().run().succeeded();
    bundle.is_clear();
}

fn read_only_dev(sandbox: &Sandbox) {
    let bundle =
        Bundle::new(sandbox, "touch /dev/x 2>/dev/null || echo ro; echo z > /dev/null; ls -d /dev/pts /dev/shm");
    bundle.change(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        let dev = mounts.iter_mut().find(|mount| mount["destination"] == "/dev").expect("it has one");
        dev["options"].as_array_mut().expect("a list").push(json!("ro"));
        // What is listed twice is hidden once.
        let masked = config["linux"]["maskedPaths"].as_array_mut().expect("a list");
        masked.push(masked[0].clone());
    });
    bundle.run().run().succeeded().says("ro\n/dev/pts\n/dev/shm\n");
    bundle.is_clear();
}

fn one_process(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "");
    bundle.change(|config| {
        config["linux"]["resources"]["pids"] = json!({"limit": 0});
        config["process"]["args"] = json!(["sh", "-c", "sh -c 'echo two' & wait"]);
    });
    let ended = bundle.run().run();
    assert!(!ended.out().contains("two"), "{}", ended.out());
    assert!(ended.err().contains("fork"), "{}", ended.err());
    bundle.is_clear();
}

fn hooks_arguments(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "cat /tmp/said");
    let script = "echo $0 $A > /tmp/said";
    bundle.change(|config| {
        config["process"]["env"] = json!(["PATH=/bin", "A=b"]);
        config["hooks"] = json!({"startContainer": [{"path": "/bin/busybox", "args": ["sh", "-c", script, "name"]}]});
    });
    bundle.run().run().succeeded().says("name b\n");
    bundle.change(|config| config["hooks"]["startContainer"][0]["args"] = json!(["false"]));
    bundle.run().run().ended_with(1).complains_of(&["error running startContainer hook #0: /bin/busybox"]);
    bundle.is_clear();
}

fn hooks(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "echo process >> /order");
    let order = bundle.inside("order");
    let outside = |kind: &str| {
        let script = format!(
            "read -r state; echo {kind} $(echo \"$state\" | grep -o '\"status\":\"[a-z]*\"') $X >> {}",
            order.display()
        );
        json!([{"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["X=y", "PATH=/usr/bin:/bin"]}])
    };
    let inside = json!([{"path": "/bin/sh", "args": ["sh", "-c", "cat > /state; echo startContainer >> /order"], "env": ["PATH=/bin"]}]);
    bundle.change(|config| {
        config["hooks"] = json!({
            "prestart": outside("prestart"), "createRuntime": outside("createRuntime"),
            "createContainer": outside("createContainer"), "startContainer": inside,
            "poststart": outside("poststart"), "poststop": outside("poststop"),
        });
    });
    bundle.create();
    let said = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    let creating = |kind: &str| format!("{kind} \"status\":\"creating\" y\n");
    let created = ["prestart", "createRuntime", "createContainer"].map(creating).concat();
    assert_eq!(said(&order), created);
    bundle.oci(["start", "box"]).ok();
    eventually("it has stopped", || bundle.status() == "stopped");
    bundle.oci(["delete", "box"]).ok();
    let text = said(&order);
    let rest = text.strip_prefix(&created).expect("it begins so");
    assert!(rest.starts_with("startContainer\n") && rest.contains("process\n"), "{rest}");
    assert!(rest.contains("poststart \"status\":\"running\" y\n"), "{rest}");
    assert!(rest.ends_with("poststop \"status\":\"stopped\" y\n"), "{rest}");
    assert!(said(&bundle.inside("state")).contains("\"status\":\"created\""));
    bundle.is_clear();
}

fn failing_hook(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    let hook = json!([{"path": "/bin/sh", "args": ["sh", "-c", "echo reason >&2; exit 3"]}]);
    for kind in ["prestart", "createRuntime", "createContainer"] {
        bundle.change(|config| config["hooks"] = json!({kind: hook}));
        bundle.run().run().ended_with(1).complains_of(&[kind, "hook #0"]);
        bundle.is_clear();
    }
    // By then the program runs, and is ended.
    bundle.change(|config| {
        config["process"]["args"] = json!(["sleep", "1000"]);
        config["hooks"] = json!({"poststart": hook});
    });
    bundle.run().run().ended_with(1).complains_of(&["poststart hook #0", "reason"]);
    bundle.create();
    bundle.oci(["start", "box"]).run().ended_with(1).complains_of(&["poststart hook #0"]);
    eventually("it has stopped", || bundle.status() == "stopped");
    bundle.oci(["delete", "box"]).ok();
    bundle.is_clear();
}

fn user_namespace(sandbox: &Sandbox) {
    let bundle = Bundle::new(
        sandbox,
        "cat /proc/self/uid_map | tr -s ' '; id -u; echo x > /made; stat -c %u /made; echo z > /dev/null; cat /proc/1/comm; hostname inside; hostname",
    );
    for path in ["", "tmp", "bin"] {
        std::os::unix::fs::chown(bundle.inside(path), Some(100_000), Some(100_000)).expect("it is ours");
    }
    bundle.change(|config| {
        let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
        config["linux"]["uidMappings"] = map.clone();
        config["linux"]["gidMappings"] = map;
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({"type": "user"}));
        let all = json!(["CAP_SYS_ADMIN"]);
        config["process"]["capabilities"] = json!({"bounding": all, "permitted": all, "effective": all});
    });
    bundle.run().run().succeeded().says(" 0 100000 65536\n0\n0\nsh\ninside\n");
    let made = std::fs::metadata(bundle.inside("made")).expect("it was made");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), 100_000);
    bundle.change(|config| config["process"]["args"] = json!(["sleep", "1000"]));
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    bundle
        .oci(["exec", "box", "sh", "-c", "id -u; cut -c1-15 /proc/self/uid_map | tr -d ' '"])
        .run()
        .succeeded()
        .says("0\n0\n");
    bundle.oci(["delete", "-f", "box"]).ok();
    bundle.is_clear();
}

/// What a file of one of the container's groups says.
fn group_file(bundle: &Bundle, names: &[&str]) -> String {
    let candidates = bundle.groups().into_iter().flat_map(|group| names.iter().map(move |name| group.join(name)));
    let found = candidates.filter_map(|file| std::fs::read_to_string(file).ok()).next();
    found.unwrap_or_else(|| panic!("there is none of {names:?}")).trim().to_owned()
}

fn limits(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    bundle.change(|config| {
        config["linux"]["resources"] = json!({
            "memory": {"limit": 64 << 20}, "pids": {"limit": 5}, "cpu": {"quota": 20000, "period": 100_000},
            "devices": [{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 10, "minor": 229, "access": "r"}],
        });
        let all = json!(["CAP_MKNOD"]);
        config["process"]["capabilities"] = json!({"bounding": all, "permitted": all, "effective": all});
    });
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    let memory = ["memory.max", "memory.limit_in_bytes"];
    assert_eq!(group_file(&bundle, &memory), (64 << 20).to_string());
    assert_eq!(group_file(&bundle, &["pids.max"]), "5");
    let many = "for i in 1 2 3 4 5 6 7 8; do sleep 5 & done; echo all";
    let ended = bundle.oci(["exec", "box", "sh", "-c", many]).run();
    assert!(ended.err().contains("can't fork"), "{}", ended.err());
    bundle.oci(["update", "--memory", "100000000", "--pids-limit", "50", "box"]).ok();
    let now: i64 = group_file(&bundle, &memory).parse().expect("a number");
    assert!((99_990_000..=100_000_000).contains(&now), "{now}");
    assert_eq!(group_file(&bundle, &["pids.max"]), "50");
    let devices = "mknod /tmp/k c 10 229; head -c 0 /tmp/k && echo fuse; mknod /tmp/m c 1 1; head -c 1 /tmp/m || echo no; true > /tmp/k || echo unwritable";
    let ended = bundle.oci(["exec", "box", "sh", "-c", devices]).run().succeeded();
    assert_eq!(ended.out(), "fuse\nno\nunwritable\n", "{}", ended.err());
    let statistics: serde_json::Value =
        serde_json::from_str(&bundle.oci(["events", "--stats", "box"]).ok()).expect("JSON");
    assert_eq!(statistics["data"]["pids"]["limit"], json!(50));
    assert!(statistics["data"]["memory"]["usage"]["usage"].as_u64().is_some_and(|bytes| bytes > 0));
    bundle.oci(["delete", "-f", "box"]).ok();
    bundle.is_clear();
}

fn paused(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "while :; do echo x >> /ticks; sleep 0.01; done");
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    let ticks = || std::fs::metadata(bundle.inside("ticks")).map_or(0, |file| file.len());
    eventually("it runs", || ticks() > 0);
    bundle.oci(["pause", "box"]).ok();
    assert_eq!(bundle.status(), "paused");
    let before = ticks();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(ticks(), before);
    bundle.oci(["exec", "box", "true"]).run().ended_with(255).complains_of(&["paused"]);
    bundle.oci(["resume", "box"]).ok();
    assert_eq!(bundle.status(), "running");
    eventually("it goes on", || ticks() > before);
    bundle.oci(["resume", "box"]).run().ended_with(1).complains_of(&["not paused"]);
    bundle.oci(["pause", "box"]).ok();
    bundle.oci(["delete", "-f", "box"]).ok();
    bundle.is_clear();
}

fn terminal(sandbox: &Sandbox) {
    let bundle =
        Bundle::new(sandbox, "tty; stty size; ls -l /dev/console | cut -c1; read line; echo \"got $line\"; exit 3");
    bundle.change(|config| config["process"]["terminal"] = json!(true));
    let words = [
        "--root".as_ref(),
        bundle.states().as_os_str(),
        "run".as_ref(),
        "-b".as_ref(),
        bundle.path().as_os_str(),
        "box".as_ref(),
    ];
    let mut terminal = Terminal::run(&runtime(), words, (30, 77));
    terminal.shows("/dev/pts/0");
    terminal.shows("30 77");
    terminal.types("hello\n");
    terminal.shows("got hello");
    assert_eq!(terminal.ends(), 3);
    bundle.is_clear();
    let created = bundle.oci(["create", "-b"]).args([bundle.path()]).args(["box"]).run();
    created.ended_with(1).complains_of(&["--console-socket"]);
    bundle.is_clear();
}

fn refused(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    let refuses = |change: fn(&mut serde_json::Value), words: &[&str]| {
        let path = bundle.path().join("config.json");
        let before = std::fs::read(&path).expect("it is there");
        bundle.change(change);
        bundle.run().run().ended_with(1).complains_of(words);
        std::fs::write(&path, before).expect("it is ours");
        bundle.is_clear();
    };
    refuses(|config| config["linux"]["intelRdt"] = json!({"closID": "x"}), &["intelRdt"]);
    refuses(|config| config["process"]["apparmorProfile"] = json!("x"), &["apparmorProfile"]);
    refuses(|config| config["linux"]["sysctl"] = json!({"kernel.panic": "1"}), &["kernel.panic"]);
    refuses(|config| config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_NOTIFY"}), &["SCMP_ACT_NOTIFY"]);
    refuses(|config| config["ociVersion"] = json!("2.0"), &["2.0"]);
    refuses(|config| config["process"]["args"] = json!([]), &["args"]);
    refuses(|config| config["linux"]["cgroupsPath"] = json!("/../x"), &["climbs"]);
    bundle.change(|config| config["linux"]["somethingNew"] = json!(1));
    let log = sandbox.scratch().join("log");
    let line = Line::new(runtime()).args(["--log".as_ref(), log.as_os_str(), "--log-format".as_ref(), "json".as_ref()]);
    line.args([
        "--root".as_ref(),
        bundle.states().as_os_str(),
        "run".as_ref(),
        "-b".as_ref(),
        bundle.path().as_os_str(),
        "box".as_ref(),
    ])
    .ok();
    let said = std::fs::read_to_string(log).expect("it has said something");
    assert!(said.contains("linux.somethingNew") && said.contains("\"level\":\"warning\""), "{said}");
    for verb in ["checkpoint", "restore"] {
        bundle.oci([verb, "box"]).run().ended_with(1).complains_of(&[verb, "not supported"]);
        bundle.oci([verb, "--help"]).ok();
    }
    let features: serde_json::Value = serde_json::from_str(&bundle.oci(["features"]).ok()).expect("JSON");
    assert_eq!(features["linux"]["seccomp"]["enabled"], json!(true));
}

/// A descriptor that was left open, as a working directory, would be a way to the host's files.
fn working_directory(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "cat /proc/self/environ; ls ../../..; pwd");
    std::os::unix::fs::symlink("/proc/self/fd/3", bundle.inside("link")).expect("a link");
    for number in (3..12).map(|number| format!("/proc/self/fd/{number}")).chain(["/link".to_owned()]) {
        bundle.change(|config| config["process"]["cwd"] = json!(number));
        let ended = bundle.run().run();
        assert_ne!(ended.code(), 0, "{number}: {}", ended.out());
        bundle.is_clear();
    }
}

/// Whoever makes the runtime execute itself within the container must not get hold of its file.
fn own_file(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    let before = std::fs::metadata(runtime()).expect("it is there").modified().expect("a time");
    std::os::unix::fs::symlink("/proc/self/exe", bundle.inside("bin/exe")).expect("a link");
    bundle.create();
    let pid = bundle.state()["pid"].to_string();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).expect("it waits");
    assert!(program.to_string_lossy().starts_with("/memfd:"), "{}", program.display());
    let written = std::fs::File::options().write(true).open(format!("/proc/{pid}/exe"));
    assert!(written.is_err(), "sealed memory was opened for writing");
    bundle.oci(["start", "box"]).ok();
    bundle.oci(["exec", "box", "/bin/exe"]).run().ended_with(255);
    bundle.oci(["exec", "box", "/proc/self/exe"]).run().ended_with(255);
    bundle.oci(["delete", "-f", "box"]).ok();
    assert_eq!(std::fs::metadata(runtime()).expect("it is there").modified().expect("a time"), before);
    bundle.is_clear();
}

/// A link of the image's in the null device's place would be mounted over what is masked.
fn false_null_device(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "cat /proc/kcore");
    std::fs::create_dir_all(bundle.inside("dev")).expect("a directory");
    bundle.change(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| !mount["destination"].as_str().is_some_and(|at| at.starts_with("/dev")));
    });
    for target in ["/proc/sys/kernel/core_pattern", "/etc/passwd", "/no/such"] {
        let _ = std::fs::remove_file(bundle.inside("dev/null"));
        std::os::unix::fs::symlink(target, bundle.inside("dev/null")).expect("a link");
        bundle.run().run().ended_with(1).complains_of(&["/dev/null"]);
        bundle.is_clear();
    }
}

fn no_descriptors(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "ls /proc/self/fd | tr '\\n' ' '");
    let script = r#"exec 7</ 9</etc; exec "$0" "$@""#;
    let words = [
        "--root".as_ref(),
        bundle.states().as_os_str(),
        "run".as_ref(),
        "-b".as_ref(),
        bundle.path().as_os_str(),
        "box".as_ref(),
    ];
    let said = Line::new("sh").args(["-c", script]).args([runtime()]).args(words).ok();
    assert_eq!(said, "0 1 2 3 ", "3 is what ls(1) reads");
    let kept =
        r#"exec 3<"$FILE" 4</etc/hostname 7</; exec "$0" --root "$STATES" run --preserve-fds 2 -b "$BUNDLE" box"#;
    let file = sandbox.scratch().join("handed");
    std::fs::write(&file, "handed on\n").expect("a file");
    bundle.change(|config| config["process"]["args"] = json!(["sh", "-c", "cat <&3; exec ls /proc/self/fd"]));
    // 5 is what ls(1) reads.
    let line = Line::new("sh").args(["-c", kept]).args([runtime()]).env("FILE", &file).env("STATES", bundle.states());
    line.env("BUNDLE", bundle.path()).run().succeeded().says("handed on\n0\n1\n2\n3\n4\n5\n");
    bundle.is_clear();
}

/// Who has no sets of capabilities is not to get all as root by executing a program.
fn no_capabilities(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "grep -E '^Cap' /proc/self/status; exec sleep 1000");
    let none = ["Inh", "Prm", "Eff", "Bnd", "Amb"].map(|set| format!("Cap{set}:\t0000000000000000\n")).concat();
    let own = none.replace("Prm:\t0000000000000000", "Prm:\t0000000000000020");
    let own = own.replace("Eff:\t0000000000000000", "Eff:\t0000000000000020");
    let own = own.replace("Bnd:\t0000000000000000", "Bnd:\t0000000000000020");
    let process = sandbox.scratch().join("process.json");
    let text =
        r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["grep","-E","^Cap","/proc/self/status"],"env":["PATH=/bin"]}"#;
    std::fs::write(&process, text).expect("a file");
    for (sets, expected) in [
        (None, &none),
        (Some(json!({"bounding": ["CAP_KILL"], "permitted": ["CAP_KILL"], "effective": ["CAP_KILL"]})), &own),
    ] {
        bundle.change(|config| {
            let process = config["process"].as_object_mut().expect("a process");
            process.remove("capabilities");
            process.insert("noNewPrivileges".into(), json!(false));
            sets.map(|sets| process.insert("capabilities".into(), sets));
        });
        bundle.create();
        bundle.oci(["start", "box"]).ok();
        eventually("it has said so", || bundle.said() == *expected);
        let words = ["exec".as_ref(), "--process".as_ref(), process.as_os_str(), "box".as_ref()];
        bundle.oci(words).run().succeeded().says(expected);
        bundle.oci(["delete", "--force", "box"]).ok();
        bundle.is_clear();
    }
}

/// Another container of the same root exchanges a device node with a link while the node is made.
fn replaced_node(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    bundle.change(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| mount["destination"] == json!("/proc"));
        config["linux"]["maskedPaths"] = json!([]);
        config["linux"]["readonlyPaths"] = json!([]);
    });
    bundle.run().run().succeeded();
    let (secret, node, link) = (sandbox.scratch().join("secret"), bundle.inside("dev/null"), bundle.inside("dev/l"));
    std::fs::write(&secret, "x").expect("a file");
    let closed = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&secret, closed).expect("it is ours");
    std::os::unix::fs::symlink(&secret, &link).expect("a link");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let here = rustix::fs::CWD;
            while !done.load(Ordering::Relaxed) {
                let exchanged = rustix::fs::renameat_with(here, &node, here, &link, rustix::fs::RenameFlags::EXCHANGE);
                exchanged.expect("both are there");
            }
        });
        // Whether it begins depends on which of the two is there.
        (0..60).for_each(|_| drop(bundle.run().run()));
        done.store(true, Ordering::Relaxed);
    });
    let mode = std::fs::metadata(&secret).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "a file of the host's is {mode:o}");
    bundle.is_clear();
}

/// A user that is nobody in particular.
const STRANGER: u32 = 65534;

/// Called without a mask, as init scripts do.
fn kept_closed(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    let script = r#"umask 0; exec "$0" "$@" </dev/null >/dev/null 2>&1"#;
    let line = Line::new("sh").args(["-c", script]).args([runtime().as_os_str(), "--root".as_ref()]);
    let line = line.args([bundle.states().as_os_str(), "create".as_ref(), "-b".as_ref(), bundle.path().as_os_str()]);
    line.args(["box"]).ok();
    let home = bundle.states().join("box");
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let modes = [mode(&home), mode(&home.join("state.json")), mode(&home.join("start"))];
    assert_eq!(modes.map(|mode| format!("{mode:o}")), ["700", "600", "600"]);
    assert_eq!(mode(bundle.states()) & 0o022, 0);
    bundle.oci(["update", "--pids-limit", "50", "box"]).ok();
    assert_eq!(mode(&home.join("state.json")), 0o600);
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

/// What a record says root does: hooks are programs.
fn foreign_state(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    bundle.create();
    let (home, mark) = (bundle.states().join("box"), sandbox.scratch().join("mark"));
    let record = home.join("state.json");
    let text = std::fs::read_to_string(&record).expect("it is there");
    let mut changed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", format!("touch {}", mark.display())]});
    changed["config"]["hooks"] = json!({"poststop": [hook]});
    std::fs::write(&record, changed.to_string()).expect("a file");
    let mode = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let owner =
        |path: &std::path::Path, owner: u32| std::os::unix::fs::chown(path, Some(owner), None).expect("it is ours");
    let refuses = |complaint: &str| {
        for words in [&["delete", "--force", "box"][..], &["state", "box"], &["start", "box"], &["exec", "box", "true"]]
        {
            let ended = bundle.oci(words).run();
            assert_ne!(ended.code(), 0, "{words:?}: {}", ended.out());
            ended.complains_of(&[complaint]);
        }
        assert!(!mark.exists(), "root has run what a user wrote");
    };
    for path in [bundle.states(), &home, &record] {
        owner(path, STRANGER);
        refuses("belongs to user 65534");
        owner(path, 0);
        let before = std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777;
        mode(path, 0o777);
        refuses("can be written to by");
        mode(path, before);
    }
    bundle.oci(["list", "-q"]).run().succeeded().says("box\n");
    std::fs::write(&record, text).expect("a file");
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

/// Pid files and logs are often in a directory of a user's.
fn planted_links(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    let (directory, precious) = (sandbox.scratch().join("users"), sandbox.scratch().join("precious"));
    std::fs::create_dir(&directory).expect("a directory");
    std::os::unix::fs::chown(&directory, Some(STRANGER), None).expect("it is ours");
    std::fs::write(&precious, "precious").expect("a file");
    for name in [".pid", "pid", "log"] {
        std::os::unix::fs::symlink(&precious, directory.join(name)).expect("a link");
    }
    let (pid, log) = (directory.join("pid"), directory.join("log"));
    let words = [
        "run".as_ref(),
        "--pid-file".as_ref(),
        pid.as_os_str(),
        "-b".as_ref(),
        bundle.path().as_os_str(),
        "box".as_ref(),
    ];
    bundle.oci(words).run().succeeded();
    bundle.oci(["--log".as_ref(), log.as_os_str(), "start".as_ref(), "none".as_ref()]).run().ended_with(1);
    assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "precious");
    let written = std::fs::symlink_metadata(&pid).expect("the pid is there");
    assert!(written.is_file(), "{written:?}");
    bundle.is_clear();
}

/// Two containers that name the same groups.
fn groups_of_others(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    for program in ["no-such-program", "true"] {
        bundle.change(|config| config["process"]["args"] = json!([program]));
        let second = bundle.oci(["run", "--bundle"]).args([bundle.path()]).args(["second"]).run();
        second.ended_with(1).complains_of(&["cgroup", "not empty"]);
        assert_eq!(bundle.status(), "running");
    }
    bundle.oci(["kill", "box", "KILL"]).ok();
    eventually("it has stopped", || bundle.status() == "stopped");
    eventually("nothing is in its groups", || {
        let read = |group: &std::path::PathBuf| std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        bundle.groups().iter().all(|group| read(group).is_empty())
    });
    // The groups of one that has stopped are free, and its own no more.
    bundle.change(|config| config["process"]["args"] = json!(["sleep", "1000"]));
    let script = r#"exec "$0" "$@" </dev/null >/dev/null 2>&1"#;
    let line = Line::new("sh").args(["-c", script]).args([runtime().as_os_str(), "--root".as_ref()]);
    let line = line.args([bundle.states().as_os_str(), "create".as_ref(), "-b".as_ref(), bundle.path().as_os_str()]);
    line.args(["second"]).ok();
    bundle.oci(["start", "second"]).ok();
    bundle.oci(["delete", "box"]).ok();
    bundle.oci(["exec", "second", "true"]).ok();
    bundle.oci(["delete", "--force", "second"]).ok();
    bundle.is_clear();
    for path in ["/", "."] {
        bundle.change(|config| config["linux"]["cgroupsPath"] = json!(path));
        bundle.run().run().ended_with(1).complains_of(&["no group of the container's own"]);
    }
    bundle.is_clear();
}

/// CVE-2019-19921, CVE-2023-27561: masks beside the mount, by a link into a volume that a neighbour changes.
fn linked_kernel_files(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "ls -l /vol/*/kcore | cut -c1");
    let volume = sandbox.scratch().join("volume");
    std::fs::create_dir_all(volume.join("p1")).expect("a directory");
    for (kind, at) in [("proc", "proc"), ("sysfs", "sys")] {
        let place = bundle.inside(at);
        let _ = std::fs::remove_dir(&place);
        for link in ["/vol/p1", "/vol"] {
            let _ = std::fs::remove_file(&place);
            std::os::unix::fs::symlink(link, &place).expect("a link");
            bundle.change(|config| {
                let below = if link == "/vol" { "/p1" } else { "" };
                config["mounts"] = json!([
                    {"destination": "/vol", "type": "bind", "source": volume, "options": ["rbind", "rw"]},
                    {"destination": format!("/{at}{below}"), "type": kind, "source": kind},
                ]);
            });
            bundle.run().run().ended_with(1).complains_of(&["mounting", at, "ordinary directory"]);
            bundle.is_clear();
        }
        std::fs::remove_file(&place).expect("it is there");
        std::fs::create_dir(&place).expect("a directory");
    }
}

fn killed_creates(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    for step in 0..25_u64 {
        let mut started = bundle.creation().start();
        std::thread::sleep(Duration::from_micros(step * 700));
        if started.has_ended() {
            assert_eq!(started.wait().code(), 0, "{}", bundle.said());
            bundle.oci(["state", "box"]).ok();
        } else {
            started.signal(rustix::process::Signal::KILL);
            drop(started);
        }
        bundle.oci(["delete", "--force", "box"]).ok();
        bundle.is_clear();
    }
}

/// An engine, with a state and an image of its own.
struct Podman<'a> {
    sandbox: &'a Sandbox,
}

impl<'a> Podman<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        // More than the machine may grant is what podman asks for by itself.
        let settings = "[engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\n\
                        [containers]\ndefault_ulimits=[\"nofile=1024:1024\",\"nproc=1000:1000\"]\nnetns=\"none\"\n";
        std::fs::write(sandbox.scratch().join("containers.conf"), settings).expect("a file");
        let archive = sandbox.scratch().join("root.tar");
        Line::new("tar").args(["-C", sandbox.busybox(), "-cf"]).args([&archive]).args(["."]).ok();
        let podman = Self { sandbox };
        podman.line(&["import"]).args([&archive]).args(["box"]).ok();
        podman
    }

    fn line(&self, words: &[&str]) -> Line {
        let directory = |name: &str| self.sandbox.scratch().join(name).to_string_lossy().into_owned();
        let line = Line::new("podman").env("CONTAINERS_CONF", self.sandbox.scratch().join("containers.conf"));
        let line = line.args(["--root", &directory("engine"), "--runroot", &directory("engine-run")]);
        let line = line.args(["--tmpdir", &directory("engine-tmp"), "--storage-driver", "vfs"]);
        line.args(["--runtime".as_ref(), runtime().as_os_str()]).args(words).limit(60)
    }

    fn run(&self, words: &[&str]) -> Ended {
        self.line(words).run()
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        self.run(&["rm", "--force", "--all", "--time", "0"]);
    }
}

fn podman(sandbox: &Sandbox) {
    let podman = Podman::new(sandbox);
    let ended = podman.run(&[
        "run",
        "--name",
        "one",
        "-m",
        "64m",
        "--user",
        "5:6",
        "box",
        "sh",
        "-c",
        "id -u; echo said; exit 7",
    ]);
    ended.ended_with(7).says("5\nsaid\n");
    podman.run(&["logs", "one"]).succeeded().says("5\nsaid\n");
    podman.run(&["rm", "one"]).succeeded();
    podman.run(&["run", "--rm", "box", "no-such-program"]).ended_with(127).complains_of(&["executable file not found"]);
    let id = podman.line(&["run", "-d", "--name", "two", "box", "sleep", "1000"]).ok();
    let state = || podman.line(&["inspect", "--format", "{{.State.Status}} {{.OCIRuntime}}", "two"]).ok();
    assert!(state().starts_with("running ") && state().contains("pando-oci"), "{}", state());
    podman.run(&["exec", "two", "sh", "-c", "cat /proc/1/comm; exit 3"]).ended_with(3).says("sleep\n");
    podman.run(&["exec", "two", "no-such-program"]).ended_with(127);
    podman.run(&["pause", "two"]).succeeded();
    assert!(state().starts_with("paused"));
    podman.run(&["unpause", "two"]).succeeded();
    let terminal = podman.run(&["exec", "-t", "two", "tty"]).succeeded();
    assert_eq!(terminal.out().trim(), "/dev/pts/0");
    podman.run(&["kill", "two"]).succeeded();
    podman.run(&["stop", "-t", "0", "two"]).succeeded();
    eventually("it has stopped", || state().starts_with("exited"));
    podman.run(&["start", "two"]).succeeded();
    podman.run(&["rm", "-f", "-t", "0", "two"]).succeeded();
    let left = Line::new("find").args(["/sys/fs/cgroup", "-name", &format!("libpod-{}*", id.trim())]).ok();
    assert_eq!(left, "", "groups are left");
}
