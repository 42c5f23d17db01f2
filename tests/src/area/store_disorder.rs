//! Thousands of random operations on unified guests give what they give on a copy of the files, and no other guest changes.
//!
//! The operations are made by this program, on what the guest's first process sees as its root: guests without user namespace, whose ids are the host's.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::disorder;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::tree_state;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const CASES: &[Case] = &[
    Case::new("unify::random_operations_are_as_on_a_copy", |sandbox| random_operations(sandbox, 1_000)),
    Case::new("unify::10000_random_operations_are_as_on_a_copy", |sandbox| random_operations(sandbox, 10_000))
        .tags(&[Tag::Slow]),
    Case::new("store::every_way_of_changing_a_file_breaks_its_link", every_way_of_changing)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
];

const GUESTS: [(&str, u64); 2] = [("a", 11), ("b", 23)];

/// Where a guest's data are, seen from the host.
fn data(sandbox: &Sandbox, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root/data", sandbox.first_process(name)))
}

/// The lines of a tree, without the times that the operations themselves gave it. An overlay counts its own index as a link; which names are one file
/// is in the lines all the same.
fn lines(root: &Path, since: i64) -> Vec<String> {
    let timeless = |line: String| -> String {
        let word =
            |word: &str| match word.split_once('.').map(|(seconds, nanoseconds)| (seconds.parse::<i64>(), nanoseconds))
            {
                Some((Ok(seconds), nanoseconds)) if nanoseconds.len() == 9 && seconds >= since => "now".to_owned(),
                _ => word.to_owned(),
            };
        line.split(' ').map(word).collect::<Vec<_>>().join(" ")
    };
    tree_state::lines(root).into_iter().map(timeless).collect()
}

#[track_caller]
fn assert_same(what: &str, expected: &[String], found: &[String]) {
    let lost: Vec<_> = expected.iter().filter(|line| !found.contains(line)).take(5).collect();
    let gained: Vec<_> = found.iter().filter(|line| !expected.contains(line)).take(5).collect();
    assert!(expected == found, "{what}: the copy has {lost:#?}, the guest {gained:#?}");
}

fn random_operations(sandbox: &Sandbox, count: u64) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    std::fs::create_dir(tree.join("data")).expect("a directory");
    disorder::make(&tree.join("data"), &mut Dice::new(5), 400);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64 + 1;
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    let names = GUESTS.iter().map(|(name, _)| *name).chain(["watching"]);
    for name in names {
        sandbox.pando(["create", name, "--userns", "host", "--start", "--from"]).args([&tree]).ok();
    }
    let untouched = lines(&data(sandbox, "watching"), since);
    let copies = GUESTS.map(|(name, _)| sandbox.scratch().join(name));
    copies.iter().for_each(|copy| drop(Line::new("cp").args(["-a"]).args([&tree.join("data"), copy]).ok()));
    let mut dice = GUESTS.map(|(_, seed)| (Dice::new(seed), Dice::new(seed)));
    for round in 0..4 {
        for (((name, _), copy), (ours, theirs)) in GUESTS.iter().zip(&copies).zip(&mut dice) {
            disorder::make(&data(sandbox, name), ours, count / 4);
            disorder::make(copy, theirs, count / 4);
            // What is unified has something to share.
            for root in [data(sandbox, name), copy.clone()] {
                std::fs::write(root.join(format!("common-{round}")), vec![round; 6 << 20]).expect("a file");
            }
            assert_same(
                &format!("{name} after round {round}"),
                &lines(copy, since),
                &lines(&data(sandbox, name), since),
            );
        }
        assert_same("the guest that only watches", &untouched, &lines(&data(sandbox, "watching"), since));
        for (name, _) in GUESTS {
            sandbox.pando(["stop", "--time", "1", name]).ok();
        }
        let told = sandbox.pando(["unify", "--json"]).ok();
        assert!(told.contains("\"shared\""), "round {round}: {told}");
        for ((name, _), copy) in GUESTS.iter().zip(&copies) {
            sandbox.pando(["start", name]).ok();
            assert_same(&format!("{name}, unified"), &lines(copy, since), &lines(&data(sandbox, name), since));
        }
    }
    sandbox.pando(["store", "verify"]).ok();
    println!("     {count} operations on each of {} guests, unified four times between", GUESTS.len());
}

/// Every way in which a program can change a file: the body of `def change(p)`.
const WAYS: [(&str, &str); 14] = [
    ("write", "f = open(p, 'ab'); f.write(b'more'); f.close()"),
    ("truncate", "os.truncate(p, 10)"),
    ("open-truncate", "open(p, 'w').close()"),
    ("chmod", "os.chmod(p, 0o4751)"),
    ("chown", "os.chown(p, 33, 44)"),
    ("utimes", "os.utime(p, (1, 2))"),
    ("setxattr", "os.setxattr(p, 'user.mark', b'value')"),
    ("access-list", "os.setxattr(p, 'trusted.mark', b'value')"),
    ("rename-over", "open(p + '.new', 'w').close(); os.rename(p + '.new', p)"),
    ("rename", "os.rename(p, p + '.moved')"),
    ("unlink", "os.unlink(p)"),
    ("link", "os.link(p, p + '.other'); f = open(p + '.other', 'ab'); f.write(b'more'); f.close()"),
    ("mmap", "f = open(p, 'r+b'); m = mmap.mmap(f.fileno(), 0); m[7] = 88; m.flush(); m.close(); f.close()"),
    ("allocate", "f = open(p, 'r+b'); os.posix_fallocate(f.fileno(), 0, 90000); f.close()"),
];

fn every_way_of_changing(sandbox: &Sandbox) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    std::fs::create_dir(tree.join("data")).expect("a directory");
    for (name, _) in WAYS {
        std::fs::write(tree.join("data").join(name), name.repeat(2_000)).expect("a file");
    }
    for name in ["changing", "watching"] {
        sandbox.pando(["create", name, "--userns", "host", "--start", "--from"]).args([&tree]).ok();
    }
    let before = lines(&data(sandbox, "watching"), i64::MAX);
    let mut last = lines(&data(sandbox, "changing"), i64::MAX);
    assert_eq!(last, before);
    for (name, way) in WAYS {
        let script = format!("import mmap, os, sys\np = sys.argv[1]\n{way}\n");
        Line::new("python3").args(["-c", &script]).args([data(sandbox, "changing").join(name)]).ok();
        let now = lines(&data(sandbox, "changing"), i64::MAX);
        assert_ne!(now, last, "{name} changed nothing");
        assert_eq!(lines(&data(sandbox, "watching"), i64::MAX), before, "{name} was seen by another guest");
        last = now;
    }
    sandbox.pando(["restart", "--time", "1", "changing"]).ok();
    assert_eq!(lines(&data(sandbox, "changing"), i64::MAX), last, "changes last");
    sandbox.pando(["store", "verify"]).ok();
    assert_eq!(lines(&tree.join("data"), i64::MAX).len(), before.len());
}
