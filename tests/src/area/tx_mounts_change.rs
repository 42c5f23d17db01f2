//! What others mount and unmount beside a transaction costs it no run, unless it is what the transaction has touched.

use crate::case::{Case, skip};
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;

const UNSHARE: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_mounts_change::in_another_directory_while_one_begins", |sandbox| begins(sandbox, "sh")),
    Case::new("tx_mounts_change::in_a_private_namespace_while_one_begins", |sandbox| {
        begins(sandbox, "unshare -m --propagation private sh")
    })
    .needs(UNSHARE),
    Case::new("tx_mounts_change::what_was_not_touched_may_be_unmounted", untouched).needs(UNSHARE),
    Case::new("tx_mounts_change::what_was_touched_may_not", touched).needs(UNSHARE),
];

/// How many transactions begin while something is mounted and unmounted all the time. It is several times for each view
/// that is made, but for pauses.
const BEGUN: u32 = 12;

fn begins(sandbox: &Sandbox, mounts_in: &str) {
    let program = sandbox.program().display();
    let pando = format!("{program} --root {}", sandbox.root().display());
    let script = format!(
        "mkdir at; mount -t tmpfs none at || exit 77; umount at
         {mounts_in} -c 'while [ ! -e end ]; do mount -t tmpfs none at; umount at; mount -t tmpfs none at; umount at; sleep .1; done' &
         failed=0; for n in $(seq {BEGUN}); do
            {pando} tx run --retry 0 -- sh -c 'echo '$n' >>ran' 2>>said || failed=$((failed + 1))
            {{ {pando} tx begin work$n && {pando} tx abort work$n; }} 2>>said || failed=$((failed + 1))
         done; touch end; wait; echo $failed; wc -l <ran; cat said >&2"
    );
    let line = Line::new("sh").args(["-c", &script]).directory(sandbox.scratch()).limit(120);
    let ended = line.run();
    if ended.code() == 77 {
        skip("no file system can be mounted here");
    }
    assert_eq!(ended.out(), format!("0\n{BEGUN}\n"), "{}", ended.err());
    assert!(!ended.err().contains("running it again"), "no run was lost: {}", ended.err());
}

/// Runs a script with a file system in memory at `at`, where nobody else sees it. `$TX` is `pando tx`, with its state
/// outside of that.
fn script(sandbox: &Sandbox, text: &str) -> Ended {
    let prologue =
        "set -u; mount --make-rprivate /; mkdir at; mount -t tmpfs none at || exit 77; TX=\"$PANDO --root $ROOT tx\"\n";
    let line = Line::new("unshare").args(["-m", "bash", "-c", &format!("{prologue}{text}")]);
    let line = line.directory(sandbox.scratch()).env("ROOT", sandbox.root()).env("PANDO", sandbox.program());
    let ended = line.limit(120).run();
    if ended.code() == 77 {
        skip("no file system can be mounted here");
    }
    ended
}

/// The mount point goes too, or another file system comes in the place of the first.
fn untouched(sandbox: &Sandbox) {
    let text = "
        for then in 'rmdir at' 'mount -t tmpfs other at; touch at/new' true; do
            mkdir -p at; mountpoint -q at || mount -t tmpfs none at; touch at/file
            $TX begin work; $TX enter work -- sh -c 'echo 1 >>made'; umount at; eval \"$then\"; $TX commit work || $TX abort work
            umount at 2>/dev/null
            mkdir -p at; mount -t tmpfs none at; touch at/file
            { echo ready; until [ -e gone ]; do sleep .05; done; } | $TX run --retry 0 -- sh -c 'read ready; touch begun; cat; echo 2 >>made' >/dev/null &
            until [ -e begun ]; do sleep .05; done 2>/dev/null & sleep .5; umount at; eval \"$then\"; touch gone; wait %1; kill %2 2>/dev/null; wait
            rm -f gone begun; umount at 2>/dev/null
        done; tr '\\n' ' ' <made";
    let ended = script(sandbox, text);
    assert_eq!(ended.out(), "1 2 1 2 1 2 ", "{}", ended.err());
}

fn touched(sandbox: &Sandbox) {
    let text = "
        for what in 'test -e at/file' 'test -e at/missing' 'ls at' 'chmod 700 at' 'chown 7 at' 'touch -d @7 at' 'echo >at/new' 'echo >>at/file' 'rm at/file' \\
                'touch at/d/e/new; touch -d @5 at/d/e; touch -d @7 at/d; touch -d @9 at'; do
            mkdir -p at; mount -t tmpfs none at; mkdir -p at/d/e; touch at/file; touch -d @5 at/d/e; touch -d @7 at/d; touch -d @9 at; sleep .05
            $TX begin work; $TX enter work -- sh -c \"$what; echo 1 >>made\" >/dev/null; umount at; rmdir at; $TX commit work 2>>said && echo \"committed: $what\"
            $TX abort work 2>/dev/null
        done; [ -e made ] && echo made; grep -c 'at was unmounted by others' said";
    let ended = script(sandbox, text);
    assert_eq!(ended.out(), "10\n", "{}", ended.err());
}
