//! What users who are not root can do to their own commits, and to everybody else's by that.
//!
//! A commit stands still at each of its steps in turn, and they do it then.

use super::tx_users::{ALICE, BOB, NEEDS, Scene, processes_with, read, serve, user};
use crate::case::{Case, skip};
use crate::line::{Ended, Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::tree_state;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

const WITH_PYTHON: &[Need] = &[Need::Root, Need::Program("setpriv", "util-linux"), Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_users_commits::as_many_names_as_there_can_be_hold_nobody_up", names).needs(WITH_PYTHON),
    Case::new("tx_users_commits::one_that_cannot_be_finished_holds_nobody_else_up", unfinished).needs(NEEDS),
    Case::new("tx_users_commits::what_is_written_to_is_neither_executed_nor_leased", executed).needs(WITH_PYTHON),
    Case::new("tx_users_commits::a_directory_with_the_number_of_another_is_another", same_number).needs(NEEDS),
    Case::new("tx_users_commits::files_of_others_that_get_the_names_of_his_stay", others_files).needs(NEEDS),
    Case::new("tx_users_commits::what_is_given_to_another_stays_his", given).needs(NEEDS),
    Case::new("tx_users_commits::nobody_keeps_the_server_from_starting", locked).needs(&[
        Need::Root,
        Need::Program("setpriv", "util-linux"),
        Need::Program("flock", "util-linux"),
    ]),
    Case::new("tx_users_commits::the_command_is_as_urgent_as_its_caller", urgency).needs(NEEDS),
];

/// More steps than any of these commits has.
const MOST: u32 = 90;

/// A commit of alice's that stands still at a step.
struct Still<'a> {
    scene: Scene<'a>,
    started: Started,
    worker: i32,
}

impl<'a> Still<'a> {
    /// Runs a script; nothing where the commit has fewer steps.
    fn at(sandbox: &'a Sandbox, step: u32, script: &str) -> Option<Self> {
        drop(Scene::set(sandbox).server);
        let server = serve(sandbox, &[("PANDO_TX_STOP_STEP", &step.to_string())]);
        let scene = Scene { sandbox, server };
        let mut started = scene.run(ALICE, &["--retry", "0"], script).start();
        let stands = |pid: &i32| {
            let of = |name: &str| read(format!("/proc/{pid}/{name}"));
            of("stat").rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
                && of("cmdline").contains(&*sandbox.root().to_string_lossy())
        };
        let worker = || processes_with("work").into_iter().find(stands);
        eventually("it stands still or has ended", || worker().is_some() || started.has_ended());
        worker().map(|worker| Self { scene, started, worker })
    }

    /// Whether it is behind its commit point.
    fn is_committed(&self) -> bool {
        is_committed(self.scene.sandbox)
    }

    /// Kills it, and the server, which would finish it.
    fn end_with_server(self) {
        self.scene.server.signal(Signal::KILL);
        self.started.wait();
        eventually("the worker is gone", || read(format!("/proc/{}/cmdline", self.worker)).is_empty());
    }

    /// Has it go on to its end.
    fn goes_on(self) -> Ended {
        let _ = kill_process(Pid::from_raw(self.worker).expect("a pid"), Signal::CONT);
        self.started.wait()
    }
}

/// Whether a commit of a user's has passed its commit point, and is not at its end.
fn is_committed(sandbox: &Sandbox) -> bool {
    let entries = fs::read_dir(sandbox.root().join("var/lib/pando/tx")).into_iter().flatten().flatten();
    let mut users = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("user"));
    users.any(|entry| entry.path().join("journal").exists())
}

fn sh(directory: &Path, script: &str) {
    Line::new("sh").args(["-ec", script]).directory(directory).ok();
}

/// Where alice is at home.
fn home(sandbox: &Sandbox) -> PathBuf {
    sandbox.scratch().join("alice")
}

fn end(pids: Vec<i32>) {
    for pid in pids {
        let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
    }
}

/// A file of hers gets as many names as ext4 has, before a commit gives it one more, and while it does.
fn names(sandbox: &Sandbox) {
    const FILL: &str = "import os\nfor n in range(70000):\n try: os.link('f', 'l/%d' % n)\n except FileExistsError: pass\n except OSError: break";
    const HAS: u64 = 65_000;
    let home = home(sandbox);
    let scene = Scene::set(sandbox);
    let fill = || {
        user(ALICE).args(["python3", "-c", FILL]).directory(&home).run();
        fs::metadata(home.join("f")).expect("it is there").nlink()
    };
    let root = || sandbox.pando(["tx", "run", "-q", "--", "sh", "-c", "echo x >>roots"]).directory(sandbox.scratch());
    sh(&home, "echo old >f; mkdir l; chown -R 70001:70001 f l");
    if fill() != HAS {
        skip("files have no such number of names here");
    }
    scene.run(ALICE, &[], "ln f new").run().ended_with(125).complains_of(&["another name", "nothing was changed"]);
    root().ok();
    drop(scene);
    let mut behind = 0;
    for step in 0..MOST {
        sh(&home, "find l -name '111*' -delete; rm -f new; echo old >f");
        let Some(still) = Still::at(sandbox, step, "ln f new; echo new >f") else { break };
        let is_committed = still.is_committed();
        behind += u32::from(is_committed);
        assert_eq!(fill(), HAS);
        let ended = still.goes_on();
        assert!(!is_committed || read(home.join("f")) == "new\n", "step {step}: {}", ended.err());
        root().ok();
    }
    assert!(behind > 3, "it stood still behind its commit point {behind} times");
}

/// What is to be written to is a program that she runs, by a name in a directory that is not hers to change any more.
fn unfinished(sandbox: &Sandbox) {
    let home = home(sandbox);
    let (mut stuck, mut finished) = (0, 0);
    for step in 0..MOST {
        let set = "rm -rf --one-file-system d d0 roots; mkdir d; cp /bin/sleep d/program; chown -R 70001:70001 d";
        drop(Scene::set(sandbox).server);
        sh(&home, set);
        let Some(still) = Still::at(sandbox, step, "printf new >d/program") else { break };
        still.end_with_server();
        if is_committed(sandbox) && read(home.join("d/program")) != "new" {
            let mut running = user(ALICE).args(["d/program", "4188"]).directory(&home).start();
            let is_it = |pid: &i32| read(format!("/proc/{pid}/comm")) == "program\n";
            eventually("it runs, or cannot", || processes_with("4188").iter().any(is_it) || running.has_ended());
            if running.has_ended() {
                sandbox.pando(["tx", "recover"]).ok();
                continue;
            }
            sh(&home, "mv d d0; mkdir d; ln d0/program d/program");
            let root = |script: &str| {
                sandbox.pando(["tx", "run", "-q", "--retry", "0", "--", "sh", "-c", script]).directory(&home).run()
            };
            root("echo x >roots").succeeded();
            assert_eq!(read(home.join("roots")), "x\n");
            assert!(is_committed(sandbox), "step {step}: it was finished");
            root("chmod 700 d0/program").ended_with(125).complains_of(&["a user's commit", "recover"]);
            stuck += 1;
            end(processes_with("4188"));
            running.wait();
        }
        sandbox.pando(["tx", "recover"]).ok();
        sandbox.pando(["tx", "run", "-q", "--", "true"]).ok();
        finished += u32::from(read(home.join("d0/program")) == "new");
    }
    assert!(stuck > 0 && finished > 0, "it was stuck {stuck} times, and finished later {finished} times");
}

/// From the commit point on nobody executes what is yet to be written to, nor takes a lease on it.
fn executed(sandbox: &Sandbox) {
    const LEASE: &str = "import fcntl,sys\nfcntl.fcntl(open('two'), fcntl.F_SETLEASE, fcntl.F_RDLCK)";
    let home = home(sandbox);
    let mut behind = 0;
    for step in 0..MOST {
        drop(Scene::set(sandbox).server);
        sh(&home, "rm -f one two three; cp /bin/true one; echo old >two; ln two three; chown 70001 one two");
        let Some(still) = Still::at(sandbox, step, "printf new >one; echo new >two") else { break };
        let run = |words: &[&str]| user(ALICE).args(words).directory(&home).run().code() == 0;
        if still.is_committed() {
            behind += 1;
            assert!(read(home.join("one")) == "new" || !run(&["./one"]), "step {step}: it was executed");
            assert!(read(home.join("two")) == "new\n" || !run(&["python3", "-c", LEASE]), "step {step}: it was leased");
        }
        still.goes_on().succeeded();
    }
    assert!(behind > 2, "it stood still behind its commit point {behind} times");
}

/// A directory of hers goes, and one of root's gets its number and its place, before a killed commit is finished.
fn same_number(sandbox: &Sandbox) {
    let home = home(sandbox);
    let mut behind = 0;
    for step in 0..MOST {
        drop(Scene::set(sandbox).server);
        sh(&home, "rm -rf --one-file-system d r; mkdir d; chown 70001 d");
        let Some(still) = Still::at(sandbox, step, "echo new >d/new") else { break };
        still.end_with_server();
        if !is_committed(sandbox) || home.join("d/new").exists() {
            sandbox.pando(["tx", "recover"]).ok();
            continue;
        }
        let number = fs::metadata(home.join("d")).expect("it is there").ino();
        sh(&home, "rmdir d; mkdir r");
        if fs::metadata(home.join("r")).expect("it was made").ino() != number {
            sandbox.pando(["tx", "recover"]).ok();
            continue;
        }
        behind += 1;
        user(ALICE).args(["mv", "r", "d"]).directory(&home).ok();
        let before = tree_state::lines(&home.join("d"));
        sandbox.pando(["tx", "recover"]).ok();
        assert_eq!(tree_state::lines(&home.join("d")), before, "step {step}");
    }
    if behind == 0 {
        skip("no directory gets the number of another here");
    }
}

/// In a directory that all may write to, files of bob's get the names of hers that go, at any step.
fn others_files(sandbox: &Sandbox) {
    let all = sandbox.scratch().join("all");
    fs::create_dir(&all).expect("a directory");
    fs::set_permissions(&all, PermissionsExt::from_mode(0o1777)).expect("it is root's");
    let owner = |name: &str| fs::symlink_metadata(all.join(name)).map(|found| found.uid()).ok();
    let mut behind = 0;
    for step in 0..MOST {
        drop(Scene::set(sandbox).server);
        sh(&all, "rm -f *; for name in gone old new; do echo hers >$name; done; chown 70001 *; ln old kept");
        let number = fs::metadata(all.join("kept")).expect("it is there").ino();
        let Some(still) = Still::at(sandbox, step, "cd ../all; rm gone; mv new old") else { break };
        let mut his = Vec::new();
        if still.is_committed() {
            let is_old = fs::symlink_metadata(all.join("old")).is_ok_and(|found| found.ino() == number);
            his.extend(owner("gone").map(|_| "gone"));
            his.extend(is_old.then_some("old"));
            behind += his.len();
        }
        for name in &his {
            sh(&all, &format!("rm {name}; echo his >{name}; chown 70002 {name}"));
        }
        let ended = still.goes_on();
        for name in his {
            assert_eq!(owner(name), Some(BOB), "step {step}: bob's {name} is gone: {}", ended.err());
            assert_eq!(read(all.join(name)), "his\n", "step {step}");
        }
    }
    assert!(behind > 4, "it stood still behind its commit point {behind} times");
}

/// Root gives a file of hers to bob while she commits.
fn given(sandbox: &Sandbox) {
    let home = home(sandbox);
    let mut behind = 0;
    for step in 0..MOST {
        drop(Scene::set(sandbox).server);
        sh(&home, "rm -rf --one-file-system f d; echo old >f; chmod 600 f; mkdir d; chown 70001 f d");
        let Some(still) = Still::at(sandbox, step, "chmod 644 f; chmod 711 d; mkdir d/new; echo x >d/new/x") else {
            break;
        };
        let is_committed = still.is_committed();
        behind += u32::from(is_committed);
        for name in ["f", "d"] {
            chown(home.join(name), Some(BOB), None).expect("it is there");
        }
        let ended = still.goes_on();
        let uid = |name: &str| fs::metadata(home.join(name)).map(|found| found.uid()).ok();
        assert_eq!(["f", "d"].map(uid), [Some(BOB); 2], "step {step}: {}", ended.err());
        assert!(uid("d/new").is_none_or(|uid| uid == ALICE), "step {step}: what is new is not hers");
    }
    assert!(behind > 3, "it stood still behind its commit point {behind} times");
}

fn locked(sandbox: &Sandbox) {
    let lock = sandbox.root().join("run/pando/tx-users.lock");
    drop(Scene::set(sandbox).server);
    let take = || user(ALICE).args(["flock", "-n"]).args([&lock]).args(["true"]).directory("/").run().code();
    assert_ne!(take(), 0, "she can lock it");
    // As an earlier version made it.
    fs::set_permissions(&lock, PermissionsExt::from_mode(0o644)).expect("it is root's");
    drop(Scene::set(sandbox).server);
    assert_ne!(take(), 0, "she can lock it");
}

fn urgency(sandbox: &Sandbox) {
    drop(Scene::set(sandbox).server);
    let server = serve(sandbox, &[]);
    let pid = server.pid();
    Line::new("renice").args(["-n", "5", "-p", &pid.to_string()]).ok();
    let scene = Scene { sandbox, server };
    let script = "nice; cat /proc/self/oom_score_adj";
    for (nice, score) in [("0", "17"), ("7", "250")] {
        let own = format!("echo {score} >/proc/self/oom_score_adj; exec nice -n {nice} \"$@\"");
        let pando = [sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str()];
        let line =
            scene.of(ALICE, ["sh", "-ec", &own, "sh"]).args(pando).args(["tx", "run", "-q", "--", "sh", "-c", script]);
        let (base, said) = (line_of_nice(), line.ok());
        let nice = base + nice.parse::<i32>().expect("a number");
        assert_eq!(said, format!("{}\n{score}\n", nice.min(19)));
    }
}

/// What this process has itself.
fn line_of_nice() -> i32 {
    Line::new("nice").ok().trim().parse().expect("a number")
}
