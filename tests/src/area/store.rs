//! What guests share is shared, whole, and never seen to be.

use crate::case::{Case, Tag};
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const VM: &[Tag] = &[Tag::Vm];

pub(crate) const CASES: &[Case] = &[
    Case::new("store::equal_sources_are_one_layer", equal_sources_are_one_layer).tags(VM),
    Case::new("store::what_a_guest_changes_is_its_own", what_a_guest_changes_is_its_own).tags(VM),
    Case::new("store::owners_and_modes_are_the_guests", owners_and_modes_are_the_guests),
    Case::new("store::damage_is_named_and_repaired", damage_is_named_and_repaired),
    Case::new("store::collection_spares_what_runs", collection_spares_what_runs),
    Case::new("store::a_guest_that_cannot_be_read_keeps_its_layer", a_guest_that_cannot_be_read_keeps_its_layer),
    Case::new("store::a_bound_on_file_sizes_leaves_it_whole", a_bound_on_file_sizes_leaves_it_whole),
];

pub(super) fn usage(sandbox: &Sandbox) -> serde_json::Value {
    let text = sandbox.pando(["store", "usage", "--json"]).ok();
    serde_json::from_str(&text).expect("JSON")
}

/// Every object's file.
fn objects(sandbox: &Sandbox) -> Vec<PathBuf> {
    let directories = std::fs::read_dir(sandbox.places().store().join("objects")).into_iter().flatten().flatten();
    directories
        .flat_map(|directory| std::fs::read_dir(directory.path()).into_iter().flatten().flatten())
        .map(|object| object.path())
        .collect()
}

fn equal_sources_are_one_layer(sandbox: &Sandbox) {
    sandbox.create("a", &[]);
    let alone = objects(sandbox).len();
    sandbox.guest("b", &[]);
    assert_eq!(sandbox.inspect("a")["layers"], sandbox.inspect("b")["layers"]);
    assert_eq!(objects(sandbox).len(), alone, "nothing was added");
    assert_eq!(usage(sandbox)["layers"], 1);
    sandbox.pando(["rm", "a"]).ok();
    sandbox.pando(["store", "gc"]).ok();
    sandbox.exec_sh("b", "cat /etc/hostname").run().says("tree\n");
    sandbox.pando(["rm", "-f", "b"]).ok();
    eventually("what nobody stands on goes by itself", || objects(sandbox).is_empty());
}

/// Every way in which a guest can break a link, and what the file is afterwards.
const CHANGES: [(&str, &str); 11] = [
    ("write", "echo more >>/data/write"),
    ("truncate", "truncate -s 10 /data/truncate"),
    ("chmod", "chmod 4751 /data/chmod"),
    ("chown", "chown 33:44 /data/chown"),
    ("utimes", "touch -d 2001-02-03 /data/utimes"),
    ("rename-over", "echo new >/data/n && mv /data/n /data/rename-over"),
    ("unlink", "rm /data/unlink"),
    ("link", "ln /data/link /data/linked && echo more >>/data/linked"),
    ("overwrite", "printf x | dd of=/data/overwrite bs=1 seek=5000 conv=notrunc 2>/dev/null"),
    ("rename", "mv /data/rename /data/renamed && echo more >>/data/renamed"),
    ("directory", "mv /data/directory /data/moved && echo more >/data/moved/file"),
];

fn tree(sandbox: &Sandbox) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a".as_ref(), Path::new(sandbox.busybox()), &tree]).ok();
    std::fs::create_dir_all(tree.join("data/directory")).expect("a directory");
    let names = CHANGES.iter().map(|(name, _)| *name).filter(|name| *name != "directory");
    for name in names.chain(["directory/file", "mmap"]) {
        std::fs::write(tree.join("data").join(name), name.repeat(2_000)).expect("a file");
    }
    tree
}

/// All that can be seen of a guest's data.
fn portrait(sandbox: &Sandbox, name: &str) -> String {
    let script = "cd /data && find . | sort | while read -r f; do stat -c '%n %f %u %g %s %y' $f; done; find . -type f | sort | xargs sha256sum";
    sandbox.exec_sh(name, script).ok()
}

fn what_a_guest_changes_is_its_own(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    for name in ["changing", "watching"] {
        sandbox.pando(["create", name, "--from"]).args([&tree]).args(["--start"]).ok();
    }
    let before = portrait(sandbox, "watching");
    assert_eq!(portrait(sandbox, "changing"), before);
    let mut last = before.clone();
    for (name, script) in CHANGES {
        sandbox.exec_sh("changing", script).ok();
        let now = portrait(sandbox, "changing");
        assert_ne!(now, last, "{name} changed nothing");
        assert_eq!(portrait(sandbox, "watching"), before, "{name} was seen by another guest");
        last = now;
    }
    sandbox.pando(["restart", "--time", "1", "changing"]).ok();
    assert_eq!(portrait(sandbox, "changing"), last, "changes last");
    sandbox.pando(["store", "verify"]).ok();
}

fn owners_and_modes_are_the_guests(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    std::os::unix::fs::chown(tree.join("data/chown"), Some(1_000), Some(50)).expect("root");
    Line::new("chmod").args(["4755"]).args([tree.join("data/chmod")]).ok();
    sandbox.pando(["create", "web", "--from"]).args([&tree]).args(["--start"]).ok();
    let seen = sandbox.exec_sh("web", "cd /data; stat -c '%u:%g' chown; stat -c %a chmod; stat -c %u write").ok();
    assert_eq!(seen, "1000:50\n4755\n0\n");
    // The guest's root may do with them what root may.
    sandbox
        .exec_sh("web", "chown 5:6 /data/chown && chmod 600 /data/chmod && stat -c '%u:%g' /data/chown")
        .run()
        .says("5:6\n");
}

fn damage_is_named_and_repaired(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    sandbox.pando(["create", "web", "--from"]).args([&tree]).ok();
    sandbox.pando(["store", "verify"]).ok();
    let wanted = std::fs::read(tree.join("data/utimes")).expect("it was made");
    let has_it = |object: &PathBuf| std::fs::read(object).is_ok_and(|bytes| bytes == wanted);
    let object = objects(sandbox).into_iter().find(has_it).expect("it is an object");
    let mut bytes = wanted.clone();
    bytes[4_321] ^= 4;
    std::fs::write(&object, bytes).expect("root");
    let found = sandbox.pando(["store", "verify"]).run().ended_with(1);
    assert!(found.out().contains("guest 'web': /data/utimes"), "{}", found.out());
    sandbox.pando(["store", "verify", "--repair"]).run().ended_with(1);
    let repaired = sandbox.pando(["store", "verify", "--repair", "--from"]).args([&tree]).ok();
    assert!(repaired.contains(&format!("repaired from {}", tree.join("data/utimes").display())), "{repaired}");
    sandbox.pando(["store", "verify"]).ok();
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "head -c 6 /data/utimes").run().says("utimes");
}

fn collection_spares_what_runs(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    sandbox.pando(["create", "gone", "--from"]).args([&tree]).ok();
    std::fs::write(tree.join("data/only-here"), "x".repeat(9_000)).expect("a file");
    sandbox.pando(["create", "web", "--from"]).args([&tree]).args(["--start"]).ok();
    let run = sandbox.pando(["run", "--from"]).args([&tree]).args(["--", "sh", "-c"]);
    let run = run.args(["echo up; read x; sha256sum /data/* 2>/dev/null | wc -l"]).start();
    sandbox.pando(["rm", "gone"]).ok();
    for _ in 0..3 {
        sandbox.pando(["store", "gc"]).run();
        sandbox.exec_sh("web", "cat /data/only-here | wc -c").run().says("9000\n");
    }
    drop(run);
    sandbox.pando(["store", "verify"]).ok();
}

fn a_guest_that_cannot_be_read_keeps_its_layer(sandbox: &Sandbox) {
    sandbox.create("web", &[]);
    sandbox.end_daemon();
    let record = sandbox.places().guests().join("web/guest.toml");
    let text = std::fs::read_to_string(&record).expect("it is there");
    std::fs::write(&record, "layers = [").expect("root");
    // With the last good record it is known what it stands on.
    std::fs::remove_file(record.with_file_name(".guest.toml.good")).expect("it is kept");
    sandbox.pando(["store", "gc"]).run().ended_with(125).complains_of(&["web", "nothing is collected"]);
    sandbox.end_daemon();
    std::fs::write(&record, text).expect("root");
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "echo whole").run().says("whole\n");
}

/// The state lies on a file system that is too small for a second tree.
fn a_bound_on_file_sizes_leaves_it_whole(sandbox: &Sandbox) {
    sandbox.create("first", &[]);
    let tree = sandbox.scratch().join("large");
    std::fs::create_dir_all(&tree).expect("a directory");
    let (size, number) = (1 << 20, 64_u8);
    for name in 0..number {
        std::fs::write(tree.join(name.to_string()), vec![name; size]).expect("a file");
    }
    sandbox.end_daemon();
    let store = sandbox.places().store();
    let before: u64 = objects(sandbox).iter().map(|object| object.metadata().map_or(0, |found| found.len())).sum();
    // A limit on the size of files stands in for the disk: it refuses writes in the same places.
    let limited = Line::new("sh").args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]).args([sandbox.program()]);
    let limited = limited.args(["--root"]).args([sandbox.root()]).args(["create", "second", "--from"]).args([&tree]);
    assert_ne!(limited.run().code(), 0);
    sandbox.end_daemon();
    assert_eq!(sandbox.state("second"), "absent");
    sandbox.pando(["store", "gc"]).ok();
    sandbox.pando(["store", "verify"]).ok();
    let after: u64 = objects(sandbox).iter().map(|object| object.metadata().map_or(0, |found| found.len())).sum();
    assert_eq!(after, before);
    assert!(store.join("objects").metadata().is_ok_and(|found| found.mode() & 0o7777 == 0o755 || found.is_dir()));
    sandbox.pando(["start", "first"]).ok();
    sandbox.exec_sh("first", "echo whole").run().says("whole\n");
}
