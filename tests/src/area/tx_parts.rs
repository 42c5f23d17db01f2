//! Transactions that cannot be committed as they are: without some of what they have read, without a part of their
//! changes, or carried away as an archive.

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::tree_state;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_parts::a_run_that_ignores_what_others_always_write", ignoring_run),
    Case::new("tx_parts::a_commit_that_ignores_what_was_read", ignoring_commit),
    Case::new("tx_parts::what_is_ignored_and_changed_is_in_conflict_all_the_same", ignored_and_changed),
    Case::new("tx_parts::a_lost_one_is_committed_without_what_is_in_conflict", excluding),
    Case::new("tx_parts::only_what_is_included_is_committed", including),
    Case::new("tx_parts::what_belongs_together_is_not_torn", torn),
    Case::new("tx_parts::a_part_is_committed_in_a_guest", in_a_guest),
    Case::new("tx_parts::an_export_is_a_layer", export).needs(&[
        Need::Root,
        Need::Program("tar", "tar"),
        Need::Program("setfattr", "attr"),
        Need::Program("getfattr", "attr"),
    ]),
];

/// A tree that is older than any transaction in it, made by `script`.
fn tree(sandbox: &Sandbox, script: &str) -> PathBuf {
    let at = sandbox.scratch().join("tree");
    let _ = pando_kernel::file::tree_removal::remove_tree(&at);
    fs::create_dir_all(&at).expect("a directory can be made");
    Line::new("sh").args(["-ec", script]).directory(&at).ok();
    std::thread::sleep(std::time::Duration::from_millis(12));
    at
}

/// Begins the transaction `work`, and runs a script in it.
fn begun(sandbox: &Sandbox, at: &Path, script: &str) {
    sandbox.pando(["tx", "begin", "work"]).ok();
    sandbox.pando(["tx", "enter", "work", "--", "sh", "-ec", script]).directory(at).ok();
}

fn commit(sandbox: &Sandbox, at: &Path, options: &[&str]) -> Ended {
    sandbox.pando(["tx", "commit"]).args(options).args(["work"]).directory(at).run()
}

fn outside(at: &Path, script: &str) {
    Line::new("sh").args(["-ec", script]).directory(at).ok();
}

fn text(at: &Path, name: &str) -> String {
    fs::read_to_string(at.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn ignoring_run(sandbox: &Sandbox) {
    let at = tree(sandbox, "mkdir log; echo 1 >log/a; ln -s log link");
    for ignored in ["log", "link"] {
        let line = sandbox.pando(["tx", "run", "--retry", "0", "--ignore", ignored, "--", "sh", "-ec"]);
        let line = line.args(["ls log >/dev/null; a=$(cat log/a); echo $a >copy; read line || true"]).directory(&at);
        let started = line.start_with_open_input();
        eventually("the script has read", || sandbox.changed_paths(&[]) == Some(1));
        outside(&at, "echo 2 >>log/a; echo new >log/$$");
        let ended = started.close_input().wait().succeeded();
        ended.complains_of(&["committed: 1 path", &format!("reads below {ignored} not validated")]);
        assert_eq!(text(&at, "copy"), "1\n");
        outside(&at, "rm copy; echo 1 >log/a; sleep .02");
    }
}

fn ignoring_commit(sandbox: &Sandbox) {
    let at = tree(sandbox, "mkdir log other; echo 1 >log/a; echo 1 >other/b");
    begun(sandbox, &at, "ls log; cat log/a other/b >copy");
    outside(&at, "echo 2 >>log/a; echo new >log/new");
    commit(sandbox, &at, &[]).ended_with(125).complains_of(&["changed by others", "stays open"]);
    commit(sandbox, &at, &["--ignore", "other"]).ended_with(125).complains_of(&["changed by others"]);
    // What is read beside it is validated still.
    commit(sandbox, &at, &["--ignore", "log"]).succeeded().complains_of(&["reads below log not validated"]);
    assert_eq!(text(&at, "copy"), "1\n1\n");
    begun(sandbox, &at, "cat log/a other/b >copy");
    outside(&at, "echo 2 >>log/a; echo 2 >>other/b");
    commit(sandbox, &at, &["--ignore", "log"]).ended_with(125).complains_of(&["other/b was changed by others"]);
    sandbox.pando(["tx", "abort", "work"]).ok();
}

fn ignored_and_changed(sandbox: &Sandbox) {
    let at = tree(sandbox, "mkdir log; echo 1 >log/a");
    begun(sandbox, &at, "echo mine >>log/a; echo x >beside");
    outside(&at, "echo theirs >>log/a");
    commit(sandbox, &at, &["--ignore", "log"]).ended_with(125).complains_of(&["log/a was changed by others"]);
    assert_eq!(text(&at, "log/a"), "1\ntheirs\n");
    sandbox.pando(["tx", "abort", "work"]).ok();
}

/// What others do to `b`, which the transaction has changed too.
const IN_THE_WAY: &[&str] = &["echo theirs >>b", "rm b", "mv b moved", "rm b; mkdir b", "chmod 600 b"];

fn excluding(sandbox: &Sandbox) {
    for others in IN_THE_WAY {
        let at = tree(sandbox, "echo 1 >a; echo 1 >b; echo 1 >c; mkdir d; chmod 700 d");
        begun(
            sandbox,
            &at,
            "echo mine >>a; cat b; echo mine >>b; rm c; mkdir -p new/deep; echo x >new/deep/f; echo y >d/f",
        );
        outside(&at, others);
        let theirs = |at: &Path| Line::new("sh").args(["-c", "ls -ld b moved; cat b moved"]).directory(at).run().out();
        let before = theirs(&at);
        commit(sandbox, &at, &[]).ended_with(125).complains_of(&[
            "b was",
            "by others",
            "--exclude PATH work",
            "--export",
        ]);
        assert!(at.join("c").exists() && !at.join("new").exists(), "{others}: nothing was done");
        let ended = commit(sandbox, &at, &["--exclude", "b"]).succeeded();
        // Where what it was made of has gone, it is not known any more that it was one.
        let left_out = if matches!(others.split(' ').next(), Some("rm" | "mv")) { "" } else { "1 path left out" };
        ended.complains_of(&["committed: ", left_out]);
        assert_eq!((text(&at, "a").as_str(), text(&at, "new/deep/f").as_str()), ("1\nmine\n", "x\n"), "{others}");
        assert_eq!(text(&at, "d/f"), "y\n", "{others}");
        assert!(!at.join("c").exists(), "{others}");
        assert_eq!(theirs(&at), before, "{others}: it is theirs");
        assert!(!sandbox.pando(["tx", "ls"]).ok().contains("work"), "{others}: it has ended");
    }
}

fn including(sandbox: &Sandbox) {
    let at = tree(sandbox, "mkdir -p d/e keep; echo 1 >d/a; echo 1 >d/e/b; echo 1 >c; echo k >keep/k");
    begun(
        sandbox,
        &at,
        "chmod 700 d; echo 2 >>d/a; echo 2 >d/new; mv d/e/b d/e/renamed; echo 2 >>c; mkdir made; echo m >made/m; echo n >made/n; rm -r keep",
    );
    outside(&at, "echo theirs >>c");
    let unchanged = commit(sandbox, &at, &["--include", "d/none"]).ended_with(125);
    unchanged.complains_of(&["it has changed nothing at", "d/none", "tx diff"]);
    let options = ["--include", "d", "--include", "made", "--exclude", "d/a", "--exclude", "made/n"];
    commit(sandbox, &at, &options).succeeded().complains_of(&["4 paths left out"]);
    let listed = Line::new("sh").args(["-c", "find . | sort; stat -c %a d; cat d/a c made/m"]).directory(&at).ok();
    let expected =
        ".\n./c\n./d\n./d/a\n./d/e\n./d/e/renamed\n./d/new\n./keep\n./keep/k\n./made\n./made/m\n700\n1\n1\ntheirs\nm\n";
    assert_eq!(listed, expected);
    // Of a directory that is not included nothing is committed but what is in it.
    begun(sandbox, &at, "chmod 711 d; echo 3 >d/three");
    commit(sandbox, &at, &["--include", "d/three"]).succeeded();
    assert_eq!(Line::new("sh").args(["-c", "stat -c %a d; cat d/three"]).directory(&at).ok(), "700\n3\n");
}

/// What is done, how it is committed, and what that is refused for.
const TORN: &[(&str, &[&str], &[&str])] = &[
    ("mkdir new; echo x >new/f", &["--include", "new/f"], &["new/f cannot be committed without", "/new,"]),
    ("mv d moved; echo x >moved/f", &["--include", "moved/f"], &["moved/f cannot be committed without", "/moved,"]),
    ("mv a b", &["--include", "b"], &["b cannot be committed without", "/a,", "by another name"]),
    ("mv a b", &["--exclude", "b"], &["a cannot be committed without", "/b,", "by another name"]),
    ("mv d e", &["--include", "e"], &["e cannot be committed without", "/d,"]),
    ("rm -r d", &["--exclude", "d/in"], &["/d cannot be committed without", "/d/in,", "goes with it"]),
    ("mv d/in out; rm -r d", &["--include", "d"], &["/d cannot be committed without", "/out,"]),
    ("mv d/in out; rm -r d", &["--exclude", "d"], &["/out cannot be committed without", "/d,"]),
    ("mv a x; mv c a; mv x c", &["--include", "a"], &["/a cannot be committed without", "/c,"]),
    ("echo more >>h1; echo more >>h2", &["--include", "h1"], &["/h1 cannot be committed without", "/h2,"]),
];

fn torn(sandbox: &Sandbox) {
    for (script, options, words) in TORN {
        let at = tree(sandbox, "echo 1 >a; echo 3 >c; mkdir d; echo in >d/in; echo h >h1; ln h1 h2");
        let before = tree_state::lines(&at);
        begun(sandbox, &at, script);
        commit(sandbox, &at, options)
            .ended_with(125)
            .complains_of(words)
            .complains_of(&["include both, or exclude both"]);
        assert_eq!(tree_state::lines(&at), before, "{script}");
        // As a whole it can be.
        commit(sandbox, &at, &[]).succeeded();
        assert_ne!(tree_state::lines(&at), before, "{script}");
    }
}

fn in_a_guest(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    sandbox.exec_sh("g", "mkdir -p /srv/d; cd /srv; echo 1 >a; echo 1 >b; echo 1 >log; ln -s /srv /link").ok();
    let tx = |words: &[&str]| sandbox.pando(["tx"]).args([words[0], "--guest", "g"]).args(&words[1..]);
    tx(&["begin", "work"]).ok();
    tx(&["enter", "work", "--", "sh", "-ec", "cd /srv; cat log b; echo mine >>a; echo mine >>b; echo x >d/new"]).ok();
    sandbox.exec_sh("g", "cd /srv; echo theirs >>b; echo theirs >>log").ok();
    tx(&["commit", "work"])
        .run()
        .ended_with(125)
        .complains_of(&["was changed by others", "--guest g --exclude PATH work"]);
    tx(&["commit", "--exclude", "b", "work"]).run().ended_with(125).complains_of(&["no path of the guest"]);
    let options = ["commit", "--exclude", "/link/b", "--ignore", "/link/log", "work"];
    tx(&options).run().succeeded().complains_of(&["1 path left out", "reads below /link/log not validated"]);
    assert_eq!(sandbox.exec_sh("g", "cd /srv; cat a b d/new").ok(), "1\nmine\n1\ntheirs\nx\n");
    let ran = sandbox.pando(["tx", "run", "--guest", "g", "--retry", "0", "--ignore", "/link/log", "--", "sh", "-ec"]);
    let started = ran.args(["a=$(cat /srv/log); echo $a >/srv/copy; read line || true"]).start_with_open_input();
    eventually("it has read", || sandbox.changed_paths(&["--guest", "g"]) == Some(1));
    sandbox.exec_sh("g", "echo again >>/srv/log").ok();
    started.close_input().wait().succeeded().complains_of(&["0 retries", "reads below /link/log not validated"]);
}

/// The changes that are exported, and what there was before.
const BEFORE: &str =
    "mkdir -p d/deep gone; echo in >d/deep/in; echo out >d/out; echo a >a; echo g >gone/g; ln -s a link; echo w >.wh.w";
const CHANGES: &str = "echo more >>a; chmod 4755 a; rm -r gone; mv d e; echo new >e/new; rm e/out; ln -sfn e link; mkfifo pipe; mknod node c 1 3
    mkdir -p new/deep; echo one >new/deep/one; ln new/deep/one new/two; chown 1:2 new/two; touch -d 2001-02-03T04:05:06.789 new/deep
    setfattr -n user.x -v y a; setfattr -n user.a=b -v z a; echo reserved >.wh.reserved; rm .wh.w
    long=$(printf %0150d 7); mkdir $long; ln -s $long/$long far; echo f >$long/$long";

fn export(sandbox: &Sandbox) {
    let at = tree(sandbox, BEFORE);
    begun(sandbox, &at, CHANGES);
    let archive = sandbox.scratch().join("changes.tar");
    let exported = sandbox.pando(["tx", "diff", "--export"]).args([&archive]).args(["work"]).run().succeeded();
    exported.complains_of(&[".wh.reserved", ".wh.w", "user.a=b"]);
    let mode = fs::metadata(&archive).map(|found| std::os::unix::fs::PermissionsExt::mode(&found.permissions()));
    assert_eq!(mode.expect("it is there") & 0o777, 0o600);
    sandbox.pando(["tx", "commit", "work"]).ok();
    outside(&at, "rm .wh.reserved; setfattr -x user.a=b a");
    let unpacked = sandbox.scratch().join("unpacked");
    fs::create_dir(&unpacked).expect("a directory can be made");
    let tar = ["--xattrs", "--xattrs-include=*", "-xpf"];
    Line::new("tar").args(tar).args([&archive]).directory(&unpacked).ok();
    let unpacked = unpacked.join(at.strip_prefix("/").expect("it is absolute"));
    let gone =
        Line::new("sh").args(["-c", "find . -name '.wh.*' | sort; find . -name '.wh.*' -delete"]).directory(&unpacked);
    // What is in the moved directory is there whole, and what went from it was never there.
    assert_eq!(gone.ok(), "./.wh.d\n./.wh.gone\n./e/.wh.out\n");
    // What did not change is left where it was, and the times of directories are those of the unpacking.
    let lines = |root: &Path| {
        let all = tree_state::lines(root);
        let is_compared = |line: &&String| !line.starts_with("/ ");
        all.iter().filter(is_compared).map(|line| line.clone() + "\n").collect::<String>()
    };
    outside(&at, "touch -d 2001-01-01 e new");
    outside(&unpacked, "touch -d 2001-01-01 e new");
    assert_eq!(lines(&unpacked), lines(&at));
}
