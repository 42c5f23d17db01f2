//! What a transaction does is not seen outside before its commit: not a name, a content, an owner, an attribute, a
//! node, and no time of any.

use crate::case::{Case, skip};
use crate::disorder;
use crate::line::Line;
use crate::sandbox::Sandbox;
use crate::tree_state;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_unseen::nothing_that_an_open_transaction_does_is_seen", open_ones),
    Case::new("tx_unseen::attributes_and_nodes_are_the_transactions_own", attributes),
    Case::new("tx_unseen::a_command_has_its_callers_surroundings", surroundings),
];

/// Random changes by a program of their own, behind the words of `line`.
fn disorder(line: Line, seed: u64, count: u64, tree: &Path) -> String {
    line.args([disorder::WORD, &seed.to_string(), &count.to_string()]).args([tree]).ok()
}

/// Random changes of all kinds: while the transaction is open, and after it is aborted, nothing outside is another than
/// before, and nothing was touched.
fn open_ones(sandbox: &Sandbox) {
    let program = std::env::current_exe().expect("this program has a path");
    for seed in 0..8 {
        let tree = sandbox.scratch().join(format!("tree-{seed}"));
        std::fs::create_dir(&tree).expect("a directory can be made");
        disorder(Line::new(&program), seed, 80, &tree);
        std::thread::sleep(std::time::Duration::from_millis(12));
        let before = tree_state::exact(&tree);
        for end in ["abort", "commit"] {
            sandbox.pando(["tx", "begin", "work"]).ok();
            let enter = sandbox.pando(["tx", "enter", "work", "--"]).args([&program]);
            let inside = disorder(enter, seed + 1000, 60, &tree);
            assert_eq!(tree_state::exact(&tree), before, "seed {seed}, while it is open");
            let ended = sandbox.pando(["tx", end, "work"]).run().succeeded();
            match end {
                "abort" => {
                    ended.complains_of(&["aborted: as asked; nothing was changed", " s, 0 retries"]);
                    assert_eq!(tree_state::exact(&tree), before, "seed {seed}, aborted");
                }
                _ => assert_eq!(tree_state::lines(&tree).join("\n") + "\n", inside, "seed {seed}, committed"),
            }
        }
    }
}

/// Each kind of attribute by its own: seen inside, not outside, and outside once it is committed.
fn attributes(sandbox: &Sandbox) {
    const FILES: &str = "umask 022; mkdir $0; cd $0; touch mode owner group xattr list time; mkdir d";
    const CHANGE: &str = "import os; os.umask(0o22)\n\
        os.chmod('mode', 0o4751); os.chown('owner', 77, -1); os.chown('group', -1, 78); os.setxattr('xattr', 'user.k', b'v')\n\
        os.setxattr('list', 'system.posix_acl_access', bytes.fromhex('02000000 01000600ffffffff 0200040005000000 04000400ffffffff 10000400ffffffff 20000000ffffffff'.replace(' ', '')))\n\
        os.utime('time', (5, 6)); os.mknod('null', 0o20644, os.makedev(1, 3)); os.mknod('fifo', 0o10600); os.mknod('disk', 0o60600, os.makedev(7, 99))\n\
        os.setxattr('d', 'trusted.t', b'w'); os.chmod('d', 0o2770)\n\
        open('null', 'w').write('to nowhere')\n\
        print(os.stat('mode').st_mode & 0o7777, os.stat('owner').st_uid, os.stat('group').st_gid, os.getxattr('xattr', 'user.k'), os.stat('null').st_rdev)";
    let [native, inside] = ["native", "inside"].map(|name| sandbox.scratch().join(name));
    for directory in [&native, &inside] {
        Line::new("sh").args(["-ec", FILES]).args([directory]).ok();
    }
    if Line::new("python3").args(["-c", CHANGE]).directory(&native).run().code() != 0 {
        skip("not all of it can be done here natively");
    }
    std::thread::sleep(std::time::Duration::from_millis(12));
    let before = tree_state::exact(&inside);
    sandbox.pando(["tx", "begin", "work"]).ok();
    let entered = sandbox.pando(["tx", "enter", "work", "--", "python3", "-c", CHANGE]).directory(&inside).run();
    assert!(entered.succeeded().out().starts_with("2537 77 78 b'v' "));
    assert_eq!(tree_state::exact(&inside), before);
    sandbox.pando(["tx", "commit", "work"]).ok();
    // All but the times: the two were done one after the other.
    let lines = |directory: &Path| -> Vec<String> {
        let without_time = |line: &String| {
            let words = line.split(' ').enumerate().filter(|(number, _)| *number != 4);
            words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
        };
        tree_state::lines(directory).iter().map(without_time).collect()
    };
    assert_eq!(lines(&inside), lines(&native));
    assert_eq!(std::fs::metadata(inside.join("time")).expect("it is there").mtime(), 6);
}

/// Users, environment, directory, mask, limits, terminal session: a script behaves as it does without.
fn surroundings(sandbox: &Sandbox) {
    let script = "pwd; id; umask; env | grep -v '^_=' | sort; ulimit -n; ulimit -c; cat /proc/self/oom_score_adj; nice; tail -n 1 /etc/passwd; echo $0 $1";
    let around = |words: &str| {
        format!("umask 027; ulimit -n 500; exec nice -n 3 setpriv --regid 7 --clear-groups {words} \"$@\"")
    };
    let run = |words: &str| {
        let line = Line::new("sh").args(["-c", &around(words), "sh", "sh", "-c", script, "name", "one two"]);
        line.env("PANDO_TEST_WORD", "a b").directory(sandbox.scratch()).run().succeeded().out()
    };
    let (program, root) = (sandbox.program().display(), sandbox.root().display());
    assert_eq!(run(&format!("{program} --root {root} tx run -q --")), run(""));
}
