//! What somebody has mounted in a directory that Pando removes: it may be of the same file system, so that no device
//! number tells it from the rest. Nothing in it is removed, and the command says so.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};

const NEEDS: &[Need] = &[Need::Root, Need::Program("mount", "mount")];

pub(crate) const CASES: &[Case] = &[
    Case::new("mounted_inside::a_collection_is_refused", collection).needs(NEEDS),
    Case::new("mounted_inside::a_guest_is_not_removed", guest).needs(NEEDS),
    Case::new("mounted_inside::an_image_is_not_removed", image).needs(NEEDS),
    Case::new("mounted_inside::what_a_run_leaves_is_kept", run).needs(NEEDS),
    Case::new("mounted_inside::what_was_made_ahead_is_kept", made_ahead).needs(NEEDS),
    Case::new("tx_in_use::what_is_mounted_in_an_aborted_transaction_stays", transaction).needs(NEEDS),
];

/// A directory of somebody's, mounted somewhere in the state.
struct Theirs {
    from: PathBuf,
    at: PathBuf,
}

impl Theirs {
    fn mount(sandbox: &Sandbox, at: &Path) -> Self {
        Self::try_mount(sandbox, at).expect("it is there")
    }

    /// Nothing where the place goes meanwhile.
    fn try_mount(sandbox: &Sandbox, at: &Path) -> Option<Self> {
        let from = sandbox.scratch().join("theirs");
        std::fs::create_dir_all(from.join("deep")).expect("a directory");
        std::fs::create_dir_all(at).expect("a directory");
        std::fs::write(from.join("deep/file"), "theirs").expect("a file");
        let mounted = Line::new("mount").args(["--bind"]).args([&from, at]).run();
        (mounted.code() == 0).then(|| Self { from, at: at.to_owned() })
    }

    #[track_caller]
    fn are_unharmed(&self) {
        let kept = std::fs::read_to_string(self.from.join("deep/file"));
        assert_eq!(kept.expect("it is there still"), "theirs");
    }

    /// What a command has to say of it.
    fn sentence(&self) -> String {
        format!("{} is a mount point", self.at.display())
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // Renamed with what it lies in, it is mounted at another place by now, and there by its source.
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let own = self.from.to_string_lossy().into_owned();
        let of_ours = |line: &&str| line.split(' ').nth(3).is_some_and(|root| own.ends_with(root) && root.len() > 1);
        for at in table.lines().filter(of_ours).filter_map(|line| line.split(' ').nth(4)) {
            let _ = Line::new("umount").args([at]).run();
        }
    }
}

fn collection(sandbox: &Sandbox) {
    sandbox.create("g", &[]);
    let left = sandbox.places().store().join("staging/left");
    let theirs = Theirs::mount(sandbox, &left.join("in"));
    let ended = sandbox.pando(["store", "gc"]).run();
    theirs.are_unharmed();
    ended.ended_with(125).complains_of(&["nothing was collected", &theirs.sentence(), "Unmount it first"]);
    drop(theirs);
    sandbox.pando(["store", "gc"]).ok();
    assert!(!left.exists());
}

fn guest(sandbox: &Sandbox) {
    sandbox.create("g", &[]);
    let theirs = Theirs::mount(sandbox, &sandbox.places().guests().join("g/files/upper/data"));
    let ended = sandbox.pando(["rm", "g"]).run();
    theirs.are_unharmed();
    ended.ended_with(125).complains_of(&["removing the guest", &theirs.sentence(), "Unmount it first"]);
    assert_eq!(sandbox.state("g"), "stopped");
    drop(theirs);
    sandbox.pando(["rm", "g"]).ok();
}

fn image(sandbox: &Sandbox) {
    sandbox.guest("g", &["--", "sleep", "1000"]);
    sandbox.pando(["freeze", "g", "warm", "--wait"]).ok();
    let theirs = Theirs::mount(sandbox, &sandbox.places().images().join("warm/files/upper/data"));
    let ended = sandbox.pando(["image", "rm", "warm"]).run();
    theirs.are_unharmed();
    ended.ended_with(125).complains_of(&["removing the image", &theirs.sentence(), "Unmount it first"]);
    sandbox.pando(["clone", "warm", "c"]).ok();
    drop(theirs);
    sandbox.pando(["image", "rm", "warm"]).ok();
}

/// Names of a directory.
fn names(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// One in the files of each run, and in those made ahead.
fn in_each(sandbox: &Sandbox) -> Vec<Theirs> {
    // Some are on their way out, and gone by now.
    let all = names(&sandbox.places().ephemeral());
    all.iter().filter_map(|own| Theirs::try_mount(sandbox, &own.join("in"))).collect()
}

fn run(sandbox: &Sandbox) {
    let running = sandbox.run_sh(&["--name", "g"], "echo begun; read line").start_with_open_input();
    eventually("it runs", || sandbox.state("g") == "running");
    let theirs = in_each(sandbox);
    running.close_input().wait();
    let says = || sandbox.daemon_log().contains("what was thrown away is kept");
    eventually("the daemon says why it keeps them", says);
    theirs.iter().for_each(Theirs::are_unharmed);
}

fn made_ahead(sandbox: &Sandbox) {
    let ready = || {
        sandbox.run_sh(&[], "true").ok();
        names(&sandbox.places().ephemeral()).first().cloned()
    };
    let mut theirs = Vec::new();
    eventually("files are made ahead, and stay", || {
        theirs = if ready().is_some() { in_each(sandbox) } else { Vec::new() };
        !theirs.is_empty()
    });
    sandbox.end_daemon();
    // The next daemon removes what it finds.
    sandbox.run_sh(&[], "true").ok();
    sandbox.end_daemon();
    theirs.iter().for_each(Theirs::are_unharmed);
}

fn transaction(sandbox: &Sandbox) {
    let directory = sandbox.scratch().join("live");
    std::fs::create_dir(&directory).expect("a directory");
    let tx = |words: &[&str]| sandbox.pando(["tx"]).args(words).directory(&directory);
    tx(&["begin", "work"]).ok();
    tx(&["enter", "work", "--", "touch", "new"]).ok();
    let theirs = Theirs::mount(sandbox, &sandbox.root().join("var/lib/pando/tx/work/part-0/trash/in"));
    let ended = tx(&["abort", "work"]).run().succeeded();
    ended.complains_of(&["what was thrown away stays", "is a mount point", "Unmount it first"]);
    theirs.are_unharmed();
    tx(&["recover"]).run().succeeded().complains_of(&["what was thrown away stays", "is a mount point"]);
    theirs.are_unharmed();
    drop(theirs);
    tx(&["recover"]).ok();
    assert_eq!(names(&sandbox.root().join("var/lib/pando/tx/.trash")), Vec::<PathBuf>::new());
    assert_eq!(names(&directory), Vec::<PathBuf>::new());
}
