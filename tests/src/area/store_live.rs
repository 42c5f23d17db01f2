//! Sharing while guests run: blocks on file systems that can, and what they use of their layers kept ready for the
//! next.

use super::crash::kill_daemon_at;
use crate::case::{Case, skip};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;
use pando_kernel::memory::page_cache::resident_pages;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    Case::new("unify::running_guests_share_blocks_on_btrfs", |sandbox| {
        running_guests_share_blocks(sandbox, &["mkfs.btrfs", "-q", "-M"]);
    })
    .needs(&[Need::Root, Need::Program("mkfs.btrfs", "btrfs-progs")]),
    Case::new("unify::running_guests_share_blocks_on_xfs", |sandbox| {
        running_guests_share_blocks(sandbox, &["mkfs.xfs", "-q"]);
    })
    .needs(&[Need::Root, Need::Program("mkfs.xfs", "xfsprogs")]),
    Case::new("unify::one_that_is_killed_goes_on_where_it_was", one_that_is_killed_goes_on_where_it_was),
    Case::new("store::what_guests_use_is_ready_for_the_next", what_guests_use_is_ready_for_the_next),
];

/// Eight MiB that no two numbers have in common.
fn fill(number: u32) -> String {
    format!("yes 'content {number}' | head -c 8388608 >/srv/big && touch -d '2001-02-03 04:05:06' /srv/big && sync")
}

const LOOK: &str = "sha256sum /srv/big; stat -c '%f %u %g %s %h %y' /srv/big";

fn unify(sandbox: &Sandbox) -> serde_json::Value {
    serde_json::from_str(&sandbox.pando(["unify", "--json"]).ok()).expect("JSON")
}

/// Bytes that were brought to be shared.
fn live(told: &serde_json::Value) -> i64 {
    told["guests"].as_array().expect("a list").iter().map(|guest| guest["live"].as_i64().expect("a number")).sum()
}

fn running_guests_share_blocks(sandbox: &Sandbox, format: &[&str]) {
    let disk = StateDisk::make(sandbox, 512, format);
    for (name, number) in [("a", 1), ("b", 1), ("c", 2)] {
        sandbox.guest(name, &[]);
        sandbox.exec_sh(name, &fill(number)).ok();
    }
    let portrait = |name: &str| sandbox.exec_sh(name, LOOK).ok();
    let before = ["a", "b", "c"].map(portrait);
    // What was just written is not trusted to be at rest.
    sandbox.exec_sh("a", "sleep 3").ok();
    let used = || {
        rustix::fs::statvfs(disk.at()).map(|found| (found.f_blocks - found.f_bfree) * found.f_frsize).expect("a disk")
    };
    let held = used();
    let told = unify(sandbox);
    assert!(live(&told) >= 8 << 20, "{told}");
    assert_eq!(["a", "b", "c"].map(portrait), before, "nothing that a guest sees has changed");
    sandbox.exec_sh("a", "sync").ok();
    eventually("the disk has more room", || used() + (4 << 20) < held);
    assert_eq!(live(&unify(sandbox)), 0, "what is shared is left alone");
    // Whoever writes has blocks of its own again.
    sandbox.exec_sh("b", "printf changed | dd of=/srv/big bs=1 seek=4000000 conv=notrunc 2>/dev/null && sync").ok();
    assert_eq!(portrait("a"), before[0]);
    assert_ne!(portrait("b"), before[1]);
    drop(disk);
}

/// More than is read before what was read is noted.
const MANY: u32 = 100;

fn one_that_is_killed_goes_on_where_it_was(sandbox: &Sandbox) {
    sandbox.guest("a", &[]);
    let script = format!(
        "mkdir /srv/many; i=0; while [ $i -lt {MANY} ]; do yes \"number $i\" | head -c 1048576 >/srv/many/$i; i=$((i+1)); done; sleep 3"
    );
    sandbox.exec_sh("a", &script).ok();
    sandbox.end_daemon();
    kill_daemon_at(sandbox, "survey.checkpoint", sandbox.pando(["unify", "--dry-run"]));
    let told = sandbox.pando(["unify", "--dry-run", "--json"]).ok();
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let (files, read) = (told["files"].as_i64().expect("a number"), told["read"].as_i64().expect("a number"));
    assert!(files >= MANY.into(), "{told}");
    assert!(read <= files - 60, "{read} of {files} files were read again");
}

fn what_guests_use_is_ready_for_the_next(sandbox: &Sandbox) {
    const SIZE: usize = 12 << 20;
    let tree = sandbox.scratch().join("tree");
    crate::line::Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    for (name, byte) in [("used", 1), ("unused", 2)] {
        std::fs::write(tree.join(name), vec![byte; SIZE]).expect("a file");
    }
    sandbox.pando(["create", "a", "--from"]).args([&tree]).ok();
    if sandbox.pando(["store", "usage", "--json"]).ok().contains("\"farm\"") {
        skip("layers are mounted as farms here, of which nothing is noted");
    }
    let object = |byte: u8| object(sandbox, byte, SIZE);
    let (used, unused) = (object(1), object(2));
    forget(&used);
    forget(&unused);
    if pages(&used) > 0 {
        skip("the kernel does not let go of pages when it is asked to");
    }
    sandbox.pando(["start", "a"]).ok();
    sandbox.exec_sh("a", "cat /used >/dev/null").ok();
    sandbox.pando(["stop", "--time", "1", "a"]).ok();
    let known = sandbox.places().store().join("known");
    let noted = || {
        std::fs::read_dir(&known)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("hot-"))
    };
    eventually("it is noted what the guest used", noted);
    // As after a boot: nothing is in memory, and another daemon.
    sandbox.end_daemon();
    forget(&used);
    forget(&unused);
    sandbox.pando(["start", "a"]).ok();
    eventually("what was used is in memory before anybody asks", || pages(&used) >= SIZE as u64 / 4096 * 9 / 10);
    assert!(pages(&unused) < 100, "what nobody used is not: {} pages", pages(&unused));
    // What the daemon had read is charged to its group; what a guest is the first to read, to that guest.
    sandbox.exec_sh("a", "cat /used /unused >/dev/null").ok();
    let cache = || super::limits::stats(sandbox, "a")["now"]["cache"].as_u64().expect("a number");
    eventually("the guest pays for what it had read itself", || cache() >= SIZE as u64 * 9 / 10);
    assert!(cache() < SIZE as u64 * 3 / 2, "it pays for what was ready, too: {}", cache());
}

/// The object of a file that holds one byte many times.
fn object(sandbox: &Sandbox, byte: u8, size: usize) -> PathBuf {
    let wanted = vec![byte; size];
    let directories = std::fs::read_dir(sandbox.places().store().join("objects")).expect("a store").flatten();
    let mut objects =
        directories.flat_map(|directory| std::fs::read_dir(directory.path()).into_iter().flatten().flatten());
    objects
        .find(|object| {
            object.metadata().is_ok_and(|found| found.len() == size as u64)
                && std::fs::read(object.path()).is_ok_and(|bytes| bytes == wanted)
        })
        .expect("it is an object")
        .path()
}

fn forget(path: &PathBuf) {
    let file = File::open(path).expect("it is there");
    let _ = file.sync_all();
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
}

fn pages(path: &PathBuf) -> u64 {
    match resident_pages(File::open(path).expect("it is there").as_fd()) {
        Ok(pages) => pages,
        Err(error) => skip(format!("the kernel does not tell what is in memory: {error}")),
    }
}
