//! What keeps guests from the host by default: private files of the host's root, limits where ids are the host's,
//! cores, and what is told of it.

use super::crash::daemon_with;
use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use pando_kernel::file::tree_removal::remove_tree;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) const CASES: &[Case] = &[
    Case::new("walls_of_run::private_files_are_not_there", private_files_are_not_there),
    Case::new("walls_of_run::what_becomes_private_is_not_read", what_becomes_private_is_not_read),
    Case::new("walls_of_run::a_root_that_reads_everything_is_noticed", a_root_that_reads_everything_is_noticed),
    Case::new("walls_of_run::what_people_put_there_is_shown_if_exposed", what_people_put_there_is_shown_if_exposed),
    Case::new("walls_of_run::over_the_hosts_files_it_is_strict", strict_unless_told_otherwise),
    Case::new("walls_of_run::limits_hold_where_ids_are_the_hosts", limits_hold_where_ids_are_the_hosts),
    Case::new("walls_of_run::no_core_reaches_a_program_of_the_hosts", no_core_reaches_a_program_of_the_hosts),
    Case::new("walls_of_run::a_process_that_is_held_by_less_is_named", a_process_that_is_held_by_less_is_named),
    Case::new("walls_of_run::a_name_that_is_no_text_hides_no_process", a_name_that_is_no_text_hides_no_process),
];

/// A directory of the host's own root, which goes with the test.
struct OnHost(PathBuf);

impl OnHost {
    fn below(parent: &str) -> Self {
        let path =
            Path::new(parent).join(format!("pando-test-{}-{:?}", std::process::id(), std::thread::current().id()));
        let path = PathBuf::from(path.to_string_lossy().replace(['(', ')'], "-"));
        std::fs::create_dir(&path).expect("a directory on the host");
        set(&path, 0o755);
        Self(path)
    }

    fn file(&self, name: &str, mode: u32) {
        let path = self.0.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("a directory");
        }
        std::fs::write(&path, format!("{name} is read\n")).expect("a file");
        set(&path, mode);
    }

    fn path(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

fn set(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode is set");
}

/// What a guest on the host's root reads there.
fn read(sandbox: &Sandbox, options: &[&str], directory: &OnHost) -> String {
    let script = format!(
        "cd {} && find . -type f | sort | xargs cat 2>/dev/null; cat closed/file 2>/dev/null; true",
        directory.path()
    );
    sandbox.pando(["run"]).args(options).args(["--", "sh", "-c", &script]).ok()
}

fn private_files_are_not_there(sandbox: &Sandbox) {
    for place in ["/etc", "/var/lib", "/usr/lib"] {
        let directory = OnHost::below(place);
        for (name, mode) in [("a-shown", 0o644), ("key", 0o400), ("of-the-group", 0o640), ("a.service", 0o600)] {
            directory.file(name, mode);
        }
        directory.file("closed/file", 0o644);
        set(&directory.0.join("closed"), 0o750);
        std::fs::hard_link(directory.0.join("key"), directory.0.join("another-name")).expect("a link");
        for options in [&[][..], &["--userns", "host"], &["--profile", "strict"], &["--cap-add", "ALL"]] {
            assert_eq!(read(sandbox, options, &directory), "a-shown is read\n", "{place} {options:?}");
        }
    }
}

/// Roots are made ahead: what is private by the time that it is read counts.
fn what_becomes_private_is_not_read(sandbox: &Sandbox) {
    let directory = OnHost::below("/var/lib");
    directory.file("a-shown", 0o644);
    directory.file("later", 0o644);
    for _ in 0..6 {
        assert_eq!(read(sandbox, &[], &directory), "a-shown is read\nlater is read\n");
    }
    set(&directory.0.join("later"), 0o640);
    directory.file("new", 0o600);
    for _ in 0..3 {
        assert_eq!(read(sandbox, &[], &directory), "a-shown is read\n");
    }
}

fn a_root_that_reads_everything_is_noticed(sandbox: &Sandbox) {
    let directory = OnHost::below("/var/lib");
    directory.file("later", 0o644);
    let daemon = daemon_with(sandbox, "PANDO_PLANT", "host-seen-by-root");
    for _ in 0..6 {
        read(sandbox, &[], &directory);
    }
    set(&directory.0.join("later"), 0o640);
    assert_eq!(read(sandbox, &[], &directory), "later is read\n", "the test beside this one would have failed");
    sandbox.end_daemon();
    daemon.wait();
}

fn what_people_put_there_is_shown_if_exposed(sandbox: &Sandbox) {
    for place in ["/opt", "/srv", "/"] {
        let directory = OnHost::below(place);
        directory.file(".env", 0o644);
        assert_eq!(read(sandbox, &[], &directory), "", "{place}");
        assert_eq!(read(sandbox, &["--expose", &directory.path()], &directory), ".env is read\n", "{place}");
    }
    let directory = OnHost::below("/etc");
    directory.file("key", 0o600);
    directory.file("other", 0o600);
    let key = format!("{}/key", directory.path());
    assert_eq!(read(sandbox, &["--expose", &key], &directory), "key is read\n", "and nothing beside it");
}

/// What anybody runs by the way is held the most.
fn strict_unless_told_otherwise(sandbox: &Sandbox) {
    let held = |options: &[&str]| {
        let script =
            "grep -E 'NoNewPrivs' /proc/self/status | tr -d '\\t'; unshare -n true 2>/dev/null && echo unshared; true";
        sandbox.pando(["run"]).args(options).args(["--", "sh", "-c", script]).ok()
    };
    for options in [&[] as &[&str], &["--userns", "host"], &["--net", "host"], &["--profile", "strict"]] {
        assert_eq!(held(options), "NoNewPrivs:1\n", "{options:?}");
    }
    for options in [&["--profile", "default"] as &[&str], &["--cap-add", "SYS_ADMIN"], &["--seccomp", "off"]] {
        assert!(held(options).starts_with("NoNewPrivs:0\n"), "{options:?}: {}", held(options));
    }
    assert!(held(&["--cap-add", "SYS_ADMIN"]).contains("unshared"));
    // Another tree than the host's is a machine of its own.
    sandbox.run_sh(&[], "grep NoNewPrivs /proc/self/status | tr -d '\\t'").run().says("NoNewPrivs:0\n");
}

fn limits_hold_where_ids_are_the_hosts(sandbox: &Sandbox) {
    // Every file of a limit that it can be led to, through namespaces of its own.
    let raise = "for kind in 'cgroup2 -o rw' 'cgroup -o memory' 'cgroup -o pids'; do mkdir -p /tmp/c; mount -t $kind none /tmp/c || continue; \
                 for file in memory.max memory.limit_in_bytes pids.max cgroup.procs release_agent notify_on_release; do \
                 test -e /tmp/c/$file && echo max 2>/dev/null >/tmp/c/$file && echo raised $file; done; umount /tmp/c; done";
    let line = |options: &[&str], script: &str| {
        sandbox.pando(["run", "--memory", "64M", "--pids", "50"]).args(options).args(["--", "sh", "-c", script]).run()
    };
    let inside = format!("unshare -U -r -C -m sh -c \"{}\"", raise.replace('$', "\\$"));
    assert_eq!(line(&["--userns", "host"], &format!("({inside}; {raise}) 2>/dev/null; true")).out(), "");
    let alone = line(&["--userns", "host"], "unshare -U true");
    assert_ne!(alone.code(), 0);
    alone.complains_of(&["Operation not permitted"]);
    // The control: where its ids are its own it makes them, and threads and processes are to be had in spite of the
    // rule.
    line(&["--profile", "default"], "unshare -U -r true && echo made").says("made\n");
    line(&["--userns", "host"], "(sleep 0 & wait) && echo forked").says("forked\n");
}

fn no_core_reaches_a_program_of_the_hosts(sandbox: &Sandbox) {
    // A limit of one byte is the only one with which the kernel starts no such program.
    let limit = "grep core /proc/self/limits | tr -s ' '";
    let strict = sandbox.run_sh(&["--profile", "strict"], &format!("ulimit -c 0; ulimit -c unlimited; {limit}")).ok();
    assert_eq!(strict.trim(), "Max core file size 1 1 bytes");
    let asked = sandbox.run_sh(&["--ulimit", "core=0"], limit).ok();
    assert_eq!(asked.trim(), "Max core file size 1 1 bytes");
}

fn a_process_that_is_held_by_less_is_named(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "1000"]);
    let told = || sandbox.pando(["inspect", "--security", "web"]).ok();
    assert!(!told().contains("process "), "{}", told());
    is_named(sandbox, "web", &Sleeper::new());
}

/// A process chooses its own name, and any bytes may be in one.
fn a_name_that_is_no_text_hides_no_process(sandbox: &Sandbox) {
    let named = r"printf '\377\n(x) \376' >/proc/self/comm";
    sandbox.guest("web", &["--", "sh", "-c", &format!("{named}; sleep 1000; true")]);
    let stranger = Sleeper::with(Command::new("sh").args(["-c", &format!("{named}; read none")]).stdin(Stdio::piped()));
    let comm = || std::fs::read(format!("/proc/{}/comm", stranger.0.id())).unwrap_or_default();
    eventually("it has its name", || comm().starts_with(b"\xff"));
    is_named(sandbox, "web", &stranger);
}

/// A process of the host's that is put into a guest's group is named with what it lacks.
fn is_named(sandbox: &Sandbox, guest: &str, stranger: &Sleeper) {
    let path = group_of(sandbox, guest).join("cgroup.procs");
    std::fs::write(&path, stranger.0.id().to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = sandbox.pando(["inspect", "--security", guest]).ok();
    let line = text.lines().find(|line| line.contains(&format!("process {}:", stranger.0.id()))).unwrap_or_default();
    for lack in ["NOT IN FORCE", "filters", "host's user namespace", "host's mnt namespace"] {
        assert!(line.contains(lack), "{lack}: {text}");
    }
}

/// The group that a guest's first process is in: one of those that `inspect` names, or one right below.
fn group_of(sandbox: &Sandbox, name: &str) -> PathBuf {
    let first = sandbox.first_process(name).to_string();
    let groups = sandbox.inspect(name)["cgroups"].clone();
    let named = groups.as_array().into_iter().flatten().filter_map(|path| path.as_str()).map(PathBuf::from);
    let below = |group: &PathBuf| -> Vec<PathBuf> {
        std::fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let holds = |group: &PathBuf| {
        let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        text.lines().any(|line| line == first)
    };
    let mut all = named.flat_map(|group| [vec![group.clone()], below(&group)].concat());
    all.find(holds).expect("its first process is in one of its groups")
}

/// A process of the host's that ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self::with(Command::new("sleep").arg("1000").stdin(Stdio::null()))
    }

    fn with(command: &mut Command) -> Self {
        Self(command.spawn().expect("a process"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
