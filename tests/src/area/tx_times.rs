//! What tells what was changed since a transaction began from what was changed before: the times that file systems
//! keep, and the clock that they are of.

use super::tx_filesystems::on_small_inodes;
use crate::case::{Case, Tag};
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;

const EXT4: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("mkfs.ext4", "e2fsprogs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_times::whole_seconds_hide_nothing", whole_seconds).needs(EXT4),
    Case::new("tx_times::a_clock_that_was_set_back_is_a_conflict", set_back),
    Case::new("tx_times::what_is_changed_after_the_clock_was_set_back_is_a_conflict", set_back_indeed)
        .tags(&[Tag::VmAlone]),
];

/// What others change right after it was read bears the same second, and what they changed right before the beginning,
/// or Pando at the mount's root, is no matter.
fn whole_seconds(sandbox: &Sandbox) {
    let text = "for try in 1 2 3; do
           echo old >file; : >../out
           { until grep -q old ../out; do sleep .01; done; echo new >file; echo; } | $TX run --retry 0 -- sh -ec 'cat file; read line' >../out || echo $?
           touch made; $TX run --retry 0 -- sh -c 'ls; cat file; echo in >file'; cat file; rm made
         done
         cd ..; gone at";
    let ended = on_small_inodes(sandbox, text).succeeded();
    let once = "125\nfile\nlost+found\nmade\ntree\nnew\nin\n";
    assert_eq!(ended.out(), once.repeat(3));
    ended.complains_of(&["at/file was changed by others"]);
}

/// Begins, reads a file, does `meanwhile` in the transaction's directory, has others change what was read, and commits.
fn commits_after(sandbox: &Sandbox, meanwhile: &str, after: &str) -> Ended {
    let script = format!(
        "echo old >file; sleep .02; TX=\"$PANDO --root $ROOT tx\"; $TX begin work; $TX enter work -- sh -c 'cat file; echo x >made' >/dev/null
         {meanwhile}
         $TX commit work; echo $?; {after}; $TX abort work 2>/dev/null; $TX run -q -- touch made; ls made"
    );
    let line = Line::new("bash").args(["-c", &script]).directory(sandbox.scratch());
    line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).run()
}

/// Without setting that of this machine: it is said to have been ahead of what it is.
fn set_back(sandbox: &Sandbox) {
    let record = "$ROOT/var/lib/pando/tx/work/record.json";
    let later = |by: &str| {
        format!(
            "ahead=$(grep -o '\"ahead\":[0-9]*' {record} | cut -d: -f2); sed -i \"s/\\\"ahead\\\":$ahead/\\\"ahead\\\":$((ahead + {by}))/\" {record}"
        )
    };
    let ended = commits_after(sandbox, &later("1000000000"), "true");
    assert_eq!(ended.complains_of(&["the clock was set back by others"]).out(), "125\nmade\n");
    assert_eq!(commits_after(sandbox, &later("-1000000000"), "true").out(), "0\nmade\n");
}

/// On a machine of its own.
fn set_back_indeed(sandbox: &Sandbox) {
    let set = |by: &str| format!("date -s @$(($(date +%s) {by})) >/dev/null");
    let ended = commits_after(sandbox, &format!("{}; echo new >file", set("- 600")), &set("+ 600"));
    assert_eq!(ended.complains_of(&["the clock was set back by others"]).out(), "125\nmade\n");
    assert_eq!(std::fs::read_to_string(sandbox.scratch().join("file")).expect("it is there"), "new\n");
}
