//! A disk that is really full, in the middle of everything that writes to the store.

use crate::case::Case;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;
use std::fs::File;
use std::io::Write;
use std::path::Path;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("store::a_full_disk_leaves_guests_whole", a_full_disk_leaves_guests_whole).needs(NEEDS),
    Case::new("store::a_layer_that_does_not_fit_leaves_nothing", a_layer_that_does_not_fit_leaves_nothing).needs(NEEDS),
];

const EXT4: [&str; 5] = ["mkfs.ext4", "-q", "-F", "-m", "0"];

const PORTRAIT: &str =
    "cd /srv && find . | sort | xargs stat -c '%n %f %u %g %s %h %y'; find . -type f | sort | xargs sha256sum";

/// Fills a disk to the last block, but for some bytes.
fn fill(at: &Path, spare: u64) {
    let path = at.join("filler");
    let mut file = File::create(&path).expect("a file");
    let block = vec![7; 64 << 10];
    while file.write_all(&block).and_then(|()| file.sync_data()).is_ok() {}
    while file.write_all(&[7; 4096]).and_then(|()| file.sync_data()).is_ok() {}
    if spare > 0 {
        let length = file.metadata().expect("it is open").len();
        file.set_len(length.saturating_sub(spare)).expect("a shorter file");
        file.sync_all().expect("it is written");
    }
}

fn a_layer_that_does_not_fit_leaves_nothing(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 64, &EXT4);
    sandbox.create("first", &[]);
    let tree = sandbox.scratch().join("large");
    std::fs::create_dir_all(&tree).expect("a directory");
    for name in 0..90_u8 {
        std::fs::write(tree.join(name.to_string()), vec![name; 1 << 20]).expect("a file");
    }
    let before = super::store::usage(sandbox)["bytes"].clone();
    for round in 0..3 {
        let failed = sandbox.pando(["create", "second", "--from"]).args([&tree]).run();
        assert_eq!(failed.code(), 125, "round {round}: {}", failed.err());
        assert!(failed.err().contains("no space left"), "{}", failed.err());
        assert_eq!(sandbox.state("second"), "absent");
    }
    sandbox.pando(["store", "gc"]).ok();
    sandbox.pando(["store", "verify"]).ok();
    assert_eq!(super::store::usage(sandbox)["bytes"], before);
    sandbox.pando(["start", "first"]).ok();
    sandbox.exec_sh("first", "echo whole").run().says("whole\n");
    drop(disk);
}

fn a_full_disk_leaves_guests_whole(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 96, &EXT4);
    let work = "cd /srv; i=0; while [ $i -lt 12 ]; do yes \"library $i\" | head -c 700000 >$i.so; i=$((i+1)); done; ln 3.so name; chmod 4751 5.so; sync";
    let portraits = ["a", "b"].map(|name| {
        sandbox.guest(name, &[]);
        sandbox.exec_sh(name, work).ok();
        let seen = sandbox.exec_sh(name, PORTRAIT).ok();
        sandbox.pando(["stop", "--time", "1", name]).ok();
        seen
    });
    // From nothing at all to room for a part of what unification writes.
    for spare in [0, 64 << 10, 2 << 20, 5 << 20, 7 << 20] {
        fill(disk.at(), spare);
        sandbox.pando(["unify"]).run();
        sandbox.pando(["store", "gc"]).run();
        sandbox.pando(["store", "verify"]).ok();
        std::fs::remove_file(disk.at().join("filler")).expect("it is there");
        sandbox.pando(["store", "gc"]).ok();
        for (name, before) in ["a", "b"].iter().zip(&portraits) {
            sandbox.pando(["start", name]).ok();
            assert_eq!(sandbox.exec_sh(name, PORTRAIT).ok(), *before, "{name} with {spare} bytes left");
            sandbox.pando(["stop", "--time", "1", name]).ok();
        }
    }
    sandbox.pando(["unify"]).ok();
    sandbox.pando(["start", "a"]).ok();
    assert_eq!(sandbox.exec_sh("a", PORTRAIT).ok(), portraits[0]);
    drop(disk);
}
