//! Transactions whose changes are kept in memory until they commit: the disk has nothing to do before, and what is
//! committed is the same.

use crate::case::Case;
use crate::disorder;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::tree_state;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const EXT4: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")];
const XFS: &[Need] = &[Need::Root, Need::Program("mkfs.xfs", "xfsprogs")];

const BTRFS: &[Need] = &[Need::Root, Need::Program("mkfs.btrfs", "btrfs-progs")];

const PYTHON: &[Need] = &[Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_in_memory::changes_of_all_kinds_on_ext4", |sandbox| all_kinds(sandbox, &["mkfs.ext4", "-q"]))
        .needs(EXT4),
    Case::new("tx_in_memory::changes_of_all_kinds_on_xfs", |sandbox| all_kinds(sandbox, &["mkfs.xfs", "-q"]))
        .needs(XFS),
    Case::new("tx_in_memory::changes_of_all_kinds_on_btrfs", |sandbox| all_kinds(sandbox, &["mkfs.btrfs", "-q"]))
        .needs(BTRFS),
    Case::new("tx_in_memory::nothing_is_on_the_disk_before_the_commit", nothing_on_disk),
    Case::new("tx_in_memory::a_file_stays_the_same_file", same_file),
    Case::new("tx_in_memory::what_outgrows_it_is_run_again_on_the_disk", outgrown),
    Case::new("tx_in_memory::a_command_finds_the_room_of_the_disk", room_of_the_disk),
    Case::new("tx_in_memory::a_dry_run_shows_what_would_change", dry_run),
    Case::new("tx_in_memory::killed_it_leaves_no_trace", killed),
    Case::new("tx_in_memory::what_others_change_is_a_conflict", conflict),
    Case::new("tx_in_memory::another_commit_stops_it", stopped),
    Case::new("tx_in_memory::daemons_that_would_lose_something_are_ended", daemons).needs(PYTHON),
    Case::new("tx_in_memory::a_disk_that_is_full_at_the_commit", full_disk).needs(EXT4),
    Case::new("tx_in_memory::bad_sizes_are_refused", bad_sizes),
    Case::new("tx_in_memory::all_files_are_of_one_device", one_device),
];

/// `pando tx run --in-memory OPTIONS -- sh -ec SCRIPT`, in a directory.
fn run(sandbox: &Sandbox, options: &[&str], directory: &Path, script: &str) -> Line {
    let line = sandbox.pando(["tx", "run", "--in-memory=64M"]).args(options);
    line.args(["--", "sh", "-ec", script]).directory(directory)
}

/// Waits until the one transaction that there is has changed so many paths.
fn has_changed(sandbox: &Sandbox, paths: usize) {
    let told = format!("  {paths}  ");
    eventually("the script has changed its files", || sandbox.pando(["tx", "ls"]).ok().contains(&told));
}

/// Random changes, aborted and committed, on a disk with a file system.
fn all_kinds(sandbox: &Sandbox, format: &[&str]) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 400, format, "");
    let tree = disk.at.join("tree");
    for seed in 1..=8 {
        disorder::clear(&tree);
        fs::create_dir(&tree).expect("a directory can be made");
        disorder::make_protectively(&tree, &mut crate::dice::Dice::new(seed), 80);
        let before = tree_state::exact(&tree);
        std::thread::sleep(std::time::Duration::from_millis(12));
        let words = |seed: u64| format!("$TESTS {} {seed} 60 {}", disorder::PROTECTIVE, tree.display());
        let tests = std::env::current_exe().expect("this program has a path");
        let aborted = run(sandbox, &["--retry", "0"], &scratch, &format!("{} >/dev/null; exit 3", words(seed + 90)));
        aborted.env("TESTS", &tests).run().ended_with(3);
        assert_eq!(tree_state::exact(&tree), before);
        let committed = run(sandbox, &["-q", "--retry", "0"], &scratch, &words(seed + 70)).env("TESTS", &tests).ok();
        let (now, then) = (tree_state::lines(&tree), committed.lines().map(str::to_owned).collect::<Vec<_>>());
        let missing = |from: &[String], other: &[String]| -> Vec<String> {
            from.iter().filter(|line| !other.contains(line)).cloned().collect()
        };
        assert_eq!((missing(&now, &then), missing(&then, &now)), (Vec::new(), Vec::new()), "seed {seed}");
    }
    disorder::clear(&tree);
}

/// Whatever there is of it on the disk.
fn on_disk(sandbox: &Sandbox, name: &str) -> String {
    Line::new("find").args([sandbox.root()]).args(["-name", name]).run().out().to_owned()
}

fn nothing_on_disk(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let started = run(sandbox, &[], &directory, "echo x >made; echo ready; read line || true").start_with_open_input();
    has_changed(sandbox, 1);
    assert_eq!(on_disk(sandbox, "made"), "");
    // It can be looked into like any other.
    has_changed(sandbox, 1);
    assert!(!directory.join("made").exists());
    started.close_input().wait().succeeded().says("ready\n");
    assert_eq!(fs::read_to_string(directory.join("made")).expect("it was committed"), "x\n");
}

fn same_file(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::write(directory.join("keep"), "old\n").expect("a file can be written");
    fs::hard_link(directory.join("keep"), directory.join("alias")).expect("a link can be made");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let open = fs::File::open(directory.join("keep")).expect("it can be opened");
    run(sandbox, &[], &directory, "echo more >>alias; rm alias; echo x >new; ln new newer").ok();
    assert_eq!(std::io::read_to_string(open).expect("it can be read"), "old\nmore\n");
    let inode = |name: &str| fs::metadata(directory.join(name)).expect("it is there").ino();
    assert_eq!(inode("new"), inode("newer"));
}

fn outgrown(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let script = "echo begun; dd if=/dev/zero of=large bs=1M count=100 status=none; sleep .3; echo ended";
    let ended = run(sandbox, &["--retry", "0"], &directory, script).run().ended_with(125);
    ended.complains_of(&["outgrew the memory", "nothing was changed", "larger size"]);
    assert!(!directory.join("large").exists());
    let ended = run(sandbox, &["--retry", "1"], &directory, script).run().succeeded();
    let ended = ended.complains_of(&["outgrew the memory", "on the disk (1 of 1)", "1 retry"]);
    assert_eq!(ended.out(), "begun\nbegun\nended\n");
    assert_eq!(fs::metadata(directory.join("large")).expect("it was committed").len(), 100 << 20);
    // A command that is done before anybody has looked, and fails, is no other.
    let script = "dd if=/dev/zero of=larger bs=1M count=100 status=none; false";
    run(sandbox, &["--retry", "0"], &directory, script).run().ended_with(125).complains_of(&["outgrew the memory"]);
}

/// The end of memory is never seen by the command.
fn room_of_the_disk(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let free =
        |line: Line| line.ok().lines().last().and_then(|line| line.trim().parse::<u64>().ok()).expect("a number");
    let outside = free(Line::new("df").args(["-k", "--output=avail"]).args([sandbox.root()]));
    let inside = free(run(sandbox, &["-q"], &directory, "df -k --output=avail ."));
    assert!(inside > outside / 2 && inside < outside * 2, "{inside} {outside}");
}

fn dry_run(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::write(directory.join("gone"), "").expect("a file can be written");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let said = run(sandbox, &["--dry-run"], &directory, "echo x >made; mkdir d; touch d/f; rm gone").ok();
    let at = directory.display();
    assert_eq!(said, format!("+ {at}/d/\n+ {at}/d/f\n- {at}/gone\n+ {at}/made\n"));
    assert!(directory.join("gone").exists() && !directory.join("made").exists());
}

fn killed(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let before = tree_state::lines(&directory);
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("it can be read").lines().count();
    let mounted = mounts();
    let script = "echo new >made; setsid sleep 1000 >/dev/null 2>&1 & read line";
    let started = run(sandbox, &[], &directory, script).start_with_open_input();
    has_changed(sandbox, 1);
    started.signal(Signal::KILL);
    started.close_input().wait().ended_with(137);
    let said = sandbox.pando(["tx", "recover"]).ok();
    assert!(said.contains("not committed, and removed"), "{said}");
    assert_eq!((tree_state::lines(&directory), mounts()), (before, mounted));
}

fn conflict(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::write(directory.join("keep"), "old\n").expect("a file can be written");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let script = "cat keep; echo in >>keep; read line || true";
    let started = run(sandbox, &["--retry", "2"], &directory, script).start_with_open_input();
    has_changed(sandbox, 1);
    fs::write(directory.join("keep"), "other\n").expect("a file can be written");
    let ended = started.close_input().wait().succeeded();
    ended.complains_of(&["keep was changed by others; running it again"]);
    assert_eq!(fs::read_to_string(directory.join("keep")).expect("it is there"), "other\nin\n");
}

/// Whoever commits sees by what it has in memory that it is in conflict.
fn stopped(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::write(directory.join("keep"), "old\n").expect("a file can be written");
    std::thread::sleep(std::time::Duration::from_millis(12));
    // Written without being read: nothing but the change itself tells.
    let script = "[ -e second ] || { : >>keep; echo new >keep; echo ready; sleep 1000; }";
    let started = run(sandbox, &["--retry", "1"], &directory, script).start_with_open_input();
    has_changed(sandbox, 1);
    sandbox.pando(["tx", "run", "--", "sh", "-ec", "echo other >keep; touch second"]).directory(&directory).ok();
    started.close_input().wait().succeeded().complains_of(&["running it again (1 of 1)"]);
    assert_eq!(fs::read_to_string(directory.join("keep")).expect("it is there"), "other\n");
}

/// What is new is a copy: who has it open to write to it would write to nothing.
fn daemons(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let script = "echo x >read; echo x >written; cd /; sleeps() { until [ $(cat /proc/$1/comm) = sleep ]; do sleep .02; done; echo $1; }
         sleep 1000 <$AT/read >/dev/null 2>&1 & sleeps $!; sleep 1001 </dev/null >>$AT/written 2>/dev/null & sleeps $!";
    let ended = run(sandbox, &[], &directory, script).env("AT", &directory).run().succeeded();
    let ended = ended.complains_of(&["1 process goes on", "what it writes to", "would be lost"]);
    let pids: Vec<i32> = ended.out().lines().map(|line| line.parse().expect("it is a pid")).collect();
    let alive: Vec<bool> = pids.iter().map(|pid| process::is_alive(*pid)).collect();
    process::kill(pids[0]);
    assert_eq!(alive, [true, false]);
    // What is mapped need not be open.
    let program = "import ctypes, os, time; fd = os.open('mapped', os.O_RDWR | os.O_CREAT); os.truncate(fd, 4096)
ctypes.CDLL(None).mmap(None, 4096, 3, 1, fd, 0); os.close(fd); print(os.getpid(), flush=True); os.chdir('/'); time.sleep(1000)";
    let script = "python3 -c \"$PROGRAM\" </dev/null 2>/dev/null & until [ /proc/$!/cwd -ef / ]; do sleep .02; done";
    let ended = run(sandbox, &[], &directory, script).env("PROGRAM", program).run().succeeded();
    let ended = ended.complains_of(&["1 process left in it ended", "mapped, would be lost"]);
    assert!(!process::is_alive(ended.out().trim().parse().expect("it is a pid")));
}

fn full_disk(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 40, &["mkfs.ext4", "-q", "-m", "0"], "");
    fs::write(disk.at.join("old"), "old\n").expect("a file can be written");
    let before = tree_state::lines(&disk.at);
    std::thread::sleep(std::time::Duration::from_millis(12));
    let script = "echo new >old; head -c 50M /dev/zero | tr '\\0' x >large";
    let ended = run(sandbox, &["--retry", "0"], &disk.at, script).run().ended_with(125);
    ended.complains_of(&["writing what was kept in memory", "nothing was changed"]);
    let is_its_own = |line: &String| !line.starts_with("/.pando-tx") && !line.contains("lost+found");
    let without_times = |lines: Vec<String>| lines.into_iter().skip(1).filter(is_its_own).collect::<Vec<_>>();
    assert_eq!(without_times(tree_state::lines(&disk.at)), without_times(before));
    eventually("what it threw away is deleted", || fs::write(disk.at.join("probe"), vec![1; 20 << 20]).is_ok());
}

fn bad_sizes(sandbox: &Sandbox) {
    let size = |option: &str| sandbox.pando(["tx", "run", option, "--", "true"]).run();
    size("--in-memory=4K").ended_with(125).complains_of(&["'4K'", "at least 1M"]);
    size("--in-memory=much").ended_with(125).complains_of(&["'much'", "such as 512M"]);
    size("--in-memory=8000T").ended_with(125).complains_of(&["memory free", "8000.0 TiB"]);
    let line = sandbox.pando(["tx", "run", "--in-memory", "--guest", "g", "--", "true"]);
    line.run().ended_with(125).complains_of(&["cannot be used with"]);
}

/// Programs that stay on one file system stay in the transaction's.
fn one_device(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    fs::create_dir(directory.join("d")).expect("a directory can be made");
    fs::write(directory.join("d/old"), vec![1; 100_000]).expect("a file can be written");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let script = "head -c 100000 /dev/zero | tr '\\0' x >d/new; stat -c %d d d/old d/new | sort -u | wc -l; du -xsk d";
    let said = run(sandbox, &["-q"], &directory, script).ok();
    let (devices, used) = said.split_once('\n').expect("two lines");
    let used: u64 = used.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(devices.trim() == "1" && used >= 195, "{said}");
}
