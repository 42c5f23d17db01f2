//! What chattr(1) protects, inside transactions: `i`, which nobody may change, and `a`, which may only grow. A commit
//! leaves it as the command did, and is not in its own way.

use crate::case::Case;
use crate::disorder::Cleared;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::tree_state;
use std::path::Path;

const EXT4: &[Need] = &[
    Need::Root,
    Need::Program("mkfs.ext4", "e2fsprogs"),
    Need::Program("chattr", "e2fsprogs"),
    Need::Program("setpriv", "util-linux"),
];
const XFS: &[Need] = &[Need::Root, Need::Program("mkfs.xfs", "xfsprogs"), Need::Program("chattr", "e2fsprogs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_protection::on_ext4", |sandbox| all(sandbox, &["mkfs.ext4", "-q"], &[])).needs(EXT4),
    Case::new("tx_protection::on_xfs", |sandbox| all(sandbox, &["mkfs.xfs", "-q"], &[])).needs(XFS),
    Case::new("tx_protection::in_memory", |sandbox| all(sandbox, &["mkfs.ext4", "-q"], &["--in-memory"])).needs(EXT4),
    Case::new("tx_protection::what_cannot_be_written_to_at_all_is_not_protected", layers),
    Case::new("tx_protection::without_the_right_to_lift_it_nothing_is_changed", without_the_right).needs(EXT4),
];

/// What is done before, what is done in a transaction, and how each file is protected then: `i`, `a`, `-`, and nothing
/// for one that is gone.
type Script = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const SCRIPTS: &[Script] = &[
    (
        "",
        "echo x >new; chattr +i new; echo y >log; chattr +a log; mkdir d; echo z >d/in; chattr +i d/in d",
        &[("new", "i"), ("log", "a"), ("d", "i"), ("d/in", "i")],
    ),
    ("echo x >old; mkdir d", "chmod 600 old; chmod 700 d; chattr +i old; chattr +a d", &[("old", "i"), ("d", "a")]),
    ("echo x >old; chattr +i old", "chmod 600 old 2>/dev/null || true; touch beside", &[("old", "i"), ("beside", "-")]),
    (
        "mkdir d; echo x >d/old; chattr +a d",
        "echo y >d/new; echo z >>d/old",
        &[("d", "a"), ("d/new", "-"), ("d/old", "-")],
    ),
    ("echo x >log; ln log other; chattr +a log", "echo y >>log", &[("log", "a"), ("other", "a")]),
    (
        "mkdir d; echo x >d/old; chattr +i d/old d",
        "unprotect d/old d; echo y >d/old; chattr +i d/old d",
        &[("d", "i"), ("d/old", "i")],
    ),
    ("mkdir d; echo x >d/old; chattr +i d/old d", "unprotect d/old d; rm -r d", &[("d", ""), ("d/old", "")]),
    (
        "mkdir -p d/e; echo x >d/old; ln d/old d/e/other; chattr +i d/old d/e d",
        "unprotect d/old d; mv d/old moved; chattr +i moved; rename d other",
        &[("moved", "i"), ("other/e", "i"), ("other/e/other", "i"), ("d", "")],
    ),
    ("echo x >old; chattr +i old", "unprotect old; mv old new", &[("new", "-"), ("old", "")]),
    ("echo x >old; chattr +i old", "unprotect old; rm old; mkdir old; chattr +a old", &[("old", "a")]),
];

/// Scripts one after another, each in a transaction, and once more in one that is aborted.
fn all(sandbox: &Sandbox, format: &[&str], options: &[&str]) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 400, format, "");
    for (number, (before, inside, expected)) in SCRIPTS.iter().enumerate() {
        let at = disk.at.join(number.to_string());
        std::fs::create_dir(&at).expect("a directory can be made");
        let cleared = Cleared(at.clone());
        Line::new("sh").args(["-ec", before]).directory(&at).ok();
        std::thread::sleep(std::time::Duration::from_millis(12));
        let protected = || expected.iter().map(|(name, _)| protection(&at.join(name))).collect::<Vec<_>>();
        let earlier = protected();
        // What is copied to memory first is not asked for flags that only its old file system knows.
        let script = format!("unprotect() {{ for at; do chmod u+r $at 2>/dev/null || true; chattr -ia $at 2>/dev/null || chattr -ia $at; done; }}
             rename() {{ chattr -ia $1; mv $1 $2; }}
             {inside}");
        let run = |more: &str| {
            let line = sandbox.pando(["tx", "run", "-q", "--retry", "0"]).args(options).args(["--", "sh", "-ec"]);
            line.args([format!("{script}; {more}")]).directory(&at).run()
        };
        run("exit 3").ended_with(3);
        assert_eq!(protected(), earlier, "{inside}");
        run("true").succeeded();
        assert_eq!(protected(), expected.iter().map(|(_, how)| *how).collect::<Vec<_>>(), "{inside}");
        drop(cleared);
    }
    // Nothing that was thrown away is left behind because it was protected.
    let trash = || {
        Line::new("find")
            .args([sandbox.root().join("var/lib/pando/tx/.trash"), disk.at.join(".pando-tx")])
            .args(["-mindepth", "1"])
            .run()
            .out()
    };
    sandbox.pando(["tx", "recover"]).ok();
    crate::patience::eventually("the rubbish is gone", || trash().is_empty());
}

fn protection(path: &Path) -> &'static str {
    if path.symlink_metadata().is_err() {
        return "";
    }
    tree_state::protection(path).strip_prefix('+').unwrap_or("-")
}

/// The kernel lets whoever cannot lift it add to what may only grow, but not set the time that it has then.
fn without_the_right(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 40, &["mkfs.ext4", "-q"], "");
    let at = disk.at.join("tree");
    let _cleared = Cleared(at.clone());
    Line::new("sh").args(["-ec", "mkdir tree tree/d; chattr +a tree/d"]).directory(&disk.at).ok();
    std::thread::sleep(std::time::Duration::from_millis(12));
    let line = Line::new("setpriv").args(["--bounding-set=-linux_immutable", "--inh-caps=-linux_immutable"]);
    let line = line.args([sandbox.program()]).args(["--root"]).args([sandbox.root()]);
    let line = line.args(["tx", "run", "--retry", "0", "--", "touch", "d/new"]).directory(&at);
    line.run().ended_with(125).complains_of(&["is protected", "CAP_LINUX_IMMUTABLE", "nothing was changed"]);
    assert!(!at.join("d/new").exists());
}

/// The layers of a guest are images that nobody can write to, of whose files the kernel says that they are immutable.
fn layers(sandbox: &Sandbox) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    std::fs::write(tree.join("srv/file"), "old\n").expect("a file can be written");
    sandbox.pando(["create", "g", "--start", "--from"]).args([&tree]).ok();
    let run = |option: &str, script: &str| {
        sandbox.pando(["tx", "run", "-q", "--guest", "g", option, "--", "sh", "-ec", script]).ok()
    };
    assert_eq!(run("--dry-run", ": >>/srv/file"), "");
    assert_eq!(run("--dry-run", "chmod 600 /srv/file"), "~ /srv/file\n    mode 0644 → 0600\n");
    assert_eq!(run("--retry=0", "echo new >>/srv/file; mv /srv/file /srv/moved; touch /srv/made"), "");
    assert_eq!(
        sandbox.pando(["exec", "g", "--", "sh", "-c", "cat /srv/moved; ls /srv"]).ok(),
        "old\nnew\nmade\nmoved\n"
    );
}
