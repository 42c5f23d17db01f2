//! Who can write to a directory puts something else in the place of what a transaction of root's has changed there,
//! after the commit point: what he puts there is left alone, however the commit is killed, recovered and killed again.

use crate::case::Case;
use crate::line::Line;
use crate::sandbox::Sandbox;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_swapped::a_program_is_not_made_roots", |sandbox| tried(sandbox, &PROGRAM)),
    Case::new("tx_swapped::content_goes_to_its_own_file_alone", |sandbox| tried(sandbox, &CONTENT)),
    Case::new("tx_swapped::a_directory_that_was_there_is_not_made_roots", |sandbox| tried(sandbox, &DIRECTORY)),
    Case::new("tx_swapped::a_new_directory_is_the_transactions_own", |sandbox| tried(sandbox, &NEW_DIRECTORY)),
    Case::new("tx_swapped::what_others_make_is_not_removed", |sandbox| tried(sandbox, &REMOVED)),
    Case::new("tx_swapped::what_is_moved_away_is_changed_where_it_is", moved_away),
    Case::new("tx_swapped::what_is_in_the_way_is_kept_beside_it", in_the_way),
    Case::new("tx_swapped::whoever_commits_next_finishes_it_first", next_finishes),
    Case::new("tx_swapped::a_later_commit_that_is_undone_is_noticed", next_is_undone),
    Case::new("tx_swapped::a_commit_by_names_is_noticed", mistaken),
];

/// Somebody who is not root.
const SOMEBODY: u32 = 12_345;

/// A change of root's in somebody's directory, and what he does about it.
struct Trial {
    /// The transaction's command, which makes the file `marker` besides.
    change: &'static str,
    /// Puts something of his at the name, by way of deleting what is there, or of a rename over it.
    swap: fn(&Path, How),
    /// The name.
    name: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Anew,
    Over,
    Link,
}

const PROGRAM: Trial = Trial { change: "chown 0:0 f; chmod 4755 f", swap: put_file, name: "f" };
const CONTENT: Trial = Trial { change: "echo secret >f; chmod 600 f", swap: put_file, name: "f" };
const DIRECTORY: Trial = Trial { change: "chown 0:0 d; chmod 2775 d; touch d/new", swap: put_directory, name: "d" };
const NEW_DIRECTORY: Trial =
    Trial { change: "mkdir n; mv f n/f; chown 0:0 n; chmod 2775 n", swap: put_directory, name: "n" };
const REMOVED: Trial = Trial { change: "rm f", swap: put_file, name: "f" };

const HIS: &str = "somebody's own";

fn his(path: &Path, mode: u32) {
    lchown(path, Some(SOMEBODY), Some(SOMEBODY)).expect("root may");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("root may");
}

fn put_file(at: &Path, how: How) {
    let aside = at.with_extension("his");
    let make = |path: &Path| {
        fs::write(path, HIS).expect("a file");
        his(path, 0o755);
    };
    match how {
        How::Over => {
            make(&aside);
            fs::rename(&aside, at).expect("it is replaced");
        }
        // What is made right behind gets the number of the inode that was deleted, on most file systems.
        How::Anew => {
            let _ = fs::remove_file(at);
            make(at);
        }
        How::Link => {
            let _ = fs::remove_file(at);
            symlink("../victim", at).expect("a link");
        }
    }
}

fn put_directory(at: &Path, how: How) {
    let aside = at.with_extension("his");
    match how {
        How::Over if at.exists() => fs::rename(at, &aside).expect("it goes away"),
        _ => {
            let _ = fs::remove_file(at.join("new"));
            let _ = fs::rename(at.join("f"), aside);
            let _ = fs::remove_dir(at);
        }
    }
    if how == How::Link {
        return symlink("..", at).expect("a link");
    }
    let _ = fs::create_dir(at);
    his(at, 0o755);
}

/// What is at a path: whose, of which mode, and with what in it.
type Seen = (u32, u32, Option<String>);

fn seen(at: &Path) -> Seen {
    let found = at.symlink_metadata().expect("it is there");
    (found.uid(), found.mode() & 0o7777, found.is_file().then(|| fs::read_to_string(at).expect("it can be read")))
}

/// Whether something is another one by now: what comes may take the place of an empty directory, as by any rename.
fn is_replaced(at: &Path, ino: u64) -> bool {
    at.symlink_metadata().is_ok_and(|found| found.is_dir() && found.ino() != ino)
}

/// Has a commit killed at a step; whether it got so far.
fn killed(sandbox: &Sandbox, directory: &Path, change: &str, step: u32, plant: Option<&str>) -> bool {
    let script = format!("{change}; echo >../marker");
    let line = sandbox.pando(["tx", "run", "-q", "--", "sh", "-c", &script]).directory(directory);
    let line = match plant {
        Some(plant) => line.env("PANDO_TX_PLANT", plant),
        None => line,
    };
    let ended = line.env("PANDO_TX_CRASH_STEP", step.to_string()).run();
    assert!([0, 137].contains(&ended.code()), "{}", ended.err());
    ended.code() == 137
}

fn set(sandbox: &Sandbox) -> std::path::PathBuf {
    let directory = sandbox.scratch().join("somebodys");
    drop(Line::new("rm").args(["-rf", "--one-file-system"]).args([directory.as_os_str()]).run());
    let _ = fs::remove_file(sandbox.scratch().join("marker"));
    fs::create_dir_all(directory.join("d")).expect("a directory");
    fs::write(directory.join("f"), "before").expect("a file");
    fs::write(sandbox.scratch().join("victim"), "untouched").expect("a file");
    fs::set_permissions(sandbox.scratch().join("victim"), Permissions::from_mode(0o640)).expect("root may");
    his(&directory.join("f"), 0o755);
    his(&directory.join("d"), 0o755);
    his(&directory, 0o755);
    // Changes of the same timer tick would count as made by others while the transaction ran.
    std::thread::sleep(std::time::Duration::from_millis(12));
    directory
}

/// Kills a commit at each of its steps; has somebody act then, and the commit finished. How often it had been committed
/// and what was his was not any more.
fn harmed(sandbox: &Sandbox, trial: &Trial, how: How, plant: Option<&str>) -> (u32, u32) {
    let (mut harmed, mut committed) = (0, 0);
    for step in 0.. {
        let directory = set(sandbox);
        if !killed(sandbox, &directory, trial.change, step, plant) {
            break;
        }
        let at = directory.join(trial.name);
        (trial.swap)(&at, how);
        let (before, ino) = (seen(&at), at.symlink_metadata().expect("it is there").ino());
        let recover = || match plant {
            Some(plant) => sandbox.pando(["tx", "recover"]).env("PANDO_TX_PLANT", plant),
            None => sandbox.pando(["tx", "recover"]),
        };
        // What came in the way of something new is told, and has to be moved away by hand.
        let told = recover().run();
        if sandbox.scratch().join("marker").exists() {
            committed += 1;
        }
        let victim = seen(&sandbox.scratch().join("victim"));
        let is_well =
            (seen(&at) == before || is_replaced(&at, ino)) && victim == (0, 0o640, Some("untouched".to_owned()));
        harmed += u32::from(!is_well);
        assert!(is_well || plant.is_some(), "step {step}: {:?} has become {:?}; {victim:?}", before, seen(&at));
        if told.code() != 0 {
            let _ = fs::rename(&at, directory.join("moved"));
            if recover().run().code() != 0 {
                // What is to come into a directory that he has taken away needs one.
                fs::create_dir(&at).expect("nothing is in its place");
                recover().ok();
            }
        }
        assert!(!sandbox.pando(["tx", "ls"]).ok().contains("committing"), "step {step}: it is not finished");
    }
    (harmed, committed)
}

fn tried(sandbox: &Sandbox, trial: &Trial) {
    for how in [How::Anew, How::Over, How::Link] {
        let (_, committed) = harmed(sandbox, trial, how, None);
        assert!(committed > 2, "it was committed {committed} times alone");
    }
}

/// Whoever renames a file after the commit point has renamed what the transaction had changed.
fn moved_away(sandbox: &Sandbox) {
    let mut moved = 0;
    for step in 0.. {
        let directory = set(sandbox);
        if !killed(sandbox, &directory, "echo after >f; chmod 711 f", step, None) {
            break;
        }
        fs::rename(directory.join("f"), directory.join("g")).expect("it is there");
        sandbox.pando(["tx", "recover"]).ok();
        let found = seen(&directory.join("g"));
        if sandbox.scratch().join("marker").exists() {
            assert_eq!(found, (SOMEBODY, 0o711, Some("after\n".to_owned())), "step {step}");
            moved += 1;
        } else {
            assert_eq!(found, (SOMEBODY, 0o755, Some("before".to_owned())), "step {step}");
        }
        assert!(!directory.join("f").exists());
    }
    assert!(moved > 2, "it was committed {moved} times alone");
}

/// He has made something where something new is to come: both are there in the end, and nothing stands still for it.
fn in_the_way(sandbox: &Sandbox) {
    let mut met = 0;
    for (step, is_directory) in (0..60).flat_map(|step| [(step, false), (step, true)]) {
        let directory = set(sandbox);
        if !killed(sandbox, &directory, "echo new >n", step, None) {
            break;
        }
        let (at, kept) = (directory.join("n"), directory.join("n.pando-kept"));
        if at.exists() {
            continue;
        }
        let inner = if is_directory { "in" } else { "" };
        if is_directory {
            fs::create_dir(&at).expect("nothing is there");
        }
        fs::write(at.join(inner).components().collect::<std::path::PathBuf>(), HIS).expect("a file");
        sandbox.pando(["tx", "recover"]).ok();
        let is_committed = sandbox.scratch().join("marker").exists();
        let his = if is_committed { &kept } else { &at };
        let found = fs::read_to_string(his.join(inner).components().collect::<std::path::PathBuf>());
        assert_eq!(found.expect("it was kept"), HIS, "step {step}");
        if is_committed {
            assert_eq!(fs::read_to_string(&at).expect("it was committed"), "new\n", "step {step}");
            met += 1;
        }
    }
    assert!(met > 2, "they met {met} times alone");
}

/// Two increments, the first of which is killed at one of its steps; what is there once all is recovered, and whether
/// the first was committed.
fn after_two(sandbox: &Sandbox, step: u32, plant: Option<&str>) -> Option<(String, bool)> {
    const ADD: &str = "v=$(cat f); echo $((v + 1)) >f; echo $v >>log; echo x >new$v";
    let directory = set(sandbox);
    fs::write(directory.join("f"), "1\n").expect("a file");
    std::thread::sleep(std::time::Duration::from_millis(12));
    if !killed(sandbox, &directory, ADD, step, plant) {
        return None;
    }
    let line = sandbox.pando(["tx", "run", "-q", "--", "sh", "-c", ADD]).directory(&directory);
    match plant {
        Some(plant) => drop(line.env("PANDO_TX_PLANT", plant).run()),
        None => drop(line.ok()),
    }
    sandbox.pando(["tx", "recover"]).ok();
    let is_committed = sandbox.scratch().join("marker").exists();
    let read = |name| fs::read_to_string(directory.join(name)).unwrap_or_default();
    Some((format!("{}{}", read("f"), read("log")), is_committed))
}

/// A commit that was killed is not done over a later one.
fn next_finishes(sandbox: &Sandbox) {
    let mut both = 0;
    for step in 0.. {
        let Some((found, is_committed)) = after_two(sandbox, step, None) else { break };
        let expected = if is_committed { "3\n1\n2\n" } else { "2\n1\n" };
        assert_eq!(found, expected, "step {step}");
        both += u32::from(is_committed);
    }
    assert!(both > 2, "both were committed {both} times alone");
}

/// One that leaves it to be done later.
fn next_is_undone(sandbox: &Sandbox) {
    let wrong = (0..).map_while(|step| after_two(sandbox, step, Some("unfinished-before")));
    let wrong = wrong.filter(|(found, is_committed)| *is_committed && found != "3\n1\n2\n").count();
    assert!(wrong > 0, "the test does not notice that a later commit was undone");
}

/// A commit that takes names for files, as none may.
fn mistaken(sandbox: &Sandbox) {
    let (harmed, _) = harmed(sandbox, &PROGRAM, How::Over, Some("by-name"));
    assert!(harmed > 0, "the test does not notice that somebody's program was made root's");
}
