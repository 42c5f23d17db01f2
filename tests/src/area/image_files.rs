//! The files of an image on each kind of file system: the clone's are those of the instant, the source's go on, and
//! blocks are shared where they can be.

use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;

pub(crate) const CASES: &[Case] = &[
    Case::new("image_files::ext4_with_many_that_change", |sandbox| {
        both_have_theirs(sandbox, &["mkfs.ext4", "-q"], false)
    })
    .needs(&[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")]),
    Case::new("image_files::xfs_shares_blocks", |sandbox| both_have_theirs(sandbox, &["mkfs.xfs", "-q"], true))
        .needs(&[Need::Root, Need::Program("mkfs.xfs", "xfsprogs")]),
    Case::new("image_files::btrfs_shares_blocks", |sandbox| both_have_theirs(sandbox, &["mkfs.btrfs", "-q"], true))
        .needs(&[Need::Root, Need::Program("mkfs.btrfs", "btrfs-progs")]),
];

const DISK_MIB: u64 = 700;
const LARGE_MIB: u64 = 64;

/// Files that change all the time, more than are copied by other means than a program for that. Each round writes its
/// number to one after the other.
const CHANGING: usize = 40;
const WRITER: &str =
    "mkdir /all; n=0; while :; do n=$((n+1)); for f in $FILES; do echo $n >/all/$f; done; echo $n >/round; done";

/// In each clone, before anything of it runs.
const KEEP: &str = "#!/bin/sh\ncp -a /all /instant\n";

fn used(disk: &StateDisk<'_>) -> u64 {
    let file = std::fs::File::open(disk.at()).expect("it is mounted");
    rustix::fs::syncfs(&file).expect("it is written");
    let told = rustix::fs::statvfs(disk.at()).expect("it is mounted");
    (told.f_blocks - told.f_bfree) * told.f_frsize
}

fn both_have_theirs(sandbox: &Sandbox, format: &[&str], shares: bool) {
    let disk = StateDisk::make(sandbox, DISK_MIB, format);
    let files: Vec<String> = (1..=CHANGING).map(|number| number.to_string()).collect();
    let writer = WRITER.replace("$FILES", &files.join(" "));
    sandbox.guest("source", &["--", "sh", "-c", &writer]);
    let hook = "mkdir -p /etc/pando/clone.d; cat >/etc/pando/clone.d/keep; chmod 755 /etc/pando/clone.d/keep";
    sandbox.pando(["exec", "-i", "source", "--", "sh", "-c", hook]).input(KEEP).ok();
    sandbox.exec_sh("source", &format!("dd if=/dev/urandom of=/large bs=1M count={LARGE_MIB} 2>/dev/null")).ok();
    let sum = |name: &str| sandbox.exec_sh(name, "md5sum </large").limit(120).ok();
    let large = sum("source");
    let before = used(&disk);
    sandbox.pando(["freeze", "source", "image", "--wait"]).limit(120).ok();
    sandbox.pando(["clone", "image", "-n", "2"]).ok();
    for name in ["image-1", "image-2"] {
        is_of_one_instant(sandbox, name);
        assert_eq!(sum(name), large, "{name}");
    }
    sandbox.exec_sh("image-1", "printf x | dd of=/large bs=1 conv=notrunc 2>/dev/null; rm /all/1").ok();
    assert_ne!(sum("image-1"), large);
    assert_eq!([sum("source"), sum("image-2")], [large.clone(), large]);
    for name in ["source", "image-1", "image-2"] {
        let round = || sandbox.exec_sh(name, "cat /round").run().out();
        let seen = round();
        eventually("it writes on", || round() != seen);
    }
    let grown = used(&disk).saturating_sub(before);
    assert_eq!(grown < (LARGE_MIB << 20) / 2, shares, "{grown} bytes more are used");
}

/// The files were written one after the other: behind one of the round before there is none of this round.
fn is_of_one_instant(sandbox: &Sandbox, name: &str) {
    let script = format!("for f in $(seq {CHANGING}); do cat /instant/$f; done");
    let said = sandbox.exec_sh(name, &script).ok();
    // One that was just opened is empty.
    let rounds: Vec<u64> = said.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(rounds.len() + 1 >= CHANGING, "{said}");
    let (first, last) = (rounds[0], rounds[rounds.len() - 1]);
    assert!(rounds.is_sorted_by(|one, next| one >= next) && first - last <= 1, "{said}");
}
