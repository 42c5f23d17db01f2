//! Undo of what was committed: the tree is what it was, to the last attribute, or it is as it is and somebody is named.

use crate::case::{Case, Tag};
use crate::dice::{Dice, seed_of_this_run};
use crate::disorder::{self, Cleared};
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::tree_state;
use crate::undo_scene::{Scene, same, settle};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_undo::what_was_committed_is_put_back", put_back),
    Case::new("tx_undo::what_others_changed_since_is_in_the_way_by_name", changed_since),
    Case::new("tx_undo::a_part_is_put_back", a_part),
    Case::new("tx_undo::a_name_of_a_file_with_others_is_one_again", one_of_several_names),
    Case::new("tx_undo::an_undo_is_undone", undone_again),
    Case::new("tx_undo::on_a_mount_of_its_own", on_a_mount),
    Case::new("tx_undo::what_is_kept_is_bounded", bounded),
    Case::new("tx_undo::a_commit_that_the_log_does_not_take_is_told_as_one", not_in_the_log),
    Case::new("tx_undo::nobody_else_reads_what_is_kept", private),
    Case::new("tx_undo::killed_at_each_step", killed_at_each_step),
    Case::new("tx_undo::random_sequences", random_sequences),
    Case::new("tx_undo::what_others_make_beside_it_is_not_in_the_way", beside).needs(&[Need::Root]),
    Case::new("tx_undo::200_random_sequences", many_random_sequences).tags(&[Tag::Slow]),
    Case::new("tx_undo::in_a_guest", in_a_guest).needs(&[Need::Root]),
];

const BEFORE: &str = "mkdir -p a/b old/deep; echo one >a/x; echo two >a/b/y; ln a/x other; echo p >plain; chmod 600 plain; \
                      echo old >old/deep/f; ln -s nowhere link; echo r >replaced; mkfifo pipe; mkdir swap1 swap2; echo 1 >swap1/f";
const CHANGE: &str = "echo new >n; mv a c; rm c/b/y; echo more >>other; chmod 755 plain; mkdir -p d/e; echo q >d/e/f; \
                      rm -r old; mkdir old; echo again >old/f; rm link; ln -s elsewhere link; echo s >s; mv s replaced; \
                      rm pipe; mv swap1 t; mv swap2 swap1; mv t swap2; mv plain c/moved; ln replaced d/linked";

/// Others make and remove files at the root of the mount all the time, as they do in /tmp.
fn beside(sandbox: &Sandbox) {
    let _scene = Scene::new(sandbox, "1G, 1d");
    let mount = sandbox.scratch().join("mount");
    fs::create_dir(&mount).unwrap();
    let pando = format!("{} --root {}", sandbox.program().display(), sandbox.root().display());
    let script = format!(
        "mount -t tmpfs none {0}; cd {0}; mkdir d; echo one >d/f; {pando} tx run -q -- sh -c 'echo two >d/f'; \
         (while :; do : >x; rm x; done) & sleep 0.1; {pando} tx undo 1; ended=$?; kill $!; cat d/f; exit $ended",
        mount.display()
    );
    let ended = Line::new("unshare").args(["-m", "--propagation", "private", "sh", "-c", &script]).run();
    assert_eq!((ended.code(), ended.out().as_str()), (0, "one\n"), "{}", ended.err());
}

fn put_back(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh(BEFORE);
    let before = scene.lines();
    scene.commit(CHANGE);
    let after = scene.lines();
    assert_ne!(before, after);
    let log = sandbox.pando(["tx", "log"]).ok();
    assert!(log.contains("sh -ec echo new"), "{log}");
    let shown = sandbox.pando(["tx", "show", "1"]).ok();
    for line in ["/tree/n\n", "moved from", "+ ", "~ ", "- "] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    scene.undo(1, &[]).succeeded();
    same(&scene.lines(), &before, "undone");
    assert_eq!(scene.numbers(), [1, 2]);
    let json: serde_json::Value = serde_json::from_str(&sandbox.pando(["tx", "log", "--json"]).ok()).expect("JSON");
    assert_eq!((json[1]["undoes"].as_u64(), json[1]["uid"].is_u64()), (Some(1), true));
    sandbox.pando(["tx", "undo", "9"]).run().ended_with(125).complains_of(&["no commit 9", "pando tx log"]);
}

/// It is in place by then, so that nobody may be told that nothing was changed.
fn not_in_the_log(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh("echo old >f");
    scene.commit("echo first >f");
    let log = Line::new("find").args([sandbox.root()]).args(["-name", ".log"]).ok();
    let in_the_way = PathBuf::from(log.trim()).join("last.next");
    fs::create_dir(&in_the_way).expect("a directory in the log");
    let run = sandbox.pando(["tx", "run", "--", "sh", "-ec", "echo second >f"]).directory(&scene.tree).run();
    fs::remove_dir(&in_the_way).expect("it is empty");
    let told = ["committed: 1 path", "what failed behind the commit: adding it to the log", "Is a directory"];
    run.succeeded().complains_of(&told);
    assert_eq!(fs::read_to_string(scene.tree.join("f")).expect("it is there"), "second\n");
    assert_eq!(sandbox.pando(["tx", "recover"]).ok(), "");
    scene.commit("echo third >f");
    assert_eq!(scene.numbers().len(), 2);
}

fn changed_since(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh("echo a >a; echo b >b; echo g >g; mkdir k; echo in >k/in");
    scene.commit("echo A >a; echo B >b; rm g; mkdir d; echo f >d/f; rm -r k; echo w >w; rm w; echo t >t");
    // Each of them as others can do it; the time of the last is set back.
    scene.sh("touch -r t ref; echo mine >a; echo again >g; echo mine >d/mine; echo T >t; touch -r ref t; rm ref");
    let now = scene.lines();
    let refused = scene.undo(1, &[]).ended_with(125);
    refused.complains_of(&["conflict", "/a was changed", "/g is there again", "/d/mine came into", "/t was changed"]);
    same(&scene.lines(), &now, "refused");
    assert_eq!(scene.numbers(), [1]);
    let kept = scene.undo(1, &["--keep-changed"]).succeeded();
    assert!(kept.err().contains("left as it is") && kept.err().contains("/a was changed"), "{}", kept.err());
    let read = |name: &str| fs::read_to_string(scene.tree.join(name)).unwrap_or_default();
    assert_eq!(["a", "b", "g", "d/mine", "k/in", "t"].map(read), ["mine\n", "b\n", "again\n", "mine\n", "in\n", "T\n"]);
    assert!(!scene.tree.join("d/f").exists());
}

fn a_part(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh("echo a >a; mkdir d; echo b >d/b; echo c >d/c");
    scene.commit("echo A >a; echo B >d/b; rm d/c; mv d e");
    scene.sh("echo others >a");
    // What cannot be without the rest is named.
    scene.undo(1, &["--paths", "e/b"]).ended_with(125);
    scene.undo(1, &["--paths", "e", "d"]).succeeded();
    let read = |name: &str| fs::read_to_string(scene.tree.join(name)).unwrap_or_default();
    assert_eq!(["a", "d/b", "d/c"].map(read), ["others\n", "b\n", "c\n"]);
    assert!(!scene.tree.join("e").exists());
}

fn one_of_several_names(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh("echo x >one; ln one two; ln one three; echo y >mine; ln mine yours");
    let before = scene.lines();
    // By a name that then goes, and by none.
    scene.commit("rm two; echo more >>mine; chmod 700 mine; rm mine");
    scene.undo(1, &[]).succeeded();
    same(&scene.lines(), &before, "undone");
    // What others write meanwhile to the file that lives on is what its name leads to again.
    scene.commit("rm two");
    scene.sh("echo others >one");
    scene.undo(3, &[]).succeeded();
    assert_eq!(fs::read_to_string(scene.tree.join("two")).expect("it is back"), "others\n");
    let inode = |name: &str| fs::metadata(scene.tree.join(name)).expect("it is there").ino();
    assert_eq!(inode("one"), inode("two"));
}

fn undone_again(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh(BEFORE);
    let before = scene.lines();
    scene.commit(CHANGE);
    let after = scene.lines();
    for number in 1..4 {
        scene.undo(number, &[]).succeeded();
        same(&scene.lines(), if number % 2 == 1 { &before } else { &after }, &format!("undo of {number}"));
    }
}

fn on_a_mount(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    let mount = PathBuf::from("/dev/shm").join(format!("pando-undo-{}", std::process::id()));
    disorder::clear(&mount);
    fs::create_dir(&mount).expect("a directory can be made");
    let _cleared = Cleared(mount.clone());
    fs::write(mount.join("f"), "before").expect("a file can be written");
    fs::write(mount.join("gone"), "gone").expect("a file can be written");
    scene.sh("echo a >a");
    let before = (scene.lines(), tree_state::lines(&mount));
    let at = mount.display();
    scene.commit(&format!("echo after >{at}/f; rm {at}/gone; echo A >a; mkdir {at}/d"));
    scene.undo(1, &[]).succeeded();
    same(&scene.lines(), &before.0, "here");
    same(&tree_state::lines(&mount), &before.1, "there");
    // What is kept there goes with the log.
    let hidden = Path::new("/dev/shm/.pando-tx");
    let kept = || {
        let names = fs::read_dir(hidden).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("kept-")).count()
    };
    let all = kept();
    assert_eq!(sandbox.pando(["tx", "log", "--clear"]).ok(), "2 forgotten\n");
    assert!(kept() + 2 <= all, "{} of {all} are left", kept());
    assert_eq!(scene.numbers(), [0_u64; 0]);
}

fn bounded(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1M, 1d");
    for number in 0..4 {
        scene.sh(&format!("head -c 400000 /dev/zero | tr '\\0' x >f{number}"));
        scene.commit(&format!("rm f{number}"));
    }
    assert_eq!(scene.numbers(), [3, 4]);
    // What only comes takes nothing; what is too large is not kept, and that is said.
    scene.commit("head -c 3000000 /dev/zero | tr '\\0' x >large");
    assert_eq!(scene.numbers(), [3, 4, 5]);
    settle();
    let ended = sandbox.pando(["tx", "run", "--", "rm", "large"]).directory(&scene.tree).run().succeeded();
    assert!(ended.err().contains("not in the log: to keep what it replaces takes 2.9 MiB"), "{}", ended.err());
    assert_eq!(scene.numbers(), [3, 4, 5]);
    sandbox.settings("[transactions]\nkeep = \"off\"\n");
    scene.commit("echo x >x");
    assert_eq!(scene.numbers(), [3, 4, 5]);
}

fn private(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh("echo secret >f; echo more >g");
    scene.commit("rm f; echo x >g");
    let mut left = vec![sandbox.root().join("var/lib/pando/tx/.log")];
    let mut files = 0;
    while let Some(directory) = left.pop() {
        let mode = fs::metadata(&directory).expect("it is there").mode() & 0o7777;
        assert_eq!(mode, 0o700, "{}", directory.display());
        for entry in fs::read_dir(&directory).expect("it can be listed").map(|entry| entry.expect("an entry")) {
            if entry.file_type().expect("a kind").is_dir() { left.push(entry.path()) } else { files += 1 }
        }
    }
    assert!(files >= 4, "the journal, two files and the last number: {files}");
}

fn killed_at_each_step(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    let (mut commits, mut undos) = (0, 0);
    for is_undo in [false, true] {
        for step in 0.. {
            disorder::clear(&scene.tree);
            fs::create_dir(&scene.tree).expect("a directory can be made");
            scene.sh(BEFORE);
            let before = scene.lines();
            if is_undo {
                scene.commit(CHANGE);
            }
            let from = scene.lines();
            let numbers = scene.numbers();
            let last = numbers.last().copied().unwrap_or(0);
            settle();
            let line = match is_undo {
                true => sandbox.pando(["tx", "undo", &last.to_string(), "--no-durable"]),
                false => sandbox.pando(["tx", "run", "-q", "--no-durable", "--", "sh", "-ec", CHANGE]),
            };
            let ended = line.directory(&scene.tree).env("PANDO_TX_CRASH_STEP", step.to_string()).run();
            if ended.code() == 0 {
                break;
            }
            ended.ended_with(137);
            // Who holds the transaction of an undo ends a moment behind that.
            eventually("nothing is left open", || {
                sandbox.pando(["tx", "recover"]).ok();
                sandbox.pando(["tx", "ls", "--json"]).ok().trim() == "[]"
            });
            let now = scene.numbers();
            if scene.lines() == from {
                assert_eq!(now, numbers, "step {step}: nothing was committed, and nothing is in the log");
            } else {
                let [all @ .., new] = now.as_slice() else { panic!("step {step}: it is not in the log") };
                assert_eq!(all, numbers, "step {step}");
                if is_undo {
                    same(&scene.lines(), &before, &format!("step {step}"));
                }
                scene.undo(*new, &[]).succeeded();
                same(&scene.lines(), &from, &format!("step {step}, undone"));
            }
            *(if is_undo { &mut undos } else { &mut commits }) += 1;
        }
    }
    println!("     {commits} commits and {undos} undos, killed at each step in turn");
    assert!(commits > 40 && undos > 40);
}

fn random_sequences(sandbox: &Sandbox) {
    sequences(sandbox, 8);
}

fn many_random_sequences(sandbox: &Sandbox) {
    sequences(sandbox, 200);
}

/// Commits of random changes, and undos of the last one that stands: the tree is what it was before that. Undos of
/// earlier ones put all of it back or change nothing.
fn sequences(sandbox: &Sandbox, count: u64) {
    let scene = Scene::new(sandbox, "4G, 1d");
    let seed = seed_of_this_run(3);
    let (mut undos, mut redos, mut refused, mut early) = (0, 0, 0, 0);
    for sequence in 0..count {
        let seed = seed * 1_000_000 + sequence;
        let mut dice = Dice::new(seed);
        disorder::clear(&scene.tree);
        fs::create_dir(&scene.tree).expect("a directory can be made");
        disorder::make_protectively(&scene.tree, &mut dice, 40);
        // What stands: the number of each commit, and the tree before it.
        let mut stands: Vec<(u64, Vec<String>)> = Vec::new();
        for turn in 0..6 {
            let about = format!("sequence {seed}, turn {turn}");
            let before = scene.lines();
            if dice.throw(3) == 0 && stands.len() > 1 {
                let (number, _) = stands[dice.throw(stands.len() as u64 - 1) as usize];
                let ended = scene.undo(number, &[]);
                match ended.code() {
                    0 => {
                        early += 1;
                        let undo = *scene.numbers().last().expect("it is in the log");
                        scene.undo(undo, &[]).succeeded();
                    }
                    125 if ended.err().contains("conflict") => refused += 1,
                    code => panic!("{about}: {code}: {}", ended.err()),
                }
                same(&scene.lines(), &before, &about);
            } else if dice.throw(2) == 0 && !stands.is_empty() {
                let (number, was) = stands.pop().expect("one stands");
                let ended = scene.undo(number, &[]);
                assert_eq!(ended.code(), 0, "{about}: {}", ended.err());
                same(&scene.lines(), &was, &about);
                undos += 1;
                match redone(&scene, (&before, &was), &about) {
                    Redone::Whole => redos += 1,
                    Redone::Refused => refused += 1,
                    // What stood before cannot be come back to.
                    Redone::AndNotBack => {
                        refused += 1;
                        stands.clear();
                    }
                }
            } else {
                let last = scene.numbers().last().copied().unwrap_or(0);
                settle();
                let words = words(seed * 100 + turn, [2, 8, 20][dice.throw(3) as usize], &scene.tree);
                let line = sandbox.pando(["tx", "run", "-q", "--no-durable", "--"]).args(words);
                let ended = line.run();
                assert_eq!(ended.code(), 0, "{about}: {}", ended.err());
                // One that changed nothing is not in the log.
                let number = scene.numbers().last().copied().unwrap_or(0);
                if number > last {
                    stands.push((number, before));
                }
            }
        }
        while let Some((number, was)) = stands.pop() {
            let ended = scene.undo(number, &[]);
            assert_eq!(ended.code(), 0, "sequence {seed}, at its end: {}", ended.err());
            same(&scene.lines(), &was, &format!("sequence {seed}, at its end"));
            undos += 1;
        }
        sandbox.pando(["tx", "log", "--clear"]).ok();
    }
    println!(
        "     {undos} undone, {redos} of these again and once more, {early} of earlier ones, {refused} in conflict"
    );
    assert!(undos > count && redos > 0 && refused + early > 0);
}

/// What became of an undo of an undo.
enum Redone {
    /// It was done, and undone.
    Whole,
    /// It was in conflict.
    Refused,
    /// It was done, and its undo was in conflict.
    AndNotBack,
}

/// Undoes the last undo, and undoes that: the tree is as it was between, and before. A commit that has put things in
/// each other's places may be in conflict with itself; then nothing is changed.
fn redone(scene: &Scene<'_>, (between, was): (&[String], &[String]), about: &str) -> Redone {
    let last = || scene.numbers().last().copied().expect("it is in the log");
    let attempt = |number: u64, expected: &[String], else_expected: &[String]| {
        let ended = scene.undo(number, &[]);
        let is_done = ended.code() == 0;
        assert!(is_done || ended.err().contains("conflict"), "{about}, undo of {number}: {}", ended.err());
        same(&scene.lines(), if is_done { expected } else { else_expected }, &format!("{about}, undo of {number}"));
        is_done
    };
    if !attempt(last(), between, was) {
        return Redone::Refused;
    }
    let number = last();
    if attempt(number, was, between) { Redone::Whole } else { Redone::AndNotBack }
}

/// The words of a program that disorders a tree: this one.
fn words(seed: u64, changes: u64, tree: &Path) -> [String; 5] {
    let program = std::env::current_exe().expect("this program has a path");
    let text = |path: &Path| path.to_str().expect("the path is text").to_owned();
    [text(&program), disorder::PROTECTIVE.to_owned(), seed.to_string(), changes.to_string(), text(tree)]
}

fn in_a_guest(sandbox: &Sandbox) {
    sandbox.settings("[transactions]\nkeep = \"1G, 1d\"\n");
    sandbox.guest("g", &[]);
    let exec = |script: &str| sandbox.exec_sh("g", script).ok();
    let state =
        || exec("cd /w && find . | sort && find . -type f | sort | xargs cat && ls -ln . d | sed 's/ [0-9]*:[0-9]*//'");
    exec("mkdir -p /w/d; cd /w; echo a >a; echo b >d/b; chown 5:6 d/b; chmod 600 a; mkdir gone; echo in >gone/in");
    let before = state();
    settle();
    let change =
        "cd /w; echo A >a; chmod 644 a; rm d/b; rm -r gone; mkdir new; echo n >new/n; mv d e; echo r >r; mv r e/r";
    sandbox.pando(["tx", "run", "-q", "--guest", "g", "--", "sh", "-ec", change]).ok();
    assert_ne!(exec("ls /w"), "a\nd\ngone\n");
    let shown = sandbox.pando(["tx", "show", "--guest", "g", "1"]).ok();
    assert!(shown.contains("/w/new/n"), "{shown}");
    sandbox.pando(["tx", "undo", "--guest", "g", "1"]).ok();
    assert_eq!(state(), before);
    sandbox.pando(["tx", "undo", "--guest", "g", "2"]).ok();
    exec("cd /w; test -f e/r; test ! -e gone; echo others >a");
    let refused = sandbox.pando(["tx", "undo", "--guest", "g", "3"]).run().ended_with(125);
    refused.complains_of(&["conflict", "/w/a was changed"]);
}
