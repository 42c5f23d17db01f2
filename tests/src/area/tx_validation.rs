//! What others may do to what a transaction has read, and what of that is a conflict. Most of it the kernel tells
//! without anybody being asked; the rest is looked up.

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::what_was_read_and_has_changed_is_a_conflict", changed),
    Case::new("tx::what_is_read_from_standard_input_is_validated_by_its_name", from_input),
    Case::new("tx::what_is_listed_is_validated_whatever_it_is_called", listed_by_any_name),
    Case::new("tx::what_is_listed_by_mounts_of_its_own_is_validated", listed_by_own_mounts).needs(DISK),
    Case::new("tx::what_has_changed_beside_what_was_read_is_none", beside),
    Case::new("tx::what_was_read_in_a_directory_that_it_has_moved_is_validated", moved),
    Case::new("tx::each_of_thousands_of_names_is_validated", thousands),
];

const DISK: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs")];

/// Runs `before` in a directory, and then `command` in a transaction; once that has read what it reads others do
/// `change`, and it ends. What it is told by is the command's output, which is no part of what it read.
fn beside_others(sandbox: &Sandbox, [before, command, change]: [&str; 3]) -> Ended {
    let script = format!(
        "rm -rf tree; mkdir tree; cd tree; mkdir -p d/sub d/deep/er busy; echo 1 >d/file; echo 2 >d/two; ln d/two d/names; echo 3 >d/deep/er/file; {before}
         {{ until grep -q read ../out; do sleep .02; done; {change}; echo; }} |
         \"$PANDO\" --root \"$ROOT\" tx run --retry 0 -- sh -ec '{command}; echo read; read line' >../out"
    );
    let line = Line::new("bash").args(["-c", &script]).directory(sandbox.scratch());
    std::fs::write(sandbox.scratch().join("out"), "").expect("a file can be written");
    line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).run()
}

#[track_caller]
fn conflicts(sandbox: &Sandbox, script: [&str; 3], about: &str) {
    let ended = beside_others(sandbox, script);
    let said = ended.err();
    assert!(said.contains("aborted") && said.contains(about) && said.contains("by others"), "{script:?}: {said}");
}

#[track_caller]
fn commits(sandbox: &Sandbox, script: [&str; 3]) {
    let ended = beside_others(sandbox, script);
    assert!(ended.err().contains("committed"), "{script:?}: {}", ended.err());
}

fn changed(sandbox: &Sandbox) {
    for (command, change, about) in [
        ("cat d/file", "echo 2 >d/file", "d/file was changed"),
        ("cat d/file", "echo 2 >d/file; touch -d 2001-01-01 d/file", "d/file was changed"),
        ("cat d/file", "chmod 600 d/file", "d/file was changed"),
        ("cat d/file", "mv d/file d/moved", "d/file was removed"),
        ("cat d/file", "mv d/file d/moved; mv d/moved d/file", "d/file was changed"),
        ("cat d/file", "cp -p d/file new; mv new d/file", "d/file was replaced"),
        ("cat d/file", "rm d/file; mkdir d/file", "d/file was replaced"),
        // The same file by another name.
        ("cat d/two", "echo 3 >d/names", "d/two was changed"),
        ("cat d/two", "rm d/names", "d/two was changed"),
        ("cat d/deep/er/file", "mv d/deep d/away", "d/deep was removed"),
        (
            "cat d/deep/er/file",
            "mv d/deep d/away; mkdir -p d/deep/er; cp d/away/er/file d/deep/er",
            "d/deep was replaced",
        ),
        ("test ! -e d/missing", "echo 1 >d/missing", "d/missing was created"),
        ("test ! -e d/missing", "mv d/file d/missing", "d/missing was created"),
        ("test ! -e d/missing", "ln -s nowhere d/missing", "d/missing was created"),
        ("test ! -e d/missing/below", "mkdir -p d/missing/below", "d/missing was created"),
        ("ls d/sub", "touch d/sub/new", "d/sub was listed, and changed"),
        ("ls d/sub", "touch d/sub/new; rm d/sub/new", "d/sub was listed, and changed"),
        ("ls d/sub", "chmod 700 d/sub", "d/sub was listed, and changed"),
    ] {
        conflicts(sandbox, ["", command, change], about);
    }
}

/// The file is standard input as well, by which nobody can change it.
fn from_input(sandbox: &Sandbox) {
    let script = "echo 1 >d; : >out
        { until grep -q read out; do sleep .02; done; echo 2 >d; } &
        \"$PANDO\" --root \"$ROOT\" tx run --retry 0 -- sh -ec 'cat d >copy; echo read; sleep 1' <d >out";
    let line = Line::new("bash").args(["-c", script]).directory(sandbox.scratch());
    let ended = line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).limit(60).run();
    assert!(ended.err().contains("d was changed by others"), "{}", ended.err());
}

/// A name that looks like another's, and one that is longer than any path.
fn listed_by_any_name(sandbox: &Sandbox) {
    let odd = "d/gone (deleted)";
    conflicts(
        sandbox,
        [&format!("mkdir \"{odd}\""), &format!("ls \"{odd}\""), &format!("touch \"{odd}/new\"")],
        "d/gone (deleted) was listed, and changed",
    );
    // What lies so deep is no reason to validate less of all the rest.
    let deep =
        "long=$(printf %200s | tr \" \" x); for number in $(seq 30); do mkdir $long; cd -P $long; done; cd $HERE;";
    let before = format!("HERE=$PWD; cd d/deep; {deep}");
    conflicts(sandbox, [&before, "cat d/file; find d/deep", "echo 2 >d/file"], "d/file was changed");
    conflicts(sandbox, [&before, "ls d/sub; find d/deep", "touch d/sub/new"], "d/sub was listed, and changed");
}

/// The same directories by mounts that are gone when it is looked at what was read.
fn listed_by_own_mounts(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 64, &["mkfs.ext4", "-q"], "");
    let other = disk.at.display();
    let before = format!("rm -rf {other}/d; mkdir -p {other}/d mnt");
    let change = format!("touch {other}/d/new");
    let about = "mounted/d was listed, and changed";
    for command in [
        format!("ls {other}/d"),
        format!("unshare -m ls {other}/d"),
        format!("unshare -m sh -c \"mount --bind {other} mnt; ls mnt/d\""),
        format!("unshare -m sh -c \"mount --bind {other}/d mnt; cd mnt; ls\""),
        format!("unshare -m sh -c \"mount --bind {other} mnt; umount -l {other}; ls mnt/d\""),
    ] {
        conflicts(sandbox, [&before, &command, &change], about);
    }
    for command in ["unshare -m ls d/sub", "unshare -m sh -c \"mount --bind d mnt; ls mnt/sub\""] {
        conflicts(sandbox, [&before, command, "touch d/sub/new"], "d/sub was listed, and changed");
        // It is no other directory either.
        commits(sandbox, [&before, command, "mkdir /tmp/sub$$ && touch /tmp/sub$$/new && rm -r /tmp/sub$$"]);
    }
    let overlay = "mount -t tmpfs x mnt; mkdir mnt/u mnt/w mnt/m; mount -t overlay o -o lowerdir=$PWD/d,upperdir=$PWD/mnt/u,workdir=$PWD/mnt/w mnt/m; ls mnt/m/sub";
    let command = format!("unshare -m sh -c \"{}\"", overlay.replace('$', "\\$"));
    conflicts(sandbox, [&before, &command, "touch d/sub/new"], "d/sub was listed, and changed");
}

fn beside(sandbox: &Sandbox) {
    for (command, change) in [
        ("cat d/file", "touch d/new d/sub/new; rm d/two"),
        ("test ! -e d/missing", "touch d/new; rm d/file; mv d/sub d/other"),
        ("test ! -e d/missing", "touch d/missing; rm d/missing"),
        ("cat d/deep/er/file", "mv d/deep d/away; mv d/away d/deep"),
        ("ls d/sub", "touch d/new; mv d/sub d/away; mv d/away d/sub; touch -d 2001-01-01 d/file"),
        ("echo 1 >d/mine", "echo 2 >d/theirs"),
    ] {
        let ended = beside_others(sandbox, ["", command, change]);
        // A directory that was listed and moved has another time, whatever its names.
        let expected = if command.starts_with("ls") { "was listed" } else { "committed" };
        assert!(ended.err().contains(expected), "{command}, {change}: {}", ended.err());
    }
    commits(sandbox, ["mkdir there; touch there/file", "cat d/file >/dev/null; ls there", "true"]);
}

/// What it looks up then is asked for at the old place.
fn moved(sandbox: &Sandbox) {
    let command = "mv d e; cat e/file; test ! -e e/missing; ls e/sub";
    commits(sandbox, ["", command, "touch busy/new"]);
    conflicts(sandbox, ["", command, "echo 2 >d/file"], "d/file was changed");
    // Whoever changes names in it changes what is moved.
    conflicts(sandbox, ["", command, "touch d/missing"], "tree/d was changed");
    conflicts(sandbox, ["", command, "touch d/sub/new"], "d/sub was listed, and changed");
}

/// More than are told in one piece.
fn thousands(sandbox: &Sandbox) {
    let before = "seq 5000 | sed s,^,busy/, | xargs touch";
    let command = "test $(ls -l busy | wc -l) = 5001; for at in $(seq 5000); do test ! -e d/sub/$at; done";
    commits(sandbox, [before, command, "true"]);
    conflicts(sandbox, [before, command, "echo x >busy/4711"], "busy/4711 was changed");
    conflicts(sandbox, [before, command, "touch d/sub/2500"], "d/sub/2500 was created");
}
