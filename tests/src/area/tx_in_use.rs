//! What is in use so that a commit must not take it away: it is refused before anything is changed.

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::swap_file::SwapFile;
use crate::tree_state;
use std::fs;

const NEEDS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_in_use::swap_space_stays", swap),
    Case::new("tx_in_use::what_others_mount_meanwhile_stays", mounted).needs(NEEDS),
    Case::new("tx_in_use::what_is_mounted_in_a_directory_moves_along", moved).needs(NEEDS),
    Case::new("tx::one_thing_that_is_changed_by_way_of_two_mounts_is_refused", two_ways).needs(NEEDS),
    Case::new("tx_in_use::what_is_mounted_in_what_was_thrown_away_is_not_deleted", thrown_away).needs(NEEDS),
];

/// Of two changes of one file by way of two mounts one would be lost. Distinct names in one directory are none.
fn two_ways(sandbox: &Sandbox) {
    let text = "mkdir -p d/sub other; echo old >d/file; echo old >d/two; mount --bind d other; sleep .02
         refused() { find d -printf '%P %i %s %C@\\n' | grep -v '^ ' >before; $TX run --retry 0 -- sh -ec \"$1\" && exit 8; find d -printf '%P %i %s %C@\\n' | grep -v '^ ' | cmp - before; }
         refused 'echo one >>d/file; echo two >>other/file'; refused 'echo one >d/new; mkdir other/new'; refused 'rm d/two; echo two >>other/two'
         refused 'mv d/sub d/here; mv other/sub other/there'; refused 'rm d/two; rm other/two'; refused 'rm -r d/sub; touch other/sub/in'
         $TX run -q -- sh -ec 'echo one >>d/file; echo two >>other/two; touch d/a other/b d/sub/a other/sub/b'; cat other/file d/two; ls d d/sub; umount other";
    let ended = script(sandbox, text).complains_of(&["nothing was changed", "other/file: ", "d/file is the same"]);
    assert_eq!(ended.out(), "old\none\nold\ntwo\nd:\na\nb\nfile\nsub\ntwo\n\nd/sub:\na\nb\n");
}

/// A script in mounts of its own, with `$TX` for `pando tx`.
fn script(sandbox: &Sandbox, text: &str) -> Ended {
    let all = format!("mount --make-rprivate /; TX=\"$PANDO --root $ROOT tx\"; {text}");
    let line = Line::new("unshare").args(["-m", "bash", "-ec", &all]).directory(sandbox.scratch());
    line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).run().succeeded()
}

fn swap(sandbox: &Sandbox) {
    let directory = sandbox.scratch().join("files");
    fs::create_dir(&directory).expect("a directory can be made");
    let _in_use = SwapFile::make(directory.join("swap"), 16);
    fs::write(directory.join("other"), "other\n").expect("a file can be written");
    let run = |script: &str| {
        let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "sh", "-ec", script]);
        line.directory(&directory).run()
    };
    for script in ["rm swap; touch new", "mv swap away", "mv other swap", "printf x >>swap; rm other", "rm -r ../files"]
    {
        let before = tree_state::lines(&directory);
        run(script).ended_with(125).complains_of(&["nothing was changed", "files/swap", "swap space", "swapoff"]);
        assert_eq!(tree_state::lines(&directory), before, "{script}");
    }
    run("chmod 640 swap; rm other; touch new").succeeded();
    assert!(directory.join("new").exists() && !directory.join("other").exists());
}

fn mounted(sandbox: &Sandbox) {
    let text = "mkdir -p d/e/f; $TX begin work; $TX enter work -- sh -ec 'rm -r d; touch new'
         mount -t tmpfs none d/e/f; touch d/e/f/theirs; $TX commit work && exit 9
         ls d/e/f; [ ! -e new ]; $TX abort work; umount d/e/f; $TX run -q -- rm -r d; [ ! -e d ]";
    let ended = script(sandbox, text);
    assert_eq!(ended.complains_of(&["d/e/f was mounted over by others"]).out(), "theirs\n");
}

fn moved(sandbox: &Sandbox) {
    let text = "mkdir -p d/e; mount -t tmpfs none d/e; touch d/e/mine; $TX run -q -- mv d away; ls away/e
         mkdir -p d/e; $TX begin work; $TX enter work -- mv d gone; mount -t tmpfs none d/e; touch d/e/theirs; $TX commit work
         ls gone/e; umount gone/e away/e";
    assert_eq!(script(sandbox, text).out(), "mine\ntheirs\n");
}

fn thrown_away(sandbox: &Sandbox) {
    // What the run itself has thrown away may still be swept, with what is found beside it.
    let text = "$TX run -q -- true; TRASH=$ROOT/var/lib/pando/tx/.trash; for try in $(seq 100); do
         mkdir -p $TRASH/old/d $TRASH/other/d && mount -t tmpfs none $TRASH/old/d 2>/dev/null && break; sleep .05; done; mountpoint -q $TRASH/old/d
         touch $TRASH/old/d/theirs; $TX recover; ls $TRASH $TRASH/old/d; $TX run -q -- true; umount $TRASH/old/d; $TX recover; ls $TRASH";
    let trash = sandbox.root().join("var/lib/pando/tx/.trash");
    let expected = format!("{}:\nold\n\n{}:\ntheirs\n", trash.display(), trash.join("old/d").display());
    assert_eq!(script(sandbox, text).out(), expected);
}
