//! Real programs in transactions: committed, what they leave is what they leave natively; aborted, nothing is changed.

use crate::case::{Case, Tag, skip};
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::tree_state;
use rustix::process::Signal;
use std::fs;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_programs::git_clones_and_checks_out", git).tags(&[Tag::Slow]),
    Case::new("tx_programs::pip_installs", pip).tags(&[Tag::Slow]),
    Case::new("tx_programs::a_script_with_a_fork_in_the_middle", fork).tags(&[Tag::Slow]),
    Case::new("tx_programs::an_interrupted_script_leaves_no_trace", interrupted).tags(&[Tag::Slow]),
    Case::new("tx_programs::a_disk_that_is_full_at_the_commit", full_disk).tags(&[Tag::Slow]),
];

fn tx(sandbox: &Sandbox, directory: &Path, script: &str) -> Line {
    sandbox.pando(["tx", "run", "--", "sh", "-ec", script]).directory(directory)
}

fn sh(directory: &Path, script: &str) -> String {
    Line::new("sh").args(["-ec", script]).directory(directory).ok()
}

fn has(program: &str) {
    if Line::new("sh").args(["-c", &format!("command -v {program}")]).run().code() != 0 {
        skip(format!("there is no {program} here"));
    }
}

/// Names, modes and contents: all but times and what a program makes anew each time.
const SUMS: &str = "find . -path ./.git/index -o -path ./.git/logs -prune -o -name '*.pyc' -o -name RECORD -o -printf '%p %m %l ' \
                    -type f -exec sha256sum {} \\; -o ! -path ./.git/index -printf '\\n'";

fn git(sandbox: &Sandbox) {
    has("git");
    let at = sandbox.scratch();
    let settings = "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b";
    sh(
        &at,
        &format!(
            "{settings}; git init -q -b main source; cd source; for n in $(seq 300); do mkdir -p d$((n % 9)); echo $n >d$((n % 9))/$n; done; \
             git add .; git commit -qm one; git checkout -qb other; git rm -qr d1; git mv d2 e2; echo changed >d3/3; git commit -qam two; \
             git checkout -q main"
        ),
    );
    let script = |to: &str| format!("{settings}; git clone -q source {to}; cd {to}; git checkout -q other; git gc -q");
    sh(&at, &script("native"));
    tx(sandbox, &at, &script("inside")).ok();
    let state =
        |to: &str| sh(&at.join(to), "git fsck 2>&1; git status --porcelain; git log --format=%H%T; git ls-files -s");
    assert_eq!(state("inside"), state("native"));
    let before = tree_state::lines(&at.join("inside"));
    tx(sandbox, &at, "cd inside; git checkout -q main; git status >/dev/null; exit 3").run().ended_with(3);
    assert_eq!(tree_state::lines(&at.join("inside")), before);
}

fn pip(sandbox: &Sandbox) {
    has("pip");
    let at = sandbox.scratch();
    let script = |to: &str| {
        format!(
            "pip install -q --no-compile --disable-pip-version-check --root-user-action=ignore --target {to} six==1.16.0"
        )
    };
    if Line::new("sh").args(["-ec", &script("native")]).directory(&at).run().code() != 0 {
        skip("pip cannot install anything here");
    }
    tx(sandbox, &at, &script("inside")).ok();
    assert_eq!(sh(&at.join("inside"), SUMS), sh(&at.join("native"), SUMS));
    let before = tree_state::lines(&at);
    tx(sandbox, &at, &format!("{}; exit 4", script("never"))).run().ended_with(4);
    assert_eq!(tree_state::lines(&at), before);
}

fn fork(sandbox: &Sandbox) {
    let at = sandbox.scratch();
    let script = |to: &str| {
        format!(
            "mkdir {to}; cd {to}; echo a >one; mkfifo pipe; (cat pipe >two; ls >three; mv one four) & \
             echo through >pipe; wait; seq 1000 | tee five | tail -1 >six; test -s two; rm pipe"
        )
    };
    sh(&at, &script("native"));
    tx(sandbox, &at, &script("inside")).ok();
    assert_eq!(sh(&at.join("inside"), SUMS), sh(&at.join("native"), SUMS));
}

fn interrupted(sandbox: &Sandbox) {
    let at = sandbox.scratch();
    fs::write(at.join("keep"), "old").expect("a file can be written");
    let before = tree_state::lines(&at);
    let started = tx(sandbox, &at, "echo new >keep; mkdir d; touch d/f; echo ready; exec sleep 1000").start();
    let changed = || sandbox.pando(["tx", "ls", "--json"]).ok().contains("sleep 1000") && in_upper(sandbox);
    eventually("the script has changed its files", changed);
    started.signal(Signal::INT);
    started.wait().ended_with(130).complains_of(&["nothing was changed"]);
    assert_eq!(tree_state::lines(&at), before);
}

fn in_upper(sandbox: &Sandbox) -> bool {
    let at = sandbox.root().join("var/lib/pando/tx");
    Line::new("find").args([at.as_path()]).args(["-path", "*/d/f"]).run().out().contains("/d/f")
}

/// What a commit will need is set aside before it is one.
fn full_disk(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 40, &["mkfs.ext4", "-q", "-m", "0"], "");
    sh(&disk.at, "head -c 8M /dev/zero | tr '\\0' a >large; echo old >small");
    let before = tree_state::lines(&disk.at);
    // It takes a copy of what it changes; then others fill the disk.
    let script = "printf b | dd of=large conv=notrunc status=none; echo new >small; echo ready; read line || true";
    let started = tx(sandbox, &disk.at, script).start_with_open_input();
    let copied = || sh(&disk.at, "find .pando-tx -name large -size +8000k 2>/dev/null || true").contains("large");
    eventually("the script has changed its files", copied);
    sh(&scratch, "head -c 60M /dev/zero >mounted/filler 2>/dev/null || true");
    let ended = started.close_input().wait();
    assert!(ended.code() != 0, "it was committed on a full disk: {}", ended.err());
    fs::remove_file(disk.at.join("filler")).expect("the filler can be removed");
    let without_times =
        |lines: Vec<String>| lines.into_iter().skip(1).filter(|line| !line.contains("lost+found")).collect::<Vec<_>>();
    assert_eq!(without_times(tree_state::lines(&disk.at)), without_times(before));
}
