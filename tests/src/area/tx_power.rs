//! Durable commits and the loss of power: on a disk that records what is written to it, cut at random moments, the tree
//! is what it was before or what it was to be after; after, once the command has said so.
//!
//! `PANDO_TEST_SEED` says which commits.

use crate::case::{Case, Tag, skip};
use crate::dice::seed_of_this_run;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::patience::eventually;
use crate::power_loss::{Kind, WORD};
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::{disk_server, process};
use rustix::process::Signal;
use std::time::Duration;

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("mkfs.ext4", "e2fsprogs"),
    Need::Program("mkfs.xfs", "xfsprogs"),
    Need::Program("unshare", "util-linux"),
];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::a_loss_of_power_leaves_all_or_nothing", |sandbox| cuts(sandbox, Kind::Ext4, 3, 12)).needs(NEEDS),
    Case::new("tx::a_loss_of_power_on_xfs_leaves_all_or_nothing", |sandbox| cuts(sandbox, Kind::Xfs, 3, 12))
        .needs(NEEDS),
    Case::new("tx::1000_losses_of_power_leave_all_or_nothing", |sandbox| cuts(sandbox, Kind::Ext4, 50, 20))
        .needs(NEEDS)
        .tags(&[Tag::Slow]),
    Case::new("tx::1000_losses_of_power_on_xfs_leave_all_or_nothing", |sandbox| cuts(sandbox, Kind::Xfs, 50, 20))
        .needs(NEEDS)
        .tags(&[Tag::Slow]),
    Case::new("tx::what_others_bring_to_the_disk_behind_a_commit_stays_there", written_since).needs(NEEDS),
    Case::new("tx::what_was_put_aside_and_is_lost_with_the_power_is_put_aside_again", put_aside).needs(NEEDS),
    Case::new("tx::a_power_test_that_is_killed_leaves_nobody_waiting", killed).needs(NEEDS),
    Case::new("tx::planted_bugs_of_durability_are_found", planted).needs(NEEDS).tags(&[Tag::Slow]),
];

/// Seconds that a thousand cuts may take on a machine that does much else.
const LIMIT: u64 = 900;

fn power_loss(sandbox: &Sandbox, kind: Kind, commits: u32, cuts: u32, bug: Option<&str>) -> Ended {
    let ended = line(sandbox, kind, commits, cuts, bug).limit(LIMIT).run();
    if ended.err().contains("/dev/fuse") || ended.err().contains("loop device") {
        skip(format!("a disk of the test's own cannot be made here: {}", ended.err()));
    }
    ended
}

fn line(sandbox: &Sandbox, kind: Kind, commits: u32, cuts: u32, bug: Option<&str>) -> Line {
    let seed = seed_of_this_run(3).to_string();
    let directory = sandbox.scratch().join("power");
    std::fs::create_dir_all(&directory).expect("a directory can be made");
    // Its mounts are nobody else's: not those of other tests' transactions either.
    let line = Line::new("unshare").args(["-m"]).args([std::env::current_exe().expect("it has a path")]);
    let line = line
        .args([WORD, kind.name(), &seed, &commits.to_string(), &cuts.to_string()])
        .args([sandbox.program(), &directory]);
    line.args(bug)
}

/// Has xfs give up a served disk whose server has gone: it would write metadata again and again, for ever, and whoever
/// calls sync(2) would wait for that. Of a disk that is served nothing changes.
fn xfs_gives_up() {
    for entry in std::fs::read_dir("/sys/fs/xfs").into_iter().flatten().flatten() {
        let device = std::path::Path::new("/sys/block").join(entry.file_name()).join("loop/backing_file");
        if !std::fs::read_to_string(device).is_ok_and(|file| file.trim() == "/disk") {
            continue;
        }
        for error in ["EIO", "default"] {
            // It may have gone meanwhile.
            let _ = std::fs::write(entry.path().join("error/metadata").join(error).join("max_retries"), "0");
        }
    }
}

/// In the midst of whatever it does: who waits for the disk gets an answer, or an error.
fn killed(sandbox: &Sandbox) {
    let directory = sandbox.scratch().join("power").display().to_string();
    let ours = || {
        let is_ours = |process: &process::Process| process.words.iter().any(|word| word.contains(&directory));
        process::all().into_iter().filter(is_ours).collect::<Vec<_>>()
    };
    for (number, kind) in [Kind::Xfs, Kind::Ext4, Kind::Xfs, Kind::Xfs].into_iter().enumerate() {
        let mut started = line(sandbox, kind, 1000, 20, None).start();
        eventually("the disk is served", || {
            started.has_ended() || ours().iter().any(|one| one.words.iter().any(|word| word == disk_server::WORD))
        });
        if started.has_ended() {
            skip("a disk of the test's own cannot be made here");
        }
        std::thread::sleep(Duration::from_millis(700 + 170 * number as u64));
        started.signal(Signal::KILL);
        started.wait().ended_with(137);
        eventually("nobody waits for the disk", || {
            xfs_gives_up();
            ours().is_empty()
        });
    }
}

/// A commit that writes to a file is over, and others write to it too, wait for the disk, and lose the power.
fn written_since(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let at = scratch.join("mounted");
    let with = |line: Line| line.directory(&at).env("PANDO", sandbox.program());
    for (format, options) in [("mkfs.ext4", "commit=600"), ("mkfs.xfs", "")] {
        let disk = SmallDisk::make(scratch.join("disk"), at.clone(), 320, &[format, "-q"], options);
        let script = "head -c 1M /dev/zero >db; sync -f db
            $PANDO --root state tx run -q -- sh -ec 'printf T | dd of=db conv=notrunc status=none'
            printf NEW | dd of=db conv=notrunc,fdatasync status=none; cp --sparse=always ../disk ../cut";
        with(Line::new("sh").args(["-ec", script])).ok();
        drop(disk);
        // Its twin may be unmounted a moment later.
        let _disk = SmallDisk::mount(scratch.join("cut"), at.clone(), if options.is_empty() { "nouuid" } else { "" });
        // To Pando the machine has been powered on after whatever lies on the disk.
        let recover = "$PANDO --root state tx recover >&2; head -c 3 db";
        let found = with(Line::new("sh").args(["-ec", recover])).env("PANDO_TX_POWERED_ON", later()).ok();
        assert_eq!(found, "NEW", "{format}");
    }
}

/// More steps than that commit has.
const MOST: u64 = 100;

/// A file gets another name by way of a directory on its own file system, which is another than that of the journal.
fn put_aside(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 60, &["mkfs.ext4", "-q"], "");
    let (mut lost, mut committed) = (0, 0);
    for step in 0..MOST {
        let sh = |script: &str| Line::new("bash").args(["-ec", script]).directory(&disk.at).ok();
        sh("rm -rf a b d; echo one >a; mkdir d; echo two >d/two");
        let line = sandbox.pando(["tx", "run", "--retry", "0", "-q", "--", "sh", "-ec", "mv a b; mv d/two d/three"]);
        if line.directory(&disk.at).env("PANDO_TX_CRASH_STEP", step.to_string()).run().code() != 137 {
            assert!(lost > 0 && committed > 0, "of {step} steps, {lost} with files put aside, {committed} committed");
            return;
        }
        // The mark is on the disk, and what it tells of is not.
        let marked = Line::new("find").args([sandbox.root()]).args(["-name", "staged"]).ok();
        if !marked.is_empty() && disk.at.join("a").exists() && disk.at.join("d/two").exists() {
            sh("shopt -s nullglob; rm -f .pando-tx/*/stage/[0-9]*");
            lost += 1;
        }
        let said = sandbox.pando(["tx", "recover"]).env("PANDO_TX_POWERED_ON", later()).ok();
        let expected = if said.contains("in place now") { "b\nd/three\n" } else { "a\nd/two\n" };
        committed += u64::from(said.contains("in place now"));
        assert_eq!(sh("grep -srlx 'one\\|two' a b d | sort"), expected, "step {step}: {said}");
    }
    panic!("it has more steps than that");
}

/// A time after which nothing on any disk was written yet.
fn later() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    (since.map_or(0, |now| now.as_secs()) + 1000).to_string()
}

fn cuts(sandbox: &Sandbox, kind: Kind, commits: u32, cuts: u32) {
    let ended = power_loss(sandbox, kind, commits, cuts, None).succeeded();
    print!("     {}", ended.out());
    // Cuts after which the file system itself was lost are seen.
    ended.err().lines().for_each(|line| println!("     {line}"));
    let seen: Vec<u64> = ended.out().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(seen.first(), Some(&u64::from(commits * cuts)));
    assert!(seen[1..].iter().all(|count| *count > 0), "only one outcome was seen: {seen:?}");
}

fn planted(sandbox: &Sandbox) {
    for bug in ["no-fdatasync", "no-directory-fsync", "no-write-out"] {
        let ended = power_loss(sandbox, Kind::Ext4, 40, 25, Some(bug));
        assert_ne!(ended.code(), 0, "{bug} was not found: {}", ended.out());
        assert!(ended.err().contains("before event"), "{bug}: {}", ended.err());
        println!("     {bug}: {}", ended.err().lines().next().unwrap_or_default());
    }
}
