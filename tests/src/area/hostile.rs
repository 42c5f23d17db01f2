//! Guests, and trees of files, that try to get out.

use crate::case::{Case, Tag};
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use pando_kernel::file::tree_removal::remove_tree;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const CASES: &[Case] = &[
    Case::new("hostile::links_in_a_tree_lead_no_mount_outside", links_in_a_tree_lead_no_mount_outside).tags(&[Tag::Vm]),
    Case::new("hostile::links_in_a_tree_lead_no_volume_outside", links_in_a_tree_lead_no_volume_outside),
    Case::new("hostile::links_in_a_tarball_lead_nothing_outside", links_in_a_tarball_lead_nothing_outside),
    Case::new("hostile::account_files_that_are_links", account_files_that_are_links),
    Case::new("hostile::a_starting_process_cannot_be_robbed", a_starting_process_cannot_be_robbed)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("hostile::a_fork_bomb_ends_with_its_guest", a_fork_bomb_ends_with_its_guest),
    Case::new("hostile::output_cannot_drive_the_terminal", output_cannot_drive_the_terminal),
    Case::new("hostile::a_log_cannot_drive_the_terminal", a_log_cannot_drive_the_terminal)
        .needs(&[Need::Root, Need::Program("script", "bsdutils")]),
    Case::new("hostile::what_lies_deep_takes_little_of_the_daemon", what_lies_deep_takes_little_of_the_daemon),
    Case::new("hostile::a_renamed_directory_holds_no_freeze_up", a_renamed_directory_holds_no_freeze_up)
        .tags(&[Tag::Slow]),
    Case::new("hostile::who_writes_to_a_source_changes_no_other_guest", who_writes_to_a_source),
    Case::new("hostile::who_writes_to_what_is_copied_has_nothing_else_read", who_writes_to_what_is_copied),
];

/// A copy of the small tree in which some paths are links.
fn tree_with(sandbox: &Sandbox, links: &[(&str, &str)]) -> String {
    let tree: PathBuf = sandbox.scratch().join("tree");
    let _ = remove_tree(&tree);
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    for (at, to) in links {
        let at = tree.join(at);
        let _ = std::fs::remove_file(&at);
        let _ = remove_tree(&at);
        symlink(to, &at).expect("a link");
    }
    tree.to_string_lossy().into_owned()
}

/// A directory of the host that nothing may be mounted on and nothing written to.
fn bait(sandbox: &Sandbox) -> PathBuf {
    let bait = sandbox.scratch().join("bait");
    std::fs::create_dir_all(&bait).expect("a directory");
    std::fs::write(bait.join("untouched"), "untouched").expect("a file");
    bait
}

#[track_caller]
fn is_untouched(bait: &std::path::Path) {
    let names: Vec<_> =
        std::fs::read_dir(bait).expect("it is there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["untouched"]);
    assert_eq!(std::fs::read_to_string(bait.join("untouched")).expect("it is there"), "untouched");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    assert!(!mounts.contains(&*bait.to_string_lossy()), "something is mounted there");
}

fn links_in_a_tree_lead_no_mount_outside(sandbox: &Sandbox) {
    let bait = bait(sandbox);
    let path = bait.to_string_lossy().into_owned();
    let climbing = format!("../../../../../../../../..{path}");
    for target in [path.as_str(), climbing.as_str(), "/proc/1/root/etc"] {
        for name in ["dev", "proc", "sys", "etc", "etc/resolv.conf"] {
            let tree = tree_with(sandbox, &[(name, target)]);
            for options in [&[] as &[&str], &["--net", "host"], &["--userns", "host"]] {
                let words = [&["run", "--from", tree.as_str()], options, &["--", "sh", "-c", "echo ran; ls /dev/null"]]
                    .concat();
                let ended = sandbox.pando(words).run();
                assert!(matches!(ended.code(), 0 | 1 | 125), "{name} -> {target}: {} {}", ended.code(), ended.err());
                is_untouched(&bait);
            }
        }
    }
}

fn links_in_a_tree_lead_no_volume_outside(sandbox: &Sandbox) {
    let bait = bait(sandbox);
    let path = bait.to_string_lossy().into_owned();
    let climbing = format!("../../../../../../../../..{path}");
    let given = sandbox.scratch().join("given");
    std::fs::create_dir_all(&given).expect("a directory");
    for target in [path.as_str(), climbing.as_str()] {
        let tree = tree_with(sandbox, &[("data", target)]);
        for inside in ["/data", "/data/new"] {
            let option = format!("{}:{inside}", given.display());
            let ended =
                sandbox.pando(["run", "--from", &tree, "-v", &option, "--", "sh", "-c", "echo x >/data/x"]).run();
            assert!(matches!(ended.code(), 0 | 1 | 125), "{}", ended.err());
            is_untouched(&bait);
        }
    }
    // A lasting guest may change its tree between two starts.
    let option = format!("{}:/data", given.display());
    sandbox.guest("web", &["-v", &option]);
    sandbox.pando(["stop", "web"]).ok();
    let upper = sandbox.places().guests().join("web/files/upper");
    let _ = remove_tree(&upper.join("data"));
    symlink(&path, upper.join("data")).expect("a link");
    sandbox.pando(["start", "web"]).run();
    is_untouched(&bait);
}

fn links_in_a_tarball_lead_nothing_outside(sandbox: &Sandbox) {
    let bait = bait(sandbox);
    let path = bait.to_string_lossy().into_owned();
    let parts = sandbox.scratch().join("parts");
    std::fs::create_dir_all(parts.join("one")).expect("a directory");
    std::fs::create_dir_all(parts.join("two/link")).expect("a directory");
    symlink(&path, parts.join("one/link")).expect("a link");
    std::fs::write(parts.join("two/link/planted"), "x").expect("a file");
    let tar = parts.join("root.tar");
    let tar_with = |arguments: &[&str]| Line::new("tar").directory(&parts).args(arguments).ok();
    tar_with(&["-cf", "root.tar", "-C", "one", "link"]);
    tar_with(&["-rf", "root.tar", "-C", "two", "link/planted"]);
    tar_with(&["-rf", "root.tar", "-P", "--transform", "s,.*,../../../../escaped,", "two/link/planted"]);
    let tar = tar.to_string_lossy().into_owned();
    sandbox.pando(["create", "web", "--from", &tar]).run();
    is_untouched(&bait);
    assert!(!sandbox.root().join("escaped").exists() && !std::path::Path::new("/escaped").exists());
}

fn account_files_that_are_links(sandbox: &Sandbox) {
    let secret = sandbox.scratch().join("passwd");
    std::fs::write(&secret, "planted:x:4242:4242::/:/bin/sh\n").expect("a file");
    let path = secret.to_string_lossy().into_owned();
    for target in
        [path.clone(), format!("../../../../../../..{path}"), "/dev/zero".to_owned(), "/proc/self/mem".to_owned()]
    {
        let tree = tree_with(sandbox, &[("etc/passwd", &target)]);
        let ended = sandbox.pando(["run", "--from", &tree, "-u", "planted", "--", "id", "-u"]).run();
        ended.ended_with(125).complains_of(&["planted"]);
    }
    let tree = tree_with(sandbox, &[]);
    Line::new("mkfifo").args([format!("{tree}/etc/fifo")]).ok();
    std::fs::rename(format!("{tree}/etc/fifo"), format!("{tree}/etc/passwd")).expect("a file takes another's place");
    sandbox.pando(["run", "--from", &tree, "-u", "ada", "--", "true"]).run().ended_with(125);
}

/// Tries, in a loop, to take descriptors from and to write into every process that it sees: processes that `exec`
/// brings in are on their way from the host's side to the guest's.
const ROBBER: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
me, got = os.getpid(), []
def command_line(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read()
    except OSError:
        return ""
open("/robbing", "w").close()
while not os.path.exists("/enough"):
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        pid = int(name)
        cmd = command_line(pid)
        if "victim" in cmd:
            continue
        fd = libc.syscall(434, pid, 0)
        if fd < 0:
            continue
        for number in range(12):
            stolen = libc.syscall(438, fd, number, 0)
            if stolen >= 0:
                link = os.readlink(f"/proc/self/fd/{stolen}")
                # Between the first look and now it may have become the guest's own: what others of the guest may have then are its standard
                # descriptors and what it and its loader open.
                guests_own = "victim" in command_line(pid) and link.startswith(("/lib", "/usr/lib", "/etc/ld.so", "/enough"))
                if not guests_own and (number > 2 or not link.startswith("pipe:")):
                    got.append(f"{pid} {cmd!r} {number} {link}")
                os.close(stolen)
        os.close(fd)
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
            again = command_line(pid)
            if "victim" not in again and again:
                got.append(f"memory of {pid} {again!r}")
        except OSError:
            pass
print("\n".join(sorted(set(got))))
"#;

fn a_starting_process_cannot_be_robbed(sandbox: &Sandbox) {
    for options in [&["--profile", "default"] as &[&str], &["--cap-add", "ALL", "--seccomp", "off"]] {
        let words = [&["run", "--name", "thief"], options, &["--", "python3", "-c", ROBBER]].concat();
        let mut robbing = sandbox.pando(words).limit(120).start();
        eventually("the thief runs or has failed", || robbing.has_ended() || sandbox.state("thief") == "running");
        if robbing.has_ended() {
            robbing.wait().succeeded();
            panic!("the thief ended before there was anything to rob");
        }
        if !crate::patience::comes_true(|| {
            sandbox.pando(["exec", "thief", "--", "/bin/sh", "-c", "[ -e /robbing ] # victim"]).run().code() == 0
        }) {
            crate::case::skip("the host's python3 does not run in a guest over the host's root");
        }
        for _ in 0..40 {
            sandbox.pando(["exec", "thief", "--", "/bin/sh", "-c", ": # victim"]).ok();
        }
        sandbox.pando(["exec", "thief", "--", "/bin/sh", "-c", ": >/enough # victim"]).ok();
        let ended = robbing.wait().succeeded();
        assert_eq!(ended.out().trim(), "", "with {options:?} it got hold of something");
    }
}

fn a_fork_bomb_ends_with_its_guest(sandbox: &Sandbox) {
    let bomb = "b() { b | b & }; ulimit -u 200 2>/dev/null; b; sleep 100000";
    sandbox.guest("bomb", &["--ulimit", "nproc=200", "-u", "ada", "--", "sh", "-c", bomb]);
    let killed = sandbox.pando(["kill", "bomb"]).run();
    // A bomb that can fork no more may end by itself.
    if killed.code() != 0 {
        killed.ended_with(125).complains_of(&["bomb", "not running"]);
    }
    sandbox.becomes("bomb", "stopped");
    sandbox.pando(["rm", "bomb"]).ok();
}

/// What a guest names its processes reaches the host's terminal by ps and ls.
/// To a terminal colours are printed, and nothing that drives it; to a file what the guest wrote.
fn a_log_cannot_drive_the_terminal(sandbox: &Sandbox) {
    let printed = "printf 'a\\033]0;title\\007b\\033[31mc\\033[2Jd\\n'; sleep 100000";
    sandbox.guest("web", &["--", "sh", "-c", printed]);
    eventually("it has printed", || sandbox.pando(["logs", "web"]).ok().contains('d'));
    assert!(sandbox.pando(["logs", "web"]).ok().contains("\u{1b}]0;title\u{7}"));
    let root = sandbox.root().to_string_lossy().into_owned();
    for (option, drives) in [("", false), ("--raw", true)] {
        let command =
            format!("{} --root {root} logs {option} web", crate::sandbox::command().expect("there is one").display());
        let shown = Line::new("script").args(["-qec", &command, "/dev/null"]).ok();
        assert!(shown.contains("\u{1b}[31mc"), "{option}: {shown:?}");
        assert_eq!(shown.contains("\u{1b}]0;title"), drives, "{option}: {shown:?}");
        assert_eq!(shown.contains("\u{1b}[2J"), drives, "{option}: {shown:?}");
    }
}

/// What somebody writes to the files of a guest's source while they are read, and whose times he sets back, comes into
/// no other guest.
fn who_writes_to_a_source(sandbox: &Sandbox) {
    const FILES: usize = 12;
    const LENGTH: u64 = 700_000;
    const ROUNDS: usize = 6;
    let [theirs, good] = ["theirs", "good"].map(|name| sandbox.scratch().join(name));
    for tree in [&theirs, &good] {
        Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
        for number in 0..FILES {
            let mut content = vec![number as u8; LENGTH as usize];
            content.extend_from_slice(b"good");
            std::fs::write(tree.join(format!("tool{number}")), content).expect("a file");
        }
    }
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    let open =
        |number| std::fs::File::options().write(true).open(theirs.join(format!("tool{number}"))).expect("a file");
    let files: Vec<std::fs::File> = (0..FILES).map(open).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (word, file) in
                    [b"evil", b"good"].into_iter().flat_map(|word| files.iter().map(move |file| (word, file)))
                {
                    file.write_all_at(word, LENGTH).expect("it is written");
                    file.set_modified(time).expect("its time is set");
                }
            }
        });
        for round in 0..ROUNDS {
            let (name, from) = (format!("bad{round}"), theirs.to_string_lossy().into_owned());
            // It may be refused: somebody writes to it.
            sandbox.pando(["create", &name, "--from", &from, "--", "true"]).run();
        }
        over.store(true, Ordering::Relaxed);
    });
    sandbox.pando(["store", "verify"]).ok();
    let from = good.to_string_lossy().into_owned();
    sandbox.pando(["create", "victim", "--from", &from, "--start", "--", "sleep", "100000"]).ok();
    let told = sandbox.exec_sh("victim", "for i in /tool*; do tail -c 4 $i; done").ok();
    assert_eq!(told, "good".repeat(FILES));
}

/// `cp` of a directory of somebody's, in which a directory becomes a link to where he cannot read.
fn who_writes_to_what_is_copied(sandbox: &Sandbox) {
    const TRIES: usize = 40;
    let (site, secret) = (sandbox.scratch().join("site"), sandbox.scratch().join("secret"));
    for place in [&site.join("d"), &secret] {
        std::fs::create_dir_all(place).expect("a directory");
    }
    std::fs::write(secret.join("file"), "the host's").expect("a file");
    std::fs::write(site.join("d/file"), "theirs").expect("a file");
    sandbox.guest("web", &["--", "sleep", "100000"]);
    let (directory, aside, link) = (site.join("d"), site.join("aside"), site.join("link"));
    symlink(&secret, &link).expect("a link");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let renamed =
                |from: &std::path::Path, to: &std::path::Path| std::fs::rename(from, to).expect("it is renamed");
            while !over.load(Ordering::Relaxed) {
                renamed(&directory, &aside);
                renamed(&link, &directory);
                renamed(&directory, &link);
                renamed(&aside, &directory);
            }
        });
        for number in 0..TRIES {
            let from = format!("{}/.", site.display());
            // It may fail: now and then what it was told of has gone.
            sandbox.pando(["cp", &from, &format!("web:/srv/{number}")]).run();
        }
        over.store(true, Ordering::Relaxed);
    });
    let found = sandbox.exec_sh("web", "cat /srv/*/d/file /srv/*/aside/file /srv/*/link/file 2>/dev/null; :").ok();
    assert!(!found.contains("the host's"), "the host's file was read for somebody who cannot");
}

fn output_cannot_drive_the_terminal(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sh", "-c", "sleep 100000; :", "a\u{1b}[2Jb"]);
    for words in [&["ps", "web"] as &[&str], &["ps", "--all"], &["ls"], &["inspect", "web"]] {
        let out = sandbox.pando(words).ok();
        assert!(!out.contains('\u{1b}'), "{words:?}: {out:?}");
    }
}

/// Files at the end of a chain of directories, which change all the time.
const DEEP: &str = "mkdir /w; cd /w; n=0; while [ $n -lt 1400 ]; do mkdir d; cd d; n=$((n+1)); done; \
    n=0; while [ $n -lt 160 ]; do : >$n; n=$((n+1)); done; : >/ready; while :; do chmod 600 *; chmod 644 *; done";

/// The most memory that the daemon ever had, in kilobytes.
fn peak(sandbox: &Sandbox) -> u64 {
    let pid = sandbox.daemon().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The paths of all directories above each file that has changed are 300 MB.
fn what_lies_deep_takes_little_of_the_daemon(sandbox: &Sandbox) {
    const ALLOWED: u64 = 100 << 10;
    sandbox.guest("deep", &["--profile", "strict", "--", "sh", "-c", DEEP]);
    eventually("its files are there", || sandbox.exec_sh("deep", "[ -e /ready ]").run().code() == 0);
    let before = peak(sandbox);
    sandbox.pando(["freeze", "deep", "one", "--wait"]).ok();
    let taken = peak(sandbox) - before;
    assert!(taken < ALLOWED, "{taken} kB");
}

/// Two directories with as many files, one of which has another name every other moment.
const RENAMED: &str = "mkdir /a /b; for d in a b; do n=0; while [ $n -lt 20000 ]; do : >/$d/$n; n=$((n+1)); done; done; : >/ready; \
    while :; do usleep 700000; mv /a /c; usleep 700000; mv /c /a; done";

/// To search what is gone for each file that is there still takes minutes.
fn a_renamed_directory_holds_no_freeze_up(sandbox: &Sandbox) {
    sandbox.guest("renames", &["--profile", "strict", "--", "sh", "-c", RENAMED]);
    eventually("its files are there", || sandbox.exec_sh("renames", "[ -e /ready ]").run().code() == 0);
    for number in 0..6 {
        sandbox.pando(["freeze", "renames", &format!("image-{number}"), "--wait"]).ok();
        sandbox.pando(["image", "rm", &format!("image-{number}")]).ok();
    }
}
