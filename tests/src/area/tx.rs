//! Transactions: all of what a command did, or nothing.

use crate::case::Case;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::tree_state;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::a_group_inside_is_signalled", group_inside),
    Case::new("tx::what_a_command_did_is_committed_whole", is_committed_whole),
    Case::new("tx::a_command_that_fails_leaves_no_trace", leaves_no_trace),
    Case::new("tx::nothing_is_seen_outside_before_the_commit", is_not_seen_before),
    Case::new("tx::the_exit_code_is_the_commands", exit_codes),
    Case::new("tx::a_dry_run_shows_and_changes_nothing", dry_run),
    Case::new("tx::a_transaction_over_several_commands", over_several_commands),
    Case::new("tx::two_that_change_the_same_file_do_not_both_commit", conflicts_are_found),
    Case::new("tx::distinct_names_in_one_directory_are_no_conflict", distinct_names),
    Case::new("tx::what_others_did_to_a_directory_meanwhile_stays", directories_of_others),
    Case::new("tx::a_lost_run_is_run_again", is_run_again),
    Case::new("tx::a_command_that_fails_by_what_others_were_doing_is_run_again", misled),
    Case::new("tx::an_open_file_stays_the_same_file", stays_the_same_file),
    Case::new("tx::a_running_program_can_be_replaced", running_program),
    Case::new("tx::processes_left_behind_are_ended", left_behind),
    Case::new("tx::killed_it_leaves_no_trace", killed),
    Case::new("tx::output_can_wait_for_the_commit", held_output),
    Case::new("tx::it_takes_too_long", too_long),
    Case::new("tx::signals_to_others_wait_for_the_commit", signals_wait),
    Case::new("tx::what_cannot_be_undone_aborts", cannot_be_undone),
];

/// Process group 0 is the sender's own; on every machine the kernel's own threads say that they are in a group of that
/// number.
fn group_inside(sandbox: &Sandbox) {
    let script = "setsid --wait sh -c 'trap \"echo heard\" USR1; kill -USR1 0; exit 3'";
    sandbox.pando(["tx", "run", "--dry-run", "--", "sh", "-c", script]).run().ended_with(3).says("heard\n");
}

fn files(sandbox: &Sandbox) -> PathBuf {
    let directory = sandbox.scratch();
    fs::write(directory.join("keep"), "old\n").expect("a file can be written");
    fs::write(directory.join("gone"), "x\n").expect("a file can be written");
    fs::create_dir(directory.join("d")).expect("a directory can be made");
    fs::write(directory.join("d/in"), "in\n").expect("a file can be written");
    directory
}

/// `pando tx run OPTIONS -- sh -c SCRIPT`, in the directory.
fn run_sh(sandbox: &Sandbox, options: &[&str], directory: &Path, script: &str) -> crate::line::Line {
    sandbox.pando(["tx", "run"]).args(options).args(["--", "sh", "-c", script]).directory(directory)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn is_committed_whole(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let script = "echo more >>keep; rm gone; mv d e; echo new >e/new; chmod 600 e/in; ln keep link; ln -s keep soft";
    run_sh(sandbox, &[], &directory, script).run().succeeded().complains_of(&["committed: ", "gate "]);
    assert_eq!(read(directory.join("keep")), "old\nmore\n");
    assert_eq!(read(directory.join("e/new")), "new\n");
    assert!(!directory.join("gone").exists() && !directory.join("d").exists());
    assert_eq!(fs::metadata(directory.join("e/in")).expect("it is there").mode() & 0o777, 0o600);
    let inode = |name: &str| fs::metadata(directory.join(name)).expect("it is there").ino();
    assert_eq!(inode("keep"), inode("link"));
    assert_eq!(fs::read_link(directory.join("soft")).expect("it is a link"), Path::new("keep"));
}

fn leaves_no_trace(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let stamps = |name: &str| {
        let found = fs::metadata(directory.join(name)).expect("it is there");
        (found.ino(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
    };
    let (before, lines) = (["keep", "gone", "d", "d/in", "."].map(stamps), tree_state::lines(&directory));
    let script = "echo more >>keep; rm gone; mv d e; echo new >e/new; chown 7 e/in; exit 3";
    run_sh(sandbox, &[], &directory, script).run().ended_with(3).complains_of(&["aborted: exit code 3"]);
    assert_eq!(["keep", "gone", "d", "d/in", "."].map(stamps), before);
    assert_eq!(tree_state::lines(&directory), lines);
}

fn is_not_seen_before(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let script = "echo new >made; echo more >>keep; cat keep; read line; ls made";
    let line = run_sh(sandbox, &[], &directory, script);
    let wait = directory.join("wait");
    rustix::fs::mknodat(rustix::fs::CWD, &wait, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .expect("a fifo can be made");
    // It waits for a line of its input, which comes once the outside was looked at.
    let started = line.start_with_open_input();
    eventually("the command has changed its files", || !transaction_files(sandbox, "made").is_empty());
    assert!(!directory.join("made").exists());
    assert_eq!(read(directory.join("keep")), "old\n");
    assert!(!sandbox.scratch().join("var").exists());
    let ended = started.close_input().wait().succeeded();
    assert_eq!(ended.out(), "old\nmore\nmade\n");
    assert_eq!(read(directory.join("made")), "new\n");
}

/// Files of that name in upper directories.
fn transaction_files(sandbox: &Sandbox, name: &str) -> Vec<PathBuf> {
    fn look(directory: &Path, name: &str, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name() == name {
                into.push(entry.path());
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                look(&entry.path(), name, into);
            }
        }
    }
    let mut found = Vec::new();
    look(&sandbox.root().join("var/lib/pando/tx"), name, &mut found);
    found
}

fn exit_codes(sandbox: &Sandbox) {
    let directory = files(sandbox);
    run_sh(sandbox, &[], &directory, "exit 42").run().ended_with(42);
    run_sh(sandbox, &[], &directory, "kill -TERM $$").run().ended_with(143).complains_of(&["SIGTERM"]);
    sandbox.pando(["tx", "run", "--", "no-such-program"]).run().ended_with(127).complains_of(&["does not exist"]);
    sandbox.pando(["tx", "run", "--", "/etc/passwd"]).run().ended_with(126);
    sandbox
        .pando(["tx", "run", "--strict", "--gate", "none", "--", "true"])
        .run()
        .ended_with(125)
        .complains_of(&["--strict"]);
    sandbox.pando(["tx", "commit", "nobody"]).run().ended_with(125).complains_of(&["there is no transaction 'nobody'"]);
}

fn dry_run(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let before = tree_state::lines(&directory);
    let out = run_sh(sandbox, &["--dry-run"], &directory, "echo x >>keep; rm gone; mkdir new; echo y >new/f").ok();
    let expected: Vec<String> = ["- gone", "~ keep", "+ new/", "+ new/f"]
        .map(|line| format!("{} {}/{}", &line[..1], directory.display(), &line[2..]))
        .into();
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
    assert_eq!(tree_state::lines(&directory), before);
}

fn over_several_commands(sandbox: &Sandbox) {
    let directory = files(sandbox);
    sandbox.pando(["tx", "begin", "work"]).ok();
    sandbox.pando(["tx", "begin", "work"]).run().ended_with(125).complains_of(&["already"]);
    let enter =
        |script: &str| sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", script]).directory(&directory).run();
    enter("echo one >one").succeeded();
    enter("cat one; echo more >>keep; exit 5").ended_with(5).says("one\n");
    assert!(!directory.join("one").exists());
    let listed: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["tx", "ls", "--json"]).ok()).expect("it prints JSON");
    assert_eq!(listed[0]["name"], "work");
    let shown = sandbox.pando(["tx", "diff", "-p", "work"]).ok();
    assert!(shown.contains(&format!("+ {}/one\n", directory.display())) && shown.contains("\n+more\n"), "{shown}");
    sandbox.pando(["tx", "commit", "work"]).ok();
    assert_eq!((read(directory.join("one")), read(directory.join("keep"))), ("one\n".into(), "old\nmore\n".into()));
    sandbox.pando(["tx", "begin", "other"]).ok();
    sandbox.pando(["tx", "enter", "other", "--", "rm", "-r"]).args([directory.join("d")]).ok();
    sandbox.pando(["tx", "abort", "other"]).ok();
    assert!(directory.join("d/in").exists());
    assert_eq!(sandbox.pando(["tx", "ls"]).ok().lines().count(), 1);
}

fn conflicts_are_found(sandbox: &Sandbox) {
    let directory = files(sandbox);
    for (number, (inside, outside)) in [
        ("echo in >>keep", "echo out >>keep"),
        ("rm keep", "echo out >>keep"),
        ("echo in >fresh", "echo out >fresh"),
        ("rm gone", "rm gone"),
        ("mkdir both", "mkdir both"),
        ("echo in >>d/in", "mv d away"),
        // What was only read counts as well, and so does what was not there, and what a listing showed.
        ("cat keep >copy", "echo out >>keep"),
        ("test -e missing || echo x >copy2", "echo out >missing"),
        ("ls d >copy3", "echo out >d/new"),
        ("stat d/in >copy4", "mv d away4"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("t{number}");
        let _ = fs::create_dir(directory.join("d"));
        let _ = fs::write(directory.join("d/in"), "in\n");
        // What is as young as the transaction counts as changed meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(12));
        sandbox.pando(["tx", "begin", &name]).ok();
        sandbox.pando(["tx", "enter", &name, "--", "sh", "-c", inside]).directory(&directory).ok();
        crate::line::Line::new("sh").args(["-c", outside]).directory(&directory).ok();
        let before = tree_state::lines(&directory);
        let lost = sandbox.pando(["tx", "commit", &name]).run().ended_with(125);
        assert!(lost.err().contains("by others"), "{inside}: {}", lost.err());
        assert_eq!(tree_state::lines(&directory), before, "{inside}");
        sandbox.pando(["tx", "abort", &name]).ok();
    }
}

fn distinct_names(sandbox: &Sandbox) {
    let directory = files(sandbox);
    for name in ["a", "b"] {
        sandbox.pando(["tx", "begin", name]).ok();
        sandbox.pando(["tx", "enter", name, "--", "touch", name]).directory(&directory).ok();
    }
    fs::write(directory.join("c"), "").expect("a file can be written");
    sandbox.pando(["tx", "commit", "a"]).ok();
    sandbox.pando(["tx", "commit", "b"]).ok();
    assert!(["a", "b", "c"].iter().all(|name| directory.join(name).exists()));
}

/// The time of a directory in which others made a name is that of their name or of a later one; its mode is theirs.
fn directories_of_others(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let [above, within] = ["above", "above/within"].map(|name| directory.join(name));
    fs::create_dir_all(&within).expect("a directory can be made");
    fs::write(within.join("file"), "old").expect("a file can be written");
    let modified = |path: &Path| fs::metadata(path).expect("it is there").modified().expect("it has a time");
    let enter = |name: &str, script: &str| {
        sandbox.pando(["tx", "begin", name]).ok();
        sandbox.pando(["tx", "enter", name, "--", "sh", "-c", script]).directory(&within).ok();
    };
    // A file below was written to, and a name made: neither is a change of the directories above.
    enter("one", "echo new >file; echo x >mine");
    fs::write(above.join("others"), "").expect("a file can be written");
    fs::write(within.join("others"), "").expect("a file can be written");
    let times = [modified(&above), modified(&within)];
    sandbox.pando(["tx", "commit", "one"]).ok();
    assert_eq!(modified(&above), times[0]);
    assert!(modified(&within) >= times[1] && within.join("mine").exists());
    // A time that the transaction has set lasts where nobody else changed the directory.
    enter("two", "touch -d @1000000000 . && echo x >>file");
    sandbox.pando(["tx", "commit", "two"]).ok();
    assert_eq!(fs::metadata(&within).expect("it is there").mtime(), 1_000_000_000);
    // Whose mode it is cannot be told: it is a conflict.
    enter("three", "echo x >made");
    fs::set_permissions(&within, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("a mode can be set");
    let lost = sandbox.pando(["tx", "commit", "three"]).run().ended_with(125);
    lost.complains_of(&["above/within was changed by others"]);
    assert_eq!(fs::metadata(&within).expect("it is there").mode() & 0o777, 0o700);
    sandbox.pando(["tx", "abort", "three"]).ok();
}

fn is_run_again(sandbox: &Sandbox) {
    let directory = files(sandbox);
    // The first attempt meets a change from outside; the program that makes it is outside because its fifo is read
    // there.
    let script = "echo in >>keep; echo started; read line || true";
    let line = run_sh(sandbox, &["--retry", "2"], &directory, script);
    let started = line.start_with_open_input();
    eventually("the first attempt has changed the file", || !transaction_files(sandbox, "keep").is_empty());
    fs::write(directory.join("keep"), "other\n").expect("a file can be written");
    let ended =
        started.close_input().wait().succeeded().complains_of(&["keep was changed by others; running it again"]);
    assert_eq!(ended.out(), "started\nstarted\n");
    assert_eq!(read(directory.join("keep")), "other\nin\n");
}

/// What was never so at any one moment is no reason to fail; without a retry, or where nobody has done anything, a
/// failure is one.
fn misled(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let put = |names: &[&str], content: &str| {
        for name in names {
            fs::write(directory.join(name), content).expect("a file can be written");
        }
    };
    let script = "cat keep >new; mv new seen; read line || true; cmp seen other || exit 3; echo done >result";
    for (retries, code) in [("1", 0), ("0", 3)] {
        put(&["keep", "other"], "old\n");
        std::thread::sleep(std::time::Duration::from_millis(12));
        let started = run_sh(sandbox, &["--retry", retries], &directory, script).start_with_open_input();
        eventually("the first attempt has read the file", || !transaction_files(sandbox, "seen").is_empty());
        put(&["keep", "other"], "new\n");
        let ended = started.close_input().wait().ended_with(code);
        assert_eq!(ended.err().contains("was changed by others; running it again"), code == 0, "{}", ended.err());
        assert_eq!(directory.join("result").exists(), code == 0 || retries == "0");
    }
    let ended = run_sh(sandbox, &[], &directory, "cat keep; exit 4").run().ended_with(4);
    assert!(ended.err().contains("aborted: exit code 4; nothing was changed") && !ended.err().contains("again"));
}

fn stays_the_same_file(sandbox: &Sandbox) {
    let directory = files(sandbox);
    fs::hard_link(directory.join("keep"), directory.join("alias")).expect("a link can be made");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let open = fs::File::open(directory.join("keep")).expect("it can be opened");
    // The name by which it was changed is removed again: only the index knows.
    run_sh(sandbox, &[], &directory, "echo more >>alias; rm alias").ok();
    assert_eq!(std::io::read_to_string(open).expect("it can be read"), "old\nmore\n");
    assert!(!directory.join("alias").exists());
}

fn running_program(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let program = directory.join("program");
    fs::copy("/bin/sleep", &program).expect("it can be copied");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let running = crate::line::Line::new(&program).args(["1000"]).start();
    run_sh(sandbox, &[], &directory, "echo changed >program").ok();
    assert_eq!(read(&program), "changed\n");
    drop(running);
}

fn left_behind(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!; echo x >made";
    let ended = run_sh(sandbox, &["--no-daemons"], &directory, script).run().succeeded();
    let ended = ended.complains_of(&["1 process left in it ended"]);
    let pid = ended.out().trim().parse().expect("it is a pid");
    assert!(!process::is_alive(pid) && directory.join("made").exists());
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; exit 1";
    let ended = run_sh(sandbox, &[], &directory, script).run().ended_with(1);
    let pid = ended.out().trim().parse().expect("it is a pid");
    assert!(!process::is_alive(pid));
}

fn killed(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let before = tree_state::lines(&directory);
    let script = "echo new >made; setsid sleep 1000 >/dev/null 2>&1 & read line";
    let started = run_sh(sandbox, &[], &directory, script).start_with_open_input();
    eventually("the command has changed its files", || !transaction_files(sandbox, "made").is_empty());
    started.signal(Signal::KILL);
    started.close_input().wait().ended_with(137);
    let said = sandbox.pando(["tx", "recover"]).ok();
    assert!(said.contains("not committed, and removed"), "{said}");
    assert_eq!(tree_state::lines(&directory), before);
    assert_eq!(sandbox.pando(["tx", "recover"]).ok(), "");
}

fn held_output(sandbox: &Sandbox) {
    let directory = files(sandbox);
    run_sh(sandbox, &["--output", "commit"], &directory, "echo said; exit 1").run().ended_with(1).says("");
    run_sh(sandbox, &["--output", "commit"], &directory, "echo said").run().succeeded().says("said\n");
}

fn too_long(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let ended = run_sh(sandbox, &["--timeout", "0.3"], &directory, "echo x >made; sleep 1000").run().ended_with(125);
    ended.complains_of(&["too long"]);
    assert!(!directory.join("made").exists());
}

fn signals_wait(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let script = "trap 'echo got >signalled; exit 0' USR1; echo $$ >pid; while :; do sleep 0.05; done";
    let outside = crate::line::Line::new("sh").args(["-c", script]).directory(&directory).start();
    eventually("the process outside is ready", || read(directory.join("pid")).ends_with('\n'));
    std::thread::sleep(std::time::Duration::from_millis(12));
    let send = format!("kill -USR1 {} && sleep 0.3; test ! -e signalled", outside.pid());
    run_sh(sandbox, &[], &directory, &format!("{send}; exit 7")).run().ended_with(7);
    assert!(!directory.join("signalled").exists());
    // Its own children it may signal as ever.
    let own = "sleep 1000 & kill -TERM $! && ! wait $!";
    run_sh(sandbox, &[], &directory, &format!("{own} && {send}")).run().succeeded();
    eventually("the signal has come", || directory.join("signalled").exists());
    outside.wait().succeeded();
}

fn cannot_be_undone(sandbox: &Sandbox) {
    let directory = files(sandbox);
    let mount = "echo x >made; mkdir -p m && mount -t tmpfs none m; sleep 5";
    let ended = run_sh(sandbox, &[], &directory, mount).run().ended_with(125);
    ended.complains_of(&["mount by process", "cannot be a part of a transaction"]);
    assert!(!directory.join("made").exists());
    let mount = "unshare -m sh -c 'mount -t tmpfs none /mnt' && echo x >made";
    run_sh(sandbox, &[], &directory, mount).run().succeeded();
    assert!(directory.join("made").exists());
}
