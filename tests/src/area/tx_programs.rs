//! Real programs in transactions: committed, what they leave is what they leave natively; aborted, nothing is changed.

use crate::case::{Case, Tag, skip};
use crate::disorder;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::tree_state;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_programs::git_clones_and_checks_out", git).tags(&[Tag::Slow]),
    Case::new("tx_programs::pip_installs", pip).tags(&[Tag::Slow]),
    Case::new("tx_programs::a_script_with_a_fork_in_the_middle", fork).tags(&[Tag::Slow]),
    Case::new("tx_programs::random_operations_on_a_file", exerciser),
    Case::new("tx_programs::random_operations_on_trees_at_once", stress),
    Case::new("tx_programs::npm_installs", npm).tags(&[Tag::Slow]),
    Case::new("tx_programs::make_installs", make_install).needs(&[Need::Program("make", "make")]),
    Case::new("tx_programs::a_user_is_added_whole_or_not_at_all", useradd)
        .needs(&[Need::Root, Need::Program("useradd", "passwd")]),
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
    let before = tree_state::exact(&at.join("inside"));
    tx(sandbox, &at, "cd inside; git checkout -q main; git status >/dev/null; exit 3").run().ended_with(3);
    assert_eq!(tree_state::exact(&at.join("inside")), before);
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
    let before = tree_state::exact(&at);
    tx(sandbox, &at, &format!("{}; exit 4", script("never"))).run().ended_with(4);
    assert_eq!(tree_state::exact(&at), before);
}

/// What fsx does: in one transaction after another, on a file that is there already, and natively.
fn exerciser(sandbox: &Sandbox) {
    has("python3");
    let at = sandbox.scratch();
    fs::write(at.join("exerciser.py"), include_str!("exerciser.py")).expect("a file can be written");
    let script = |seed: u32, file: &str| format!("python3 exerciser.py {seed} 600 {file}");
    for seed in 0..5 {
        let native = sh(&at, &script(seed, "native"));
        assert_eq!(tx(sandbox, &at, &script(seed, "inside")).ok(), native, "seed {seed}");
        assert_eq!(sh(&at, "sha256sum <inside"), sh(&at, "sha256sum <native"), "seed {seed}");
    }
}

/// What fsstress does: several processes change trees of their own at random, and all at once.
fn stress(sandbox: &Sandbox) {
    const PROCESSES: u64 = 4;
    let at = sandbox.scratch();
    let program = std::env::current_exe().expect("this program has a path");
    let script = |to: &str, seed: u64| {
        let one = |number: u64| {
            let seed = seed * PROCESSES + number;
            format!(
                "mkdir -p {to}/{number}; {} {} {seed} 80 {to}/{number} >/dev/null & ",
                program.display(),
                disorder::WORD
            )
        };
        format!("{} wait", (0..PROCESSES).map(one).collect::<String>())
    };
    // All but the times, which are of when it was done.
    let lines = |of: &str| -> Vec<String> {
        let fields = |line: String| {
            let words = line.split(' ').enumerate().filter(|(number, _)| *number != 4).map(|(_, word)| word);
            words.collect::<Vec<_>>().join(" ")
        };
        tree_state::lines(&at.join(of)).into_iter().map(fields).collect()
    };
    for seed in 0..4 {
        sh(&at, &script("native", seed));
        tx(sandbox, &at, &script("inside", seed)).ok();
        assert_eq!(lines("inside"), lines("native"), "seed {seed}");
    }
}

fn npm(sandbox: &Sandbox) {
    has("npm");
    let at = sandbox.scratch();
    let script = |to: &str| {
        format!(
            "mkdir {to}; cd {to}; npm install --silent --no-audit --no-fund --cache ../cache-{to} left-pad@1.3.0 semver@7.5.4"
        )
    };
    if Line::new("sh").args(["-ec", &script("native")]).directory(&at).limit(300).run().code() != 0 {
        skip("npm cannot install anything here");
    }
    tx(sandbox, &at, &script("inside")).limit(300).ok();
    // Its list has the name of the directory in it.
    let sums = "find node_modules -name .package-lock.json -o -printf '%p %m %l ' -type f -exec sha256sum {} \\; -o -printf '\\n' | sort; cat package.json | sed 1,2d";
    assert_eq!(sh(&at.join("inside"), sums), sh(&at.join("native"), sums));
    let before = tree_state::exact(&at);
    tx(sandbox, &at, &format!("{}; exit 4", script("never"))).limit(300).run().ended_with(4);
    assert_eq!(tree_state::exact(&at), before);
}

/// A small package as they are: programs, a library with its links, manual pages, over an older release.
fn make_install(sandbox: &Sandbox) {
    let at = sandbox.scratch();
    let makefile = "all: tool lib.so.1.2\n\
        tool:\n\tprintf '#!/bin/sh\\necho $(RELEASE)\\n' >$@; chmod 755 $@\n\
        lib.so.1.2:\n\tseq 20000 >$@\n\
        install: all\n\
        \tinstall -d $(D)/bin $(D)/lib $(D)/share/man/man1\n\
        \tfor n in $$(seq 40); do install -m 755 tool $(D)/bin/tool$$n; echo $(RELEASE) $$n >page; install -m 644 page $(D)/share/man/man1/t$$n.1; done\n\
        \tinstall -m 644 lib.so.1.2 $(D)/lib; ln -sf lib.so.1.2 $(D)/lib/lib.so.1; ln -f $(D)/bin/tool1 $(D)/bin/alias\n";
    fs::write(at.join("Makefile"), makefile).expect("a file can be written");
    let script = |to: &str, release: u32| {
        format!(
            "rm -f tool lib.so.1.2 page; make -s install RELEASE={release} D=\"$PWD/{to}\"; rm -f tool lib.so.1.2 page"
        )
    };
    for release in 1..=2 {
        sh(&at, &script("native", release));
        let before = tree_state::exact(&at);
        tx(sandbox, &at, &format!("{}; exit 5", script("inside", release))).run().ended_with(5);
        assert_eq!(tree_state::exact(&at), before);
        tx(sandbox, &at, &script("inside", release)).ok();
        assert_eq!(sh(&at.join("inside"), SUMS), sh(&at.join("native"), SUMS));
    }
    let links = |of: &str| fs::metadata(at.join(of).join("bin/alias")).expect("it is there").nlink();
    assert_eq!((links("native"), links("inside")), (2, 2));
}

/// The accounts of a copy of this machine's; it is interrupted when one of the files is written and others are not.
fn useradd(sandbox: &Sandbox) {
    let at = sandbox.scratch();
    let copy =
        "mkdir -p root/etc root/home; for n in passwd shadow group gshadow login.defs; do cp -a /etc/$n root/etc; done";
    sh(&at, copy);
    let accounts = ["passwd", "shadow", "group", "gshadow"];
    let named = || accounts.map(|name| sh(&at, &format!("grep -c '^somebody:' root/etc/{name} || true")).trim() == "1");
    let before = tree_state::exact(&at);
    let add = "useradd -P \"$PWD/root\" -M -U somebody";
    // It is stopped as soon as one file has the name, if that is seen before it has ended, and killed then.
    let watched = format!(
        "{add} & while kill -0 $! 2>/dev/null; do n=$(grep -l ^somebody: root/etc/passwd root/etc/shadow root/etc/group root/etc/gshadow \
         2>/dev/null | wc -l); if [ $n -gt 0 ]; then kill -STOP $! || echo too late; echo $n; break; fi; done; exec sleep 1000"
    );
    let mut started = tx(sandbox, &at, &watched).start();
    let is_there = || sandbox.pando(["tx", "diff"]).args(run_name(sandbox)).run().out().contains("root/etc/");
    eventually("one of the files is written", || started.has_ended() || is_there());
    assert!(!started.has_ended(), "it did not wait: {:?}", started.wait());
    started.signal(Signal::TERM);
    assert_ne!(started.wait().code(), 0);
    assert_eq!(tree_state::exact(&at), before);
    assert_eq!(named(), [false; 4]);
    tx(sandbox, &at, add).ok();
    assert_eq!(named(), [true; 4]);
}

/// The name of the transaction that runs.
fn run_name(sandbox: &Sandbox) -> Option<String> {
    let listed = serde_json::from_str::<serde_json::Value>(&sandbox.pando(["tx", "ls", "--json"]).ok()).ok()?;
    Some(listed.get(0)?.get("name")?.as_str()?.to_owned())
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
    let before = tree_state::exact(&at);
    let script = "echo new >keep; mkdir d; touch d/f; echo ready; exec sleep 1000";
    // What a shell runs in the background ignores this signal, and so would all that these tests start.
    let line = Line::new("env").args(["--default-signal=INT"]).args([sandbox.program()]);
    let line = line.args(["--root"]).args([sandbox.root()]).args(["tx", "run", "--", "sh", "-ec", script]);
    let started = line.directory(&at).start();
    let changed = || sandbox.pando(["tx", "ls", "--json"]).ok().contains("sleep 1000") && in_upper(sandbox);
    eventually("the script has changed its files", changed);
    started.signal(Signal::INT);
    started.wait().ended_with(130).complains_of(&["nothing was changed"]);
    assert_eq!(tree_state::exact(&at), before);
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
    eventually("what it threw away is deleted", || !copied());
    fs::remove_file(disk.at.join("filler")).expect("the filler can be removed");
    // Others' transactions have parts on this disk too.
    let is_its_own = |line: &String| !line.starts_with("/.pando-tx") && !line.contains("lost+found");
    let without_times = |lines: Vec<String>| lines.into_iter().skip(1).filter(is_its_own).collect::<Vec<_>>();
    assert_eq!(without_times(tree_state::lines(&disk.at)), without_times(before));
}
