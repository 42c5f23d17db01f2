//! Transactions in a guest that has mounted file systems in memory, as every system that boots does: they take part
//! like its root.

use crate::case::Case;
use crate::dice::Dice;
use crate::disorder;
use crate::line::{Ended, Line, Started};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_guest_memory::what_a_command_did_is_committed_whole", is_committed_whole),
    Case::new("tx_guest_memory::a_command_that_fails_leaves_no_trace", leaves_no_trace),
    Case::new("tx_guest_memory::a_transaction_over_several_commands", over_several_commands),
    Case::new("tx_guest_memory::what_others_change_there_is_a_conflict", conflicts),
    Case::new("tx_guest_memory::what_is_unmounted_or_replaced_meanwhile_is_not_written_to", not_written_to),
    Case::new("tx_guest_memory::what_is_unmounted_and_was_not_looked_at_is_no_conflict", left_alone),
    Case::new("tx_guest_memory::what_there_is_no_room_for_changes_nothing", no_room),
    Case::new("tx_guest_memory::what_is_the_machines_stays_read_only", stays_read_only),
    Case::new("tx_guest_memory::what_a_guest_mounts_leads_nowhere", leads_nowhere),
    Case::new("tx_guest_memory::what_is_mounted_where_a_commit_clears_away_is_not_deleted", deletes_nothing),
    Case::new("tx_guest_memory::daemons_go_on_in_the_live_tree", daemons),
    Case::new("tx_guest_memory::commits_killed_at_random_steps", |sandbox| kill_commits(sandbox, 12)),
    Case::new("tx_guest_memory::400_commits_killed_at_random_steps", |sandbox| kill_commits(sandbox, 400))
        .tags(&[crate::case::Tag::Slow]),
    Case::new("tx_guest_memory::a_half_done_commit_is_finished_without_what_was_in_memory", finished_without),
];

/// Where this program is in the guest.
const HERE: &str = "/usr/bin/pando-tests";

/// What a system mounts that boots.
const MOUNTS: &str = "mkdir -p /run; mount -t tmpfs -o mode=755,nosuid none /run; mkdir /run/lock; \
                      mount -t tmpfs -o mode=1777,noexec,size=4m none /run/lock; mount -t tmpfs none /tmp";

/// A running guest that may mount, has mounted that, and has this program.
fn guest(sandbox: &Sandbox, options: &[&str]) {
    let program = std::env::current_exe().expect("this program has a path");
    let here = format!("{}:{HERE}:ro", program.display());
    sandbox.guest("g", &[&["--profile", "system", "-v", &here], options].concat());
    sh(sandbox, MOUNTS);
}

/// `pando tx run --guest g OPTIONS -- sh -c SCRIPT`.
fn run(sandbox: &Sandbox, options: &[&str], script: &str) -> Line {
    sandbox.pando(["tx", "run", "--guest", "g"]).args(options).args(["--", "sh", "-c", script])
}

fn sh(sandbox: &Sandbox, script: &str) -> String {
    sandbox.exec_sh("g", script).ok()
}

/// Starts a transaction, and waits until it has done what `script` says, which ends with it reading a line.
fn begun(sandbox: &Sandbox, options: &[&str], script: &str) -> Started {
    let started =
        run(sandbox, options, &format!("{script}; echo >/srv/ready; read line || true")).start_with_open_input();
    let kept = sandbox.places().guests().join("g/tx");
    eventually("the transaction has begun", || {
        let found = Line::new("find").args([kept.as_path()]).args(["-path", "*/upper/srv/ready"]).run();
        !found.out().is_empty()
    });
    started
}

const FILES: &str =
    "umask 022; for at in /srv /run /run/lock; do cd $at; echo old >keep; echo x >gone; mkdir d; echo in >d/in; done";

fn is_committed_whole(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    sh(sandbox, FILES);
    let script = "umask 022; for at in /srv /run /run/lock; do cd $at; echo more >>keep; rm gone; mv d e; echo new >e/new; chmod 600 e/in; ln keep link; \
                  ln -s keep soft; mkdir -p n/m; echo 1 >n/m/f; ln n/m/f n/f; chown 7:8 n/m; mkfifo -m 622 pipe; chown 5:6 pipe; truncate -s 1000000 sparse; \
                  chmod 4755 n/f; touch -t 200102030405 n; done; chmod 750 /run";
    let ended = run(sandbox, &["--strict"], script).run().succeeded();
    ended.complains_of(&["committed: ", "gate freeze"]);
    let show = "cat keep e/new n/f; stat -c '%n %a %u:%g %h %F' e/in keep n/m n/f pipe; stat -c '%y' n; readlink soft; du -k sparse; ls; ls -a | grep -c pando";
    let of = |at: &str| sandbox.exec_sh("g", &format!("cd {at}; {show}")).run().out();
    let expected = "old\nmore\nnew\n1\ne/in 600 0:0 1 regular file\nkeep 644 0:0 2 regular file\nn/m 755 7:8 2 directory\nn/f 4755 0:0 2 regular file\n\
                    pipe 622 5:6 1 fifo\n";
    assert!(of("/srv").starts_with(expected), "{}", of("/srv"));
    assert!(of("/srv").contains("2001-02-03 04:05") && of("/srv").ends_with("\n0\n"), "{}", of("/srv"));
    assert_eq!(of("/run/lock"), of("/srv"));
    assert_eq!(of("/run").replace("lock\n", ""), of("/srv"));
    // Of each mount the view has what it keeps programs from.
    assert_eq!(sh(sandbox, "stat -c %a /run"), "750\n");
    let runs = "cp /bin/busybox /run/true; cp /bin/busybox /run/lock/true; /run/true && ! /run/lock/true 2>/dev/null";
    run(sandbox, &[], runs).run().succeeded();
}

/// All that can be seen of the three trees.
const SHOW: &str = "for at in /srv /run /run/lock; do cd $at; find . -xdev | sort | xargs stat -c '%n %i %a %u:%g %s %y %z'; cat keep; done";

fn leaves_no_trace(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    sh(sandbox, FILES);
    let before = sh(sandbox, SHOW);
    let changes = "for at in /srv /run /run/lock; do cd $at; echo more >>keep; rm gone; mv d e; chmod 700 .; done";
    let ended = run(sandbox, &[], &format!("{changes}; exit 3")).run().ended_with(3);
    assert!(!ended.err().contains("read-only"), "{}", ended.err());
    assert_eq!(sh(sandbox, SHOW), before);
    let dry = run(sandbox, &["--dry-run"], "rm /srv/gone /run/gone; echo 1 >/run/lock/new").ok();
    assert_eq!(dry, "- /srv/gone\n- /run/gone\n+ /run/lock/new\n");
    assert_eq!(sh(sandbox, SHOW), before);
    // A commit of nothing leaves the times of all roots alone.
    run(sandbox, &[], "ls -R /run /srv >/dev/null").run().succeeded().complains_of(&["committed: 0 paths"]);
    assert_eq!(sh(sandbox, SHOW), before);
}

fn over_several_commands(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    sh(sandbox, FILES);
    let tx = |verb: &str| sandbox.pando(["tx", verb, "--guest", "g", "work"]);
    let enter = |script: &str| tx("enter").args(["--", "sh", "-c", script]);
    tx("begin").ok();
    enter("echo one >/run/one; echo more >>/run/lock/keep").ok();
    assert_eq!(enter("cat /run/one /run/lock/keep").ok(), "one\nold\nmore\n");
    assert_eq!(sh(sandbox, "ls /run; cat /run/lock/keep"), "d\ngone\nkeep\nlock\nold\n");
    let shown = tx("diff").args(["-p"]).ok();
    assert!(
        shown.contains("+ /run/one\n") && shown.contains("~ /run/lock/keep\n") && shown.contains("\n+more\n"),
        "{shown}"
    );
    tx("commit").ok();
    assert_eq!(sh(sandbox, "cat /run/one /run/lock/keep"), "one\nold\nmore\n");
    tx("begin").ok();
    enter("echo mine >>/run/keep; echo mine >>/srv/keep").ok();
    sh(sandbox, "echo others >>/run/keep");
    tx("commit").run().ended_with(125).complains_of(&["/run/keep was changed by others"]);
    tx("abort").ok();
    assert_eq!(sh(sandbox, "cat /run/keep /srv/keep"), "old\nothers\nold\n");
}

fn conflicts(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    sh(sandbox, FILES);
    let meets = [
        ("cat /run/keep", "echo others >>/run/keep", "/run/keep was changed by others"),
        ("cat /run/lock/keep", "rm /run/lock/keep", "/run/lock/keep was removed by others"),
        ("test -e /run/none", "echo >/run/none", "/run/none was created by others"),
        ("ls /run/lock", "echo >/run/lock/more", "/run/lock was listed, and changed by others"),
        ("ls /run/d", "echo >/run/d/more", "/run/d was listed, and changed by others"),
        ("echo >/run/made", "echo >/run/made", "/run/made was created by others"),
    ];
    for (number, (reads, changes, said)) in meets.into_iter().enumerate() {
        let started = begun(sandbox, &[], &format!("{reads}; echo {number} >/run/result; echo {number} >/srv/result"));
        sh(sandbox, changes);
        assert!(sandbox.exec_sh("g", &format!("grep -x {number} /run/result /srv/result")).run().code() != 0);
        started.close_input().wait().succeeded().complains_of(&[said, "1 retry"]);
        assert_eq!(sh(sandbox, "cat /run/result /srv/result"), format!("{number}\n{number}\n"));
    }
    // Another transaction is told at once: what has lost would sleep for longer than the test may take.
    sh(sandbox, "echo 0 >/run/count");
    let counts = "read n </run/count; echo $((n + 1)) >/run/count";
    let lingers = format!("{counts}; test -e /run/again || {{ echo >/srv/ready; exec sleep 1000; }}");
    let loser = begun(sandbox, &[], &lingers);
    run(sandbox, &[], &format!("{counts}; echo >/run/again")).run().succeeded().complains_of(&["0 retries"]);
    let said = ["/run/count was changed by another transaction; running it again", "1 retry"];
    loser.close_input().wait().succeeded().complains_of(&said);
    assert_eq!(sh(sandbox, "cat /run/count"), "2\n");
}

/// In the place of what the view was made of there is something else, or nothing: the transaction is lost, and nothing
/// of it is anywhere.
fn not_written_to(sandbox: &Sandbox) {
    let replaced = [
        "umount /run/lock; umount /run",
        "umount -l /run; mount -t tmpfs none /run; echo other >/run/keep",
        "mount -t tmpfs none /run; echo other >/run/keep",
        "umount -l /run; rmdir /run; ln -s /etc /run",
        "umount -l /run; mount --bind /etc /run",
        "mkdir /elsewhere; mount --move /run /elsewhere",
    ];
    guest(sandbox, &[]);
    for (number, replace) in replaced.into_iter().enumerate() {
        sh(sandbox, "echo old >/run/keep; echo old >/run/lock/keep");
        let script = "cat /run/keep; echo mine >>/run/keep; echo mine >/run/mine; echo mine >/run/lock/mine; echo mine >/srv/mine";
        let started = begun(sandbox, &["--retry", "0"], &format!("test -e /dev/shm/replaced && exit 7; {script}"));
        sh(sandbox, &format!("{replace}; echo >/dev/shm/replaced"));
        let ended = started.close_input().wait().ended_with(7);
        ended.complains_of(&["/run was unmounted by others; running it again", "nothing was changed"]);
        let find = "find / -xdev -name mine; find /run/ /etc/ /elsewhere /run/lock /tmp -name 'mine*' -o -name '.pando*'; grep -r mine /run /etc /elsewhere";
        assert_eq!(sandbox.exec_sh("g", find).run().out(), "", "{number}: {replace}");
        sandbox.pando(["stop", "g"]).ok();
        sandbox.pando(["start", "g"]).ok();
        sh(sandbox, &format!("rm -rf /elsewhere; [ ! -L /run ] || rm /run; {MOUNTS}"));
    }
}

fn left_alone(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    sh(sandbox, "mkdir -p /run/user/7; mount -t tmpfs none /run/user/7; echo >/run/user/7/file");
    let started = begun(sandbox, &[], "echo new >/run/new");
    sh(sandbox, "umount /run/user/7");
    started.close_input().wait().succeeded().complains_of(&["0 retries"]);
    assert_eq!(sh(sandbox, "cat /run/new"), "new\n");
    // What was looked at is gone.
    for read in ["test -e /run/user/7/other", "ls /run/user/7", "echo >/run/user/7/new"] {
        sh(sandbox, "mount -t tmpfs none /run/user/7");
        let started = begun(sandbox, &[], &format!("{read}; test -e /run/user/7/none; echo newer >/run/new"));
        sh(sandbox, "umount /run/user/7");
        started.close_input().wait().succeeded().complains_of(&["/run/user/7 was unmounted by others", "1 retry"]);
        sh(sandbox, "rm -f /run/user/7/new");
    }
}

fn no_room(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    sh(
        sandbox,
        "mkdir /run/small /run/few; mount -t tmpfs -o size=256k none /run/small; mount -t tmpfs -o nr_inodes=20 none /run/few",
    );
    let big =
        "echo new >/run/new; echo new >/srv/new; dd if=/dev/urandom of=/run/small/big bs=1k count=1000 2>/dev/null";
    let said = ["room on /run/small", "no space is left", "nothing was changed"];
    run(sandbox, &[], big).run().ended_with(125).complains_of(&said);
    let many = "echo new >/run/new; for n in $(seq 100); do echo $n >/run/few/$n; done";
    run(sandbox, &[], many).run().ended_with(125).complains_of(&["room on /run/few"]);
    assert_eq!(
        sh(sandbox, "ls /run /run/small /run/few /srv"),
        "/run:\nfew\nlock\nsmall\n\n/run/few:\n\n/run/small:\n\n/srv:\n"
    );
    run(sandbox, &[], "dd if=/dev/zero of=/run/small/some bs=1k count=200 2>/dev/null; echo >/run/few/one")
        .run()
        .succeeded();
    assert_eq!(sh(sandbox, "stat -c %s /run/small/some; ls /run/few"), "204800\none\n");
}

/// A file system in memory of this machine; unmounted when it is dropped.
struct OfTheMachine(PathBuf);

impl OfTheMachine {
    fn mount(at: PathBuf) -> Self {
        std::fs::create_dir(&at).expect("a directory can be made");
        Line::new("mount").args(["-t", "tmpfs", "none"]).args([&at]).ok();
        Self(at)
    }
}

impl Drop for OfTheMachine {
    fn drop(&mut self) {
        let _ = Line::new("umount").args(["--lazy"]).args([&self.0]).run();
    }
}

fn stays_read_only(sandbox: &Sandbox) {
    let memory = OfTheMachine::mount(sandbox.scratch().join("memory"));
    std::fs::create_dir(memory.0.join("below")).expect("a directory can be made");
    let volume = |host: &Path, at: &str| format!("{}:{at}", host.display());
    guest(sandbox, &["-v", &volume(&memory.0, "/whole"), "-v", &volume(&memory.0.join("below"), "/below")]);
    sh(sandbox, "echo 1 >/whole/file; echo 2 >/below/file; mkdir /srv/run; mount --bind /run /srv/run");
    let script = "for at in /whole /below /srv/run; do ! echo x >$at/file || exit 9; done 2>/dev/null; cat /whole/file /below/file; echo x >/run/file";
    let ended = run(sandbox, &[], script).run().succeeded();
    assert_eq!(ended.out(), "1\n2\n");
    ended.complains_of(&["read-only inside: /whole, /below, /srv/run"]);
    assert_eq!(sh(sandbox, "cat /run/file"), "x\n");
    sandbox.pando(["kill", "g"]).ok();
}

/// Files of this machine's that a guest is shown, mounted where a commit clears away.
fn deletes_nothing(sandbox: &Sandbox) {
    let host = sandbox.scratch().join("volume");
    std::fs::create_dir_all(host.join("roots/below")).expect("a directory can be made");
    std::fs::write(host.join("roots/below/file"), "kept").expect("a file can be written");
    guest(sandbox, &["-v", &format!("{}:/volume", host.display())]);
    for place in ["/.pando-tx", "/.pando-tx/stage", "/run/.pando-tx", "/run/.pando-tx/trash"] {
        sh(sandbox, &format!("mkdir -p {place}; mount --bind /volume/roots {place}"));
        let ended = run(sandbox, &[], "echo new >/srv/new; echo new >/run/new").run();
        assert_eq!(std::fs::read_to_string(host.join("roots/below/file")).ok().as_deref(), Some("kept"), "{place}");
        ended.ended_with(125).complains_of(&["nothing was changed"]);
        sh(sandbox, &format!("umount {place}"));
    }
    run(sandbox, &[], "echo new >/srv/new; echo new >/run/new").run().succeeded();
    assert_eq!(sh(sandbox, "ls -a / /run | grep -c pando || true"), "0\n");
}

/// Mounts without end, at odd places, over each other.
fn leads_nowhere(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    let odd = "mkdir -p '/run/a b' /run/deep/er; mount -t tmpfs none '/run/a b'; mount -t tmpfs none '/run/deep'; mkdir /run/deep/er; mount -t tmpfs none /run/deep/er; \
               mount -t tmpfs none /run/deep/er; echo two >/run/deep/er/two; mount -t tmpfs none /srv; mkdir /srv/x; mount -t tmpfs none /srv/x; mount -t tmpfs none /srv; \
               ln -s /etc /run/.pando-tx; echo 1 >/run/1; touch /run/file; mount -t tmpfs -o ro none /tmp; \
               n=$(printf '%0250d' 0); mkdir -p /run/$n/$n; mount -t tmpfs none /run/$n/$n; for n in $(seq 80); do mkdir /run/lock/$n; mount -t tmpfs none /run/lock/$n; done";
    sh(sandbox, odd);
    let script = "echo x >'/run/a b/x'; cat /run/deep/er/two >/run/deep/er/x; echo x >/srv/x; ! echo x >/tmp/x; echo x >/run/lock/3/x; mkdir /run/n; echo 2 >/run/n/2";
    let ended = run(sandbox, &[], script).run().succeeded();
    ended.complains_of(&["committed", "read-only inside: ", "/run/lock/80"]);
    assert_eq!(
        sh(
            sandbox,
            "cat '/run/a b/x' /run/deep/er/x /srv/x /run/lock/3/x /run/n/2; ls -a /run | grep -c pando || true"
        ),
        "x\ntwo\nx\nx\n2\n0\n"
    );
    assert_eq!(sh(sandbox, "ls -a /etc | grep -c 'stage\\|trash\\|pando' || true"), "0\n");
}

fn daemons(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    let start = |what: &str| format!("cd /; (setsid sleep 1000 </dev/null {what} &); sleep 0.3; echo it >/run/it");
    let ended = run(sandbox, &[], &start(">/run/log 2>/dev/null")).run().succeeded();
    ended.complains_of(&["1 process left in it ended: sleep, pid", "what it writes to /run/log would be lost"]);
    let ended = run(sandbox, &[], &start(">/dev/null 2>&1").replace("cd /;", "cd /run;")).run().succeeded();
    ended.complains_of(&["1 process left in it ended: sleep, pid", "its working directory is /run"]);
    let ended = run(sandbox, &[], &start(">/dev/null 2>&1")).run().succeeded();
    ended.complains_of(&["1 process goes on: sleep, pid"]);
    let pid = sh(sandbox, "pidof sleep").trim().to_owned();
    let same = format!(
        "for at in / /run /run/lock /tmp; do stat -c '%d %i' $at; stat -c '%d %i' /proc/{pid}/root/$at; done | uniq -c | grep -vc '^ *2 ' || true"
    );
    assert_eq!(sh(sandbox, &same), "0\n");
    assert_eq!(sh(sandbox, &format!("echo later >/run/later; cat /proc/{pid}/root/run/later")), "later\n");
}

/// The lines of both trees in the guest, by changing nothing in them.
fn trees(sandbox: &Sandbox) -> [String; 2] {
    ["/srv/tree", "/run/tree"].map(|at| sandbox.pando(["exec", "g", "--", HERE, disorder::WORD, "1", "0", at]).ok())
}

/// What a command says that has printed both.
fn told(ended: &Ended) -> [String; 2] {
    let out = ended.out();
    let (one, other) = out.split_once("====\n").expect("both are told");
    [one.to_owned(), other.to_owned()]
}

/// Makes both trees, and changes them in one transaction that is killed somewhere.
fn killed_commit(sandbox: &Sandbox, seed: u64) -> ([String; 2], Ended) {
    let mut dice = Dice::new(seed);
    let make = |seed: u64, count: u64| {
        format!(
            "{HERE} {0} {seed} {count} /srv/tree && echo ==== && {HERE} {0} {1} {count} /run/tree",
            disorder::WORD,
            seed + 77
        )
    };
    sh(sandbox, &format!("rm -rf /srv/tree /run/tree; mkdir /srv/tree /run/tree; {}", make(seed, 30)));
    let before = trees(sandbox);
    let changes = [3, 10, 30][dice.throw(3) as usize];
    let step = dice.throw(changes * 8 + 25);
    let line = run(sandbox, &["-q", "--retry", "0", "--no-durable"], &make(seed + 500_000, changes));
    // Who recovers is to be killed too, which only these tests do.
    let line = line.env("PANDO_TX_PLANT", "no-guardian").env("PANDO_TX_CRASH_STEP", step.to_string());
    let ended = line.run();
    assert!([0, 137].contains(&ended.code()), "seed {seed}: {} {}", ended.code(), ended.err());
    (before, ended)
}

fn kill_commits(sandbox: &Sandbox, count: u64) {
    guest(sandbox, &[]);
    let (mut killed, mut finished) = (0, 0);
    for seed in 0..count {
        let (before, ended) = killed_commit(sandbox, seed);
        let is_whole = match ended.code() {
            0 => true,
            _ => {
                killed += 1;
                super::tx_guest::recovered(sandbox, seed)
            }
        };
        finished += u64::from(is_whole && ended.code() != 0);
        let expected = if is_whole { told(&ended) } else { before };
        assert!(
            trees(sandbox) == expected,
            "seed {seed}: the trees are neither what they were nor what they were to be"
        );
        assert_eq!(sh(sandbox, "ls -a / /run | grep -c pando-tx || true"), "0\n", "seed {seed}");
    }
    println!("     {count} commits, {killed} of them killed, {finished} of those finished later");
    assert!(killed > count / 6, "the steps were missed: {killed} of {count}");
}

/// The guest has ended since: what was in its memory is gone, and nobody waits for it.
fn finished_without(sandbox: &Sandbox) {
    guest(sandbox, &[]);
    let (mut finished, mut dropped) = (0, 0);
    for seed in 700.. {
        let (before, ended) = killed_commit(sandbox, seed);
        if ended.code() == 0 {
            continue;
        }
        let after = told(&ended);
        sandbox.pando(["kill", "g"]).ok();
        sandbox.becomes("g", "stopped");
        sandbox.pando(["tx", "recover"]).run().succeeded();
        sandbox.pando(["start", "g"]).ok();
        let now = sandbox.pando(["exec", "g", "--", HERE, disorder::WORD, "1", "0", "/srv/tree"]).ok();
        assert!(now == before[0] || now == after[0], "seed {seed}: it is neither what it was nor what it was to be");
        let kept = sandbox.places().guests().join("g/tx");
        let left = Line::new("find").args([&kept]).args(["-name", "journal"]).run().out();
        assert_eq!(left, "", "seed {seed}: a journal waits for what does not come back");
        assert_eq!(sh(sandbox, "ls -a / /run"), sh(sandbox, "ls -a / /run | grep -v pando-tx"), "seed {seed}");
        sh(sandbox, MOUNTS);
        finished += u64::from(now == after[0]);
        dropped += u64::from(now == before[0]);
        if finished >= 2 && dropped >= 1 {
            return;
        }
    }
}
