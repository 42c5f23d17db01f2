//! Published ways out of containers, each tried on every profile, with and without a user namespace, by each way that a
//! process gets into a guest.
//!
//! ```text
//!   the guest, hostile:   /app is a link to a descriptor, /dev/ptmx is something else,
//!                         /etc/passwd has an id that means none, …
//!   the operator:         pando exec · shell · run · cp · stop, as every day
//!   a row:                what came of it must not be the host's
//! ```
//!
//! `matrix` tries each of them by every verb that brings a process into a guest, on every wall.

mod matrix;
mod set_user_id;
mod table;
mod ways;

use crate::case::{Case, Tag};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use pando_kernel::file::tree_removal::remove_tree;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    // CVE-2024-21626: a working directory that is a descriptor of the runtime's.
    Case::new("known_escapes::a_working_directory_is_no_descriptor", working_directory),
    // CVE-2019-5736: the runtime's own program, by a link that leads to it.
    Case::new("known_escapes::the_runtimes_program_is_not_reached", own_program),
    // CVE-2025-52565: the console or a terminal is made of what the guest put in place of /dev/ptmx or /dev/pts.
    Case::new("known_escapes::a_terminal_is_a_terminal", terminal),
    // CVE-2025-31133: a masked path is masked by something of the guest's own, in place of /dev/null.
    Case::new("known_escapes::masks_are_not_the_guests", masks),
    // CVE-2024-40635: a user id that wraps, or that the kernel takes for "as it is".
    Case::new("known_escapes::no_number_makes_a_user_root", numbers),
    // CVE-2022-0492: a release agent, by a mount of control groups in a user namespace of the guest's own making.
    Case::new("known_escapes::no_release_agent_is_set", release_agent)
        .needs(&[Need::Root, Need::Program("unshare", "util-linux")]),
    // CVE-2023-0386, CVE-2021-3493: a file of a guest's that makes whoever executes it somebody else.
    Case::new("known_escapes::no_file_of_a_guest_makes_a_user_root", set_user_id::users_of_the_host),
    Case::new("known_escapes::by_every_way_in", matrix::selection),
    Case::new("known_escapes::by_every_way_in_on_every_wall", matrix::whole).tags(&[Tag::Slow]),
    Case::new("known_escapes::what_is_left_open_would_be_found", matrix::planted),
    Case::new("known_escapes::each_gets_through_where_nothing_holds_it", matrix::controls)
        .needs(&[Need::Root, Need::Program("unshare", "util-linux")]),
];

/// The guests that each is tried on.
const KINDS: [(&str, &[&str]); 4] = [
    ("default", &["--profile", "default"]),
    ("strict", &["--profile", "strict"]),
    ("system", &["--profile", "system"]),
    ("hosts-ids", &["--userns", "host"]),
];

/// The numbers that a descriptor of the runtime's may have.
const DESCRIPTORS: std::ops::RangeInclusive<u32> = 3..=24;

/// A file of the host that everybody may read, and how it is reached by whoever stands somewhere in the host's tree.
struct Marker {
    path: PathBuf,
    from_anywhere: String,
}

impl Marker {
    const TEXT: &str = "of the host alone";

    fn lay(sandbox: &Sandbox) -> Self {
        let path = sandbox.scratch().join("marker");
        std::fs::write(&path, Self::TEXT).expect("a file");
        for directory in [sandbox.root(), &sandbox.scratch()] {
            std::fs::set_permissions(directory, PermissionsExt::from_mode(0o711)).expect("it is ours");
        }
        let from_anywhere = format!("{}{}", "../".repeat(16), path.display());
        Self { path, from_anywhere }
    }
}

fn each_kind(sandbox: &Sandbox, mut attack: impl FnMut(&str)) {
    for (name, options) in KINDS {
        sandbox.guest(name, options);
        attack(name);
        sandbox.pando(["rm", "-f", name]).ok();
    }
}

fn working_directory(sandbox: &Sandbox) {
    let marker = Marker::lay(sandbox);
    each_kind(sandbox, |name| {
        for number in DESCRIPTORS {
            sandbox
                .exec_sh(
                    name,
                    &format!("rm -rf /app; ln -s /proc/self/fd/{number} /app; ln -s /app /by-link 2>/dev/null; true"),
                )
                .ok();
            for directory in
                ["/app", "/by-link", "/app/..", &format!("/proc/self/fd/{number}"), &format!("/proc/1/fd/{number}")]
            {
                let line = sandbox.pando(["exec", "-w", directory, name, "--", "cat", &marker.from_anywhere]);
                let ended = line.run();
                assert!(!ended.out().contains(Marker::TEXT), "{name}: exec in {directory} reached the host's files");
            }
        }
        // What is a directory of the guest's own still serves, by a link as well.
        sandbox.exec_sh(name, "rm -f /app; mkdir -p /srv/app; ln -s /srv/app /app").ok();
        assert_eq!(sandbox.pando(["exec", "-w", "/app", name, "--", "pwd"]).ok().trim(), "/srv/app");
    });
    images_directory(sandbox, &marker);
    assert_eq!(std::fs::read_to_string(&marker.path).expect("it is there"), Marker::TEXT);
}

/// The same, where the directory is said by what the guest was made of, for its first process and for all that follow.
fn images_directory(sandbox: &Sandbox, marker: &Marker) {
    for number in DESCRIPTORS {
        let directory = format!("/proc/self/fd/{number}");
        let ended = sandbox.run_sh(&["-w", &directory], &format!("cat {}", marker.from_anywhere)).run();
        assert!(!ended.out().contains(Marker::TEXT), "run in {directory} reached the host's files");
    }
}

fn own_program(sandbox: &Sandbox) {
    let marker = Marker::lay(sandbox);
    each_kind(sandbox, |name| {
        for path in ["/proc/self/exe", "/proc/1/exe", "/proc/self/fd/3", "/proc/thread-self/exe"] {
            sandbox
                .exec_sh(
                    name,
                    &format!("rm -f /tool; ln -s {path} /tool; printf '#!{path}\\n' >/script; chmod +x /script"),
                )
                .ok();
            for program in [path, "/tool"] {
                let ended = sandbox.pando(["exec", name, "--", program, "true"]).run();
                assert_ne!(ended.code(), 0, "{name}: {program} was executed");
            }
            // An interpreter is looked up by the kernel, when nothing of the runtime's is open any more.
            let ended = sandbox.pando(["exec", name, "--", "/script", &marker.from_anywhere]).run();
            assert!(!ended.out().contains(Marker::TEXT), "{name}: /script reached the host's files");
        }
        for number in DESCRIPTORS {
            let program = format!("/proc/self/fd/{number}/{}bin/true", "../".repeat(16));
            let ended = sandbox.pando(["exec", name, "--", &program]).run();
            assert_ne!(ended.code(), 0, "{name}: {program} was executed");
        }
    });
}

fn terminal(sandbox: &Sandbox) {
    each_kind(sandbox, |name| {
        let substitutes = [
            "ln -s /proc/self/fd/4 /dev/ptmx",
            "ln -s /dev/null /dev/ptmx",
            "ln -s /proc/1/fd/0 /dev/ptmx",
            "mkfifo /dev/ptmx",
            "echo >/dev/ptmx",
        ];
        for substitute in substitutes {
            let changed = sandbox.exec_sh(name, &format!("rm -f /dev/ptmx && {substitute}")).run();
            let ended = sandbox.pando(["exec", "-t", name, "--", "tty"]).limit(20).run();
            if changed.code() == 0 {
                assert_ne!(ended.code(), 0, "{name}: a terminal was made of {substitute}");
            } else {
                assert!(ended.out().contains("/dev/pts/"), "{name}: what could not be changed still serves");
            }
        }
    });
}

fn masks(sandbox: &Sandbox) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    // What the tree has in place of the null device is not what hides anything.
    let _ = remove_tree(&tree.join("dev"));
    std::fs::create_dir(tree.join("dev")).expect("a directory");
    std::os::unix::fs::symlink("/proc/sys/kernel/core_pattern", tree.join("dev/null")).expect("a link");
    for (name, options) in KINDS {
        let line = sandbox.pando(["run", "--from", &tree.to_string_lossy()]).args(options);
        let script = "stat -c %F:%t:%T /dev/null; wc -c </proc/kcore; wc -c </proc/timer_list; echo x >/proc/sysrq-trigger; cat /proc/keys";
        let said = line.args(["--", "sh", "-c", script]).run().out();
        let mut lines = said.lines();
        assert_eq!(
            lines.next(),
            Some("character special file:1:3"),
            "{name}: the null device is the guest's own: {said}"
        );
        assert!(lines.all(|line| line == "0"), "{name}: something is not hidden: {said}");
    }
}

/// Numbers that are no user's: the kernel's word for "none", what is 0 if it is cut to 32 bits, what lies beyond the
/// guest's ids.
const NO_USERS: [&str; 7] =
    ["4294967295", "-1", "4294967296", "18446744073709551615", "+0", "0x0", "4294967295:4294967295"];

fn numbers(sandbox: &Sandbox) {
    each_kind(sandbox, |name| {
        let own = "evil:x:4294967295:1::/:/bin/sh\\nworse:x:1:4294967295::/:/bin/sh\\nlong:x:4294967296:1::/:/bin/sh\\nuser:x:1000:1000::/:/bin/sh\\n";
        sandbox
            .exec_sh(name, &format!("printf '{own}' >/etc/passwd; printf 'bad:x:4294967295:user\\n' >/etc/group"))
            .ok();
        for user in NO_USERS.into_iter().chain(["evil", "worse", "long", "user"]) {
            let ended = sandbox.pando(["exec", "-u", user, name, "--", "id", "-u"]).run();
            assert_eq!(ended.code(), 125, "{name}: exec as {user} said {}", ended.out());
            // Numbers are said as they were given, or as the guest's own files have them.
            let said = ended.err();
            let named = user.split(':').next().unwrap_or(user);
            assert!(said.contains(named) || said.contains("4294967295"), "{name}: {said}");
        }
        sandbox.pando(["exec", "-u", "65534:65534", name, "--", "id", "-u"]).ok();
    });
    for user in NO_USERS {
        let ended = sandbox.run_sh(&["-u", user], "id -u").run();
        assert_eq!(ended.code(), 125, "run as {user} said {}", ended.out());
    }
}

fn release_agent(sandbox: &Sandbox) {
    for (name, options) in KINDS {
        let script = "mkdir -p /tmp/c; for kind in rdma pids memory cpu blkio freezer; do \
             unshare -UrmC sh -c \"mount -t cgroup -o $kind none /tmp/c && echo '#!/bin/sh' >/agent && \
             echo /agent >/tmp/c/release_agent && echo set $kind\" 2>/dev/null; \
             mount -t cgroup -o $kind none /tmp/c 2>/dev/null && echo /agent >/tmp/c/release_agent 2>/dev/null && echo set $kind; done";
        let said = sandbox.run_sh(options, script).limit(30).run().out();
        assert!(!said.contains("set "), "{name}: a release agent was set: {said}");
    }
}
