//! The disk that the state lies on is full: what was promised is kept, and what cannot be done is said as what it is.

use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;
use std::io::Write;
use std::path::Path;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("full_disk::a_neighbour_takes_nothing_of_a_bounded_guest", a_neighbour_takes_nothing_of_a_bounded_guest)
        .needs(NEEDS),
    Case::new("full_disk::room_that_is_not_there_is_not_promised", room_that_is_not_there_is_not_promised).needs(NEEDS),
    Case::new("full_disk::every_verb_says_that_it_is_full", every_verb_says_that_it_is_full).needs(NEEDS),
    Case::new("full_disk::what_happened_is_written_down_all_the_same", what_happened_is_written_down_all_the_same)
        .needs(NEEDS),
    Case::new(
        "full_disk::a_daemon_that_starts_on_it_mounts_layers_as_before",
        a_daemon_that_starts_on_it_mounts_layers_as_before,
    )
    .needs(NEEDS),
];

const EXT4: [&str; 5] = ["mkfs.ext4", "-q", "-F", "-m", "0"];

/// Fills a disk to the last block.
fn fill(at: &Path) {
    let mut file = std::fs::File::create(at.join("filler")).expect("a file");
    // Room that others give back meanwhile is filled block by block, and the last block byte by byte.
    for size in [1 << 20, 4096] {
        while file.write_all(&vec![7; size]).and_then(|()| file.sync_data()).is_ok() {}
    }
    for _ in 0..4096 {
        if file.write_all(&[7]).is_err() {
            break;
        }
    }
    let _ = file.sync_data();
}

fn a_neighbour_takes_nothing_of_a_bounded_guest(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 128, &EXT4);
    sandbox.guest("bounded", &["--disk", "32M", "--", "sleep", "1000"]);
    sandbox.guest("greedy", &["--", "sleep", "1000"]);
    sandbox.exec_sh("greedy", "dd if=/dev/zero of=/all bs=64k; sync").limit(120).run().complains_of(&["No space left"]);
    fill(disk.at());
    let write = "dd if=/dev/urandom of=/mine bs=1M count=12 && sync && sha1sum </mine && touch /after";
    sandbox.exec_sh("bounded", write).ok();
    sandbox.exec_sh("bounded", "test -e /after && echo whole").run().says("whole\n");
}

fn room_that_is_not_there_is_not_promised(sandbox: &Sandbox) {
    let _disk = StateDisk::make(sandbox, 96, &EXT4);
    sandbox.create("first", &["--disk", "40M"]);
    sandbox
        .pando(["create", "large", "--disk", "60M", "--from", sandbox.busybox()])
        .run()
        .ended_with(125)
        .complains_of(&["no space"]);
    assert_eq!(sandbox.state("large"), "absent");
    sandbox.create("small", &["--disk", "24M"]);
    sandbox.pando(["set", "small", "disk.size=60M"]).run().ended_with(125).complains_of(&["no space"]);
    sandbox.pando(["start", "small"]).ok();
}

fn every_verb_says_that_it_is_full(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 64, &EXT4);
    sandbox.create("web", &["--", "sleep", "1000"]);
    sandbox.guest("runs", &["--", "sleep", "1000"]);
    // The reserve goes with the first record.
    fill(disk.at());
    sandbox.pando(["set", "web", "env.A=1"]).run();
    fill(disk.at());
    let directory = sandbox.scratch().join("tree");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("file"), vec![3; 1 << 20]).expect("a file");
    let tree = directory.to_string_lossy().into_owned();
    for words in
        [&["create", "more", "--from", &tree][..], &["start", "web"], &["freeze", "runs"], &["set", "web", "env.B=2"]]
    {
        let ended = sandbox.pando(words).run();
        if ended.code() != 0 {
            for wrong in ["read-only", "may lack", "doctor"] {
                assert!(!ended.err().contains(wrong), "{words:?}: {}", ended.err());
            }
            ended.complains_of(&["room"]);
        }
    }
    sandbox.pando(["create", "more", "--from", &tree]).run().ended_with(125).complains_of(&["has no room"]);
    sandbox.pando(["ls"]).run().succeeded().complains_of(&["has no room"]);
    sandbox.pando(["rm", "--force", "runs"]).ok();
}

fn what_happened_is_written_down_all_the_same(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 64, &EXT4);
    sandbox.guest("web", &["--", "sleep", "1000"]);
    eventually("the reserve is set aside", || disk.at().join(".reserve").exists());
    let mut events = sandbox.pando(["events"]).start();
    fill(disk.at());
    sandbox.pando(["set", "web", "env.A=1"]).ok();
    eventually("the shortage is an event", || sandbox.daemon_log().contains("nearly full"));
    sandbox.end_daemon();
    let spec = std::fs::read_to_string(sandbox.places().guests().join("web/spec.toml")).expect("it has a spec");
    assert!(spec.contains("A = "), "{spec}");
    std::fs::remove_file(disk.at().join("filler")).expect("it is there");
    sandbox.pando(["ls"]).ok();
    eventually("the reserve is set aside again", || disk.at().join(".reserve").exists());
    eventually("whoever listened has been told", || events.has_ended());
    assert!(events.wait().out().contains("disk-low"));
}

fn a_daemon_that_starts_on_it_mounts_layers_as_before(sandbox: &Sandbox) {
    let backend = || super::store::usage(sandbox)["backend"].clone();
    let disk = StateDisk::make(sandbox, 64, &EXT4);
    sandbox.create("web", &["--", "sleep", "1000"]);
    sandbox.pando(["start", "web"]).ok();
    let before = backend();
    sandbox.pando(["stop", "-t", "0", "web"]).ok();
    sandbox.end_daemon();
    fill(disk.at());
    assert_eq!(backend(), before, "on the full disk");
    std::fs::remove_file(disk.at().join("filler")).expect("it is there");
    assert_eq!(backend(), before, "with room again");
}
