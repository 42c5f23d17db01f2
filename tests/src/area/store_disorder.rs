//! Thousands of random operations on unified guests give what they give on a copy of the files, and no other guest
//! changes.
//!
//! The operations are made by this program, on what the guest's first process sees as its root: guests without user
//! namespace, whose ids are the host's.

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
    Case::new("unify::several_processes_at_once_are_as_one_after_another_on_a_copy", |sandbox| at_once(sandbox, 300)),
    Case::new("unify::10000_operations_of_several_processes_at_once", |sandbox| at_once(sandbox, 10_000))
        .tags(&[Tag::Slow]),
    Case::new("unify::random_operations_on_one_file_are_as_in_its_model", |sandbox| on_one_file(sandbox, 500))
        .needs(PYTHON),
    Case::new("unify::10000_random_operations_on_one_file", |sandbox| on_one_file(sandbox, 10_000))
        .needs(PYTHON)
        .tags(&[Tag::Slow]),
    Case::new("store::every_way_of_changing_a_file_breaks_its_link", every_way_of_changing).needs(PYTHON),
    Case::new("store::access_lists_are_kept_and_given", access_lists_are_kept_and_given).needs(PYTHON),
];

const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

pub(super) const GUESTS: [(&str, u64); 2] = [("a", 11), ("b", 23)];

/// Where a guest's data are, seen from the host.
pub(super) fn data(sandbox: &Sandbox, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root/data", sandbox.first_process(name)))
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

/// The lines of a tree, without the times that the operations themselves gave it. An overlay counts its own index as a
/// link; which names are one file is in the lines all the same.
pub(super) fn lines(root: &Path, since: i64) -> Vec<String> {
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
pub(super) fn assert_same(what: &str, expected: &[String], found: &[String]) {
    let lost: Vec<_> = expected.iter().filter(|line| !found.contains(line)).take(5).collect();
    let gained: Vec<_> = found.iter().filter(|line| !expected.contains(line)).take(5).collect();
    assert!(expected == found, "{what}: the copy has {lost:#?}, the guest {gained:#?}");
}

fn random_operations(sandbox: &Sandbox, count: u64) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    std::fs::create_dir(tree.join("data")).expect("a directory");
    disorder::make(&tree.join("data"), &mut Dice::new(5), 400);
    let since = now() + 1;
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

/// Has both guests unified, and starts them again.
pub(super) fn unify(sandbox: &Sandbox, what: &str) {
    for (name, _) in GUESTS {
        std::fs::write(data(sandbox, name).join("common"), what.repeat(6 << 20)).expect("a file");
        sandbox.pando(["stop", "--time", "1", name]).ok();
    }
    // The first to be looked at pays for what both have, until the store has it.
    let told = GUESTS.map(|_| sandbox.pando(["unify", "--json"]).ok());
    assert!(told.iter().any(|told| told.contains("\"shared\"")), "{told:?}");
    for (name, _) in GUESTS {
        sandbox.pando(["start", name]).ok();
        std::fs::remove_file(data(sandbox, name).join("common")).expect("it is there");
    }
}

/// A tree with `data` in it, and three guests that run on it.
pub(super) fn three_guests(sandbox: &Sandbox, fill: impl FnOnce(&Path)) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    std::fs::create_dir(tree.join("data")).expect("a directory");
    fill(&tree.join("data"));
    for name in GUESTS.iter().map(|(name, _)| *name).chain(["watching"]) {
        sandbox.pando(["create", name, "--userns", "host", "--start", "--from"]).args([&tree]).ok();
    }
    tree
}

/// As many as change each guest's files at once, each below a directory of its own.
const PROCESSES: u64 = 4;

/// What fsstress of the xfstests does: several processes change a tree at once.
fn at_once(sandbox: &Sandbox, count: u64) {
    let part = |root: &Path, process: u64| root.join(process.to_string());
    let fill = |data: &Path| {
        for process in 0..PROCESSES {
            std::fs::create_dir(part(data, process)).expect("a directory");
            disorder::make(&part(data, process), &mut Dice::new(process), 200);
        }
    };
    let tree = three_guests(sandbox, fill);
    let since = now() + 1;
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    let untouched = lines(&data(sandbox, "watching"), since);
    let disorder = |root: &Path, process: u64, round: u64, seed: u64| {
        let words = [100 * seed + 10 * round + process, count / PROCESSES / 2].map(|number| number.to_string());
        let program = std::env::current_exe().expect("it runs");
        Line::new(program).args([disorder::WORD]).args(words).args([part(root, process)]).ok();
    };
    for (name, seed) in GUESTS {
        let copy = sandbox.scratch().join(name);
        Line::new("cp").args(["-a"]).args([&tree.join("data"), &copy]).ok();
        for round in 0..2 {
            let shown = data(sandbox, name);
            std::thread::scope(|scope| {
                for process in 0..PROCESSES {
                    let (shown, disorder) = (&shown, &disorder);
                    scope.spawn(move || disorder(shown, process, round, seed));
                }
            });
            (0..PROCESSES).for_each(|process| disorder(&copy, process, round, seed));
            for process in 0..PROCESSES {
                let [expected, found] = [&copy, &shown].map(|root| lines(&part(root, process), since));
                assert_same(&format!("{name}, round {round}, process {process}"), &expected, &found);
            }
            assert_same("the guest that only watches", &untouched, &lines(&data(sandbox, "watching"), since));
            unify(sandbox, &round.to_string());
            for process in 0..PROCESSES {
                let [expected, found] = [&copy, &data(sandbox, name)].map(|root| lines(&part(root, process), since));
                assert_same(&format!("{name}, unified {round}, process {process}"), &expected, &found);
            }
        }
    }
    sandbox.pando(["store", "verify"]).ok();
}

/// Files that are changed: what an image holds itself, less than a page, some pages, and nothing.
const FILES: [(&str, usize); 4] = [("inline", 40), ("small", 3_000), ("pages", 70_000), ("empty", 0)];

const ONE_FILE: &str = include_str!("one_file.py");

/// What fsx of the xfstests does, on files of a layer and then on what unification made of them.
fn on_one_file(sandbox: &Sandbox, count: u64) {
    let fill = |data: &Path| {
        for (name, size) in FILES {
            let bytes: Vec<u8> = (0..size).map(|at| (at * 7 % 251) as u8).collect();
            std::fs::write(data.join(name), bytes).expect("a file");
        }
    };
    three_guests(sandbox, fill);
    let digest = |path: &Path| {
        let told = Line::new("sha256sum").args([path]).ok();
        told.split(' ').next().map(str::to_owned).expect("a digest")
    };
    let untouched = FILES.map(|(file, _)| digest(&data(sandbox, "watching").join(file)));
    let change = |path: &Path, seed: u64| {
        let words = [seed.to_string(), (count / 2).to_string()];
        Line::new("python3").args(["-c", ONE_FILE]).args([path]).args(words).ok().trim_end().to_owned()
    };
    for round in 0..2 {
        let changed: Vec<(PathBuf, String)> = std::thread::scope(|scope| {
            let seed = |seed: u64, size: usize| seed * 100 + size as u64 + round;
            let files = |name: &'static str, number: u64| {
                FILES.map(|(file, size)| (Path::new(name).join(file), seed(number, size)))
            };
            let places = GUESTS.into_iter().flat_map(|(name, number)| files(name, number));
            let threads: Vec<_> = places
                .map(|(place, seed)| {
                    let path = data(sandbox, &place.iter().next().expect("a guest").to_string_lossy())
                        .join(place.file_name().expect("a file"));
                    let change = &change;
                    scope.spawn(move || (place, change(&path, seed)))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it agrees with its model")).collect()
        });
        let agree = |when: &str| {
            for (place, expected) in &changed {
                let (guest, file) = (place.parent().expect("a guest"), place.file_name().expect("a file"));
                let found = digest(&data(sandbox, &guest.to_string_lossy()).join(file));
                assert_eq!(found, *expected, "{} {when}, round {round}", place.display());
            }
        };
        agree("after its changes");
        unify(sandbox, &round.to_string());
        agree("unified");
        assert_eq!(FILES.map(|(file, _)| digest(&data(sandbox, "watching").join(file))), untouched, "round {round}");
    }
    sandbox.pando(["store", "verify"]).ok();
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

/// Reads or gives an access control list: `u::rw-,u:7:r--,g::r--,m::r--,o::---` as the kernel keeps it
/// (linux/posix_acl_xattr.h).
const ACCESS_LIST: &str = r#"
import os, struct, sys
entries = [(1, 6, 0xffffffff), (2, 4, 7), (4, 4, 0xffffffff), (16, 4, 0xffffffff), (32, 0, 0xffffffff)]
value = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in entries)
name, path = 'system.posix_acl_access', sys.argv[2]
if sys.argv[1] == 'give':
    os.setxattr(path, name, value)
print(os.getxattr(path, name) == value)
"#;

/// The overlay asks the file below whether it could take a list before it copies it up, and a file of an image could
/// not: docs/store.md.
fn access_lists_are_kept_and_given(sandbox: &Sandbox) {
    let line = |what: &str, path: &Path| Line::new("python3").args(["-c", ACCESS_LIST, what]).args([path]);
    let fill = |data: &Path| {
        for name in ["listed", "bare", "new"] {
            std::fs::write(data.join(name), name.repeat(2_000)).expect("a file");
        }
        line("give", &data.join("listed")).run().says("True\n");
    };
    three_guests(sandbox, fill);
    let own = data(sandbox, "a");
    line("read", &own.join("listed")).run().says("True\n");
    let given = line("give", &own.join("bare")).run();
    if super::store::usage(sandbox)["backend"] == "image" {
        assert!(given.err().contains("Operation not supported"), "{} {}", given.out(), given.err());
        // Whatever copies it up makes it a file like any other.
        Line::new("chmod").args(["644"]).args([own.join("bare")]).ok();
        line("give", &own.join("bare")).run().says("True\n");
    } else {
        given.says("True\n");
    }
    std::fs::write(own.join("own"), "").expect("a file");
    line("give", &own.join("own")).run().says("True\n");
    unify(sandbox, "lists");
    for name in ["listed", "bare", "own"] {
        line("read", &data(sandbox, "a").join(name)).run().says("True\n");
    }
    line("read", &data(sandbox, "watching").join("bare")).run().complains_of(&["No data available"]);
}
