//! Several checkpoints of one guest: each has on the disk what was written since the last, and stands on its own all
//! the same.

use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    Case::new("checkpoints::one_keeps_what_was_written_since_the_last", one_keeps_what_was_written).tags(&[Tag::Vm]),
    Case::new("checkpoints::a_chain_is_folded_when_it_is_long", a_chain_is_folded),
    Case::new("checkpoints::a_damaged_parent_is_named", a_damaged_parent_is_named),
    Case::new("checkpoints::a_daemon_killed_while_it_writes_one", a_daemon_killed_while_it_writes_one),
    Case::new("checkpoints::a_released_image_is_on_the_disk_alone", a_released_image).tags(&[Tag::Vm]),
    Case::new("checkpoints::one_by_which_a_guest_ends_is_small_too", one_by_which_a_guest_ends),
    Case::new("checkpoints::one_takes_the_name_of_the_last", name_of_the_last),
];

const MIB: u64 = 1 << 20;

/// Has 32 MiB that nobody else has; writes something else whenever it is told, and says what it has by a digest.
const WRITER: &str = "x=$(head -c 24m /dev/urandom | base64); while :; do \
    if [ -e /tmp/write ]; then rm /tmp/write; y=$(head -c 256k /dev/urandom | base64); fi; \
    if [ -e /tmp/ask ]; then rm /tmp/ask; { printf %s \"$x\"; printf %s \"$y\"; } | md5sum >/tmp/said.new; mv /tmp/said.new /tmp/said; fi; \
    [ -e /tmp/goes ] || touch /tmp/goes; sleep 0.1; done";

fn begin(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sh", "-c", WRITER]);
    eventually("it has its memory", || sandbox.exec_sh("web", "test -e /tmp/goes").run().code() == 0);
}

fn write(sandbox: &Sandbox, guest: &str) {
    sandbox.exec_sh(guest, "touch /tmp/write").ok();
    eventually("it was told", || sandbox.exec_sh(guest, "test ! -e /tmp/write").run().code() == 0);
    said(sandbox, guest);
}

/// What it has. Behind this it does nothing.
fn said(sandbox: &Sandbox, guest: &str) -> String {
    sandbox.exec_sh(guest, "rm -f /tmp/said; touch /tmp/ask").ok();
    eventually("it has said", || sandbox.exec_sh(guest, "test -s /tmp/said").run().code() == 0);
    sandbox.exec_sh(guest, "cat /tmp/said").ok()
}

fn directory(sandbox: &Sandbox, image: &str) -> PathBuf {
    sandbox.places().images().join(image)
}

/// The files of an image with memory in them: name, bytes, and how many names each has.
fn memory(sandbox: &Sandbox, image: &str) -> Vec<(String, u64, u64)> {
    let entries = std::fs::read_dir(directory(sandbox, image)).expect("an image on the disk").flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    let of_memory = named.filter(|(name, _)| name == "memory" || name.starts_with("pages."));
    let mut all: Vec<_> = of_memory
        .map(|(name, path)| {
            let about = path.metadata().expect("it is there");
            (name, about.len(), about.nlink())
        })
        .collect();
    all.sort();
    all
}

/// Whether an image has a difference of its own, and no more than a few MiB.
#[track_caller]
fn is_small(sandbox: &Sandbox, image: &str) {
    let files = memory(sandbox, image);
    assert!(files.len() > 1 && files[0].0 == "pages.0" && files[0].1 < 8 * MIB, "{image}: {files:?}");
}

fn is_in(sandbox: &Sandbox, image: &str, expected: &str) {
    sandbox.pando(["clone", image, "tried"]).ok();
    assert_eq!(said(sandbox, "tried"), expected, "{image}");
    sandbox.pando(["rm", "-f", "tried"]).ok();
}

fn one_keeps_what_was_written(sandbox: &Sandbox) {
    begin(sandbox);
    let mut expected = vec![("one", said(sandbox, "web"))];
    sandbox.pando(["freeze", "web", "one", "--wait"]).ok();
    assert!(matches!(&memory(sandbox, "one")[..], [(name, length, 1)] if name == "memory" && *length > 32 * MIB));
    write(sandbox, "web");
    expected.push(("two", said(sandbox, "web")));
    sandbox.pando(["freeze", "web", "two", "--wait"]).ok();
    // A clone of it writes, and is frozen: what it has is its image's but for that.
    sandbox.pando(["clone", "two", "other"]).ok();
    write(sandbox, "other");
    expected.push(("three", said(sandbox, "other")));
    sandbox.pando(["freeze", "other", "three", "--wait"]).ok();
    ["two", "three"].iter().for_each(|image| is_small(sandbox, image));
    assert_eq!(memory(sandbox, "three").len(), 3);
    // Each is read from the disk.
    sandbox.end_daemon();
    expected.iter().for_each(|(image, digest)| is_in(sandbox, image, digest));
    // What children need of a parent stays when that is removed.
    sandbox.pando(["image", "rm", "one"]).ok();
    sandbox.pando(["image", "rm", "two"]).ok();
    sandbox.end_daemon();
    is_in(sandbox, "three", &expected[2].1);
    // An export needs nothing else.
    let export = sandbox.scratch().join("three.pando").to_string_lossy().into_owned();
    sandbox.pando(["image", "export", "three", &export]).ok();
    sandbox.pando(["image", "rm", "three"]).ok();
    assert_eq!(sandbox.pando(["image", "import", &export, "again"]).ok(), "again\n");
    assert!(matches!(&memory(sandbox, "again")[..], [(name, _, 1)] if name == "memory"));
    is_in(sandbox, "again", &expected[2].1);
}

fn a_chain_is_folded(sandbox: &Sandbox) {
    begin(sandbox);
    let mut digests = Vec::new();
    for number in 0..10 {
        write(sandbox, "web");
        digests.push(said(sandbox, "web"));
        // The next waits until this one is on the disk.
        sandbox.pando(["freeze", "web", &format!("at{number}")]).ok();
    }
    eventually("all are on the disk", || directory(sandbox, "at9").exists());
    let counts: Vec<usize> = (0..10).map(|number| memory(sandbox, &format!("at{number}")).len()).collect();
    assert!(counts.iter().all(|count| *count <= 8), "{counts:?}");
    assert!(counts.iter().filter(|count| **count > 1).count() >= 7, "{counts:?}");
    sandbox.end_daemon();
    for number in [0, 5, 7, 8, 9] {
        is_in(sandbox, &format!("at{number}"), &digests[number]);
    }
}

fn a_damaged_parent_is_named(sandbox: &Sandbox) {
    begin(sandbox);
    sandbox.pando(["freeze", "web", "one", "--wait"]).ok();
    write(sandbox, "web");
    sandbox.pando(["freeze", "web", "two", "--wait"]).ok();
    is_small(sandbox, "two");
    sandbox.end_daemon();
    let (own, parents) = (directory(sandbox, "two").join("pages.0"), directory(sandbox, "two").join("pages.1"));
    for (file, name) in [(&own, "pages.0"), (&parents, "pages.1")] {
        let whole = std::fs::read(file).expect("a file of the image");
        let mut damaged = whole.clone();
        damaged[4096 + 100] ^= 1;
        std::fs::write(file, &damaged).expect("it can be written");
        sandbox.pando(["clone", "two", "tried"]).run().ended_with(125).complains_of(&[name, "checksum"]);
        std::fs::write(file, &whole[..whole.len() - 4096]).expect("it can be written");
        sandbox.pando(["clone", "two", "tried"]).run().ended_with(125).complains_of(&[name, "length"]);
        std::fs::write(file, &whole).expect("it can be written");
    }
    std::fs::remove_file(directory(sandbox, "two").join("chain")).expect("it was there");
    sandbox.pando(["clone", "two", "tried"]).run().ended_with(125).complains_of(&["memory"]);
    assert_eq!(sandbox.status("tried"), None);
    sandbox.pando(["image", "rm", "two"]).ok();
}

fn a_daemon_killed_while_it_writes_one(sandbox: &Sandbox) {
    begin(sandbox);
    sandbox.pando(["freeze", "web", "one", "--wait"]).ok();
    let digest = said(sandbox, "web");
    for (step, kept) in [("image.written", false), ("image.kept", true)] {
        sandbox.end_daemon();
        let daemon = super::crash::daemon_with(sandbox, "PANDO_CRASH_AT", step);
        // Of a clone, whose image is on the disk: the guest itself was frozen by another daemon.
        sandbox.pando(["clone", "one", "other"]).ok();
        sandbox.pando(["freeze", "other", "two"]).run();
        daemon.wait().ended_with(137);
        assert_eq!(sandbox.pando(["images", "-q"]).ok().contains("two"), kept, "after {step}");
        if kept {
            is_small(sandbox, "two");
            is_in(sandbox, "two", &digest);
            sandbox.pando(["image", "rm", "two"]).ok();
        }
        sandbox.pando(["rm", "-f", "other"]).ok();
        is_in(sandbox, "one", &digest);
        eventually("nothing is left", || {
            std::fs::read_dir(sandbox.places().images()).is_ok_and(|entries| entries.count() == 1)
        });
        assert!(matches!(&memory(sandbox, "one")[..], [(_, _, 1)]), "a name of its memory is left somewhere");
    }
}

fn a_released_image(sandbox: &Sandbox) {
    begin(sandbox);
    let digest = said(sandbox, "web");
    sandbox.pando(["freeze", "web", "alone", "--memory"]).ok();
    sandbox.pando(["image", "release", "alone"]).run().ended_with(125).complains_of(&["'alone'", "not on the disk"]);
    sandbox.pando(["image", "release", "none"]).run().ended_with(125).complains_of(&["none"]);
    sandbox.pando(["freeze", "web", "one", "--wait"]).ok();
    sandbox.pando(["clone", "one", "before"]).ok();
    let holder = holder(sandbox, "one").expect("it is held");
    assert_eq!(sandbox.pando(["image", "release", "one"]).ok(), "one\n");
    eventually("nobody holds it", || !process::is_alive(holder));
    assert_eq!((self::holder(sandbox, "one"), said(sandbox, "before")), (None, digest.clone()));
    is_in(sandbox, "one", &digest);
    is_in(sandbox, "alone", &digest);
    // Twice is no mistake.
    sandbox.pando(["image", "release", "one", "one"]).ok();
}

/// The process that has an image's memory.
fn holder(sandbox: &Sandbox, image: &str) -> Option<i32> {
    let inspected: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["image", "inspect", image]).ok()).expect("inspect prints JSON");
    i32::try_from(inspected["holder"].as_i64()?).ok()
}

fn one_by_which_a_guest_ends(sandbox: &Sandbox) {
    begin(sandbox);
    sandbox.pando(["freeze", "web", "one", "--wait"]).ok();
    write(sandbox, "web");
    let digest = said(sandbox, "web");
    sandbox.pando(["freeze", "--stop", "web", "two"]).ok();
    is_small(sandbox, "two");
    sandbox.pando(["image", "rm", "one"]).ok();
    process::kill(holder(sandbox, "two").expect("it is held"));
    sandbox.pando(["restore", "two"]).ok();
    assert_eq!(said(sandbox, "web"), digest);
    // What has come back is frozen again.
    write(sandbox, "web");
    sandbox.pando(["freeze", "web", "three", "--wait"]).ok();
    is_small(sandbox, "three");
}

/// What is written since the last is told by its name, which is its own by now.
fn name_of_the_last(sandbox: &Sandbox) {
    begin(sandbox);
    let before = said(sandbox, "web");
    for _ in 0..3 {
        sandbox.pando(["freeze", "--wait", "web", "warm"]).ok();
        sandbox.pando(["image", "rm", "warm"]).ok();
    }
    sandbox.pando(["freeze", "--stop", "web", "warm"]).ok();
    assert!(directory(sandbox, "warm").exists(), "it is on the disk");
    sandbox.pando(["clone", "warm", "copy"]).ok();
    assert_eq!(said(sandbox, "copy"), before);
    sandbox.end_daemon();
}
