//! Transactions inside a guest: the same promises, and nobody in the guest sees a commit half done.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::disorder;
use crate::history;
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use pando_kernel::file::tree_removal::remove_tree;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_guest::what_a_command_did_is_committed_whole", is_committed_whole),
    Case::new("tx_guest::what_it_wrote_can_be_executed", executes_what_it_wrote),
    Case::new("tx_guest::a_command_that_fails_leaves_no_trace", leaves_no_trace),
    Case::new("tx_guest::what_is_read_and_changed_of_a_layer_is_no_conflict", layers_are_copied),
    Case::new("tx_guest::what_others_do_to_a_directory_of_a_layer_is_one", layers_are_changed),
    Case::new("tx_guest::a_transaction_over_several_commands", over_several_commands),
    Case::new("tx_guest::what_is_not_possible_is_said", says_what_is_not_possible),
    Case::new("tx_guest::what_a_guest_arranges_leads_nowhere", leads_nowhere),
    Case::new("tx_guest::a_commit_is_seen_whole", is_seen_whole),
    Case::new("tx_guest::histories_are_serializable", serializable),
    Case::new("tx_guest::1000_histories_are_serializable", very_serializable).tags(&[Tag::Slow]),
    Case::new("tx_guest::commits_killed_at_random_steps", killed),
    Case::new("tx_guest::600_commits_killed_at_random_steps", killed_often).tags(&[Tag::Slow]),
    Case::new("tx_guest::nobody_stays_frozen_when_a_commit_is_killed", nobody_stays_frozen),
    Case::new("tx_guest::a_half_done_commit_is_finished_before_the_guest_starts", finished_at_the_start),
];

/// Where this program is in the guest.
const HERE: &str = "/usr/bin/pando-tests";

/// A running guest that has this program.
fn guest(sandbox: &Sandbox, name: &str) {
    let program = std::env::current_exe().expect("this program has a path");
    sandbox.guest(name, &["-v", &format!("{}:{HERE}:ro", program.display())]);
}

/// `pando tx run --guest NAME OPTIONS -- WORDS`.
fn run(sandbox: &Sandbox, name: &str, options: &[&str], words: &[&str]) -> Line {
    sandbox.pando(["tx", "run", "--guest", name]).args(options).args(["--"]).args(words)
}

fn sh(sandbox: &Sandbox, name: &str, script: &str) -> String {
    sandbox.exec_sh(name, script).ok()
}

/// A guest with directories that it has of its layers alone.
fn layered(sandbox: &Sandbox) {
    let from = sandbox.scratch().join("tree");
    let made = format!(
        "cp -a {} {at}; mkdir -p {at}/lay/d/e {at}/lay/other; touch {at}/lay/file {at}/lay/d/file {at}/lay/other/file; find {at}/lay -exec touch -hd 2001-01-01 {{}} +",
        sandbox.busybox(),
        at = from.display()
    );
    Line::new("sh").args(["-ec", &made]).ok();
    sandbox.pando(["create", "g", "--from", &from.to_string_lossy(), "--", "sleep", "100000"]).ok();
    sandbox.pando(["start", "g"]).ok();
}

/// What lists a directory and changes something in it, below it, and in it where it has moved to.
const LISTS: &str =
    "ls /lay /lay/d /lay/d/e >/dev/null; echo x >>/lay/d/file; echo x >/lay/d/e/new; echo x >>/lay/file";

fn layers_are_copied(sandbox: &Sandbox) {
    layered(sandbox);
    run(sandbox, "g", &["--retry", "0"], &["sh", "-ec", LISTS])
        .run()
        .succeeded()
        .complains_of(&["committed: ", "0 retries"]);
    assert_eq!(sh(sandbox, "g", "cat /lay/d/file /lay/d/e/new /lay/file; ls /lay/d"), "x\nx\nx\ne\nfile\n");
    // Again, where the guest has them itself by now.
    run(sandbox, "g", &["--retry", "0"], &["sh", "-ec", LISTS]).run().succeeded().complains_of(&["0 retries"]);
}

fn layers_are_changed(sandbox: &Sandbox) {
    for (number, meanwhile) in [
        "touch /lay/d/new",
        "rm /lay/d/file",
        "touch /lay/d/gone; rm /lay/d/gone",
        "mv /lay/d/e /lay/d/f",
        "mv /lay/d /lay/was; mv /lay/other /lay/d",
        "chmod 700 /lay/d",
    ]
    .into_iter()
    .enumerate()
    {
        layered(sandbox);
        // The guest's other processes do it while the command waits, which has listed and changed what it will.
        let command = format!("{LISTS}; touch /srv/ready; read line");
        let line = run(sandbox, "g", &["--retry", "0", "--timeout", "60"], &["sh", "-ec", &command]);
        let mut started = line.start_with_open_input();
        let upper = || sandbox.root().join("var/lib/pando/guests/g/tx");
        eventually("the command has changed what it will", || has_below(&upper(), "ready"));
        sh(sandbox, "g", meanwhile);
        started.input().write_all(b"go\n").expect("the command reads");
        let ended = started.close_input().wait();
        // It may be run once more, with the guest to itself, and then does what it does there.
        let said = ended.err();
        assert!(said.contains("by others; running it again"), "{number}, {meanwhile}: {said}");
        sandbox.pando(["rm", "--force", "g"]).ok();
        remove_tree(&sandbox.scratch().join("tree")).expect("it was made");
    }
}

/// Whether a name is anywhere in a directory.
fn has_below(directory: &std::path::Path, name: &str) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        entry.file_name() == name || entry.file_type().is_ok_and(|kind| kind.is_dir()) && has_below(&entry.path(), name)
    })
}

const FILES: &str = "umask 022; cd /srv; echo old >keep; echo x >gone; mkdir d; echo in >d/in";

fn is_committed_whole(sandbox: &Sandbox) {
    guest(sandbox, "g");
    sh(sandbox, "g", FILES);
    let script = "umask 022; cd /srv; echo more >>keep; rm gone; mv d e; echo new >e/new; chmod 600 e/in; ln keep link; ln -s keep soft; \
                  mkdir -p n/m; echo 1 >n/m/f; ln n/m/f n/f; chown 7:8 n/m; echo root:x:0:0:r:/:/bin/sh >/etc/passwd";
    run(sandbox, "g", &["--strict"], &["sh", "-c", script])
        .run()
        .succeeded()
        .complains_of(&["committed: ", "gate freeze"]);
    let show = "cd /srv; cat keep e/new n/f; stat -c '%n %a %u:%g %h' e/in keep n/m n/f; readlink soft; ls -a /; cat /etc/passwd";
    let shown = sh(sandbox, "g", show);
    let expected = "old\nmore\nnew\n1\ne/in 600 0:0 1\nkeep 644 0:0 2\nn/m 755 7:8 2\nn/f 644 0:0 2\nkeep\n";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(!shown.contains(".pando-tx") && shown.ends_with("root:x:0:0:r:/:/bin/sh\n"), "{shown}");
    assert_eq!(sh(sandbox, "g", "ls /srv"), "e\nkeep\nlink\nn\nsoft\n");
}

fn executes_what_it_wrote(sandbox: &Sandbox) {
    guest(sandbox, "g");
    // It does what its name says, if that begins so.
    sh(sandbox, "g", "echo 'echo old' >/srv/script; cp /bin/busybox /srv/busybox.old");
    let script = "cp /bin/busybox /srv/busybox.new && /srv/busybox.new echo new && echo >>/srv/busybox.old && \
                  /srv/busybox.old echo changed && echo 'echo more' >>/srv/script && sh /srv/script";
    let ended = run(sandbox, "g", &[], &["sh", "-c", script]).run().succeeded();
    assert_eq!(ended.out(), "new\nchanged\nold\nmore\n");
    let later = sh(sandbox, "g", "/srv/busybox.new echo after; /srv/busybox.old echo it; sh /srv/script");
    assert_eq!(later, "after\nit\nold\nmore\n");
}

fn leaves_no_trace(sandbox: &Sandbox) {
    guest(sandbox, "g");
    sh(sandbox, "g", FILES);
    let show = "cd /srv; find / -xdev -newer d/in; ls -laR; stat -c '%n %i %y %z' . keep gone d d/in";
    let before = sh(sandbox, "g", show);
    let script = "cd /srv; echo more >>keep; rm gone; mv d e; (sleep 1000 &) ; exit 3";
    let ended = run(sandbox, "g", &[], &["sh", "-c", script]).run().ended_with(3);
    ended.complains_of(&["aborted: exit code 3", "1 process left in it ended"]);
    assert_eq!(sh(sandbox, "g", show), before);
    let dry = run(sandbox, "g", &["--dry-run"], &["sh", "-c", "rm /srv/gone; echo 1 >/srv/new"]).ok();
    assert_eq!(dry, "- /srv/gone\n+ /srv/new\n");
    let long = run(sandbox, "g", &["--timeout", "0.2"], &["sh", "-c", "rm /srv/gone; sleep 1000"]).run();
    long.ended_with(125).complains_of(&["it took too long"]);
    assert_eq!(sh(sandbox, "g", show), before);
    assert!(!sh(sandbox, "g", "ps").contains("sleep 1000"));
}

fn over_several_commands(sandbox: &Sandbox) {
    guest(sandbox, "g");
    sh(sandbox, "g", FILES);
    let tx = |verb: &str, name: &str| sandbox.pando(["tx", verb, "--guest", "g", name]);
    let enter = |name: &str, script: &str| tx("enter", name).args(["--", "sh", "-c", script]);
    tx("begin", "work").ok();
    enter("work", "echo one >/srv/one; echo more >>/srv/keep").ok();
    assert_eq!(enter("work", "cat /srv/one; exit 5").run().ended_with(5).out(), "one\n");
    assert_eq!(sh(sandbox, "g", "ls /srv; cat /srv/keep"), "d\ngone\nkeep\nold\n");
    let listed = sandbox.pando(["tx", "ls", "--guest", "g"]).ok();
    assert!(listed.contains("work") && !sandbox.pando(["tx", "ls"]).ok().contains("work"), "{listed}");
    let shown = tx("diff", "work").args(["-p"]).ok();
    assert!(shown.contains("+ /srv/one\n") && shown.contains("\n+more\n"), "{shown}");
    tx("commit", "work").ok();
    assert_eq!(sh(sandbox, "g", "cat /srv/one /srv/keep"), "one\nold\nmore\n");
    tx("begin", "lost").ok();
    enter("lost", "echo mine >>/srv/keep").ok();
    sh(sandbox, "g", "echo others >>/srv/keep");
    tx("commit", "lost").run().ended_with(125).complains_of(&["/srv/keep was changed by others"]);
    tx("abort", "lost").ok();
    assert_eq!(sh(sandbox, "g", "cat /srv/keep"), "old\nmore\nothers\n");
    // A guest that is stopped takes what was not committed along.
    tx("begin", "open").ok();
    enter("open", "echo never >/srv/never").ok();
    sandbox.pando(["stop", "g"]).ok();
    sandbox.pando(["start", "g"]).ok();
    assert_eq!(sh(sandbox, "g", "ls /srv"), "d\ngone\nkeep\none\n");
    assert!(!sandbox.pando(["tx", "ls", "--guest", "g"]).ok().contains("open"));
}

fn says_what_is_not_possible(sandbox: &Sandbox) {
    guest(sandbox, "g");
    let refused = |name: &str, options: &[&str], words: &[&str]| {
        run(sandbox, name, options, &["true"]).run().ended_with(125).complains_of(words);
    };
    refused("nobody", &[], &["there is no guest 'nobody'"]);
    refused("../g", &[], &["is no guest"]);
    run(sandbox, "g", &[], &["no-such-program"]).run().ended_with(127).complains_of(&["no command"]);
    sandbox.pando(["stop", "g"]).ok();
    refused("g", &[], &["guest 'g' does not run"]);
    sandbox
        .pando(["tx", "run", "--strict", "--gate", "none", "--", "true"])
        .run()
        .ended_with(125)
        .complains_of(&["--strict"]);
}

/// Links in the place of the directory where a commit puts things aside, and in the place of others.
fn leads_nowhere(sandbox: &Sandbox) {
    guest(sandbox, "g");
    let bait = sandbox.scratch().join("bait");
    std::fs::create_dir(&bait).expect("a directory can be made");
    let arranged =
        format!("umask 022; mkdir /srv/d; echo 1 >/srv/d/f; ln -s {} /.pando-tx; ln -s {0} /srv/link", bait.display());
    sh(sandbox, "g", &arranged);
    let script =
        "mkdir /srv/n; echo 2 >/srv/n/f; ln /srv/n/f /srv/n/g; mv /srv/d /srv/e; echo 3 >>/srv/e/f; rm /srv/link";
    run(sandbox, "g", &[], &["sh", "-c", script]).ok();
    assert_eq!(sh(sandbox, "g", "cat /srv/n/g /srv/e/f; ls /srv"), "2\n1\n3\ne\nn\n");
    assert_eq!(std::fs::read_dir(&bait).expect("it can be listed").count(), 0);
    assert_eq!(sh(sandbox, "g", "ls -a / | grep -c pando-tx || true"), "0\n");
}

/// Whoever reads the same twice around another file has read at one moment.
fn is_seen_whole(sandbox: &Sandbox) {
    guest(sandbox, "g");
    sh(sandbox, "g", "mkdir /srv/a /srv/b; echo 0 >/srv/a/value; echo 0 >/srv/b/value");
    let reader = "n=0; while [ ! -e /srv/stop ]; do a=$(cat /srv/a/value); b=$(cat /srv/b/value); c=$(cat /srv/a/value); \
                  [ \"$a\" != \"$c\" ] || { n=$((n+1)); [ \"$a\" = \"$b\" ] || echo \"$a $b\"; }; done; echo read $n";
    let reading = sandbox.exec_sh("g", reader).start();
    for number in 1..=8 {
        let new = format!("echo {number} >/srv/a/new; mv /srv/a/new /srv/a/value; echo {number} >/srv/b/value");
        run(sandbox, "g", &["--no-durable"], &["sh", "-c", &new]).ok();
    }
    sh(sandbox, "g", "echo >/srv/stop");
    let read = reading.wait().succeeded().out();
    assert!(read.starts_with("read ") && read != "read 0\n", "{read}");
}

fn serializable(sandbox: &Sandbox) {
    make_history(sandbox, 12);
}

fn very_serializable(sandbox: &Sandbox) {
    make_history(sandbox, 1000);
}

fn make_history(sandbox: &Sandbox, count: u64) {
    guest(sandbox, "g");
    sh(sandbox, "g", "mkdir -p /srv/h/names; : >/srv/h/log");
    let outsider = |me: &str| {
        sandbox.pando(["exec", "g", "--", HERE, history::WORD, "outsider", "/srv/h", me, "40"]).limit(3600).start()
    };
    let outsiders = ["a", "b"].map(|me| (me, outsider(me)));
    eventually("the outsiders are at work", || {
        sh(sandbox, "g", "wc -l </srv/h/log").trim().parse::<u64>().is_ok_and(|lines| lines > 3)
    });
    let mut alone = 0;
    for id in 0..count {
        let words = [HERE, history::WORD, "transaction", "/srv/h", &id.to_string()];
        let ended = run(sandbox, "g", &["--no-durable", "--retry", "1"], &words).run().succeeded();
        alone += u64::from(ended.err().contains("freeze for the whole run"));
    }
    sh(sandbox, "g", "echo >/srv/h/stop");
    let written = outsiders.map(|(me, started)| {
        let count = started.wait().succeeded().out().trim().parse::<u64>().expect("it says a number");
        (me.to_owned(), count)
    });
    let (committed, written): (BTreeSet<u64>, BTreeMap<_, _>) = ((0..count).collect(), written.into());
    let verdict = history::judge(&sh(sandbox, "g", "cat /srv/h/log"), &committed, &written);
    println!("     {count} transactions, {alone} of them alone, beside {written:?}");
    assert!(verdict.misplaced.is_empty() && verdict.lost == 0, "{verdict:?}");
    assert_eq!(verdict.transactions as u64, count);
}

fn killed(sandbox: &Sandbox) {
    kill_commits(sandbox, 12);
}

fn killed_often(sandbox: &Sandbox) {
    kill_commits(sandbox, 600);
}

/// The lines of the tree in the guest, by changing nothing in it.
fn tree(sandbox: &Sandbox) -> String {
    sandbox.pando(["exec", "g", "--", HERE, disorder::WORD, "1", "0", "/srv/tree"]).ok()
}

fn kill_commits(sandbox: &Sandbox, count: u64) {
    guest(sandbox, "g");
    let (mut killed, mut whole) = (0, 0);
    for seed in 0..count {
        let (before, ended, _) = killed_commit(sandbox, seed, true);
        let after = ended.out();
        let expected = match ended.code() {
            0 => after,
            _ => {
                killed += 1;
                if recovered(sandbox, seed) { after } else { before }
            }
        };
        whole += 1;
        assert!(tree(sandbox) == expected, "seed {seed}: the tree is neither what it was nor what it was to be");
    }
    println!("     {whole} commits, {killed} of them killed");
    assert!(killed > count / 6, "the steps were missed: {killed} of {count}");
}

/// Makes a tree, and changes it in a transaction that is killed somewhere.
fn killed_commit(sandbox: &Sandbox, seed: u64, alone: bool) -> (String, crate::line::Ended, u64) {
    let mut dice = Dice::new(seed);
    sh(sandbox, "g", "rm -rf /srv/tree; mkdir /srv/tree");
    sandbox.pando(["exec", "g", "--", HERE, disorder::WORD, &seed.to_string(), "40", "/srv/tree"]).ok();
    let before = tree(sandbox);
    let changes = [3, 10, 30, 60][dice.throw(4) as usize];
    let step = dice.throw(changes * 4 + 15);
    let (seed, changes) = ((seed + 500_000).to_string(), changes.to_string());
    let words = [HERE, disorder::WORD, &seed, &changes, "/srv/tree"];
    let line = run(sandbox, "g", &["-q", "--retry", "0", "--no-durable"], &words);
    // Who recovers is to be killed too, which only this test does.
    let line = if alone { line.env("PANDO_TX_PLANT", "no-guardian") } else { line };
    let ended = line.env("PANDO_TX_CRASH_STEP", step.to_string()).run();
    assert!([0, 137].contains(&ended.code()), "seed {seed}: {} {}", ended.code(), ended.err());
    (before, ended, step)
}

/// Recovers, killed once or twice on the way; whether the transaction turned out to be committed.
pub(super) fn recovered(sandbox: &Sandbox, seed: u64) -> bool {
    let mut dice = Dice::new(seed + 9);
    for kill in 0..4 {
        let line = sandbox.pando(["tx", "recover"]);
        let line = match kill {
            3 => line,
            _ => line.env("PANDO_TX_CRASH_STEP", dice.throw(80).to_string()),
        };
        let ended = line.run();
        match ended.code() {
            137 => {}
            0 => return !ended.out().contains("not committed"),
            code => panic!("seed {seed}: recovery ended with {code}: {}", ended.err()),
        }
    }
    panic!("seed {seed}: a recovery that is not killed was killed");
}

/// Nobody recovers: the guest goes on by itself, with the tree of before or of after.
fn nobody_stays_frozen(sandbox: &Sandbox) {
    guest(sandbox, "g");
    let mut after = 0;
    for seed in 300.. {
        let (before, ended, _) = killed_commit(sandbox, seed, false);
        if ended.code() == 0 {
            continue;
        }
        // What was made right when the commit was killed would stand still with the rest.
        let now = tree(sandbox);
        let whole = ended.out();
        assert!(now == before || now == whole, "seed {seed}: it is neither what it was nor what it was to be");
        eventually("the transaction is gone", || !sandbox.pando(["tx", "ls", "--guest", "g"]).ok().contains("run-"));
        after += u64::from(now == whole);
        if after == 2 {
            return;
        }
    }
}

fn finished_at_the_start(sandbox: &Sandbox) {
    guest(sandbox, "g");
    let (mut finished, mut waited) = (0, false);
    for seed in 100.. {
        let (before, ended, _) = killed_commit(sandbox, seed, true);
        if ended.code() == 0 {
            continue;
        }
        let after = ended.out();
        sandbox.pando(["kill", "g"]).ok();
        sandbox.becomes("g", "stopped");
        // As at a boot: what has to wait for the guest is no failure.
        let said = sandbox.pando(["tx", "recover"]).run().succeeded().out();
        waited |= said.contains("before its guest starts");
        sandbox.pando(["start", "g"]).ok();
        let now = tree(sandbox);
        assert!(now == before || now == after, "seed {seed}: it is neither what it was nor what it was to be");
        finished += u64::from(now == after);
        if finished == 2 {
            assert!(waited, "none of them had to wait");
            return;
        }
    }
}
