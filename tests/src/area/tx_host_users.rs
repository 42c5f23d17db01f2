//! Users of the host who are not root arrange what a transaction of root's finds where they may write: nothing of
//! theirs is used, and nothing of others is harmed.

use crate::case::Case;
use crate::line::Line;
use crate::sandbox::Sandbox;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_host_users::a_planted_directory_is_not_used", |sandbox| planted(sandbox, &Plant::Directory)),
    Case::new("tx_host_users::a_planted_link_is_not_followed", |sandbox| planted(sandbox, &Plant::Link)),
    Case::new("tx_host_users::a_planted_file_is_left_alone", |sandbox| planted(sandbox, &Plant::File)),
    Case::new("tx_host_users::a_mount_of_theirs_is_not_written_to", |sandbox| planted(sandbox, &Plant::Mount)),
    Case::new("tx_host_users::where_all_may_write_is_written_to_safely", shared),
    Case::new("tx_host_users::a_shared_place_is_noticed", mistaken),
];

/// Somebody who is not root.
const SOMEBODY: u32 = 12_345;

/// What he has put where the transaction's directory on a mount would be.
enum Plant {
    /// A directory of his, with links in it, of all names that a transaction is likely to use.
    Directory,
    Link,
    File,
    /// Nothing, but the mount itself is his.
    Mount,
}

struct Scene {
    mount: PathBuf,
    victim: PathBuf,
}

impl Scene {
    const KEPT: &str = "as it was";

    /// A file system in memory that everybody may write to, and a file that is root's alone.
    fn set(sandbox: &Sandbox, mode: u32) -> Self {
        let (mount, victim) = (sandbox.scratch().join("shared"), sandbox.scratch().join("victim"));
        std::fs::create_dir_all(&mount).expect("a directory");
        std::fs::create_dir_all(&victim).expect("a directory");
        std::fs::write(victim.join("file"), Self::KEPT).expect("a file");
        let options = format!("mode={mode:o}");
        Line::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).args([mount.as_os_str()]).ok();
        Self { mount, victim }
    }

    fn hidden(&self) -> PathBuf {
        self.mount.join(".pando-tx")
    }

    #[track_caller]
    fn is_unharmed(&self) {
        let names: Vec<_> = std::fs::read_dir(&self.victim).expect("it is there").flatten().collect();
        assert_eq!(names.len(), 1, "something was made beside the victim: {names:?}");
        let kept = std::fs::read_to_string(self.victim.join("file")).expect("it is there");
        assert_eq!(kept, Self::KEPT, "the victim was written to");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = Line::new("umount").args([self.mount.as_os_str()]).run();
    }
}

fn somebodys(path: &Path) {
    std::os::unix::fs::lchown(path, Some(SOMEBODY), Some(SOMEBODY)).expect("root may");
}

/// The word that tells this root's transactions from another's, as whoever knows the root can reckon it.
fn mark(root: &Path) -> String {
    let bytes = root.as_os_str().as_encoded_bytes();
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("-{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

fn plant(sandbox: &Sandbox, scene: &Scene, plant: &Plant) {
    let hidden = scene.hidden();
    match plant {
        Plant::Directory => {
            std::fs::create_dir(&hidden).expect("a directory");
            somebodys(&hidden);
            for number in 0..80 {
                let part = hidden.join(format!("{number}.work{}", mark(sandbox.root())));
                std::fs::create_dir(&part).expect("a directory");
                std::fs::set_permissions(&part, PermissionsExt::from_mode(0o777)).expect("it is ours");
                for name in ["root", "room"] {
                    symlink(scene.victim.join("file"), part.join(name)).expect("a link");
                    somebodys(&part.join(name));
                }
                somebodys(&part);
            }
        }
        Plant::Link => {
            symlink(&scene.victim, &hidden).expect("a link");
            somebodys(&hidden);
        }
        Plant::File => {
            std::fs::write(&hidden, "his").expect("a file");
            somebodys(&hidden);
        }
        Plant::Mount => somebodys(&scene.mount),
    }
}

fn planted(sandbox: &Sandbox, what: &Plant) {
    let scene = Scene::set(sandbox, 0o1777);
    let kept = sandbox.scratch().join("kept");
    plant(sandbox, &scene, what);
    let (kept, shared) = (kept.display(), scene.mount.display());
    sandbox.pando(["tx", "begin", "work"]).ok();
    let script = format!("echo new >{kept}; echo new >{shared}/file 2>/dev/null && echo written; true");
    let said = sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", &script]).ok();
    assert!(!said.contains("written"), "a place that is not safe was written to");
    sandbox.pando(["tx", "commit", "work"]).ok();
    assert_eq!(std::fs::read_to_string(sandbox.scratch().join("kept")).expect("it was committed").trim(), "new");
    scene.is_unharmed();
    // And of one that is given up, nothing is cleared away that is not its own.
    sandbox.pando(["tx", "begin", "work"]).ok();
    sandbox.pando(["tx", "abort", "work"]).ok();
    sandbox.pando(["tx", "recover"]).ok();
    scene.is_unharmed();
    if let Plant::File = what {
        assert_eq!(std::fs::read_to_string(scene.hidden()).expect("it is there"), "his");
    }
}

/// In /dev/shm and the like transactions are of use as ever, and what they keep there is nobody else's.
fn shared(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox, 0o1777);
    let file = scene.mount.join("file");
    sandbox.pando(["tx", "begin", "work"]).ok();
    let script = format!("echo new >{}", file.display());
    sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", &script]).ok();
    let mode = std::fs::metadata(scene.hidden()).expect("its directory").permissions().mode();
    assert_eq!(mode & 0o077, 0, "others reach what a transaction keeps: {mode:o}");
    sandbox.pando(["tx", "commit", "work"]).ok();
    assert_eq!(std::fs::read_to_string(&file).expect("it was committed").trim(), "new");
}

/// A transaction that takes what it finds, as none may.
fn mistaken(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox, 0o1777);
    plant(sandbox, &scene, &Plant::Link);
    let begun = sandbox.pando(["tx", "begin", "work"]).env("PANDO_TX_PLANT", "shared-place").run();
    let count = std::fs::read_dir(&scene.victim).expect("it is there").count();
    assert!(begun.code() != 0 || count > 1, "the test does not notice that somebody's link was followed");
    let _ = sandbox.pando(["tx", "abort", "work"]).env("PANDO_TX_PLANT", "shared-place").run();
}
