//! What others mount and unmount while a transaction begins costs it no run.

use crate::case::{Case, Tag, skip};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_mounts_change::in_another_directory_while_one_begins", |sandbox| begins(sandbox, "sh"))
        .tags(&[Tag::Slow]),
    Case::new("tx_mounts_change::in_a_private_namespace_while_one_begins", |sandbox| {
        begins(sandbox, "unshare -m --propagation private sh")
    })
    .needs(&[Need::Root, Need::Program("unshare", "util-linux")]),
];

/// How many transactions begin while something is mounted and unmounted all the time. It is several times for each view that is made, but for pauses.
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
