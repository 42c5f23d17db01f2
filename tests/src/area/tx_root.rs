//! The root directories of mounts in transactions: there is no directory above them that could tell that they were
//! changed.

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;

const NEEDS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::the_time_of_a_mounts_root_alone_is_committed", time_alone).needs(NEEDS),
    Case::new("tx::the_mode_of_a_mounts_root_alone_is_committed", mode_alone).needs(NEEDS),
    Case::new("tx::listing_a_mounts_root_is_no_conflict_with_pando_itself", list_roots).needs(NEEDS),
    Case::new("tx::a_directory_of_another_mount_that_was_listed_and_changed_is_a_conflict", list_changed).needs(NEEDS),
];

/// A time in the past.
const PAST: &str = "2001-02-03 04:05:06 UTC";

/// Runs a script in the root of a mount that is nobody else's; `$TX` is `pando tx`, with its state
/// on that mount.
fn in_a_root(sandbox: &Sandbox, script: &str) -> Ended {
    let directory = sandbox.scratch();
    std::fs::create_dir(directory.join("mount")).expect("a directory can be made");
    let program = sandbox.program().display();
    let around = format!(
        "mount -t tmpfs none mount && cd mount && mkdir d state && touch -d '{PAST}' . && TX=\"{program} --root $PWD/state tx\" && {script}"
    );
    Line::new("unshare").args(["-m", "bash", "-ec", &around]).directory(&directory).run().succeeded()
}

fn time_alone(sandbox: &Sandbox) {
    let ended = in_a_root(
        sandbox,
        "$TX run --dry-run -- touch .; stat -c %Y .; $TX run -- touch -d @1000000007.25 .; stat -c %.2Y .; $TX run -- touch d; stat -c %.2Y .; ls -A d state | head -n 1",
    );
    let out = ended.out();
    let said: Vec<&str> = out.lines().collect();
    let shown = said.first().copied().unwrap_or_default();
    assert!(shown.starts_with("~ /") && shown.trim_end_matches('/').ends_with("/mount"), "{said:?}");
    assert!(said[1].starts_with("    time 2001-02-03T04:05:06Z → "), "{said:?}");
    assert_eq!(said[2..], ["981173106", "1000000007.25", "1000000007.25", "d:"]);
    ended.complains_of(&["committed: 1 path, "]);
}

fn mode_alone(sandbox: &Sandbox) {
    let ended = in_a_root(sandbox, "$TX run -- chmod 711 .; stat -c '%a %Y' .");
    assert_eq!(ended.out(), "711 981173106\n");
}

/// Pando makes a hidden directory in the root of a mount that its state does not lie on, and removes it with the last
/// transaction.
fn list_roots(sandbox: &Sandbox) {
    let alone = "for number in 1 2 3; do $TX run --retry 0 -- ls other .; done";
    let long = "$TX run --retry 0 -- sh -c 'ls other; echo listed; read line' >../out";
    let others = "{ until grep -q listed ../out; do sleep .05; done; for number in 1 2 3; do $TX run --retry 0 -- ls other >../others; done; echo; }";
    let ended = in_a_root(
        sandbox,
        &format!("set -o pipefail; mkdir other; mount -t tmpfs none other; {alone}; {others} | {long}; ls -A other"),
    );
    // Three by themselves, three beside one that lasts longer, and that one.
    assert_eq!(ended.err().matches("committed: 0 paths").count(), 7, "{}", ended.err());
    assert!(!ended.out().contains(".pando-tx"), "{}", ended.out());
}

/// Its path is told by the kernel, as long as the view is there.
fn list_changed(sandbox: &Sandbox) {
    let reader = "$TX run --retry 0 -- sh -c 'ls d; echo listed; read line' >../out";
    let other = "{ until grep -q listed ../out; do sleep .05; done; touch d/new; echo; }";
    let ended = in_a_root(sandbox, &format!("{other} | {reader} || echo lost $?"));
    assert_eq!(ended.out(), "lost 125\n");
    ended.complains_of(&["/mount/d was listed, and changed by others", "nothing was changed"]);
}
