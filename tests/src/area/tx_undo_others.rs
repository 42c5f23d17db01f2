//! Undo beside users of the host: what one of them has put somewhere since a commit gets no rights of root's by it.

use crate::case::Case;
use crate::disorder::{self, Cleared};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::tree_state;
use crate::undo_scene::{Scene, same};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_undo::rights_come_back_to_no_content_of_others", rights).needs(&[Need::Root]),
    Case::new("tx_undo::what_others_do_in_a_removed_directory_is_named", removed).needs(&[Need::Root]),
    Case::new("tx_undo::a_directory_of_others_is_not_put_in_place", planted).needs(&[Need::Root]),
    Case::new("tx_undo::files_of_holes_hold_nothing_up", holes).needs(&[Need::Root]),
];

/// Runs a script in the scene's tree as a user who owns nothing else.
fn as_user(scene: &Scene<'_>, script: &str) {
    user(script).directory(&scene.tree).ok();
}

fn user(script: &str) -> Line {
    Line::new("setpriv").args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-ec", script])
}

/// Owner and mode of a file, and what is in it.
fn state(scene: &Scene<'_>, name: &str) -> (u32, u32, String) {
    let path = scene.tree.join(name);
    let found = fs::metadata(&path).expect("it is there");
    (found.uid(), found.mode() & 0o7777, fs::read_to_string(path).expect("it can be read"))
}

/// Files are given away by mistake; their owner sets size and time of one back that he writes to.
fn rights(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    let files = "tool script other";
    scene.sh(&format!(
        "for one in {files}; do echo good >$one; done; chmod 4755 tool other; chmod 700 script
        echo good >mine; chmod 4755 mine; ln mine yours"
    ));
    scene.commit(&format!("chown 65534 {files} mine; rm mine"));
    scene.sh("for one in tool yours script; do touch -r $one $one.ref; done; chmod 644 *.ref");
    let write = "for one in tool yours script; do echo evil >$one; touch -r $one.ref $one; done";
    as_user(&scene, write);
    scene.sh("rm *.ref");
    let refused = scene.undo(1, &[]).ended_with(125);
    refused.complains_of(&["conflict", "/tool was changed", "/script was changed", "/mine was changed"]);
    scene.undo(1, &["--keep-changed"]).succeeded();
    let evil = |mode| (65534, mode, "evil\n".to_owned());
    assert_eq!(state(&scene, "tool"), evil(0o755));
    assert_eq!(state(&scene, "script"), evil(0o700));
    assert_eq!(state(&scene, "yours"), evil(0o755));
    assert_eq!(state(&scene, "other"), (0, 0o4755, "good\n".to_owned()));
}

/// A user works in a directory of his, with files of root's in it, which root removes. He goes on there.
fn removed(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh(
        "mkdir -p his/sub his/empty; cd his; for one in tool plain sub/deep; do echo good >$one; done; chmod 4755 tool
        for one in evil log; do echo evil >$one; done; chown -R 65534 ../his; chown 0 tool plain; chmod 4755 tool
        ln plain ../lives",
    );
    let go_on = "read go; mv tool t; mv evil tool; mv t evil; echo new >new; echo evil >>log; rmdir empty";
    let mut user = user(go_on).directory(scene.tree.join("his")).start_with_open_input();
    scene.commit("rm -r his");
    user.input().write_all(b"go\n").expect("he reads");
    user.close_input().wait().succeeded();
    let now = scene.lines();
    let refused = scene.undo(1, &[]).ended_with(125);
    let named = |name: &str| refused.err().contains(&format!("/his/{name}"));
    assert!(["tool was changed", "new came into", "log was changed", "empty is gone"].into_iter().all(named));
    same(&scene.lines(), &now, "refused");
    scene.undo(1, &["--keep-changed"]).succeeded();
    assert_eq!(state(&scene, "his/sub/deep"), (65534, 0o644, "good\n".to_owned()));
    let inode = |name: &str| fs::metadata(scene.tree.join(name)).expect("it is there").ino();
    assert_eq!(inode("his/plain"), inode("lives"));
    for left_out in ["tool", "evil", "new", "log", "empty"] {
        assert!(!scene.tree.join("his").join(left_out).exists(), "{left_out}");
    }
    // Where he does nothing, all of it comes back.
    scene.sh("rm -r his");
    scene.commit("mkdir his; echo x >his/x");
    scene.commit("rm -r his");
    scene.undo(4, &[]).succeeded();
    assert!(scene.tree.join("his/x").exists());
}

/// A user has directories of his where an undo puts things aside, with names that it gave such directories once.
fn planted(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    let mount = Path::new("/dev/shm");
    let (own, theirs) = (mount.join(format!("pando-aside-{}", std::process::id())), mount.join(".pando-undo"));
    let _cleared = [Cleared(own.clone()), Cleared(theirs.clone())];
    [&own, &theirs].into_iter().for_each(|directory| disorder::clear(directory));
    let at = own.display();
    scene.sh(&format!("mkdir -p {at}/a; echo good >{at}/a/conf; echo x >{at}/f"));
    scene.commit(&format!("mv {at}/a {at}/b; mv {at}/f {at}/g"));
    fs::create_dir(&theirs).expect("a directory can be made");
    chown(&theirs, Some(65534), Some(65534)).expect("it can be given away");
    let plant = "for one in d0 d1 d2; do mkdir $one; echo evil >$one/conf; done";
    user(plant).directory(&theirs).ok();
    let planted = tree_state::lines(&theirs);
    // Nothing has to be put aside any more.
    scene.sh(&format!("mv {at}/b {at}/elsewhere"));
    scene.undo(1, &["--keep-changed"]).succeeded();
    assert!(!own.join("a").exists());
    scene.sh(&format!("rm -f {at}/f {at}/g; mv {at}/elsewhere {at}/b; echo x >{at}/g"));
    scene.commit(&format!("mv {at}/b {at}/a; mv {at}/g {at}/f; mv {at}/a {at}/c; mv {at}/f {at}/h"));
    scene.undo(3, &[]).succeeded();
    assert!(own.join("b/conf").exists() && own.join("g").exists());
    same(&tree_state::lines(&theirs), &planted, "theirs");
}

/// A user's files are as large as the file system lets, and nearly all hole: whoever reads them is not done in a day.
fn holes(sandbox: &Sandbox) {
    let scene = Scene::new(sandbox, "1G, 1d");
    scene.sh("for one in log place tool; do echo old >$one; truncate -s 8T $one; done; chown 65534 log place tool");
    let written = |name: &str| {
        let line = "dd bs=4 count=1 status=none";
        Line::new("sh")
            .args(["-c", &format!("{line} if={name}; {line} if={name} iflag=skip_bytes skip=1T")])
            .directory(&scene.tree)
            .ok()
    };
    // Its time is set back, so that it has to be compared.
    let place =
        "touch -r place ref; printf new | dd of=place bs=1 seek=1T conv=notrunc status=none; touch -r ref place";
    scene.commit(&format!("echo line >>log; {place}; rm ref; chown 0 tool"));
    assert_eq!(written("place").trim_end_matches('\0'), "old\nnew");
    scene.undo(1, &[]).succeeded();
    assert_eq!(written("place").trim_end_matches('\0'), "old\n");
    let size = |name: &str| fs::metadata(scene.tree.join(name)).expect("it is there").len();
    assert_eq!(["log", "place", "tool"].map(size), [8 << 40; 3]);
    assert_eq!(fs::metadata(scene.tree.join("tool")).expect("it is there").uid(), 65534);
}
