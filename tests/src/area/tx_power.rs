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
