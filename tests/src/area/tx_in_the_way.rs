//! What stands in a transaction's way, and what it makes of that: files that are larger than the disk, others that go
//! on writing, and Pando itself inside.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::a_file_larger_than_the_disk_is_written_to_where_it_is_mostly_hole", sparse)
        .needs(&[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")]),
    Case::new("tx::what_is_kept_free_for_a_commit_is_there_for_its_recovery", full)
        .needs(&[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")]),
    Case::new("tx::a_commit_whose_disk_was_taken_away_holds_no_other_up", taken_away)
        .needs(&[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")]),
    Case::new("tx::one_that_loses_to_others_waits_longer_each_time", waits),
    Case::new("tx::what_is_not_supported_inside_one_is_said", nested),
    Case::new("tx::the_device_of_a_file_system_is_found_inside", device),
    Case::new("tx::grub_finds_the_device_of_a_file_system_inside", grub).needs(&[
        Need::Root,
        Need::Program("grub-probe", "grub-common"),
        Need::Program("mkfs.ext4", "e2fsprogs"),
    ]),
    Case::new("tx::what_was_written_to_the_kernels_files_is_told", kernels_files),
    Case::new("tx::small_holes_and_what_is_set_aside_stay", holes).needs(&[
        Need::Root,
        Need::Program("mkfs.ext4", "e2fsprogs"),
        Need::Program("fallocate", "util-linux"),
    ]),
];

fn sparse(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 40, &["mkfs.ext4", "-q", "-m", "0"], "");
    Line::new("truncate").args(["-s", "100G", "hollow"]).directory(&disk.at).ok();
    let script = "echo end >>hollow; truncate -s 200G made";
    let run = sandbox.pando(["tx", "run", "--", "sh", "-ec", script]).directory(&disk.at);
    run.run().succeeded().complains_of(&["committed: 2 paths"]);
    let shown = Line::new("sh").args(["-c", "stat -c %s hollow made; tail -c 4 hollow"]).directory(&disk.at).ok();
    assert_eq!(shown, format!("{}\n{}\nend\n", (100_u64 << 30) + 4, 200_u64 << 30));
}

/// A commit is killed at each of its steps in turn, and others fill the disk: what is kept free for the commit is in
/// the way of nothing that finishes it.
fn full(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 24, &["mkfs.ext4", "-q", "-m", "0"], "");
    let mut committed = 0;
    for step in 0..100 {
        let sh = |script: &str| Line::new("sh").args(["-ec", script]).directory(&disk.at).ok();
        sh(
            "rm -rf old d other moved full*; mkdir -p old/in d; echo one >old/in/file; echo two >other; echo three >d/f",
        );
        let script = "rm -r old; mv other moved; mkdir d/made; mv d/f d/made/f; echo more >>d/made/f";
        let line = sandbox.pando(["tx", "run", "--retry", "0", "-q", "--", "sh", "-ec", script]).directory(&disk.at);
        if line.env("PANDO_TX_CRASH_STEP", step.to_string()).run().code() != 137 {
            assert!(committed > 5, "of {step} steps {committed} committed");
            return;
        }
        sh(
            "for size in 1M 4k 1k; do dd if=/dev/zero bs=$size of=full$size status=none || true; done 2>/dev/null; sync -f .",
        );
        let said = sandbox.pando(["tx", "recover"]).run();
        assert_eq!(said.code(), 0, "step {step}: {}{}", said.out(), said.err());
        let is_there = said.out().contains("in place now");
        let expected =
            if is_there { "d\nd/made\nd/made/f\nmoved\n" } else { "d\nd/f\nold\nold/in\nold/in/file\nother\n" };
        let found = sh(
            "find . -path ./lost+found -prune -o -path './.*' -prune -o -name 'full*' -o -print | sed s,^./,, | grep -v '^\\.$' | sort",
        );
        assert_eq!(found, expected, "step {step}: {}", said.out());
        committed += u32::from(is_there);
    }
    panic!("it has more steps than that");
}

/// It was killed behind its commit point, and is finished when the disk is there again.
fn taken_away(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let (image, at) = (scratch.join("disk"), scratch.join("mounted"));
    let disk = SmallDisk::make(image.clone(), at.clone(), 60, &["mkfs.ext4", "-q"], "");
    let mut published = false;
    for step in 0..100 {
        let line =
            sandbox.pando(["tx", "run", "--retry", "0", "-q", "--", "sh", "-ec", "echo new >one; echo new >two"]);
        let ended = line.directory(&at).env("PANDO_TX_CRASH_STEP", step.to_string()).run();
        assert_eq!(ended.code(), 137, "step {step}: {}", ended.err());
        published = !Line::new("find").args([sandbox.root()]).args(["-name", "journal"]).ok().is_empty();
        if published {
            break;
        }
    }
    assert!(published, "it was never committed");
    Line::new("umount").args([&at]).ok();
    sandbox.pando(["tx", "run", "-q", "--", "sh", "-c", "echo beside >beside"]).directory(&scratch).ok();
    let said = sandbox.pando(["tx", "recover"]).run();
    said.complains_of(&["cannot be finished now", "its file system is not mounted; mount it at", "again"]);
    Line::new("mount").args(["-o", "loop"]).args([&image, &at]).ok();
    assert!(sandbox.pando(["tx", "recover"]).ok().contains("in place now"));
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let found = [at.join("one"), at.join("two"), scratch.join("beside")].map(read);
    assert_eq!(found, ["new\n", "new\n", "beside\n"]);
    drop(disk);
}

/// Others write for as long as four runs take, and some more.
fn waits(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    std::fs::write(scratch.join("file"), "0\n").expect("a file can be written");
    let others = "for number in $(seq 34); do echo $number >file; sleep .1; done";
    let others = Line::new("sh").args(["-ec", others]).directory(&scratch).start();
    let run = sandbox.pando(["tx", "run", "--", "sh", "-ec", "cat file >copy; sleep .3"]).directory(&scratch).run();
    run.succeeded().complains_of(&["file was changed by others; running it again", "committed: 1 path"]);
    others.wait().succeeded();
}

/// A disk of its own.
fn disk(sandbox: &Sandbox) -> SmallDisk {
    let scratch = sandbox.scratch();
    SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 60, &["mkfs.ext4", "-q"], "")
}

/// By the list of mounts, as findmnt, grub-probe and mkinitramfs look for it.
fn device(sandbox: &Sandbox) {
    let disk = disk(sandbox);
    let at = disk.at.display().to_string();
    let script = format!(
        "for at in / {at}; do awk -v at=$at '$2 == at {{ source = $1 }} END {{ print source }}' /proc/mounts; done"
    );
    let outside = Line::new("sh").args(["-c", &script]).ok();
    let on_device = |line: &str| if line.starts_with('/') { line.to_owned() } else { "pando-tx".to_owned() };
    let expected: Vec<String> = outside.lines().map(on_device).collect();
    let inside = sandbox.pando(["tx", "run", "-q", "--", "sh", "-c", &script]).ok();
    assert_eq!(inside.lines().collect::<Vec<_>>(), expected);
}

fn grub(sandbox: &Sandbox) {
    let disk = disk(sandbox);
    let probe = |line: Line| {
        let ended = line.args(["grub-probe", "--target=device"]).args([&disk.at]).run();
        (ended.code(), ended.out())
    };
    let outside = probe(Line::new("env"));
    assert_eq!(probe(sandbox.pando(["tx", "run", "-q", "--"])), outside);
}

fn nested(sandbox: &Sandbox) {
    for words in ["tx run -- true", "tx begin inner", "run -- true", "create web --from /"] {
        let script = format!("{} --root {} {words}", sandbox.program().display(), sandbox.root().display());
        let run = sandbox.pando(["tx", "run", "--", "sh", "-c", &script]).directory(sandbox.scratch());
        let ended = run.run().ended_with(125);
        ended.complains_of(&[
            "is not supported inside a transaction",
            "before the transaction begins, or when it has ended",
        ]);
    }
}

/// What is written is what is there, so that nothing comes of it.
fn kernels_files(sandbox: &Sandbox) {
    let write = "value=$(cat /proc/sys/vm/swappiness); echo $value >/proc/sys/vm/swappiness";
    let told = "1 write to the kernel's files had passed: /proc/sys/vm/swappiness";
    let run = |options: &[&str], script: &str| {
        let line = sandbox.pando(["tx", "run"]).args(options).args(["--", "sh", "-ec", script]);
        line.directory(sandbox.scratch()).run()
    };
    let ended = run(&[], &format!("{write}; exit 3")).ended_with(3);
    ended.complains_of(&["aborted: exit code 3; no files were changed but the kernel's", told]);
    run(&["--in-memory"], write).succeeded().complains_of(&["committed: 0 paths", told]);
    run(&["--timeout", "0.7"], &format!("{write}; sleep 100"))
        .ended_with(125)
        .complains_of(&["it took too long", told]);
    // A process's own go with it.
    let ended = run(&[], "echo 0 >/proc/self/oom_score_adj; echo x >/dev/null; echo y >file; exit 3").ended_with(3);
    ended.complains_of(&["aborted: exit code 3; nothing was changed"]);
    sandbox.pando(["tx", "begin", "work"]).ok();
    sandbox.pando(["tx", "enter", "work", "--", "sh", "-ec", write]).ok();
    sandbox
        .pando(["tx", "abort", "work"])
        .run()
        .succeeded()
        .complains_of(&["no files were changed but the kernel's", told]);
}

fn holes(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 60, &["mkfs.ext4", "-q", "-m", "0"], "");
    let sh = |script: &str| Line::new("sh").args(["-ec", script]).directory(&disk.at).ok();
    // One with holes between what is written, one of which nothing was written yet, and one with room behind its end.
    sh("for at in 0 4 8 12; do printf x | dd of=holes bs=16k seek=$at conv=notrunc status=none; done
        fallocate -l 4M ahead; echo end >behind; fallocate -n -l 4M behind; sync");
    let held =
        || sh("stat -c %b holes ahead behind").lines().map(|line| line.parse().unwrap_or(0)).collect::<Vec<u64>>();
    for option in ["-q", "--in-memory"] {
        let before = held();
        let script = "for f in holes ahead; do printf y | dd of=$f conv=notrunc status=none; done; echo more >>behind";
        sandbox.pando(["tx", "run", option, "--", "sh", "-ec", script]).directory(&disk.at).run().succeeded();
        sh("sync");
        let now = held();
        // 512 bytes each; a little for what the file system itself notes of a file.
        let is_as_before = |(now, before): (&u64, &u64)| now.abs_diff(*before) <= 64;
        assert!(now.iter().zip(&before).all(is_as_before), "{option}: {before:?} {now:?}");
    }
    assert_eq!(sh("head -c 1 holes; head -c 1 ahead; cat behind"), "yyend\nmore\nmore\n");
}
