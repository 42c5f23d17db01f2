//! Room on the disk where the file system itself can bound it: by project quotas, or by quota groups of btrfs.

use crate::case::{Case, Tag, skip};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;

pub(crate) const CASES: &[Case] = &[
    Case::new("limits::room_by_a_project_quota_of_ext4", by_ext4)
        .needs(&[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")])
        .tags(&[Tag::Vm]),
    Case::new("limits::room_by_a_project_quota_of_xfs", by_xfs)
        .needs(&[Need::Root, Need::Program("mkfs.xfs", "xfsprogs")])
        .tags(&[Tag::Vm]),
    Case::new("limits::room_by_a_quota_group_of_btrfs", by_btrfs)
        .needs(&[Need::Root, Need::Program("mkfs.btrfs", "btrfs-progs")])
        .tags(&[Tag::Vm]),
];

/// What `inspect` says of how a limit is held.
fn note(sandbox: &Sandbox, name: &str, key: &str) -> String {
    let seen = sandbox.inspect(name);
    let mut limits = seen["limits"].as_array().expect("an array").iter();
    let limit = limits.find(|limit| limit["key"] == key).unwrap_or_else(|| panic!("no {key} in {seen}"));
    format!("{} {}", limit["value"].as_str().unwrap_or_default(), limit["note"].as_str().unwrap_or_default())
}

/// What holds whatever the means.
fn is_bounded(sandbox: &Sandbox, means: &str) {
    assert!(note(sandbox, "full", "disk.size").contains(means), "{}", note(sandbox, "full", "disk.size"));
    assert!(!sandbox.places().state().join("guests/full/disk.img").exists(), "an image was made besides");
    sandbox.guest("other", &["--disk", "24M"]);
    sandbox.exec_sh("full", "echo kept >/kept; sync").ok();
    assert!(sandbox.exec_sh("full", "cat /dev/zero >/big && sync").run().code() != 0, "it never filled");
    let size = sandbox.exec_sh("full", "stat -c %s /big").ok();
    let size: u64 = size.trim().parse().expect("a number");
    assert!(size <= 24 << 20, "{size} bytes were written");
    sandbox.exec_sh("other", "head -c 8m /dev/zero >/file && sync && stat -c %s /file").run().says("8388608\n");
    // One that is full starts all the same.
    sandbox.pando(["restart", "-t", "0", "full"]).ok();
    sandbox.exec_sh("full", "cat /kept").run().says("kept\n");
    // More and less, while it runs or not.
    sandbox.pando(["set", "full", "disk.size=64M"]).ok();
    sandbox.exec_sh("full", "head -c 16m /dev/zero >/more && sync && stat -c %s /more").run().says("16777216\n");
    sandbox.exec_sh("full", "rm /big /more; sync").ok();
    sandbox.pando(["stop", "-t", "0", "full"]).ok();
    sandbox.pando(["set", "full", "disk.size=24M"]).ok();
    sandbox.pando(["start", "full"]).ok();
    assert!(sandbox.exec_sh("full", "head -c 48m /dev/zero >/more && sync").run().code() != 0, "less has no effect");
    // Such files cannot be taken away from it to be shared.
    sandbox.pando(["rm", "-f", "other"]).ok();
    sandbox.pando(["create", "copy", "--from", sandbox.busybox(), "--disk", "24M", "--start"]).ok();
    sandbox.exec_sh("copy", "echo new >/file; cat /file").run().says("new\n");
}

/// What projects count besides.
fn by_project(sandbox: &Sandbox, disk: &StateDisk<'_>) {
    sandbox.guest("full", &["--disk", "24M", "--inodes", "600"]);
    assert!(note(sandbox, "full", "disk.inodes").starts_with("600 "), "{}", note(sandbox, "full", "disk.inodes"));
    let shown = sandbox.exec_sh("full", "df -m / | awk 'NR == 2 { print $2 }'").ok();
    assert_eq!(shown.trim(), "24", "df inside shows the bound, of {}", disk.at().display());
    let many = "i=0; while : >/f$i; do i=$((i+1)); [ $i -lt 2000 ] || exit 9; done";
    sandbox.exec_sh("full", many).run().ended_with(1);
    sandbox.pando(["set", "full", "disk.inodes=5000"]).ok();
    sandbox.exec_sh("full", "i=0; while [ $i -lt 900 ]; do : >/g$i || exit 9; i=$((i+1)); done").ok();
    sandbox.pando(["set", "full", "disk.inodes=16"]).run().ended_with(125).complains_of(&["already"]);
    sandbox.exec_sh("full", "rm /f* /g*; sync").ok();
    is_bounded(sandbox, "project");
    // Root of the host's own ids could take its files out of a project.
    let hosted = ["create", "hosted", "--from", sandbox.busybox(), "--disk", "24M", "--userns", "host"];
    sandbox.pando(hosted).ok();
    assert!(note(sandbox, "hosted", "disk.size").contains("set aside"), "{}", note(sandbox, "hosted", "disk.size"));
}

fn by_ext4(sandbox: &Sandbox) {
    let format = ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"];
    let disk = StateDisk::make_with(sandbox, 256, &format, "prjquota");
    by_project(sandbox, &disk);
}

fn by_xfs(sandbox: &Sandbox) {
    let disk = StateDisk::make_with(sandbox, 512, &["mkfs.xfs", "-q", "-f"], "prjquota");
    if !std::fs::read_to_string("/proc/mounts").is_ok_and(|text| {
        text.lines().any(|line| line.contains(&*disk.at().to_string_lossy()) && line.contains("prjquota"))
    }) {
        skip("this kernel's xfs keeps no quotas");
    }
    by_project(sandbox, &disk);
}

fn by_btrfs(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 512, &["mkfs.btrfs", "-q"]);
    let enabled = Line::new("btrfs").args(["quota", "enable"]).args([disk.at()]).run();
    if enabled.code() != 0 {
        skip(format!("this btrfs keeps no quotas: {}", enabled.err().trim()));
    }
    sandbox.guest("full", &["--disk", "24M"]);
    is_bounded(sandbox, "btrfs");
    sandbox.pando(["set", "full", "disk.inodes=900"]).run().ended_with(125).complains_of(&["disk.inodes"]);
    // It counts no files: for those it takes an image.
    sandbox.pando(["create", "counted", "--from", sandbox.busybox(), "--disk", "24M", "--inodes", "900"]).ok();
    assert!(
        note(sandbox, "counted", "disk.inodes").contains("set aside"),
        "{}",
        note(sandbox, "counted", "disk.inodes")
    );
}
