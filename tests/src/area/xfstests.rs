//! fsstress and fsx themselves, of the xfstests: in unified guests and in transactions they leave what they leave on
//! plain files.
//!
//! They come from the xfstests' sources, and no distribution has them: `./x test slow` builds both of those that
//! `PANDO_XFSTESTS` names.

use super::store_disorder::{GUESTS, assert_same, data, lines, now, three_guests, unify};
use crate::case::{Case, Tag};
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("xfstests::in_unified_guests", in_unified_guests).needs(NEEDS).tags(&[Tag::Slow]),
    Case::new("xfstests::in_transactions", in_transactions).needs(NEEDS).tags(&[Tag::Slow]),
];

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("fsstress", "xfstests, of whose sources in PANDO_XFSTESTS `./x test slow` builds it"),
    Need::Program("fsx", "xfstests, of whose sources in PANDO_XFSTESTS `./x test slow` builds it"),
];

/// Operations in all, half of them before a unification and half after it.
const COUNT: u64 = 10_000;

/// The operations of fsstress that draw the same numbers on every file system: what others do next hangs on the block
/// size, on what can be cloned, on descriptors of files by handle. mknod(2) makes the character device 0:0 at times,
/// which is an overlay's own mark.
const OPERATIONS: [&str; 23] = [
    "chown",
    "creat",
    "fdatasync",
    "fsync",
    "getdents",
    "getfattr",
    "link",
    "listfattr",
    "mkdir",
    "read",
    "readlink",
    "readv",
    "removefattr",
    "rename",
    "rmdir",
    "setfattr",
    "stat",
    "symlink",
    "truncate",
    "unlink",
    "write",
    "writev",
    "rnoreplace",
];

/// The operations of fsx that not every file system has: range operations of fallocate(2), clones and copies of ranges.
const NOT_EVERYWHERE: &str = "-F -H -z -C -I -J -B -E -0";

/// What changes a directory: the same for the same seed.
fn script(directory: &Path, seed: u64, count: u64) -> String {
    let at = directory.display();
    let operations: String = OPERATIONS.iter().map(|name| format!(" -f {name}=1")).collect();
    format!(
        "mkdir -p {at}/stress; cd {at}/stress; fsstress -d . -n {count} -p 1 -s {seed} -z{operations} >/dev/null; cd {at}; \
         fsx -q {NOT_EVERYWHERE} -N {count} -S {seed} file >/dev/null; rm -f file.fsxgood file.fsxlog"
    )
}

fn change(directory: &Path, seed: u64, count: u64) {
    Line::new("sh").args(["-ec", &script(directory, seed, count)]).ok();
}

/// Puts both programs, with the libraries that they need, where guests of the tree find them: seen from the host a
/// guest's directories have no path.
fn bring(tree: &Path) {
    const BRING: &str = "for program in fsstress fsx; do file=$(command -v $program); cp \"$file\" \"$0/bin\"; \
                         ldd \"$file\" | grep -o '/[^ ]*' | xargs -I@ cp --parents -L @ \"$0\"; done";
    Line::new("sh").args(["-ec", BRING]).args([tree]).ok();
}

fn in_unified_guests(sandbox: &Sandbox) {
    let fill = |data: &Path| {
        change(data, 3, 500);
        bring(data.parent().expect("the tree"));
    };
    let tree = three_guests(sandbox, fill);
    let since = now() + 1;
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    let untouched = lines(&data(sandbox, "watching"), since);
    for (name, seed) in GUESTS {
        let copy = sandbox.scratch().join(name);
        Line::new("cp").args(["-a"]).args([&tree.join("data"), &copy]).ok();
        for round in 0..2 {
            sandbox.exec_sh(name, &script(Path::new("/data"), seed + round, COUNT / 2)).ok();
            change(&copy, seed + round, COUNT / 2);
            let same = |when: &str| {
                let what = format!("{name}, {when} {round}");
                assert_same(&what, &lines(&copy, since), &lines(&data(sandbox, name), since));
                assert_same("the guest that only watches", &untouched, &lines(&data(sandbox, "watching"), since));
            };
            same("round");
            unify(sandbox, &round.to_string());
            same("unified");
        }
    }
    sandbox.pando(["store", "verify"]).ok();
}

fn in_transactions(sandbox: &Sandbox) {
    let since = now();
    let [native, inside] = ["native", "inside"].map(|name| sandbox.scratch().join(name));
    for seed in 1..=5 {
        change(&native, seed, COUNT / 5);
        sandbox.pando(["tx", "run", "--", "sh", "-ec", &script(&inside, seed, COUNT / 5)]).ok();
        assert_same(&format!("seed {seed}"), &lines(&native, since), &lines(&inside, since));
    }
}
