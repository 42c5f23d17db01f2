//! The root of a mount, whose attributes no overlay copies: a view shows them, a commit keeps them, and whose a change
//! is can be told.

use crate::case::Case;
use crate::disorder;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mkfs.ext4", "e2fsprogs"), Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_mount_root::attributes_are_seen_and_kept", |sandbox| kept(sandbox, &[])).needs(NEEDS),
    Case::new("tx_mount_root::attributes_are_seen_and_kept_in_memory", |sandbox| kept(sandbox, &["--in-memory"]))
        .needs(NEEDS),
    Case::new("tx_mount_root::attributes_are_seen_and_kept_on_a_spare", on_spares).needs(NEEDS),
    Case::new("tx_mount_root::a_change_of_it_is_committed", changed).needs(NEEDS),
    Case::new("tx_mount_root::what_others_change_stays", by_others).needs(NEEDS),
    Case::new("tx_mount_root::what_others_change_is_a_conflict_where_names_come_and_go", conflict).needs(NEEDS),
];

fn disk(sandbox: &Sandbox) -> SmallDisk {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 40, &["mkfs.ext4", "-q"], "");
    set(&disk.at, "user.kept", b"yes");
    // user::rwx user:7:r-x group::r-x mask::r-x other::---
    set(&disk.at, "system.posix_acl_access", &disorder::access_list(7, [7, 5, 5, 5, 0]));
    std::thread::sleep(std::time::Duration::from_millis(12));
    disk
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).expect("an attribute can be set");
}

/// Mode, owner and extended attributes of a directory.
fn attributes(path: &Path) -> String {
    let found = path.metadata().expect("it is there");
    let value = |name: &str| {
        let mut value = vec![0; 200];
        let length = rustix::fs::getxattr(path, name, &mut value).unwrap_or_default();
        format!("{:?}", &value[..length])
    };
    let (mode, owner) = (found.mode(), found.uid());
    format!("{mode:o} {owner} {} {}", value("user.kept"), value("system.posix_acl_access"))
}

/// A command in a transaction, in a directory.
fn run(sandbox: &Sandbox, options: &[&str], at: &Path, script: &str) -> Line {
    let line = sandbox.pando(["tx", "run", "--retry", "0"]).args(options);
    line.args(["--", "sh", "-ec", script]).directory(at)
}

const READ: &str =
    "import os; print(os.getxattr('.', 'user.kept').decode(), len(os.getxattr('.', 'system.posix_acl_access')))";

fn kept(sandbox: &Sandbox, options: &[&str]) {
    let disk = disk(sandbox);
    let before = attributes(&disk.at);
    let said = run(sandbox, options, &disk.at, &format!("python3 -c \"{READ}\"; touch made")).ok();
    assert_eq!(said, "yes 44\n");
    assert!(disk.at.join("made").exists());
    assert_eq!(attributes(&disk.at), before);
}

/// One that was made before the attributes changed.
fn on_spares(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
    let disk = disk(sandbox);
    for value in ["one", "two", "three"] {
        run(sandbox, &[], &disk.at, "touch made").ok();
        std::thread::sleep(std::time::Duration::from_millis(300));
        set(&disk.at, "user.kept", value.as_bytes());
        let before = attributes(&disk.at);
        let said = run(sandbox, &[], &disk.at, &format!("python3 -c \"{READ}\"; touch again; rm made")).ok();
        assert_eq!(said, format!("{value} 44\n"));
        assert_eq!(attributes(&disk.at), before);
    }
}

fn changed(sandbox: &Sandbox) {
    let disk = disk(sandbox);
    let script = "chmod 711 .; chown 3 .; python3 -c \"import os; os.removexattr('.', 'user.kept')\"";
    run(sandbox, &[], &disk.at, &format!("{script}; exit 3")).run().ended_with(3);
    assert!(attributes(&disk.at).starts_with("40750 0 [121"), "{}", attributes(&disk.at));
    run(sandbox, &[], &disk.at, script).ok();
    assert!(attributes(&disk.at).starts_with("40711 3 [] "), "{}", attributes(&disk.at));
}

/// The root was looked at, and used, and nothing of it was changed inside.
fn by_others(sandbox: &Sandbox) {
    let disk = disk(sandbox);
    std::fs::create_dir(disk.at.join("d")).expect("a directory can be made");
    let beside = sandbox.scratch().join("beside");
    std::fs::create_dir(&beside).expect("a directory can be made");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let script =
        format!("cat {0}/d/none 2>/dev/null || true; echo x >made; touch ready; read line || true", disk.at.display());
    let started = run(sandbox, &[], &beside, &script).start_with_open_input();
    is_under_way(sandbox);
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&disk.at, mode).expect("the mode can be changed");
    set(&disk.at, "user.kept", b"other");
    let after = attributes(&disk.at);
    started.close_input().wait().succeeded();
    assert!(beside.join("made").exists());
    assert_eq!(attributes(&disk.at), after);
}

fn conflict(sandbox: &Sandbox) {
    let disk = disk(sandbox);
    let change: [fn(&Path); 2] = [
        |at| std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o700)).expect("the mode can be changed"),
        |at| set(at, "user.kept", b"other"),
    ];
    for change in change {
        let started = run(sandbox, &[], &disk.at, "touch made; read line || true").start_with_open_input();
        is_under_way(sandbox);
        change(&disk.at);
        let after = attributes(&disk.at);
        started.close_input().wait().ended_with(125).complains_of(&["/mounted was changed by others"]);
        assert_eq!(attributes(&disk.at), after);
        assert!(!disk.at.join("made").exists());
    }
}

fn is_under_way(sandbox: &Sandbox) {
    let paths = |line: &str| line.contains("  1  ") || line.contains("  2  ");
    crate::patience::eventually("the script has changed its files", || {
        sandbox.pando(["tx", "ls"]).ok().lines().skip(1).any(paths)
    });
}
