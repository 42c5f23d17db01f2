//! Commits of transactions that were begun to be entered, which fail or are killed: what was done in them is not lost
//! with that, and is never committed by halves.

use crate::case::Case;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::tree_state;
use pando_kernel::file::tree_removal::remove_tree;
use std::fs;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_open_commits::one_killed_at_each_of_its_steps", killed_at_each_step),
    Case::new("tx_open_commits::one_for_which_there_is_no_room", no_room)
        .needs(&[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")]),
];

fn killed_at_each_step(sandbox: &Sandbox) {
    let directory = sandbox.scratch().join("tree");
    let (mut open, mut finished) = (0, 0);
    for step in 0.. {
        let _ = remove_tree(&directory);
        fs::create_dir_all(directory.join("d")).expect("a directory can be made");
        fs::write(directory.join("keep"), "old\n").expect("a file can be written");
        std::thread::sleep(std::time::Duration::from_millis(12));
        let before = tree_state::lines(&directory);
        sandbox.pando(["tx", "begin", "work"]).ok();
        let enter =
            |script: &str| sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", script]).directory(&directory);
        let after = enter("echo more >>keep; mv d e; echo new >e/new; find . | sort; cat keep").ok();
        let commit = sandbox.pando(["tx", "commit", "work"]);
        let ended = commit.env("PANDO_TX_CRASH_STEP", step.to_string()).run();
        if ended.code() == 0 {
            break;
        }
        ended.ended_with(137);
        sandbox.pando(["tx", "recover"]).ok();
        if sandbox.pando(["tx", "ls"]).ok().contains("work") {
            open += 1;
            assert_eq!(tree_state::lines(&directory), before, "step {step}");
            // Nobody knows any more what was read; what was written is there.
            let refused = sandbox.pando(["tx", "commit", "work"]).run().ended_with(125);
            refused.complains_of(&["interrupted", "can only be aborted"]);
            assert_eq!(enter("cat e/new").limit(30).ok(), "new\n");
            assert!(sandbox.pando(["tx", "diff", "-p", "work"]).ok().contains("\n+more\n"));
            sandbox.pando(["tx", "abort", "work"]).ok();
            assert_eq!(tree_state::lines(&directory), before, "step {step}");
        } else {
            // Right before its commit point it has nobody any more who holds it, and goes.
            let line = crate::line::Line::new("sh").args(["-c", "find . | sort; cat keep"]);
            let is_whole = line.directory(&directory).ok() == after;
            assert!(is_whole || tree_state::lines(&directory) == before, "step {step}: it was committed by halves");
            finished += u32::from(is_whole);
        }
    }
    println!("     {open} times it was still open, {finished} times it was finished");
    assert!(open > 2 && finished > 5);
}

fn no_room(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 40, &["mkfs.ext4", "-q", "-m", "0"], "");
    fs::write(disk.at.join("large"), "a".repeat(8 << 20)).expect("a file can be written");
    sandbox.pando(["tx", "begin", "work"]).ok();
    let script = "printf b | dd of=large conv=notrunc status=none";
    sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", script]).directory(&disk.at).ok();
    let filler = "head -c 60M /dev/zero >filler 2>/dev/null || true";
    crate::line::Line::new("sh").args(["-c", filler]).directory(&disk.at).ok();
    sandbox.pando(["tx", "commit", "work"]).run().ended_with(125).complains_of(&["room", "no space is left"]);
    assert!(fs::read(disk.at.join("large")).expect("it can be read").starts_with(b"aa"));
    let shown = sandbox.pando(["tx", "diff", "work"]).ok();
    assert!(shown.contains("/large"), "{shown}");
    fs::remove_file(disk.at.join("filler")).expect("the filler can be removed");
    // Once there is, it is what it was.
    sandbox.pando(["tx", "commit", "work"]).ok();
    assert!(fs::read(disk.at.join("large")).expect("it can be read").starts_with(b"ba"));
}
